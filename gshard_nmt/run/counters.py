"""How far a training run has come: steps, tokens, seconds."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping


@dataclasses.dataclass
class RunCounters:
    """The counters of a run. They are saved with each checkpoint.

    Attributes:
      step: training steps done.
      tokens: tokens of each language that all processes have seen, source and target, without
        padding. Tokens counted after the last `add_counts_of_all_processes` are not included yet.
      seconds: seconds of training, summed over all starts of the run.
    """

    step: int = 0
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._counted_at = time.perf_counter()
        self._new_tokens: dict[str, int] = {}

    @property
    def total_tokens(self) -> int:
        """Tokens of all languages."""
        return sum(self.tokens.values())

    def count(self, tokens: Mapping[str, int]) -> None:
        """Counts one more step, in which the rows of this process had these tokens."""
        self.step += 1
        for language, number in tokens.items():
            self._new_tokens[language] = self._new_tokens.get(language, 0) + int(number)
        now = time.perf_counter()
        self.seconds += now - self._counted_at
        self._counted_at = now

    def add_counts_of_all_processes(
        self, sum_over_processes: Callable[[Mapping[str, int]], Mapping[str, int]]
    ) -> None:
        """Adds to `tokens` what all processes have counted since the last call.

        All processes must call it at the same step.

        Args:
          sum_over_processes: adds up the counts of this process and of the others, by language.
        """
        for language, number in sum_over_processes(self._new_tokens).items():
            self.tokens[language] = self.tokens.get(language, 0) + number
        self._new_tokens = dict.fromkeys(self._new_tokens, 0)

    def skip_time(self) -> None:
        """Leaves the time since the last step out of `seconds`, because it was not training."""
        self._counted_at = time.perf_counter()

    def last_step(self, max_steps: int, max_tokens: int) -> int:
        """Estimates at which step the run will end, from its mean number of tokens per step so far.

        Args:
          max_steps: Train.steps.
          max_tokens: Train.tokens; 0 means no limit.
        """
        if not max_tokens or not self.step:
            return max_steps
        left = max(max_tokens - self.total_tokens, 0)
        return min(max_steps, self.step + math.ceil(left * self.step / self.total_tokens))

    def is_complete(self, max_steps: int, max_tokens: int) -> bool:
        """Returns whether the run has reached either limit; 0 tokens means no limit."""
        return self.step >= max_steps or bool(max_tokens and self.total_tokens >= max_tokens)
