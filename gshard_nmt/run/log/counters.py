"""Counts the progress of a training run: steps, tokens, seconds."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np


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
