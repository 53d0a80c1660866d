"""The studies of the translations that every report has: all metrics, significance, lengths."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt import web_page
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.metrics import metrics, significance
from gshard_nmt.evaluation.metrics.metrics import Measured, Measures
from gshard_nmt.evaluation.metrics.significance import Comparison
from gshard_nmt.evaluation.report import length_buckets
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.systems.systems import Counts
from gshard_nmt.evaluation.texts.translations import TestSet

Direction = tuple[str, str]

RATE = 0.05
"""The false discovery rate."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user has chosen to measure.

    Attributes:
      measures: the metrics.
      length_edges: the source lengths at which the buckets of lengths begin.
      leave_out_overlap: whether to score without the test sentences that are in the training text.
    """

    measures: Measures = dataclasses.field(default_factory=Measures)
    length_edges: tuple[int, ...] = length_buckets.EDGES
    leave_out_overlap: bool = False

    def check(self) -> None:
        """Raises UserError if a metric cannot be computed, or the lengths do not ascend from 1."""
        self.measures.check()
        edges = [0, *self.length_edges]
        if any(after <= before for before, after in itertools.pairwise(edges)):
            raise UserError(
                f"--length_edges is {' '.join(map(str, self.length_edges))}; lengths are whole numbers "
                "from 1 in ascending order. Give for example --length_edges 10 20 30 40."
            )


@dataclasses.dataclass(frozen=True)
class Studied:
    """The results of one direction.

    Attributes:
      scores: the scores by the keys of the metrics.
      baseline_bleu: BLEU of the baseline; None without its translations.
      comparisons: the differences in BLEU and chrF by the keys of the metrics; {} without a baseline.
      buckets: the scores by length of the source; () if the sources are not at hand.
      counts: what BLEU was computed from.
    """

    scores: Mapping[str, Measured]
    baseline_bleu: float | None
    comparisons: Mapping[str, Comparison]
    buckets: Sequence[length_buckets.Bucket]
    counts: Counts

    @property
    def bleu_and_chrf(self) -> tuple[float, float]:
        """The two scores that every report has."""
        return self.scores["bleu"].value, self.scores["chrf"].value

    @property
    def others(self) -> dict[str, float]:
        """The scores of the other metrics."""
        return {key: score.value for key, score in self.scores.items() if key not in metrics.ALWAYS}

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the gain in BLEU; None without a baseline."""
        return self.comparisons["bleu"].interval if self.comparisons else None


def study(
    test: TestSet,
    translations: Sequence[str],
    baseline: Sequence[str] | None = None,
    options: Options | None = None,
) -> Studied:
    """Studies the translations of one direction.

    Args:
      test: the test set.
      translations: the translation of each source.
      baseline: the translations of the baseline, if there is one.
      options: what to measure.

    Raises:
      UserError: there is nothing to score, or the numbers of lines differ.
    """
    options = options or Options()
    references, target = test.all_references, test.target
    sources = test.sources or None
    scores = metrics.scores(translations, references, target, options.measures, sources)
    ours = _statistics(translations, references, target)
    theirs, comparisons, baseline_bleu = None, {}, None
    if baseline is not None:
        theirs = _statistics(baseline, references, target)
        comparisons = {
            key: significance.compare_statistics(ours[key], theirs[key], key) for key in ours
        }
        bleu = metrics.scores(baseline, references, target)["bleu"]
        baseline_bleu = bleu.value
    buckets: Sequence[length_buckets.Bucket] = ()
    if test.sources:
        edges = options.length_edges
        buckets = length_buckets.buckets(test.sources, test.source, ours, theirs, edges)
    others = {"difference": ours["bleu"]} | ({"delta": theirs["bleu"]} if theirs else {})
    counts = Counts(test.groups, ours["bleu"], others)
    return Studied(scores, baseline_bleu, comparisons, buckets, counts)


def signatures(studied: Mapping[Direction, Studied]) -> dict[str, str]:
    """Returns the signature of each metric, by its key. A signature that differs names its directions."""
    keys = next(iter(studied.values())).scores
    return {
        key: metrics.joined_signatures(
            {"-".join(direction): each.scores[key].signature for direction, each in studied.items()}
        )
        for key in keys
    }


def sections(studied: Mapping[Direction, Studied], options: Options | None = None) -> list[Section]:
    """Returns the parts of the report on significance and on lengths."""
    options = options or Options()
    named = {"-".join(filter(None, direction)): each for direction, each in studied.items()}
    compared = {name: each.comparisons for name, each in named.items() if each.comparisons}
    buckets = {name: each.buckets for name, each in named.items() if each.buckets}
    return [
        *([significance_section(compared)] if compared else []),
        *([length_buckets.section(buckets, options.length_edges)] if buckets else []),
    ]


def significance_section(
    compared: Mapping[str, Mapping[str, Comparison]], rate: float = RATE
) -> Section:
    """Returns the part of the report that says which gains over the baselines are not chance.

    Args:
      compared: for each direction, such as "fr-en", the comparisons by the keys of the metrics.
      rate: the false discovery rate over the directions. Each metric is controlled by itself.
    """
    data: dict[str, Any] = {
        "rate": rate,
        "resamples": significance.RESAMPLES,
        "method": f"{significance.METHOD}, two-sided; Benjamini-Hochberg over directions",
    }
    parts, notes = [], []
    for key in next(iter(compared.values())):
        comparisons = {name: each[key] for name, each in compared.items()}
        adjusted = significance.adjusted_p_values([c.p_value for c in comparisons.values()])
        rows = {
            name: {
                "delta": round(comparison.delta, 2),
                "ci95": [round(bound, 2) for bound in comparison.interval],
                "p": comparison.p_value,
                "adjusted_p": value,
                "significant": value <= rate,
            }
            for (name, comparison), value in zip(comparisons.items(), adjusted, strict=True)
        }
        data[key] = rows
        notes.append(_summary(metrics.TITLES[key], rows, rate))
        parts.append(_significance_table(metrics.TITLES[key], rows, notes[-1]))
    title = "Which gains are significant"
    return Section("significance", title, "\n".join(parts), data, notes=tuple(notes))


def _summary(title: str, rows: Mapping[str, Mapping[str, Any]], rate: float) -> str:
    """Returns a sentence with the number of significant differences."""
    better = sum(row["significant"] and row["delta"] > 0 for row in rows.values())
    worse = sum(row["significant"] and row["delta"] < 0 for row in rows.values())
    return (
        f"{title}: {better} of {len(rows)} directions are significantly better than the baseline, and "
        f"{worse} significantly worse ({significance.METHOD}, false discovery rate {rate:.0%})."
    )


def _significance_table(title: str, rows: Mapping[str, Mapping[str, Any]], summary: str) -> str:
    names = ("direction", f"gain in {title}", "95 % interval", "p", "adjusted p", "significant")
    lines = [
        (
            *(name, f"{row['delta']:+.1f}", f"{row['ci95'][0]:+.1f} to {row['ci95'][1]:+.1f}"),
            *(f"{row['p']:.4f}", f"{row['adjusted_p']:.4f}"),
            "yes" if row["significant"] else "no",
        )
        for name, row in rows.items()
    ]
    return (
        f"<p>{summary} There were {significance.RESAMPLES:,} draws. Of the differences that are called "
        "significant, at most this share is expected to be chance (Benjamini and Hochberg).</p>\n"
        + web_page.table(names, lines)
    )


def _statistics(
    lines: Sequence[str], references: Sequence[Sequence[str]], target: str
) -> dict[str, np.ndarray]:
    return {
        key: significance.statistics(lines, references, target, key) for key in significance.SCORES
    }
