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
      tokens: tokens seen of each language by all processes, source and target, without padding. Those
        that were counted after the last `settle` are not in it yet.
      seconds: seconds of training, over all processes that continued the run.
    """

    step: int = 0
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._counted_at = time.perf_counter()
        self._unsettled: dict[str, int] = {}

    @property
    def total_tokens(self) -> int:
        """Tokens of all languages."""
        return sum(self.tokens.values())

    def count(self, tokens: Mapping[str, int]) -> None:
        """Counts one more step, in which the rows of this process had these tokens."""
        self.step += 1
        for language, number in tokens.items():
            self._unsettled[language] = self._unsettled.get(language, 0) + int(number)
        now = time.perf_counter()
        self.seconds += now - self._counted_at
        self._counted_at = now

    def settle(self, sum_over_processes: Callable[[Mapping[str, int]], Mapping[str, int]]) -> None:
        """Adds the tokens that all processes have counted. All must call it at the same step."""
        for language, number in sum_over_processes(self._unsettled).items():
            self.tokens[language] = self.tokens.get(language, 0) + number
        self._unsettled = dict.fromkeys(self._unsettled, 0)

    def skip_time(self) -> None:
        """Leaves the time since the last step out of `seconds`: compilation or validation."""
        self._counted_at = time.perf_counter()

    def last_step(self, max_steps: int, max_tokens: int) -> int:
        """Returns the step at which the run will end, at its tokens per step until now.

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
