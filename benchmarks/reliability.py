"""Measures what reliability costs: checkpoints, checksums, divergence checks and full logging.

    .venv/bin/python benchmarks/reliability.py             # 5 pairs of 300 steps
    .venv/bin/python benchmarks/reliability.py --every 100 --rounds 3

It trains the demo's model with all of it and with none of it, and compares the times. Both
are turns of one process, of as many steps as there are between two checkpoints, because two processes
that do the same differ by up to 5 %. A turn with all of it begins with a log line and a checkpoint, and
also has the work of its background threads. A turn with none of it has no checkpoint and no log line, and
its training step returns only the loss and has no guard and no figures of the router.

The data is data/demo/prepared, which `make demo` makes, or else a corpus of its own. Every checkpoint is
committed, and those that are kept are verified at the end. The machine must be quiet.
"""

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from harness import environment, page
from harness.demo_runs import make_corpus, run
from harness.records import Figure
from harness.rounds import median_text

from gshard_nmt import train
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.compiled_steps import CompiledSteps, lower_train_step
from gshard_nmt.run.log.counters import RunCounters
from gshard_nmt.run.log.monitor import Monitor
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.lowering import LoweredFunction
from gshard_nmt.spmd.program import Program

DEMO_DATA = Path("data/demo/prepared")
WARM_UPS = 2
"""The pairs of turns before the first that counts."""


def main() -> None:
    """Prints a table, and writes it to docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=300, help="steps of each half of a pair")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--data", type=Path, help=f"prepared data; default {DEMO_DATA}")
    page.add_flags(parser, rounds=5, has_limit=False)
    arguments = parser.parse_args()
    busy = environment.busy()
    turns_of_pair = max(1, arguments.steps // arguments.every)
    steps_of_pair = turns_of_pair * arguments.every
    turns = Turns(arguments.every, WARM_UPS + arguments.rounds * turns_of_pair)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        data = arguments.data or (DEMO_DATA if DEMO_DATA.exists() else None)
        if data is None:
            make_corpus(root / "corpus")
            prepare = ["--config", "demo", "--gin=Data.minimum_pairs = 1"]
            data = root / "data"
            run("data", "prepare", *prepare, "--corpus", root / "corpus", "--out", data)
        turns.train(data, root / "run")
        run("checkpoint", "verify", "--workdir", root / "run")
    measured = []
    for pair in range(arguments.rounds):
        first = WARM_UPS + pair * turns_of_pair
        complete, bare = (sum(s[first : first + turns_of_pair]) for s in turns.seconds())
        measured.append((complete / steps_of_pair * 1e3, bare / steps_of_pair * 1e3))
    columns = dict(zip(("everything", "nothing"), zip(*measured, strict=True), strict=True))
    ratios = [complete / bare for complete, bare in measured]
    single = [a / b for a, b in zip(*turns.seconds(), strict=True)][WARM_UPS:]
    low, middle, high = statistics.quantiles(single, n=4)
    rows = [("a step with", "ms", "interval", "times nothing", "interval")]
    rows.append(
        ("everything", *median_text(columns["everything"], ".1f"), *median_text(ratios, ".3f"))
    )
    rows.append(("nothing", *median_text(columns["nothing"], ".1f"), "1.000", ""))
    text = (
        f"{arguments.rounds} pairs of {steps_of_pair} steps, and a checkpoint every {arguments.every} "
        f"steps. Single turns: median {middle:.3f}, quartiles {low:.3f} and {high:.3f}.\n\n"
        f"{page.table(rows)}"
    )
    figures = [
        Figure.of("everything", "ms", columns["everything"], "nothing", ratios),
        Figure.of("nothing", "ms", columns["nothing"]),
    ]
    section = page.Section("reliability", text, figures, arguments.rounds)
    page.publish(section, arguments.page, busy)


class Turns:
    """A training run of which every other turn has nothing that makes it reliable."""

    def __init__(self, every: int, pairs: int) -> None:
        self._every, self._pairs = every, pairs
        self._is_bare = False
        self._batches = 0
        self._programs: Either | None = None
        self._times: list[float] = []

    def seconds(self) -> tuple[list[float], list[float]]:
        lengths = [after - before for before, after in itertools.pairwise(self._times)]
        return lengths[0::2], lengths[1::2]

    def train(self, data: Path, folder: Path) -> None:
        bindings = {
            "STEPS": 2 * self._every * self._pairs,
            "Train.log_every": 2 * self._every,
            "Train.checkpoint_every": 2 * self._every,
            "Train.dev_every": 0,
            "Train.bleu_sentences": 0,
            "Optimizer.cooldown_steps": 0,
        }
        config = load_config("demo", [f"{name} = {value!r}" for name, value in bindings.items()])
        with contextlib.ExitStack() as patches:
            for owner, name, patch in self._patches():
                patches.enter_context(mock.patch.object(owner, name, patch))
            train.train(config, data, folder)

    def _patches(self) -> list[tuple[type, str, Any]]:
        next_batch, log_step = train.TrainBatches.__next__, Monitor.log_step
        complete = CompiledSteps.train_step.func

        def change(to_bare: bool) -> None:
            self._times.append(time.perf_counter())
            self._is_bare = to_bare

        def counted_batch(batches: Any) -> Any:
            turn, step = divmod(self._batches, self._every)
            if step == 0 and (turn == 0 or turn % 2 == 1):
                change(to_bare=turn > 0)
            self._batches += 1
            return next_batch(batches)

        def noted_log_step(monitor: Monitor, counters: RunCounters, _: Any) -> None:
            change(to_bare=False)  # the checkpoint that follows belongs to the next turn
            assert self._programs is not None
            log_step(monitor, counters, self._programs.metrics)

        def either(steps: CompiledSteps) -> Either:
            if self._programs is None:
                programs = complete(steps), bare_program(steps)
                self._programs = Either(programs, lambda: self._is_bare)
            return self._programs

        return [
            (train.TrainBatches, "__next__", counted_batch),
            (Monitor, "log_step", noted_log_step),
            (CompiledSteps, "train_step", property(either)),
        ]


class Either:
    """A training step that runs the second of two programs if a condition holds, else the first.

    `metrics` are the last ones of the first program.
    """

    def __init__(self, programs: tuple[Program, Program], condition: Callable[[], bool]) -> None:
        self._programs, self._condition = programs, condition
        self.metrics: Mapping[str, Any] = {}

    def __call__(self, *groups: Mapping[str, object]) -> list[dict]:
        is_second = self._condition()
        state, metrics = self._programs[is_second](*groups)
        if not is_second:
            self.metrics = metrics
        return [state, metrics]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs[0], name)


def bare_program(steps: CompiledSteps) -> Program:
    step = StepFunctions.train_step
    needed = ("loss", "last_step", "tokens_seen", "status")

    def bare_step(functions: StepFunctions, *groups: Any) -> list:
        state, metrics = step(functions, *groups)
        return [
            state,
            {name: metrics[name] for name in needed} | {"status": tf.zeros([], tf.int32)},
        ]

    def lower_bare() -> LoweredFunction:
        with (
            mock.patch.object(StepFunctions, "train_step", bare_step),
            mock.patch("gshard_nmt.model.guard.applied", lambda _, new, __: new),
        ):
            return lower_train_step(steps.config, steps.functions, steps.devices.mesh)

    return steps.devices.compile("bare step", lower_bare, donate=(0,))


if __name__ == "__main__":
    main()
