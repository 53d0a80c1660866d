"""Measures programs in turns, and gives medians with intervals.

In each round every program runs once. So if other work slows the machine down for a while, it slows down
all programs, and not one of them alone.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The median of some measurements, and an interval that contains the true median.

    Attributes:
      median: the median.
      low: the lower end of the interval.
      high: its upper end.
    """

    median: float
    low: float
    high: float


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the median of independent measurements, with an interval of at least 95 %.

    The interval lies between two of the sorted values and assumes no distribution: the number of values
    below the true median is binomial. With fewer than six values no interval reaches 95 %; then it is the
    whole range.
    """
    ordered, count = sorted(values), len(values)
    outside = 0
    # The interval without `outside` + 1 values at each end still covers 95 %, as long as this holds.
    while outside < count // 2 and _coverage(count, outside + 1) >= _CONFIDENCE:
        outside += 1
    return Estimate(float(np.median(ordered)), ordered[outside], ordered[count - 1 - outside])


def _coverage(count: int, outside: int) -> float:
    """Returns the chance that the true median is not outside the inner `count` - 2 `outside` values."""
    return 1 - 2 * sum(math.comb(count, k) for k in range(outside + 1)) / 2**count


def in_turns(
    programs: Mapping[str, Callable[[], None]],
    rounds: int,
    after_round: Callable[[int], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Runs all programs once in each round.

    Args:
      programs: by name; each runs one program and waits for its end.
      rounds: the number of rounds that count. One more round comes first, which does not count.
      after_round: is called with the number of the round, from 1 on.
      clock: returns the time in seconds.

    Returns:
      The seconds of each program in each round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, program in programs.items():
            began = clock()
            program()
            if number:
                seconds[name].append(clock() - began)
        if number:
            after_round(number)
    return seconds
