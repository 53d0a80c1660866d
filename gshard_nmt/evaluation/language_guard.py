"""What the old languages of a run lose while it learns a new one.

The old run and the new one translate the same dev text, and approximate randomization compares the
translations. All old directions are one family of tests, with a false discovery rate of 5 %. If they
lose, averages of the old and the new weights are compared too. On the straight line between them, a model
often keeps most of what it knew and has most of what it has learned (Wortsman et al. 2022, "Robust
fine-tuning of zero-shot models", section 3).
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.decoding.text_translator import TextTranslator
from gshard_nmt.evaluation import significance
from gshard_nmt.evaluation.validation import DevOutput, DevText, bleu_of_languages, by_language
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.lock import run_lock
from gshard_nmt.settings.config import Config, Train

LARGEST_LOSS = 0.5
"""The largest loss of BLEU that is allowed, as a mean of the old directions."""

SHARES = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
"""The shares of the new weights in the averages that are compared."""


@dataclasses.dataclass(frozen=True)
class Change:
    """BLEU of an old direction, such as "fr-en", before and after, with the adjusted p-value."""

    direction: str
    before: float
    after: float
    p: float

    @property
    def delta(self) -> float:
        return self.after - self.before

    @property
    def is_loss(self) -> bool:
        return self.delta < 0 and self.p <= significance.RATE


def compare(before: Sequence[DevOutput], after: Sequence[DevOutput]) -> list[Change]:
    """Returns the change of each direction of the old run, the largest loss first."""
    now = {output.direction: output for output in after}
    pairs = [(_statistics(now[old.direction]), _statistics(old)) for old in before]
    p_values = [significance.compare_statistics(new, then).p_value for new, then in pairs]
    adjusted = significance.adjusted_p_values(p_values)
    changes = [
        Change(old.direction, _bleu(then), _bleu(new), p)
        for old, (new, then), p in zip(before, pairs, adjusted, strict=True)
    ]
    return sorted(changes, key=lambda change: change.delta)


def _bleu(rows: np.ndarray) -> float:
    return float(significance.bleu_of(rows.sum(0)))


def _statistics(output: DevOutput) -> np.ndarray:
    return significance.statistics(output.hypotheses, [output.references], output.target)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How weights translate dev text: the new ones, or an average of the old and the new ones."""

    share: float  # the share of the new weights; the rest is that of the old ones
    scores: Mapping[str, float]  # dev BLEU by the names of the scores of a checkpoint
    bleu: float  # that of the new language
    changes: Sequence[Change]  # those of the old directions, see `compare`
    rows: np.ndarray  # `significance.statistics` of the new language

    def is_as_good_as(self, best: "Outcome") -> bool:
        """Returns whether BLEU of the new language is lower by at most one standard error."""
        low, high = significance.compare_statistics(self.rows, best.rows).interval
        return self.bleu >= best.bleu - (high - low) / (2 * significance.NORMAL)

    @property
    def mean(self) -> float:
        """The mean change of the old directions; 0 if there are none."""
        return sum(change.delta for change in self.changes) / max(len(self.changes), 1)

    @property
    def losses(self) -> int:
        return sum(change.is_loss for change in self.changes)

    @property
    def loses(self) -> bool:
        """Whether a direction lost significantly, or all more than `LARGEST_LOSS` on average."""
        return self.losses > 0 or self.mean < -LARGEST_LOSS


def choose(outcomes: Sequence[Outcome]) -> Outcome:
    """Returns the smallest share that keeps the old languages and is as good as the best one that does.

    The best one is often best by luck, and a smaller share has changed the old languages less (Breiman et
    al. 1984, section 3.4.3, choose the size of a tree in this way). If old languages lose with each, it
    is the first one, the new weights as they are.
    """
    passing = [outcome for outcome in outcomes if not outcome.loses]
    if not passing:
        return outcomes[0]
    best = max(passing, key=lambda outcome: outcome.bleu)
    equals = [outcome for outcome in passing if outcome is best or outcome.is_as_good_as(best)]
    return min(equals, key=lambda outcome: outcome.share)


class Comparison:
    """The new weights of a run, and averages with the old ones, beside the old run."""

    def __init__(
        self, old: TextTranslator, config: Config, data: PreparedData, language: str
    ) -> None:
        """Translates the dev text of the old languages with the old run."""
        self._config, self._data, self._language = config, data, language
        old_languages = [name for name in data.languages(config.data) if name != language]
        self._before = self._translated(old, old_languages)

    def outcome(self, new: TextTranslator, share: float = 1.0) -> Outcome:
        outputs = self._translated(new, self._data.languages(self._config.data))
        scores = by_language("dev_bleu", bleu_of_languages(outputs))
        rows = [_statistics(output) for output in outputs if output.language == self._language]
        bleu, changes = scores[f"dev_bleu/{self._language}"], compare(self._before, outputs)
        return Outcome(share, scores, bleu, changes, np.concatenate(rows))

    def _translated(self, translator: TextTranslator, languages: Sequence[str]) -> list[DevOutput]:
        vocabulary = translator.target_vocabulary
        text = DevText.read(vocabulary, self._data, self._config, languages)
        return text.translated(translator.of_ids)


def save_average(
    run: RunFolder,
    train: Train,
    weights: Mapping[str, Any],
    letters: Mapping[str, str],
    scores: Mapping[str, float],
    average_of: Sequence[str],
) -> Path:
    """Saves an average as the checkpoint after the newest one; returns its folder.

    The newest checkpoints stay beside it, because an average cannot be trained further.
    """
    with run_lock(run.path):
        writer = CheckpointWriter.of(run, train)
        with contextlib.closing(writer):
            newest = writer.newest()
            assert newest is not None
            settings = {**newest.scores.scored_with, "average_of": list(average_of)}
            groups, step = {"parameters": weights}, newest.step + 1
            scored = Scores(scores, settings)
            writer.save(step, groups, {"parameters": letters}, newest.facts, scored, average_of)
    return run.checkpoints / str(step)
