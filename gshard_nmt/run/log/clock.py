"""Counts the steps and tokens of a training run, and measures where its time goes."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

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


def slow_process(step_seconds: Sequence[float], own_seconds: Sequence[float]) -> int | None:
    """Returns the number of the slow process that all others wait for; None if no process is slow.

    A process is slow if its own work takes at least a tenth of a step, and at least SLOW_PROCESS times
    the median of all processes.
    """
    slowest = int(np.argmax(own_seconds))
    own, median = own_seconds[slowest], float(np.median(own_seconds))
    is_slow = own >= 0.1 * step_seconds[slowest] and own >= SLOW_PROCESS * median
    return slowest if is_slow else None


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


@dataclasses.dataclass
class RunCounters:
    """The host's view of the counters of a run. They are saved with each checkpoint.

    The devices count the tokens in the training step. Reading their count waits for the step, so the
    host reads it only when it must.

    Attributes:
      step: training steps done.
      tokens: tokens of each language, source and target, without padding, as of the last `read`.
      seconds: seconds of training, summed over all starts of the run.
    """

    step: int = 0
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._counted_at = time.perf_counter()
        self._unread: Any = None
        self._unread_steps = 0
        self._languages: Sequence[str] = ()

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens.values())

    def metadata(self) -> dict[str, Any]:
        """Returns the counters as JSON values; `RunCounters(**metadata)` restores them."""
        return {"step": self.step, "tokens": dict(self.tokens), "seconds": self.seconds}

    def count(self, tokens_seen: Any, languages: Sequence[str]) -> None:
        """Counts one more step without waiting for it. `tokens_seen` is a uint32[languages, 2]."""
        self.step += 1
        self._unread, self._languages = tokens_seen, languages
        self._unread_steps += 1
        now = time.perf_counter()
        self.seconds += now - self._counted_at
        self._counted_at = now

    def read(self) -> None:
        """Brings `tokens` up to date; waits until the devices have finished the last counted step."""
        if self._unread is None:
            return
        numbers = numbers_of(np.asarray(self._unread)).tolist()
        self.tokens = {
            language: number
            for language, number in zip(self._languages, numbers, strict=True)
            if number
        }
        self._unread, self._unread_steps = None, 0

    def skip_time(self) -> None:
        """Leaves the time since the last step out of `seconds`, because it was not training."""
        self._counted_at = time.perf_counter()

    def is_complete(self, max_steps: int, max_tokens: int, batch_tokens: int) -> bool:
        """Returns whether the run has reached either limit; the same at the same step in every process.

        It reads the tokens, and so waits for the step, only if the limit may have been reached since they
        were last read. `max_tokens` of 0 is no limit; `batch_tokens` is the most that a step can add.
        """
        if self.step >= max_steps:
            return True
        if max_tokens and self.total_tokens + self._unread_steps * batch_tokens >= max_tokens:
            self.read()
        return bool(max_tokens) and self.total_tokens >= max_tokens


def numbers_of(words: np.ndarray) -> np.ndarray:
    """Returns the numbers uint64[...] of uint32[..., 2], the low word first."""
    return np.ascontiguousarray(words, "<u4").view("<u8")[..., 0]
