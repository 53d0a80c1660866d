"""Writes the report of an evaluation: bleu.json, bleu.csv, the chart of the trend, and the web page."""

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files
from gshard_nmt.evaluation import chart, page

FILES = ("bleu.json", "bleu.csv", "trendline.png", "trendline.svg", "index.html")
"""What `write` writes into the folder of the report."""

_WINDOW = 10
"""Languages in the sliding mean of the chart, as in GShard Figure 6."""
_SMALL_WINDOW = 3
"""The same, if there are fewer languages than `_MANY`."""
_MANY = 20


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sentence, its reference and its translations; `baseline` is None if there is no baseline."""

    source: str
    reference: str
    translation: str
    baseline: str | None


@dataclasses.dataclass(frozen=True)
class LanguageResult:
    """The scores of one language.

    Attributes:
      lang: BCP 47 tag.
      train_pairs: number of examples in the training data.
      sentences: number of sentences that were scored.
      bleu, chrf: scores of the multilingual model, 0 to 100.
      baseline_bleu: score of the bilingual baseline; None if there is no baseline.
      delta_ci95: 95 % interval of the gain in BLEU; None without translations of the baseline.
      tokens, baseline_tokens: number of training tokens of the language that each model has seen; None if
        unknown.
      samples: sentences of the test set that `samples.choose` has chosen.
      source, target: BCP 47 tags of the direction; "" if unknown.
    """

    lang: str
    train_pairs: int
    sentences: int
    bleu: float
    chrf: float
    baseline_bleu: float | None = None
    delta_ci95: tuple[float, float] | None = None
    tokens: int | None = None
    baseline_tokens: int | None = None
    samples: tuple[Sample, ...] = ()
    source: str = ""
    target: str = ""

    @property
    def delta_bleu(self) -> float | None:
        """The gain over the baseline in BLEU; None if there is no baseline."""
        return None if self.baseline_bleu is None else self.bleu - self.baseline_bleu


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the report that a study of the translations adds.

    Attributes:
      name: its key in bleu.json.
      title: its headline on the page.
      html: its content on the page.
      data: its value in bleu.json.
      alarms: sentences that the terminal and the top of the page show too.
    """

    name: str
    title: str
    html: str
    data: Any
    alarms: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """An evaluation of all languages.

    Attributes:
      languages: the results, in any order.
      signatures: the signatures of "bleu" and "chrf".
      facts: rows of (name, value) that say what was evaluated: run, checkpoint, budgets, fingerprint.
      title: title of the page.
      sections: the studies, in the order of the page.
    """

    languages: Sequence[LanguageResult]
    signatures: Mapping[str, str]
    facts: Sequence[tuple[str, str]]
    title: str
    sections: Sequence[Section] = ()

    def sorted(self) -> list[LanguageResult]:
        """Returns the results by number of training pairs, largest first."""
        return sorted(self.languages, key=lambda result: (-result.train_pairs, result.lang))

    def average(self) -> dict[str, float | None]:
        """Returns the means over languages, each language with the same weight."""
        deltas = [result.delta_bleu for result in self.languages if result.delta_bleu is not None]
        return {
            "bleu": _rounded(float(np.mean([result.bleu for result in self.languages]))),
            "delta_bleu": _rounded(float(np.mean(deltas))) if deltas else None,
        }


def write(report: Report, folder: Path) -> None:
    """Writes all files of the report into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = _figure(report)
    for suffix in ("png", "svg"):
        image = io.BytesIO()
        metadata = {"Date": None} if suffix == "svg" else {}
        figure.savefig(image, format=suffix, dpi=150, metadata=metadata)
        files.write(folder / f"trendline.{suffix}", image.getvalue())
    files.write(folder / "bleu.json", json.dumps(as_json(report), indent=1) + "\n")
    files.write(folder / "bleu.csv", _csv(report))
    files.write(folder / "index.html", page.render(_page_content(report)))


def as_json(report: Report) -> dict[str, Any]:
    """Returns the contents of bleu.json."""
    languages = [
        {
            "lang": result.lang,
            "train_pairs": result.train_pairs,
            "sentences": result.sentences,
            "bleu": _rounded(result.bleu),
            "chrf": _rounded(result.chrf),
            "baseline_bleu": _rounded(result.baseline_bleu),
            "delta_bleu": _rounded(result.delta_bleu),
            "delta_ci95": result.delta_ci95 and [_rounded(bound) for bound in result.delta_ci95],
            "tokens": result.tokens,
            "baseline_tokens": result.baseline_tokens,
            "source": result.source,
            "target": result.target,
        }
        for result in report.sorted()
    ]
    return {
        "signature": dict(report.signatures),
        "languages": languages,
        "average": report.average(),
        "provenance": dict(report.facts),
        **{section.name: section.data for section in report.sections},
    }


def sliding_mean(values: Sequence[float], window: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes the mean of the values in each window of `window` neighbours.

    GShard Figure 6 smooths with a window of 10, but the paper does not say how the windows are placed. We
    use all windows that lie wholly within the data, so 100 languages give 91 points.

    Returns:
      The places of the centres of the windows, and the means: float64[len(values) - window + 1] each.
    """
    means = np.convolve(values, np.full(window, 1.0 / window), mode="valid")
    return np.arange(len(means)) + (window - 1) / 2, means


def _figure(report: Report):
    """Draws BLEU (or the gain over the baselines) of each language above its number of training pairs."""
    import matplotlib
    from matplotlib.figure import Figure

    results = report.sorted()
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "gshard-nmt"}):
        figure = Figure(figsize=(9, 5), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        top.set_title(report.title)
        _draw_scores(top, results)
        _draw_training_pairs(bottom, results)
        for axes in (top, bottom):
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_scores(axes, results: Sequence[LanguageResult]) -> None:
    places = np.arange(len(results))
    gains = [result.delta_bleu for result in results if result.delta_bleu is not None]
    has_all_baselines = len(gains) == len(results)
    if has_all_baselines:
        axes.axhline(0, color="0.6", lw=0.8)
        intervals = {
            place: result.delta_ci95 for place, result in enumerate(results) if result.delta_ci95
        }
        if intervals:
            lows, highs = zip(*intervals.values(), strict=True)
            axes.vlines(
                list(intervals),
                lows,
                highs,
                color="#9db8d9",
                lw=3,
                capstyle="round",
                label="95 % interval",
            )
    values = gains if has_all_baselines else [result.bleu for result in results]
    axes.plot(places, values, "o", color="#1f5fa8", ms=4, label="each language")
    window = min(_WINDOW if len(results) >= _MANY else _SMALL_WINDOW, len(results))
    centres, means = sliding_mean(values, window)
    axes.plot(centres, means, color="#d1492e", lw=2, label=f"mean of {window} neighbours")
    gain_label = "gain in BLEU over the bilingual baseline"
    axes.set_ylabel(gain_label if has_all_baselines else "BLEU")
    axes.legend(frameon=False)


def _draw_training_pairs(axes, results: Sequence[LanguageResult]) -> None:
    import matplotlib.ticker

    places = np.arange(len(results))
    axes.bar(places, [max(result.train_pairs, 1) for result in results], color="#7a8a99")
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("training pairs")
    step = max(1, len(results) // 40)
    axes.set_xticks(places[::step], [result.lang for result in results][::step], rotation=60)
    axes.set_xlabel("languages, most training pairs first")


def _csv(report: Report) -> str:
    text = io.StringIO()
    rows = as_json(report)["languages"]
    names = [field for field in rows[0] if field != "delta_ci95"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "delta_ci95_low", "delta_ci95_high"])
    for row in rows:
        writer.writerow([*(row[name] for name in names), *(row["delta_ci95"] or (None, None))])
    return text.getvalue()


def _page_content(report: Report) -> page.Content:
    """Returns what the page shows."""
    contents, results = as_json(report), report.sorted()
    signatures = report.signatures.items()
    return page.Content(
        report.title,
        contents["languages"],
        contents["average"],
        [*report.facts, *((f"{name} signature", value) for name, value in signatures)],
        [alarm for section in report.sections for alarm in section.alarms],
        [_trend_line(results)],
        [[_sample_rows(sample) for sample in result.samples] for result in results],
        [(section.title, section.html) for section in report.sections],
    )


def _trend_line(results: Sequence[LanguageResult]) -> chart.Line:
    """Returns the sliding mean of the gains, or of BLEU if a language has no baseline."""
    gains = [result.delta_bleu for result in results if result.delta_bleu is not None]
    values = gains if len(gains) == len(results) else [result.bleu for result in results]
    window = min(_WINDOW if len(results) >= _MANY else _SMALL_WINDOW, len(results))
    places, means = sliding_mean(values, window)
    return chart.Line("", places.tolist(), means.tolist(), window)


def _sample_rows(sample: Sample) -> list[tuple[str, str]]:
    rows = [("source", sample.source), ("reference", sample.reference)]
    rows.append(("multilingual", sample.translation))
    if sample.baseline is not None:
        rows.append(("baseline", sample.baseline))
    return rows


def interval_text(result: LanguageResult) -> str:
    """Returns the interval of the gain as users read it; "" if it is unknown."""
    if result.delta_ci95 is None:
        return ""
    low, high = result.delta_ci95
    return f"{low:+.1f} to {high:+.1f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
