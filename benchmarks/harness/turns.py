"""The conversation of a benchmark with a worker, a process of its own that does one system's work.

The process writes a line of facts when it is ready. Then each line on its stdin asks for one turn of the
work, and each line of its answer has the seconds that it took and the CPU seconds. Answers have a pipe of
their own, because libraries write to stdout.

This module imports the standard library alone, because the peers do not have this package.
"""

import dataclasses
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

WARM_UPS = 2
ANSWERS = "BENCHMARK_ANSWERS"
"""The environment variable with the number of the file descriptor that answers are written to."""

Facts = Mapping[str, Any]
"""What a worker says about itself: `versions` {library: version}, `parameters`, `gflop` and more."""


def take_turns(work: Callable[[], object], facts: Callable[[], Facts]) -> None:
    for _ in range(WARM_UPS):
        work()
    with os.fdopen(int(os.environ[ANSWERS]), "w") as answers:
        print(json.dumps(dict(facts())), file=answers, flush=True)
        for _ in sys.stdin:
            began, cpu_began = time.perf_counter(), time.process_time()
            work()
            took = time.perf_counter() - began, time.process_time() - cpu_began
            print(json.dumps(took), file=answers, flush=True)


@dataclasses.dataclass(frozen=True)
class Turn:
    """The seconds of one turn, and the CPU seconds of all threads."""

    seconds: float
    cpu_seconds: float


class Worker:
    """A process that does the work of a system, turn by turn."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        reader, writer = os.pipe()
        with log.open("w", encoding="utf-8") as output, os.fdopen(writer, "w"):
            self._process = subprocess.Popen(
                command,
                env=dict(environment) | {ANSWERS: str(writer)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[writer],
                text=True,
            )
        self._answers = os.fdopen(reader)

    def facts(self, seconds: float | None = None) -> dict[str, Any]:
        if not select.select([self._answers], [], [], seconds)[0]:
            raise RuntimeError(f"It was not ready after {seconds:.0f} s; its log is {self._log}.")
        return json.loads(self._answer())

    def ask(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def turn(self) -> Turn:
        return Turn(*json.loads(self._answer()))

    def _answer(self) -> str:
        line = self._answers.readline()
        if not line:
            end = self._log.read_text(encoding="utf-8").splitlines()[-5:]
            raise RuntimeError("\n".join([f"The process ended; its log is {self._log}:", *end]))
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._answers.close()


def together(group: Sequence[Worker]) -> Turn:
    """Lets the workers of a system take a turn at the same time; returns the turn of the system.

    Its seconds are those of the slowest worker, and its CPU seconds are the mean of the workers.
    """
    for worker in group:
        worker.ask()
    turns = [worker.turn() for worker in group]
    return Turn(max(t.seconds for t in turns), statistics.mean(t.cpu_seconds for t in turns))
