"""Which checkpoints of a run are kept: the last few, every k-th step, the best by a score."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.settings.config import Train


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of a checkpoint on dev text, by names such as "dev_nll" or "dev_bleu/fr".

    `scored_with` has the settings of the validation. Scores with different settings are not compared.
    """

    values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    scored_with: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Retention:
    """Decides which checkpoints are kept: `last` newest ones, multiples of `every`, `best` by `metric`.

    `every` = 0 turns this rule off. The metric is such as "dev_nll" or "dev_bleu/fr".
    """

    last: int = 2
    every: int = 0
    best: int = 1
    metric: str = "dev_nll"

    @classmethod
    def of(cls, train: Train) -> "Retention":
        return cls(train.keep_last, train.keep_every, train.keep_best, train.metric)

    def ranked(self, scores: Mapping[int, Scores]) -> list[int]:
        """Returns the steps that have a score, best first.

        Only checkpoints that were scored with the settings of the newest scored checkpoint take part.
        Equal BLEU is ordered by nats per token, then by step.
        """
        scored = {step: s for step, s in scores.items() if self._has_score(s)}
        if not scored:
            return []
        settings = scored[max(scored)].scored_with
        comparable = {step: s.values for step, s in scored.items() if s.scored_with == settings}
        return sorted(comparable, key=lambda step: (*self._cost(comparable[step]), step))

    def reasons(self, scores: Mapping[int, Scores]) -> dict[int, list[str]]:
        """Returns for each step why its checkpoint is kept: some of "last", "every", "best"."""
        newest = sorted(scores)[-self.last :]
        best = self.ranked(scores)[: self.best]
        return {
            step: [
                word
                for word, holds in (
                    ("last", step in newest),
                    ("every", bool(self.every) and step % self.every == 0),
                    ("best", step in best),
                )
                if holds
            ]
            for step in sorted(scores)
        }

    def _has_score(self, scores: Scores) -> bool:
        return math.isfinite(scores.values.get(self.metric, math.nan))

    def _cost(self, values: Mapping[str, float]) -> tuple[float, float]:
        if not self.metric.startswith("dev_bleu"):
            return values[self.metric], 0.0
        nats = values.get(self.metric.replace("bleu", "nll", 1), math.inf)
        return -values[self.metric], nats if math.isfinite(nats) else math.inf


def check_metric(train: Train, languages: Sequence[str]) -> None:
    """Raises UserError if Train.best_metric is the score of a language that the run does not have."""
    _, slash, language = train.best_metric.partition("/")
    if slash and language not in languages:
        raise UserError(
            f"Train.best_metric is {train.best_metric!r}, and the run has no language {language!r}"
            f"{did_you_mean(language, languages)} It has {', '.join(languages)}; choose one of them.",
            ["Train.best_metric"],
        )
