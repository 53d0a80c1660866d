"""The studies of the main run: which gains over the baselines are significant, and scores by length."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gshard_nmt.evaluation.metrics import metrics, significance
from gshard_nmt.evaluation.metrics.significance import SCORES, Comparison
from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.report import Evaluation, Section, interval_text, score_text
from gshard_nmt.evaluation.systems.systems import Result

RATE = 0.05
"""The false discovery rate."""
COMPARISON_HEADS = ("95 % interval", "p", "adjusted p", "significant")

_WITHOUT_SPACES = ("zh", "yue", "ja", "th", "km", "lo", "my", "bo", "dz")
"""Languages whose length is counted in characters."""


def name_of(result: Result) -> str:
    """Returns the direction of a result, such as "fr-en"; the target alone if the source is unknown."""
    return "-".join(filter(None, result.direction))


def significance_section(evaluation: Evaluation) -> Section | None:
    """Returns which gains over the baselines are not chance; None without translations of baselines.

    The false discovery rate is controlled over the directions, for each metric by itself.
    """
    compared = {name_of(r): r.gains for r in evaluation.systems.main.results if r.gains}
    if not compared:
        return None
    data: dict[str, Any] = {
        "rate": RATE,
        "resamples": significance.RESAMPLES,
        "method": f"{significance.METHOD}, two-sided; Benjamini-Hochberg over directions",
    }
    parts, notes = [], []
    for key in SCORES:
        comparisons = {name: gains[key] for name, gains in compared.items()}
        adjusted = significance.adjusted_p_values([c.p_value for c in comparisons.values()])
        rows = {
            name: comparison_json("delta", "ci95", comparison, value)
            for (name, comparison), value in zip(comparisons.items(), adjusted, strict=True)
        }
        better, worse = (
            sum(row["significant"] and sign * row["delta"] > 0 for row in rows.values())
            for sign in (1, -1)
        )
        notes.append(
            f"{metrics.TITLES[key]}: {better} of {len(rows)} directions are significantly better than "
            f"the baseline, and {worse} significantly worse ({significance.METHOD}, false discovery rate "
            f"{RATE:.0%})."
        )
        cells = [
            (name, *comparison_cells(comparisons[name], row["adjusted_p"]))
            for name, row in rows.items()
        ]
        heads = ("direction", f"gain in {metrics.TITLES[key]}", *COMPARISON_HEADS)
        parts.append(
            f"<p>{notes[-1]} There were {significance.RESAMPLES:,} draws. Of the differences that are "
            "called significant, at most this share is expected to be chance (Benjamini and Hochberg)."
            f"</p>\n{web_page.table(heads, cells)}"
        )
        data[key] = rows
    title = "Which gains are significant"
    return Section("significance", title, "\n".join(parts), data, notes=tuple(notes))


def comparison_json(
    delta: str, interval: str, comparison: Comparison, adjusted_p: float
) -> dict[str, Any]:
    """Returns a comparison as bleu.json has it, with these names of the difference and its interval."""
    return {
        delta: round(comparison.delta, 2),
        interval: [round(bound, 2) for bound in comparison.interval],
        "p": comparison.p_value,
        "adjusted_p": adjusted_p,
        "significant": adjusted_p <= RATE,
    }


def comparison_cells(comparison: Comparison | None, adjusted_p: float | None) -> list[str]:
    if comparison is None or adjusted_p is None:
        return [""] * 5
    return [
        f"{comparison.delta:+.1f}",
        interval_text(comparison.interval),
        f"{comparison.p_value:.4f}",
        f"{adjusted_p:.4f}",
        "yes" if adjusted_p <= RATE else "no",
    ]


def length(source: str, language: str) -> int:
    """Returns the number of words of a source, or of characters if its language puts no spaces."""
    words = source.split()
    return len("".join(words) if language.split("-")[0] in _WITHOUT_SPACES else words)


def length_section(evaluation: Evaluation) -> Section | None:
    """Returns the scores of short and of long sentences; None if the sources are not at hand."""
    starts = [0, *evaluation.request.options.length_edges]
    ranges = list(zip(starts, [*starts[1:], None], strict=True))
    directions = {
        name_of(result): [_bucket(result, *bounds) for bounds in ranges]
        for result in evaluation.systems.main.results
        if result.test.sources
    }
    if not directions:
        return None
    names = [
        f"{start}+" if end is None else f"{start}-{end - 1}" if end - 1 > start else str(start)
        for start, end in ranges
    ]
    rows = [(name, *map(_bucket_cell, buckets)) for name, buckets in directions.items()]
    text = (
        "<p>BLEU of the sentences whose source has so many words (characters, if the language puts no "
        "spaces between words); in brackets the gain over the baseline, and the number of sentences. "
        f"Scores of few sentences vary by chance.</p>\n{web_page.table(['direction', *names], rows)}"
    )
    data = {"edges": starts[1:], "directions": directions}
    return Section("length_buckets", "Scores by length of the source", text, data)


def _bucket(result: Result, start: int, end: int | None) -> dict[str, Any]:
    """Returns the scores of the sentences whose source has `start` to `end` - 1 words."""
    lengths = np.array([length(source, result.test.source) for source in result.test.sources])
    chosen = (lengths >= start) & (lengths < (np.inf if end is None else end))

    def score(statistics: Mapping[str, np.ndarray], key: str) -> float | None:
        if not statistics or not chosen.any():
            return None
        return round(float(SCORES[key](statistics[key][chosen].sum(0))), 2)

    return {
        "start": start,
        "end": end,
        "sentences": int(chosen.sum()),
        "bleu": score(result.statistics, "bleu"),
        "chrf": score(result.statistics, "chrf"),
        "baseline_bleu": score(result.baseline.statistics if result.baseline else {}, "bleu"),
    }


def _bucket_cell(bucket: Mapping[str, Any]) -> str:
    score, baseline = bucket["bleu"], bucket["baseline_bleu"]
    if score is None:
        return ""
    gain = "" if baseline is None else f"{score - baseline:+.1f}; "
    return f"{score:.1f} ({gain}{bucket['sentences']:,})"


def files_section(evaluation: Evaluation) -> Section | None:
    """Returns the comparison of each file with the first one; None if there is only one."""
    if not evaluation.systems.others:
        return None
    keys = list(evaluation.systems.main.results[0].scores)
    data, rows, notes = [], [], []
    for system in evaluation.systems.compared:
        (result,) = system.results
        values = {key: round(score.value, 4) for key, score in result.scores.items()}
        row: dict[str, Any] = {"file": system.made_by, **values}
        if (comparison := result.comparison) and result.adjusted_p is not None:
            row |= comparison_json("delta_bleu", "delta_ci95", comparison, result.adjusted_p)
            low, high = comparison.interval
            notes.append(
                f"{system.made_by}: BLEU {result.bleu:.1f}, {comparison.delta:+.1f} ({low:+.1f} to "
                f"{high:+.1f}) against the first file, adjusted p {result.adjusted_p:.4f}, "
                f"{'significant' if row['significant'] else 'not significant'}"
            )
        cells = [score_text(key, values[key]) for key in keys]
        rows.append([system.made_by, *cells, *comparison_cells(comparison, result.adjusted_p)])
        data.append(row)
    titles = (metrics.TITLES[key] for key in keys)
    heads = ["file", *titles, "difference in BLEU", *COMPARISON_HEADS]
    text = (
        f"<p>Every file is compared with the first one by {significance.METHOD}, with the false "
        f"discovery rate controlled at {RATE:.0%} (Benjamini and Hochberg).</p>\n"
        f"{web_page.table(heads, rows)}"
    )
    return Section("hypotheses", "All files", text, data, notes=tuple(notes))
