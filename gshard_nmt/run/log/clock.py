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


class Clock:
    """Measures the phases of training between two log lines, in seconds."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._began = time.perf_counter()
        self._phases = dict.fromkeys(PHASES, 0.0)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._phases[name] += time.perf_counter() - began

    def lap(self) -> tuple[float, dict[str, float]]:
        """Returns the seconds of training since the last lap, and those of each phase; starts the next.

        Validations are left out. The rest of the seconds is the host's own work, such as logging.
        """
        phases = self._phases
        seconds = time.perf_counter() - self._began - phases.pop("validation")
        self.restart()
        return max(seconds, 1e-9), phases


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
    """

    step: int = 0
    # tokens of each language, source and target, without padding, as of the last `read`
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0  # of training, summed over all starts of the run

    def __post_init__(self) -> None:
        self._counted_at = time.perf_counter()
        self._unread: Any = None
        self._unread_steps = 0
        self._languages: Sequence[str] = ()

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens.values())

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
        # uint32[languages, 2], the low word first -> uint64[languages]
        numbers = np.ascontiguousarray(self._unread, "<u4").view("<u8")[:, 0].tolist()
        pairs = zip(self._languages, numbers, strict=True)
        self.tokens = {language: number for language, number in pairs if number}
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
