"""A small corpus, its prepared data, one trained run, and the programs run as a user runs them."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.spmd import program_cache

WORDS = ["red", "green", "blue", "seven", "apple", "tree", "house", "runs", "sleeps", "fast"]
SETTINGS = {
    "STEPS": 6,
    "EXPERTS": 4,
    # One layer a side: the time to compile follows the number of layers.
    "Model.encoder_layers": 1,
    "Model.decoder_layers": 1,
    "Model.moe_every": 1,
    "Model.model_dim": 32,
    "Model.hidden_dim": 32,
    "Model.expert_hidden_dim": 32,
    "Model.heads": 2,
    "Model.head_dim": 8,
    # Another mesh adds in another order. If operands are rounded, that shows after a few steps.
    "Model.matmul_precision": "default",
    "Data.minimum_pairs": 1,
    "Data.source_vocabulary": 400,
    "Data.target_vocabulary": 400,
    "Data.source_length": 16,
    "Data.target_length": 16,
    "Data.rows": 8,
    # As in runs of any length: a schedule that ends at the last step would be another program.
    "Optimizer.cooldown_steps": 0,
    "Train.ema": 0.9,
    "Train.log_every": 1,
    "Train.checkpoint_every": 4,
    "Train.dev_every": 3,
    "Train.bleu_sentences": 2,
    "Decode.rows": 8,
    "Decode.beam": 2,
    "Decode.source_lengths": (16,),
}


def command(name: str, *arguments: object) -> list[str]:
    """The command line of a program."""
    return [sys.executable, "-m", "gshard_nmt", name, *map(str, arguments)]


def usual_flags() -> dict[str, str]:
    """Returns an environment with XLA's usual flags, for programs that compile for chips or run long."""
    return {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}


def program(name: str, *arguments: object, stdin: str | None = None, **options: Any):
    """Runs a program to its end, with options of `subprocess.run`."""
    return finished(command(name, *arguments), input=stdin, **options)


def finished(words: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, with options of `subprocess.run`."""
    usual = {"capture_output": True, "text": True, "timeout": 600, "check": False}
    return subprocess.run(list(map(str, words)), **(usual | options))


def gin(**changes: object) -> list[str]:
    """The settings of a small run, as flags."""
    return [f"--gin={name} = {value!r}" for name, value in (SETTINGS | changes).items()]


def succeed(done: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    """What ended well."""
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def lines_of(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of a run's log."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Returns a folder that `make` has filled, in this worker or in another one before it."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = folder.with_suffix(".made")
        if not marker.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what a failed attempt left
            folder.mkdir()
            make(folder)
            marker.touch()
    return folder


def share_programs(folder: Path) -> None:
    """Lets all run folders in a folder use one cache of compiled programs, by a baselines.json."""
    folder.mkdir(exist_ok=True)
    (folder / "baselines.json").write_text("{}\n")


def prepare(root: Path) -> None:
    """Writes `corpus/` of two languages, words spelled backwards, and prepares `data/`."""
    share_programs(root)
    rng = np.random.default_rng(0)
    for language, count in (("fr", 150), ("de", 60)):
        for split, number in (("train", count), ("dev", 8), ("test", 6)):
            chosen = [rng.choice(WORDS, rng.integers(1, 5)) for _ in range(number)]
            rows = [(" ".join(w[::-1] for w in words), " ".join(words)) for words in chosen]
            write_pairs(root / "corpus" / f"{language}-en", split, language, "en", rows)
    folders = ["--corpus", root / "corpus", "--out", root / "data"]
    succeed(program("data", "prepare", "--config", "demo", *gin(), *folders))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """A folder with `corpus/` and `data/`; run folders in it share their compiled programs."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # each worker has a folder of its own in it
    return once(root / "pipeline", prepare)


@pytest.fixture(scope="session")
def trained(prepared) -> Path:
    """Six steps in one process, never interrupted; `untouched/run` is a copy that no test disturbs."""

    def train(untouched: Path) -> None:
        folders = ["--data", prepared / "data", "--workdir", prepared / "run"]
        succeed(program("train", "--config", "demo", *folders, *gin()))
        shutil.copytree(prepared / "run", untouched / "run")
        shutil.copytree(prepared / "programs", untouched / "run" / "programs")
        # Decoding does not execute what a run folder brings, so it would lower the search anew.
        cache = program_cache.user_cache()
        assert cache is not None
        shutil.copytree(prepared / "programs", cache, dirs_exist_ok=True)

    once(prepared / "untouched", train)
    return prepared / "run"
