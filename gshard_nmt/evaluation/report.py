"""The report of an evaluation: bleu.json, bleu.csv, the trendline figure, one HTML page."""

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

_WINDOW = 10
_FEW = 20
_SMALL_WINDOW = 3


@dataclasses.dataclass(frozen=True)
class Sample:
    """One sentence as every system sees it; baseline is None where there is none."""

    source: str
    reference: str
    translation: str
    baseline: str | None


@dataclasses.dataclass(frozen=True)
class LanguageResult:
    """The scores of one language.

    Attributes:
      lang: BCP 47.
      train_pairs: in the training data.
      sentences: scored.
      bleu, chrf: of the multilingual model.
      baseline_bleu: of the bilingual baseline; None without one.
      delta_ci95: interval of the difference; None without baseline hypotheses.
      tokens, baseline_tokens: training tokens that each model saw of the language; None = unknown.
      samples: the first sentences of the test set.
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

    @property
    def delta_bleu(self) -> float | None:
        """BLEU over the baseline's."""
        return None if self.baseline_bleu is None else self.bleu - self.baseline_bleu


@dataclasses.dataclass(frozen=True)
class Report:
    """An evaluation.

    Attributes:
      languages: any order.
      signatures: "bleu" and "chrf".
      facts: (name, value) rows that say what was evaluated: run, checkpoint, budgets, fingerprint.
      title: of the page.
    """

    languages: Sequence[LanguageResult]
    signatures: Mapping[str, str]
    facts: Sequence[tuple[str, str]]
    title: str

    def sorted(self) -> list[LanguageResult]:
        """Languages by training pairs, most first."""
        return sorted(self.languages, key=lambda one: (-one.train_pairs, one.lang))

    def average(self) -> dict[str, float | None]:
        """Plain means over languages."""
        deltas = [one.delta_bleu for one in self.languages if one.delta_bleu is not None]
        return {
            "bleu": _rounded(float(np.mean([one.bleu for one in self.languages]))),
            "delta_bleu": _rounded(float(np.mean(deltas))) if deltas else None,
        }


def write(report: Report, folder: Path) -> None:
    """Writes every file of the report."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = _figure(report)
    for suffix in ("png", "svg"):
        made = io.BytesIO()
        figure.savefig(
            made, format=suffix, dpi=150, metadata={"Date": None} if suffix == "svg" else {}
        )
        files.write(folder / f"trendline.{suffix}", made.getvalue())
    files.write(folder / "bleu.json", json.dumps(as_json(report), indent=1) + "\n")
    files.write(folder / "bleu.csv", _csv(report))
    page = _page(report, (folder / "trendline.png").read_bytes())
    files.write(folder / "index.html", page)


def as_json(report: Report) -> dict[str, Any]:
    """The content of bleu.json."""
    languages = [
        {
            "lang": one.lang,
            "train_pairs": one.train_pairs,
            "sentences": one.sentences,
            "bleu": _rounded(one.bleu),
            "chrf": _rounded(one.chrf),
            "baseline_bleu": _rounded(one.baseline_bleu),
            "delta_bleu": _rounded(one.delta_bleu),
            "delta_ci95": None if one.delta_ci95 is None else [_rounded(x) for x in one.delta_ci95],
            "tokens": one.tokens,
            "baseline_tokens": one.baseline_tokens,
        }
        for one in report.sorted()
    ]
    return {
        "signature": dict(report.signatures),
        "languages": languages,
        "average": report.average(),
        "provenance": dict(report.facts),
    }


def sliding_mean(values: Sequence[float], window: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean of every `window` neighbours, and the place of each window's centre.

    GShard Figure 6 smooths with a window of 10 and does not say how it is aligned; these are the
    windows that lie wholly within the data, so 100 languages give 91 points.
    """
    means = np.convolve(values, np.full(window, 1.0 / window), mode="valid")
    return np.arange(len(means)) + (window - 1) / 2, means


def _figure(report: Report):
    import matplotlib
    import matplotlib.ticker
    from matplotlib.figure import Figure

    rows = report.sorted()
    compared = all(one.delta_bleu is not None for one in rows)
    values = [one.bleu - (one.baseline_bleu or 0.0) if compared else one.bleu for one in rows]
    window = min(_WINDOW if len(rows) >= _FEW else _SMALL_WINDOW, len(rows))
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "gshard-nmt"}):
        figure = Figure(figsize=(9, 5), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        places = np.arange(len(rows))
        if compared:
            top.axhline(0, color="0.6", lw=0.8)
            known = [(i, one) for i, one in enumerate(rows) if one.delta_ci95]
            for i, one in known:
                top.plot([i, i], one.delta_ci95, color="#9db8d9", lw=3, solid_capstyle="round")
        top.plot(places, values, "o", color="#1f5fa8", ms=4, label="each language")
        at, means = sliding_mean(values, window)
        top.plot(at, means, color="#d1492e", lw=2, label=f"mean of {window} neighbours")
        what = "BLEU over the bilingual baseline" if compared else "BLEU (no baselines given)"
        top.set_ylabel(what)
        top.legend(frameon=False)
        top.set_title(report.title)
        bottom.bar(places, [max(one.train_pairs, 1) for one in rows], color="#7a8a99")
        bottom.set_yscale("log")
        bottom.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        bottom.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
        bottom.set_ylabel("training pairs")
        step = max(1, len(rows) // 40)
        bottom.set_xticks(places[::step], [one.lang for one in rows][::step], rotation=60)
        bottom.set_xlabel("languages, most training text first")
        for axes in (top, bottom):
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def _csv(report: Report) -> str:
    made = io.StringIO()
    names = [field for field in as_json(report)["languages"][0] if field != "delta_ci95"]
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow([*names, "delta_ci95_low", "delta_ci95_high"])
    for row in as_json(report)["languages"]:
        writer.writerow([*(row[name] for name in names), *(row["delta_ci95"] or (None, None))])
    return made.getvalue()


def _page(report: Report, figure: bytes) -> str:
    average = report.average()
    delta = average["delta_bleu"]
    gain = "" if delta is None else f", {delta:+.1f} over bilingual baselines"
    headline = f"{average['bleu']:.1f} BLEU on average over {len(report.languages)} languages{gain}"
    facts = [*report.facts, *((f"{k} signature", v) for k, v in report.signatures.items())]
    alt = "BLEU of each language, most training text first, with a sliding mean"
    body = [
        web_page.image(figure, "png", alt),
        f"<h2>Languages</h2>\n<div class='wide'><table><thead>{_HEADER}</thead><tbody>",
        *(_row(one) for one in report.sorted()),
        "</tbody></table></div>\n<h2>What was measured</h2>\n<table class='facts'>",
        *(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in facts
        ),
        "</table>\n<h2>Samples</h2>\n<p>The first sentences of each test set, whatever they are.</p>",
        *(_samples(one) for one in report.sorted()),
    ]
    return web_page.page(report.title, headline, "\n".join(body))


_COLUMNS = (
    *("language", "training pairs", "tokens seen", "baseline tokens", "sentences", "BLEU", "chrF"),
    *("baseline BLEU", "gain", "95 % interval"),
)
_HEADER = "<tr>" + "".join(f"<th>{name}</th>" for name in _COLUMNS) + "</tr>"


def _row(one: LanguageResult) -> str:
    interval = (
        "" if one.delta_ci95 is None else f"{one.delta_ci95[0]:+.1f} to {one.delta_ci95[1]:+.1f}"
    )
    cells = [
        f"{one.train_pairs:,}",
        _number(one.tokens),
        _number(one.baseline_tokens),
        f"{one.sentences:,}",
        f"{one.bleu:.1f}",
        f"{one.chrf:.1f}",
        "" if one.baseline_bleu is None else f"{one.baseline_bleu:.1f}",
        "" if one.delta_bleu is None else f"<b>{one.delta_bleu:+.1f}</b>",
        interval,
    ]
    return (
        f"<tr><th>{html.escape(one.lang)}</th>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>"
    )


def _samples(one: LanguageResult) -> str:
    blocks = []
    for sample in one.samples:
        lines = [("source", sample.source), ("reference", sample.reference)]
        lines.append(("multilingual", sample.translation))
        if sample.baseline is not None:
            lines.append(("baseline", sample.baseline))
        rows = "".join(
            f'<tr><th>{name}</th><td dir="auto">{html.escape(text)}</td></tr>'
            for name, text in lines
        )
        blocks.append(f"<table class='sample'>{rows}</table>")
    return f"<details><summary>{html.escape(one.lang)}</summary>{''.join(blocks)}</details>"


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
