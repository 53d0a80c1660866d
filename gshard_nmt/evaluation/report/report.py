"""Writes the report of an evaluation: bleu.json, bleu.csv, the figure of the trend, and the web page."""

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files, web_page
from gshard_nmt.evaluation.metrics.metrics import FINE, TITLES
from gshard_nmt.evaluation.report import figure, page
from gshard_nmt.evaluation.systems.systems import Counts, DirectionResult, System, rounded
from gshard_nmt.evaluation.systems.systems import as_json as systems_as_json

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
      samples: sentences of the test set that `samples.choose` has chosen.
      source, target: BCP 47 tags of the direction; "" if unknown.
      scores: scores of the metrics other than BLEU and chrF, by their keys, such as "chrfpp".
      counts: what BLEU was computed from; None if only scores are known.
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
    counts: Counts | None = dataclasses.field(default=None, compare=False, repr=False)

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
            counts=self.counts,
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
      caution: a sentence for the headline about the baselines; "" if they are what they should be.
    """

    languages: Sequence[LanguageResult]
    signatures: Mapping[str, str]
    facts: Sequence[tuple[str, str]]
    title: str
    sections: Sequence[Section] = ()
    systems: Sequence[System] = ()
    caution: str = ""

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

    def average(self) -> dict[str, Any]:
        """Returns the means over languages with their intervals, see `System.average`."""
        average = self.compared_systems()[0].average()
        names = ("bleu", "delta_bleu", "bleu_ci95", "delta_ci95")
        return rounded({name: average[name] for name in names})

    def headline(self) -> str:
        """Returns the result in a few sentences."""
        average = self.average()
        text = f"{average['bleu']:.1f} BLEU{_bounds(average['bleu_ci95'], '.1f')} on average over "
        text += f"{len(self.languages):,} language{'' if len(self.languages) == 1 else 's'}"
        gain = average["delta_bleu"]
        if gain is None:
            return f"{text}."
        text += f", {gain:+.1f}{_bounds(average['delta_ci95'], '+.1f')} compared with bilingual "
        deltas = [result.delta_bleu for result in self.languages if result.delta_bleu is not None]
        better = f"Better than its baseline in {sum(d > 0 for d in deltas)} of {len(deltas):,}."
        counted = [section.notes[0] for section in self.sections if section.name == "significance"]
        return " ".join(filter(None, (f"{text}baselines.", *(counted or [better]), self.caution)))


def write(report: Report, folder: Path) -> None:
    """Writes all files of the report into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        image = figure.trend(report.compared_systems(), report.title, kind)
        files.write(folder / f"trendline.{kind}", image)
    files.write(folder / "bleu.json", json.dumps(as_json(report), indent=1) + "\n")
    files.write(folder / "bleu.csv", _csv(report))
    files.write(folder / "index.html", page.render(_page_content(report)))


def is_in(folder: Path) -> bool:
    """Returns whether a folder has a report."""
    try:
        return "signature" in json.loads((folder / "bleu.json").read_bytes())
    except (OSError, ValueError, TypeError):
        return False


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
        "systems": systems_as_json(report.compared_systems()),
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


def _page_content(report: Report) -> page.Content:
    """Returns what the page shows."""
    contents, results = as_json(report), report.sorted()
    signatures = report.signatures.items()
    return page.Content(
        report.title,
        report.headline(),
        contents["languages"],
        contents["average"],
        [*report.facts, *((f"{name} signature", value) for name, value in signatures)],
        [alarm for section in report.sections for alarm in section.alarms],
        _trend(report),
        [[_sample_rows(sample) for sample in result.samples] for result in results],
        figure.has_gains([result.direction_result() for result in results]),
        [(section.title, section.html) for section in report.sections],
        [(key, TITLES.get(key, key)) for key in report.languages[0].scores],
    )


def _trend(report: Report) -> str:
    """Returns the figure of the trend as an element of the page, in light and in dark colors."""
    systems, title = report.compared_systems(), report.title
    light, dark = (figure.trend(systems, title, "svg", is_dark) for is_dark in (False, True))
    return web_page.image(light, "svg", "the scores of each language, as in the table", dark)


def _sample_rows(sample: Sample) -> list[tuple[str, str]]:
    rows = [("source", sample.source), ("reference", sample.reference)]
    rows.append(("multilingual", sample.translation))
    if sample.baseline is not None:
        rows.append(("baseline", sample.baseline))
    return rows


def score_text(key: str, value: float) -> str:
    """Returns a score as users read it."""
    return f"{value:.4f}" if key in FINE else f"{value:.1f}"


def _bounds(interval: Sequence[float] | None, form: str) -> str:
    """Returns an interval in brackets after its mean; "" if it is unknown."""
    return f" ({interval[0]:{form}} to {interval[1]:{form}})" if interval else ""


def interval_text(interval: Sequence[float] | None) -> str:
    """Returns an interval as users read it; "" if it is unknown."""
    return f"{interval[0]:+.1f} to {interval[1]:+.1f}" if interval else ""


def _rounded(value: float | None, key: str = "") -> float | None:
    return None if value is None else round(value, 4 if key in FINE else 2)
