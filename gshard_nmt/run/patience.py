"""Early stopping: ends a run whose score on dev text does not improve any more (Train.patience)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gshard_nmt.run.checkpoint.retention import Scores


@dataclasses.dataclass
class Patience:
    """Counts validations in a row without a better score. It is saved with each checkpoint.

    Attributes:
      metric: the name of the score that counts; see `Train.metric`.
      best: the best score so far; None before the first.
      scored_with: the settings of the best score. If the settings change, the count starts anew.
      validations: the number of validations since the best score.
    """

    metric: str
    best: float | None = None
    scored_with: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    validations: int = 0

    def count(self, scores: Scores) -> None:
        """Counts a validation, unless it has no score, or BLEU has been 0 until now."""
        score = scores.values.get(self.metric)
        if score is None:
            return
        if self.best is None or dict(self.scored_with) != dict(scores.scored_with):
            improves = True
        elif self.metric.startswith("dev_bleu"):
            # Until the first n-grams match, BLEU is 0, whatever the model learns.
            improves = score > self.best or score == self.best == 0
        else:
            improves = score < self.best
        if improves:
            self.best, self.scored_with, self.validations = score, dict(scores.scored_with), 0
        else:
            self.validations += 1

    def is_over(self, limit: int) -> bool:
        """Returns whether `limit` validations in a row had no better score; False if `limit` is 0."""
        return bool(limit) and self.validations >= limit

    def facts(self) -> dict[str, Any]:
        """Returns the values for a checkpoint."""
        return dataclasses.asdict(self)

    @classmethod
    def resumed(cls, metric: str, facts: Mapping[str, Any] | None) -> "Patience":
        """Returns the count of a checkpoint, or a new one if the run now follows another metric."""
        if not facts or facts["metric"] != metric:
            return cls(metric)
        return cls(**facts)
