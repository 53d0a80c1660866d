"""Systems that take turns: what one run of a benchmark measures of them, and its ratios."""

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.turns import Turn, Worker, together

PAUSE = 0.3
"""Seconds between two turns, in which the threads of the last system go to sleep."""
FEWEST = 5
"""A benchmark makes this number of rounds, or `Limit.rounds` if it is less, however long they take."""
SHORTEST_START = 180.0
"""Seconds that every system may take to start. To compile a large program takes a minute or more."""


@dataclasses.dataclass(frozen=True)
class Limit:
    """When a benchmark ends: after some rounds, or earlier if its time is over.

    Attributes:
      rounds: the turns of each system.
      seconds: the time for all of the work, its start included.
      began: `time.monotonic()` at the start.
    """

    rounds: int
    seconds: float = float("inf")
    began: float = dataclasses.field(default_factory=time.monotonic)

    def part(self, share: float) -> "Limit":
        return Limit(self.rounds, self.seconds * share)

    def start_seconds(self) -> float | None:
        return None if self.seconds == float("inf") else max(SHORTEST_START, self.seconds / 3)

    def is_over(self, rounds: int) -> bool:
        if rounds >= self.rounds:
            return True
        return rounds >= FEWEST and time.monotonic() - self.began > self.seconds


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one run measured: the turns and the facts of each system, by its name."""

    turns: dict[str, list[Turn]]
    facts: dict[str, dict[str, Any]]

    @property
    def rounds(self) -> int:
        return min(map(len, self.turns.values()), default=0)

    def versions(self) -> dict[str, str]:
        return {k: v for facts in self.facts.values() for k, v in facts["versions"].items()}

    def seconds(self, name: str) -> list[float]:
        return [turn.seconds for turn in self.turns[name]]

    def times_as_fast(self, name: str, base: str) -> list[float]:
        pairs = zip(self.seconds(base), self.seconds(name), strict=True)
        return [slow / fast for slow, fast in pairs]


def measure(systems: Mapping[str, Callable[[], Sequence[Worker]]], limit: Limit) -> Measured:
    with contextlib.ExitStack() as stack:
        groups: dict[str, Sequence[Worker]] = {}
        facts: dict[str, dict[str, Any]] = {}
        for name, start in systems.items():
            _say(f"{limit_text(limit)}starting {name}")
            with contextlib.ExitStack() as workers:
                group = [workers.enter_context(worker) for worker in start()]
                try:
                    every = [worker.facts(limit.start_seconds()) for worker in group]
                except RuntimeError as problem:
                    _say(f"{name} is left out. {problem}")
                    continue
                stack.push(workers.pop_all())
            groups[name], facts[name] = group, every[0]
        turns: dict[str, list[Turn]] = {name: [] for name in groups}
        order, number = list(groups), 0
        while order and not limit.is_over(number):
            _say(f"{limit_text(limit)}round {number + 1} of at most {limit.rounds}")
            first = number % len(order)
            for name in order[first:] + order[:first]:
                time.sleep(PAUSE)
                turns[name].append(together(groups[name]))
            number += 1
    return Measured(turns, facts)


def limit_text(limit: Limit) -> str:
    return f"[{time.monotonic() - limit.began:4.0f} s] "


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def median_text(values: Sequence[float], form: str) -> tuple[str, str]:
    low, middle, high = min(values), statistics.median(values), max(values)
    return format(middle, form), f"{low:{form}} to {high:{form}}"
