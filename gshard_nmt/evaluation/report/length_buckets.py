"""Scores by the length of the source: short and long sentences apart."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt import web_page
from gshard_nmt.evaluation.metrics.significance import SCORES
from gshard_nmt.evaluation.report.report import Section

EDGES = (10, 20, 30, 40)
"""Default lengths at which a bucket begins, in words."""

_WITHOUT_SPACES = ("zh", "yue", "ja", "th", "km", "lo", "my", "bo", "dz")
"""Languages whose length is counted in characters."""


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The sentences of one range of lengths, and their scores.

    Attributes:
      start, end: the lengths, `end` excluded; None if there is no end.
      sentences: number of sentences.
      bleu, chrf: the scores; None without sentences.
      baseline_bleu: BLEU of the baseline; None without sentences or without a baseline.
    """

    start: int
    end: int | None
    sentences: int
    bleu: float | None
    chrf: float | None
    baseline_bleu: float | None

    @property
    def name(self) -> str:
        """The range as a user reads it, such as "10-19" or "40+"."""
        return range_name(self.start, self.end)


def range_name(start: int, end: int | None) -> str:
    """Returns a range of lengths as a user reads it; `end` is excluded."""
    if end is None:
        return f"{start}+"
    return f"{start}-{end - 1}" if end - 1 > start else str(start)


def length(source: str, language: str) -> int:
    """Returns the number of words of a source.

    Chinese and other languages without spaces between words are counted in characters.
    """
    if language.split("-")[0] in _WITHOUT_SPACES:
        return len("".join(source.split()))
    return len(source.split())


def buckets(
    sources: Sequence[str],
    language: str,
    statistics: Mapping[str, np.ndarray],
    baseline: Mapping[str, np.ndarray] | None = None,
    edges: Sequence[int] = EDGES,
) -> list[Bucket]:
    """Computes the scores of each range of lengths.

    Args:
      sources: the sources.
      language: BCP 47 tag of the source language.
      statistics: float64[sentence, statistic] of "bleu" and "chrf", see `significance.statistics`.
      baseline: those of the baseline, if there is one.
      edges: the lengths at which a bucket begins, in ascending order. A first bucket begins at 0.

    Returns:
      All buckets, also those without sentences.
    """
    lengths = np.array([length(source, language) for source in sources])
    starts = [0, *edges]
    results = []
    for start, end in zip(starts, [*edges, None], strict=True):
        chosen = (lengths >= start) & (lengths < (np.inf if end is None else end))
        results.append(
            Bucket(
                start,
                end,
                int(chosen.sum()),
                _score("bleu", statistics, chosen),
                _score("chrf", statistics, chosen),
                _score("bleu", baseline, chosen),
            )
        )
    return results


def _score(
    key: str, statistics: Mapping[str, np.ndarray] | None, chosen: np.ndarray
) -> float | None:
    if statistics is None or not chosen.any():
        return None
    return float(SCORES[key](statistics[key][chosen].sum(0)))


def section(by_direction: Mapping[str, Sequence[Bucket]], edges: Sequence[int] = EDGES) -> Section:
    """Returns the part of the report with the buckets of all directions, such as "fr-en"."""
    names = [range_name(*pair) for pair in zip([0, *edges], [*edges, None], strict=True)]
    rows = [(direction, *map(_cell, row)) for direction, row in by_direction.items()]
    text = (
        "<p>BLEU of the sentences whose source has so many words (characters, if the language puts no "
        "spaces between words); in brackets the gain over the baseline, and the number of sentences. "
        "Scores of few sentences vary by chance.</p>\n"
        + web_page.table(["direction", *names], rows)
    )
    data: dict[str, Any] = {
        "edges": list(edges),
        "directions": {
            direction: [_rounded(dataclasses.asdict(bucket)) for bucket in row]
            for direction, row in by_direction.items()
        },
    }
    return Section("length_buckets", "Scores by length of the source", text, data)


def _cell(bucket: Bucket) -> str:
    if bucket.bleu is None:
        return ""
    gain = "" if bucket.baseline_bleu is None else f"{bucket.bleu - bucket.baseline_bleu:+.1f}; "
    return f"{bucket.bleu:.1f} ({gain}{bucket.sentences:,})"


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: round(value, 2) if isinstance(value, float) else value for key, value in values.items()
    }
