"""The guard of the old languages while a run learns a new one.

At each validation, the translations of dev text are compared with those of the run that it started from,
by approximate randomization. All old directions are one family of tests, with a false discovery rate of
5 %. If the old languages lose, the checkpoint gets no score, so it never becomes the best one.

guard.json in the run folder has the translations of the old run, and the verdict of each validation.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from gshard_nmt import files, json_shape
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.metrics import significance

NAME = "guard.json"

RATE = 0.05
"""The false discovery rate."""

LARGEST_LOSS = 0.5
"""The largest loss of BLEU that is allowed, as a mean of the old directions."""

_INTERVAL = 2 * 1.96
"""The width of a 95 % interval in standard errors, if the errors are normal."""

_SHAPE = json_shape.fields(
    {
        "language": json_shape.text(),
        "weights": json_shape.text(),
        "translations": json_shape.mapping_of(json_shape.list_of(json_shape.text())),
        "steps": json_shape.list_of(json_shape.anything()),
    }
)
_REMEDY = "Restore it from a copy of the run folder."


@dataclasses.dataclass(frozen=True)
class DevOutput:
    """The translations of the dev text of a direction.

    Attributes:
      direction: the direction, such as "fr-en".
      language: its language that is not English.
      target: BCP 47 tag of the target language.
      hypotheses, references: the translation and the reference of each sentence.
    """

    direction: str
    language: str
    target: str
    hypotheses: list[str]
    references: list[str]


@dataclasses.dataclass(frozen=True)
class Change:
    """The change of an old direction.

    Attributes:
      direction: the direction.
      before, after: BLEU of the old run and of this one.
      p: the p-value of the difference, adjusted for the false discovery rate.
    """

    direction: str
    before: float
    after: float
    p: float

    @property
    def delta(self) -> float:
        """BLEU won; below 0 it is lost."""
        return self.after - self.before

    @property
    def is_loss(self) -> bool:
        """Whether the direction has lost significantly."""
        return self.delta < 0 and self.p <= RATE


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the guard found at a validation.

    Attributes:
      step: the training step.
      bleu: dev BLEU of the new language.
      changes: the change of each old direction.
      share: the share of the change of the weights that was judged, see `run/blend.py`; 1 is all of it.
      error: the standard error of the mean change, because other dev sentences would give another
        mean; None in files of versions that did not compute it.
      counts: for each direction of the new language, a line for each sentence with the ten counts that
        its BLEU is computed from; empty in files of versions that did not keep them.
    """

    step: int
    bleu: float
    changes: Sequence[Change]
    share: float = 1.0
    error: float | None = None
    counts: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def is_as_good_as(self, other: Self) -> bool:
        """Returns whether BLEU of the new language is lower by at most one standard error.

        The error is that of the difference, by paired bootstrap. If the language has two directions, it
        is the mean of both errors, because both translate the same sentences. It is 0 if the counts of
        one verdict are missing, or if they are of other sentences.
        """
        errors = []
        for direction in self.counts.keys() & other.counts.keys():
            pair = _numbers(self.counts[direction]), _numbers(other.counts[direction])
            if len(pair[0]) == len(pair[1]):
                errors.append(_error(significance.compare_statistics(*pair)))
        return other.bleu - self.bleu <= sum(errors) / max(len(errors), 1)

    @property
    def mean(self) -> float:
        """The mean change of the old directions; 0 if there are none."""
        return sum(c.delta for c in self.changes) / max(len(self.changes), 1)

    @property
    def losses(self) -> list[str]:
        """The old directions that have lost significantly."""
        return [change.direction for change in self.changes if change.is_loss]

    @property
    def passes(self) -> bool:
        """Whether the old languages lose nothing significantly, and at most `LARGEST_LOSS` on average."""
        return not self.losses and self.mean >= -LARGEST_LOSS

    @property
    def mean_text(self) -> str:
        """The mean change and its standard error, such as "-0.21 ± 0.36"."""
        return f"{self.mean:+.2f}" + ("" if self.error is None else f" ± {self.error:.2f}")

    @property
    def text(self) -> str:
        """The verdict as a part of a sentence."""
        verdict = "passes" if self.passes else "does not pass"
        return (
            f"old languages {self.mean_text} BLEU on average, {len(self.losses)} of "
            f"{len(self.changes)} directions significantly worse: {verdict}"
        )


@dataclasses.dataclass(frozen=True)
class Guard:
    """The guard of a run.

    Attributes:
      file: guard.json of the run folder.
      language: the new language.
      weights: the weights of the old run, in words.
      translations: the translations of the old run, by direction.
      verdicts: the verdicts so far, in the order of their steps.
    """

    file: Path
    language: str
    weights: str
    translations: Mapping[str, list[str]]
    verdicts: Sequence[Verdict] = ()

    @classmethod
    def of(cls, run: Path) -> Self | None:
        """Returns the guard of a run folder; None if it has none.

        Raises:
          UserError: guard.json is damaged.
        """
        file = run / NAME
        if not file.exists():
            return None
        record = json_shape.read(file, _SHAPE, _REMEDY)
        try:
            verdicts = [_verdict(entry) for entry in record["steps"]]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{file} is damaged: {error!r}. {_REMEDY}") from error
        return cls(file, record["language"], record["weights"], record["translations"], verdicts)

    @property
    def text(self) -> str:
        """The content of guard.json."""
        record = {
            "language": self.language,
            "weights": self.weights,
            "translations": self.translations,
            "steps": [dataclasses.asdict(verdict) for verdict in self.verdicts],
        }
        return json.dumps(record, indent=1, ensure_ascii=False) + "\n"

    def judge(
        self, step: int, bleu: float, outputs: Sequence[DevOutput], share: float = 1.0
    ) -> Verdict:
        """Compares translations with those of the old run.

        Args:
          step: the training step.
          bleu: dev BLEU of the new language.
          outputs: the translations of all directions, the same sentences as those of the old run.
          share: the share of the change of the weights that made them.

        Raises:
          UserError: the numbers of sentences differ.
        """
        old = [output for output in outputs if output.direction in self.translations]
        counts = {
            output.direction: _lines(
                significance.statistics(output.hypotheses, [output.references], output.target)
            )
            for output in outputs
            if output.language == self.language
        }
        pairs = []
        for output in old:
            before = self.translations[output.direction]
            if len(before) != len(output.hypotheses):
                raise UserError(
                    f"{self.file} has {len(before)} translations of {output.direction} by the old run, "
                    f"and now {len(output.hypotheses)} sentences are translated. Set "
                    "Train.bleu_sentences as it was when the run began."
                )
            scored = [output.references], output.target
            now = significance.statistics(output.hypotheses, *scored)
            pairs.append((now, significance.statistics(before, *scored)))
        p_values = [significance.compare_statistics(now, then).p_value for now, then in pairs]
        adjusted = significance.adjusted_p_values(p_values)
        changes = [
            Change(
                output.direction,
                float(significance.bleu_of(then.sum(0))),
                float(significance.bleu_of(now.sum(0))),
                p,
            )
            for output, (now, then), p in zip(old, pairs, adjusted, strict=True)
        ]
        drawn = significance.drawn_scores(pairs, [output.references for output in old])
        deltas = np.array([now - then for now, then in drawn])
        error = significance.error_of_mean(deltas) if pairs else 0.0
        return Verdict(step, bleu, changes, share, error, counts)

    def with_verdict(self, verdict: Verdict) -> Self:
        """Returns the guard with one more verdict, which replaces itself and those that came after it."""
        place = (verdict.step, -verdict.share)
        earlier = [known for known in self.verdicts if (known.step, -known.share) < place]
        return dataclasses.replace(self, verdicts=[*earlier, verdict])

    def write(self) -> None:
        """Writes guard.json."""
        files.write(self.file, self.text)

    @property
    def best(self) -> Verdict | None:
        """The verdict on the weights that the best checkpoint decodes with; None if none passes.

        The step with the best BLEU of the new language is the best one; the earliest wins.
        """
        return self.best_before(math.inf)

    def best_before(self, end: float) -> Verdict | None:
        """Returns what `best` would be if only the steps before `end` were there."""
        best = None
        for step in sorted({verdict.step for verdict in self.verdicts if verdict.step < end}):
            known = best.bleu if best else -math.inf
            chosen = best_of([v for v in self.verdicts if v.step == step], known)
            if chosen and chosen.bleu > known:
                best = chosen
        return best


def best_of(verdicts: Sequence[Verdict], known: float) -> Verdict | None:
    """Returns the verdict on the weights that a step should decode with; None if none passes.

    It is that of the smallest part of the change that passes, and that is as good for the new language
    as the best part that passes. The best one is often best by luck, and a smaller part has changed the
    old languages less. Breiman et al. (1984), "Classification and Regression Trees", section 3.4.3,
    choose the size of a tree in this way. They take the error of the best score; we take that of the
    difference.

    If the step is better than all earlier ones, its choice is too: otherwise the best checkpoint would be
    an earlier one.

    Args:
      verdicts: the verdicts on all of the change and on its parts at this step.
      known: the best BLEU of the new language at earlier steps.
    """
    passing = [verdict for verdict in verdicts if verdict.passes]
    if not passing:
        return None
    best = max(passing, key=lambda verdict: verdict.bleu)
    lowest = known if best.bleu > known else -math.inf
    equals = [v for v in passing if v is best or (v.bleu > lowest and v.is_as_good_as(best))]
    return min(equals, key=lambda verdict: verdict.share)


def _lines(counts: np.ndarray) -> list[str]:
    return [" ".join(str(int(count)) for count in row) for row in counts]


def _numbers(lines: Sequence[str]) -> np.ndarray:
    """Returns float64[sentence, 10].

    Raises:
      ValueError: the lines are not such numbers.
    """
    return np.array([line.split() for line in lines], float).reshape(len(lines), 10)


def _error(comparison: significance.Comparison) -> float:
    """Returns the standard error of a difference, from its 95 % interval."""
    low, high = comparison.interval
    return (high - low) / _INTERVAL


def _verdict(entry: Mapping[str, Any]) -> Verdict:
    changes = [Change(**c) for c in entry["changes"]]
    share, error = entry.get("share", 1.0), entry.get("error")
    counts = entry.get("counts", {})
    for lines in counts.values():
        _numbers(lines)
    return Verdict(entry["step"], entry["bleu"], changes, share, error, counts)
