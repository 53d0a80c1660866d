"""Writes the report of an evaluation: bleu.json, bleu.csv, the chart of the trend, and a web page."""

import csv
import dataclasses
import html
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files, web_page
from gshard_nmt.evaluation import figure
from gshard_nmt.evaluation.metrics import TITLES
from gshard_nmt.evaluation.systems import DirectionResult, System

FILES = ("bleu.json", "bleu.csv", "trendline.png", "trendline.svg", "index.html")
"""What `write` writes into the folder of the report."""


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
      samples: the first sentences of the test set.
      source, target: BCP 47 tags of the direction; "" if unknown.
      scores: scores of the metrics other than BLEU and chrF, by their keys, such as "chrfpp".
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
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def delta_bleu(self) -> float | None:
        """The gain over the baseline in BLEU; None if there is no baseline."""
        return None if self.baseline_bleu is None else self.bleu - self.baseline_bleu

    def direction_result(self) -> DirectionResult:
        """Returns the scores without the samples."""
        return DirectionResult(
            self.lang,
            (self.source or self.lang, self.target),
            self.train_pairs,
            self.sentences,
            self.bleu,
            self.chrf,
            self.baseline_bleu,
            self.delta_ci95,
        )


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the report that a study of the translations adds.

    Attributes:
      name: its key in bleu.json.
      title: its headline on the page.
      html: its content on the page.
      data: its value in bleu.json.
      alarms: sentences that the terminal and the top of the page show too.
      notes: sentences that the terminal shows too.
    """

    name: str
    title: str
    html: str
    data: Any
    alarms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """An evaluation of all languages.

    Attributes:
      languages: the results, in any order.
      signatures: the signatures of "bleu" and "chrf".
      facts: rows of (name, value) that say what was evaluated: run, checkpoint, budgets, fingerprint.
      title: title of the page.
      sections: the studies, in the order of the page.
      systems: all systems of the figure, the run of `languages` first. () stands for that run alone.
    """

    languages: Sequence[LanguageResult]
    signatures: Mapping[str, str]
    facts: Sequence[tuple[str, str]]
    title: str
    sections: Sequence[Section] = ()
    systems: Sequence[System] = ()

    def sorted(self) -> list[LanguageResult]:
        """Returns the results by number of training pairs, largest first."""
        return sorted(self.languages, key=lambda result: (-result.train_pairs, result.lang))

    def compared_systems(self) -> Sequence[System]:
        """Returns all systems, the run of `languages` first."""
        results = [result.direction_result() for result in self.languages]
        return self.systems or (System(self.title, results, ""),)

    def label(self, result: LanguageResult) -> str:
        """Returns the language of a result, or its direction if another direction has the language."""
        several = sum(other.lang == result.lang for other in self.languages) > 1
        return f"{result.source}-{result.target}" if several and result.source else result.lang

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
    for kind in ("png", "svg"):
        image = figure.trend(report.compared_systems(), report.title, kind)
        files.write(folder / f"trendline.{kind}", image)
    files.write(folder / "bleu.json", json.dumps(as_json(report), indent=1) + "\n")
    files.write(folder / "bleu.csv", _csv(report))
    page = _page(report, (folder / "trendline.png").read_bytes())
    files.write(folder / "index.html", page)


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
            **{key: _rounded(value, key) for key, value in result.scores.items()},
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


def _csv(report: Report) -> str:
    text = io.StringIO()
    rows = as_json(report)["languages"]
    names = [field for field in rows[0] if field != "delta_ci95"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "delta_ci95_low", "delta_ci95_high"])
    for row in rows:
        writer.writerow([*(row[name] for name in names), *(row["delta_ci95"] or (None, None))])
    return text.getvalue()


def _page(report: Report, trend_line: bytes) -> str:
    average = report.average()
    delta = average["delta_bleu"]
    gain = "" if delta is None else f", {delta:+.1f} compared with bilingual baselines"
    headline = f"{average['bleu']:.1f} BLEU on average over {len(report.languages)} languages{gain}"
    signatures = report.signatures.items()
    facts = [*report.facts, *((f"{name} signature", value) for name, value in signatures)]
    alt = "BLEU of each language, most training pairs first, with a sliding mean"
    body = [
        *(
            f"<p class='alarm'>{html.escape(alarm)}</p>"
            for section in report.sections
            for alarm in section.alarms
        ),
        web_page.image(trend_line, "png", alt),
        f"<h2>Languages</h2>\n<div class='wide'><table><thead>{_header(report)}</thead><tbody>",
        *(_row(result, report.label(result)) for result in report.sorted()),
        "</tbody></table></div>\n<h2>What was measured</h2>\n<table class='facts'>",
        *(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in facts
        ),
        "</table>\n<h2>Samples</h2>\n<p>The first sentences of each test set, not selected.</p>",
        *(_samples(result, report.label(result)) for result in report.sorted()),
        *(f"<h2>{html.escape(part.title)}</h2>\n{part.html}" for part in report.sections),
    ]
    return web_page.page(report.title, headline, "\n".join(body))


_COLUMNS = (
    *("language", "training pairs", "tokens seen", "baseline tokens", "sentences", "BLEU", "chrF"),
    *("baseline BLEU", "gain", "95 % interval"),
)


def _header(report: Report) -> str:
    names = [*_COLUMNS, *(TITLES.get(key, key) for key in report.languages[0].scores)]
    return "<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"


def score_text(key: str, value: float) -> str:
    """Returns a score as users read it. COMET is mostly between 0 and 1, so it has more digits."""
    return f"{value:.4f}" if key == "comet" else f"{value:.1f}"


def _row(result: LanguageResult, label: str) -> str:
    cells = [
        f"{result.train_pairs:,}",
        _number(result.tokens),
        _number(result.baseline_tokens),
        f"{result.sentences:,}",
        f"{result.bleu:.1f}",
        f"{result.chrf:.1f}",
        "" if result.baseline_bleu is None else f"{result.baseline_bleu:.1f}",
        "" if result.delta_bleu is None else f"<b>{result.delta_bleu:+.1f}</b>",
        interval_text(result),
        *(score_text(key, value) for key, value in result.scores.items()),
    ]
    columns = "".join(f"<td>{cell}</td>" for cell in cells)
    return f"<tr><th>{html.escape(label)}</th>{columns}</tr>"


def interval_text(result: LanguageResult) -> str:
    """Returns the interval of the gain as users read it; "" if it is unknown."""
    if result.delta_ci95 is None:
        return ""
    low, high = result.delta_ci95
    return f"{low:+.1f} to {high:+.1f}"


def _samples(result: LanguageResult, label: str) -> str:
    blocks = []
    for sample in result.samples:
        lines = [("source", sample.source), ("reference", sample.reference)]
        lines.append(("multilingual", sample.translation))
        if sample.baseline is not None:
            lines.append(("baseline", sample.baseline))
        rows = "".join(
            f'<tr><th>{name}</th><td dir="auto">{html.escape(text)}</td></tr>'
            for name, text in lines
        )
        blocks.append(f"<table class='sample'>{rows}</table>")
    return f"<details><summary>{html.escape(label)}</summary>{''.join(blocks)}</details>"


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _rounded(value: float | None, key: str = "") -> float | None:
    return None if value is None else round(value, 4 if key == "comet" else 2)
