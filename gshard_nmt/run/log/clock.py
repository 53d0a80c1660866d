"""Measures where the time of a training run goes: input, step, save, validation."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

PHASES = ("input", "step", "save", "validation")
"""What the host can wait for: the next batch, the training step on the devices, the part of a checkpoint
that cannot be written in the background, and a validation."""

SLOW_PROCESS = 1.25
"""A process is called slow if its own work takes this many times the median of all processes."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """The time between two log lines.

    Attributes:
      steps: training steps in the interval.
      seconds: seconds from its start to its end.
      phases: seconds of each of PHASES. The rest of `seconds` is the host's own work, such as logging.
    """

    steps: int
    seconds: float
    phases: dict[str, float]

    @property
    def training_seconds(self) -> float:
        return self.seconds - self.phases["validation"]

    @property
    def own_seconds(self) -> float:
        """Seconds in which the host did not wait for its devices, without validations.

        In a run of several processes, the devices of all processes wait for each other in every step.
        So the step takes the same time everywhere, and only this value shows which host is slow.
        """
        return self.training_seconds - self.phases["step"]

    def metrics(self) -> dict[str, float]:
        seconds = max(self.training_seconds, 1e-9)
        shares = {
            f"share_{phase}": self.phases[phase] / seconds
            for phase in PHASES
            if phase != "validation"
        }
        return {"seconds_per_step": seconds / max(self.steps, 1), **shares}


class Clock:
    """Measures the phases of training between two log lines."""

    def __init__(self) -> None:
        self._restart()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._phases[name] += time.perf_counter() - began

    def count_step(self) -> None:
        self._steps += 1

    def interval(self) -> Interval:
        """Returns the interval since the last call, and starts the next one."""
        interval = Interval(self._steps, time.perf_counter() - self._began, self._phases)
        self._restart()
        return interval

    def _restart(self) -> None:
        self._began = time.perf_counter()
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._steps = 0


def process_metrics(
    step_seconds: Sequence[float], own_seconds: Sequence[float]
) -> dict[str, float]:
    """Returns seconds per step of each process, and the part without its devices, by names in the log."""
    named = {f"process_seconds/{i}": seconds for i, seconds in enumerate(step_seconds)}
    return named | {f"process_own_seconds/{i}": seconds for i, seconds in enumerate(own_seconds)}


def slow_process(step_seconds: Sequence[float], own_seconds: Sequence[float]) -> int | None:
    """Returns the number of the slow process that all others wait for; None if no process is slow.

    A process is slow if its own work takes at least a tenth of a step, and at least SLOW_PROCESS times
    the median of all processes.
    """
    slowest = int(np.argmax(own_seconds))
    own, median = own_seconds[slowest], float(np.median(own_seconds))
    is_slow = own >= 0.1 * step_seconds[slowest] and own >= SLOW_PROCESS * median
    return slowest if is_slow else None


def slow_process_text(process: int, own_seconds: Sequence[float]) -> str:
    return (
        f"process {process} is slow: its host works {own_seconds[process]:.3f} s in each step while the "
        f"devices wait ({float(np.median(own_seconds)):.3f} s in the median of all processes)"
    )


class TimeLimit:
    """The time that one start of a program may take, in minutes; 0 means no limit.

    `flag` is the flag that sets it, for messages.
    """

    def __init__(self, minutes: float = 0, flag: str = "--max_minutes") -> None:
        self.minutes = minutes
        self.flag = flag
        self._ends = time.perf_counter() + 60 * minutes

    def is_over(self) -> bool:
        return bool(self.minutes) and time.perf_counter() >= self._ends

    def within(self, minutes: float, flag: str) -> "TimeLimit":
        """Returns the limit of a part of the work: `minutes`, or this one if it is over sooner."""
        part = TimeLimit(minutes, flag)
        if not minutes or (self.minutes and self._ends <= part._ends):
            return self
        return part
