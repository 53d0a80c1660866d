"""A small corpus, its prepared data, and the programs run as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.data.corpus import write_pairs

WORDS = ["red", "green", "blue", "seven", "apple", "tree", "house", "runs", "sleeps", "fast"]
SETTINGS = {
    "STEPS": 6,
    "EXPERTS": 4,
    "Model.model_dim": 32,
    "Model.hidden_dim": 32,
    "Model.expert_hidden_dim": 32,
    "Model.heads": 2,
    "Model.head_dim": 8,
    "Data.minimum_pairs": 1,
    "Data.source_vocabulary": 400,
    "Data.target_vocabulary": 400,
    "Data.source_length": 16,
    "Data.target_length": 16,
    "Data.rows": 8,
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


def environment() -> dict[str, str]:
    """Without the virtual devices of the tests: a program makes its own."""
    return {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}


def program(name: str, *arguments: object, stdin: str | None = None):
    """Runs a program to its end."""
    return subprocess.run(
        command(name, *arguments),
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )


def gin(**changes: object) -> list[str]:
    """The settings of a small run, as flags."""
    return [f"--gin={name} = {value!r}" for name, value in (SETTINGS | changes).items()]


def succeed(done: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    """What ended well."""
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """`corpus/` of two languages, words spelled backwards, and `data/`."""
    root = tmp_path_factory.mktemp("pipeline")
    rng = np.random.default_rng(0)
    for language, count in (("fr", 150), ("de", 60)):
        for split, number in (("train", count), ("dev", 8), ("test", 6)):
            chosen = [rng.choice(WORDS, rng.integers(1, 5)) for _ in range(number)]
            rows = [(" ".join(w[::-1] for w in words), " ".join(words)) for words in chosen]
            write_pairs(root / "corpus" / f"{language}-en", split, language, "en", rows)
    common = ["--config", "demo", *gin()]
    succeed(
        program("data", "prepare", *common, "--corpus", root / "corpus", "--out", root / "data")
    )
    return root
