"""Measures what reliability costs: checkpoints, checksums, divergence checks and full logging.

    .venv/bin/python benchmarks/reliability.py             # 5 pairs of 300 steps
    .venv/bin/python benchmarks/reliability.py --every 100 --pairs 3

It trains the demo's model with all of it and with none of it, in one process each, and prints the median
of the ratios. The two processes of a pair take turns of as many steps as there are between two
checkpoints: one is stopped while the other trains. So a machine that gets slower for a minute slows both.
A turn that begins with a checkpoint also has the work of its background threads. The data is
data/demo/prepared, which `make demo` makes, or else a corpus of its own. Every checkpoint is committed,
and those that are kept are verified at the end. The machine must be quiet. "None of it" has no checkpoint
and no log line, and its training step returns only the loss and has no guard and no figures of the
router.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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
        train_once(arguments)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        data = arguments.data or (DEMO_DATA if DEMO_DATA.exists() else None)
        if data is None:
            make_corpus(root / "corpus")
            prepare = ["--config", "demo", "--gin=Data.minimum_pairs = 1"]
            data = root / "data"
            run("data", "prepare", *prepare, "--corpus", root / "corpus", "--out", data)
        pair_of_runs(root, data, 10, arguments.every, ARMS)  # compiles
        ratios = []
        for pair in range(arguments.pairs):
            arms = ARMS if pair % 2 == 0 else ARMS[::-1]
            seconds = pair_of_runs(root, data, arguments.steps, arguments.every, arms)
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


def pair_of_runs(
    root: Path, data: Path, steps: int, every: int, arms: Sequence[str]
) -> dict[str, float]:
    """Trains one run of each arm, in turns; returns the seconds of training of each."""
    seconds = dict.fromkeys(arms, 0.0)
    with contextlib.ExitStack() as stack:
        runs = {arm: stack.enter_context(turns(arm, root, data, steps, every)) for arm in arms}
        for turn in itertools.count():
            alive = [arm for arm in arms if runs[arm].poll() is None]
            if not alive:
                break
            for arm in alive if turn % 2 == 0 else alive[::-1]:
                seconds[arm] += next_turn(runs[arm])
        run("checkpoint", "verify", "--workdir", root / "with" / "run")
    return seconds


@contextlib.contextmanager
def turns(
    arm: str, root: Path, data: Path, steps: int, every: int
) -> Iterator[subprocess.Popen[str]]:
    """Starts a process that trains a run, and yields it when it is about to read its first batch.

    It is stopped then. The run folder is removed at the end.
    """
    folder = root / arm
    (folder / "programs").parent.mkdir(exist_ok=True)
    if not (folder / "programs").exists():
        (root / f"programs-{arm}").mkdir(exist_ok=True)
        (folder / "programs").symlink_to(root / f"programs-{arm}")
    flags = ["--arm", arm, "--folder", folder, "--steps", str(steps), "--every", str(every)]
    command = [sys.executable, __file__, *flags, "--data", str(data)]
    with tempfile.TemporaryFile("w+") as messages:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True)
        try:
            wait_until_it_stops(process)
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            shutil.rmtree(folder / "run", ignore_errors=True)
            if process.returncode:
                messages.seek(0)
                sys.exit(messages.read())


def next_turn(process: subprocess.Popen[str]) -> float:
    """Lets a process train until it stops again or ends; returns the seconds of this turn."""
    process.send_signal(signal.SIGCONT)
    assert process.stdout is not None
    seconds = float(process.stdout.readline() or 0)
    wait_until_it_stops(process)
    return seconds


def wait_until_it_stops(process: subprocess.Popen[str]) -> None:
    """Waits until a process is stopped or has ended. Popen.wait() would wait for its end."""
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def train_once(arguments: argparse.Namespace) -> None:
    """Trains one run. At the end of each turn it prints its seconds and stops."""
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
    began = 0.0
    batches_read = itertools.count()
    next_batch = train.TrainBatches.__next__

    def end_turn() -> None:
        print(time.perf_counter() - began, flush=True)

    def next_batch_in_turns(batches):
        nonlocal began
        number = next(batches_read)
        if number % arguments.every == 0:
            if number:
                end_turn()
            os.kill(os.getpid(), signal.SIGSTOP)  # stops all threads until the next turn
            began = time.perf_counter()
        return next_batch(batches)

    folder = arguments.folder
    # Runs beside a baselines.json share the folder of programs beside it.
    (folder / "baselines.json").write_text("{}\n")
    with contextlib.ExitStack() as patches:
        patches.enter_context(
            mock.patch.object(train.TrainBatches, "__next__", next_batch_in_turns)
        )
        if arguments.arm == "without":
            for patch in nothing():
                patches.enter_context(patch)
        train.train(config, arguments.data, folder / "run")
    end_turn()


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
