"""Measures what reliability costs: checkpoints, checksums, divergence checks and full logging.

    .venv/bin/python benchmarks/reliability.py             # 5 pairs of 300 steps
    .venv/bin/python benchmarks/reliability.py --every 100 --pairs 3

It trains the demo's model in turns, with all of it and with none of it, in one process each, and prints
the median of the ratios. The data is data/demo/prepared, which `make demo` makes, or else a corpus of its
own. Every checkpoint is committed, and those that are kept are verified at the end. The machine must be
quiet. "None of it" has no checkpoint and no log line, and its training step returns only the loss and has
no guard and no figures of the router.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from training import make_corpus, run

ARMS = ("with", "without")
DEMO_DATA = Path("data/demo/prepared")


def main() -> int:
    """Prints the seconds of each run, and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--data", type=Path, help=f"prepared data; default {DEMO_DATA}")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        print(json.dumps({"seconds": train_once(arguments)}))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        data = arguments.data or (DEMO_DATA if DEMO_DATA.exists() else None)
        if data is None:
            make_corpus(root / "corpus")
            prepare = ["--config", "demo", "--gin=Data.minimum_pairs = 1"]
            data = root / "data"
            run("data", "prepare", *prepare, "--corpus", root / "corpus", "--out", data)
        for arm in ARMS:  # compiles
            in_a_process(arm, root, data, 10, arguments.every)
        ratios = []
        for pair in range(arguments.pairs):
            # The order changes, because a machine gets warmer or busier.
            arms = ARMS if pair % 2 == 0 else ARMS[::-1]
            seconds = {
                arm: in_a_process(arm, root, data, arguments.steps, arguments.every) for arm in arms
            }
            ratios.append(seconds["with"] / seconds["without"])
            print(
                f"pair {pair + 1}: {seconds['with']:.2f} s with, {seconds['without']:.2f} s without: "
                f"{ratios[-1] - 1:+.2%}",
                flush=True,
            )
    saves = arguments.steps // arguments.every
    print(
        f"median of {arguments.pairs} pairs of {arguments.steps} steps, {saves} checkpoints each: "
        f"{statistics.median(ratios) - 1:+.2%}"
    )
    return 0


def in_a_process(arm: str, root: Path, data: Path, steps: int, every: int) -> float:
    """Runs one arm in a process of its own; returns the seconds of its training."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        (Path(folder) / "programs").symlink_to(root / f"programs-{arm}")
        (root / f"programs-{arm}").mkdir(exist_ok=True)
        flags = ["--arm", arm, "--folder", folder, "--steps", str(steps), "--every", str(every)]
        done = subprocess.run(
            [sys.executable, __file__, *flags, "--data", str(data)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stderr)
        if arm == "with":
            run("checkpoint", "verify", "--workdir", Path(folder) / "run")
        return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def train_once(arguments: argparse.Namespace) -> float:
    """Trains one run; returns the seconds from its first batch to its end."""
    from gshard_nmt import train
    from gshard_nmt.settings.gin_reader import load_config

    never = 10**9
    every = arguments.every if arguments.arm == "with" else never
    bindings = {
        "STEPS": arguments.steps,
        "Train.log_every": every,
        "Train.checkpoint_every": every,
        "Train.dev_every": 0,
        "Train.bleu_sentences": 0,
        "Optimizer.cooldown_steps": 0,
    }
    config = load_config("demo", [f"{name} = {value!r}" for name, value in bindings.items()])
    began: list[float] = []
    next_batch = train.TrainBatches.__next__

    def first_batch_starts_the_clock(batches):
        began.append(time.perf_counter())
        return next_batch(batches)

    folder = arguments.folder
    # Runs beside a baselines.json share the folder of programs beside it.
    (folder / "baselines.json").write_text("{}\n")
    with contextlib.ExitStack() as patches:
        patches.enter_context(
            mock.patch.object(train.TrainBatches, "__next__", first_batch_starts_the_clock)
        )
        if arguments.arm == "without":
            for patch in nothing():
                patches.enter_context(patch)
        train.train(config, arguments.data, folder / "run")
        return time.perf_counter() - began[0]


def nothing() -> list:
    """Returns the patches that take out guard, figures and the last checkpoint."""
    from gshard_nmt.model.steps import StepFunctions
    from gshard_nmt.run.checkpoint_writer import CheckpointWriter
    from gshard_nmt.run.monitor import Monitor

    step = StepFunctions.train_step
    kept = ("loss", "last_step", "tokens_seen", "status")

    def bare_step(functions, state, batch, control):
        new_state, metrics = step(functions, state, batch, control)
        import tensorflow as tf

        # What nothing reads, the compiler removes.
        bare = {name: metrics[name] for name in kept} | {"status": tf.zeros([], tf.int32)}
        return [new_state, bare]

    return [
        mock.patch.object(StepFunctions, "train_step", bare_step),
        mock.patch("gshard_nmt.model.guard.applied", lambda _, new, __: new),
        mock.patch.object(CheckpointWriter, "save", return_value=False),
        mock.patch.object(Monitor, "log_step"),
    ]


if __name__ == "__main__":
    sys.exit(main())
