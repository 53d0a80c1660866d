"""Writes the web page of a report: one file that needs no network, and reads well without its script."""

import dataclasses
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gshard_nmt import web_page
from gshard_nmt.evaluation.metrics import metrics
from gshard_nmt.evaluation.report import samples

Row = Mapping[str, Any]
"""The scores of a language, as bleu.json has them."""

_EXTREMES = 5
"""Languages in the list of the largest gains, and in that of the largest losses."""
_OPEN_SAMPLES = 5
"""Languages whose samples can be seen without a click. They are spread over the sizes."""
_COVERS = (
    "The interval of a language covers which strings were taken, and that of the average which languages "
    "too. A string that several languages share counts once. No interval covers the seed of the training."
)
_LONGEST_TEXT = 600
"""Characters of a sentence that the page shows."""
_BUDGET_FACTS = ("multilingual model", "baselines")
"""Facts about the training. The page shows them under a headline of their own."""


@dataclasses.dataclass(frozen=True)
class Content:
    """What the page shows.

    Attributes:
      title: its title.
      headline: the result in a few sentences.
      rows: the languages, most training pairs first.
      average: the means of "bleu" and "delta_bleu", and their intervals.
      facts: rows of (name, value) that say what was measured.
      alarms: sentences for the top of the page.
      trend: the figure of the trend, as HTML.
      samples: for each row its samples, each of them rows of (name, text).
      shows_gains: whether the figure shows gains over baselines, or else BLEU.
      parts: the studies, as pairs of a headline and HTML.
      metrics: metrics other than BLEU and chrF, as pairs of a key of `rows` and a title.
    """

    title: str
    headline: str
    rows: Sequence[Row]
    average: Mapping[str, Any]
    facts: Sequence[tuple[str, str]]
    alarms: Sequence[str]
    trend: str
    samples: Sequence[Sequence[Sequence[tuple[str, str]]]]
    shows_gains: bool
    parts: Sequence[tuple[str, str]] = ()
    metrics: Sequence[tuple[str, str]] = ()


def render(content: Content) -> str:
    """Returns the page."""
    names = labels(content.rows)
    budgets = [*_token_facts(content.rows), *_facts_named(content, _BUDGET_FACTS)]
    commands = [fact for fact in content.facts if _is_command(fact[0])]
    others = [f for f in content.facts if f[0] not in _BUDGET_FACTS and f not in commands]
    body = [
        *_alarms(content.alarms),
        *_trend(content),
        *_extremes(content.rows, names),
        *_language_table(content, names),
        *_samples(content.samples, names),
        *(f"<h2>{html.escape(title)}</h2>\n{part}" for title, part in content.parts),
        *_fact_table("Training budget", budgets),
        *_fact_table("What was measured", others),
        *_commands(commands),
        web_page.script(web_page.template("report.js")),
    ]
    style = web_page.template("report.css")
    return web_page.page(content.title, content.headline, "\n".join(body), style)


def labels(rows: Sequence[Row]) -> list[str]:
    """Returns a short name of each row: its language if this is clear, or else "fr-en"."""
    languages = [row["lang"] for row in rows]
    return [
        row["lang"]
        if languages.count(row["lang"]) == 1 or not row.get("target")
        else f"{row['source']}-{row['target']}"
        for row in rows
    ]


def _alarms(alarms: Sequence[str]) -> Iterator[str]:
    if alarms:
        yield "<div class='alarms'><h2>Before you use these scores</h2>"
        yield from (f"<p class='alarm'>{html.escape(alarm)}</p>" for alarm in alarms)
        yield "</div>"


def _trend(content: Content) -> Iterator[str]:
    """Yields the figure of the gains, or of BLEU."""
    yield f"<h2>{'Gain' if content.shows_gains else 'BLEU'} by language, most training pairs first</h2>"
    yield f'<div class="chart">{content.trend}</div>'


def _extremes(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Yields the languages that gain most and lose most, compared with their baselines."""
    compared = [
        (row["delta_bleu"], name, row)
        for name, row in zip(names, rows, strict=True)
        if row["delta_bleu"] is not None
    ]
    if not compared:
        return
    gains = sorted((c for c in compared if c[0] > 0), key=lambda c: (-c[0], c[1]))[:_EXTREMES]
    losses = sorted((c for c in compared if c[0] < 0), key=lambda c: (c[0], c[1]))[:_EXTREMES]
    yield "<div class='two'>"
    for title, chosen, nothing in (
        ("Largest gains", gains, "No language is better than its baseline."),
        ("Largest losses", losses, "No language is worse than its baseline."),
    ):
        yield f"<section><h2>{title}</h2>"
        if chosen:
            yield web_page.table(
                ("language", "gain", "95 % interval"),
                [
                    (name, _colored(delta), interval_text(row["delta_ci95"]) or "unknown")
                    for delta, name, row in chosen
                ],
            )
        else:
            yield f"<p>{nothing}</p>"
        yield "</section>"
    yield "</div>"


_COLUMNS = (
    *(("language", "text"), ("training pairs", "number"), ("tokens seen", "number")),
    *(("sentences", "number"), ("BLEU", "number"), ("chrF", "number")),
    *(("baseline BLEU", "number"), ("gain", "number"), ("95 % interval", "number")),
)


def _language_table(content: Content, names: Sequence[str]) -> Iterator[str]:
    yield "<h2>Languages</h2>\n<div class='wide'><table class='sortable' id='languages'><thead><tr>"
    for name, kind in (*_COLUMNS, *((title, "number") for _, title in content.metrics)):
        sort = " aria-sort='descending'" if name == "training pairs" else ""
        yield f"<th scope='col' data-kind='{kind}'{sort}>{name}</th>"
    yield "</tr></thead><tbody>"
    for name, row in zip(names, content.rows, strict=True):
        interval = row["delta_ci95"]
        cells = [
            _cell(row["train_pairs"] or None, ",", "unknown"),
            _cell(row["tokens"], ",", "unknown"),
            _cell(row["sentences"], ","),
            _cell(row["bleu"], ".1f"),
            _cell(row["chrf"], ".1f"),
            _cell(row["baseline_bleu"], ".1f"),
            _cell(row["delta_bleu"], "+.1f"),
            # An interval is sorted by its lower bound: the gain that is nearly sure.
            f"<td data-value='{interval[0] if interval else ''}'>{interval_text(interval)}</td>",
            # COMET is mostly between 0 and 1, so it has more digits.
            *(
                _cell(row[key], ".4f" if key in metrics.FINE else ".1f")
                for key, _ in content.metrics
            ),
        ]
        yield f"<tr><th scope='row'>{html.escape(name)}</th>{''.join(cells)}</tr>"
    yield f"</tbody>{_average_row(content)}</table></div>\n<p class='hint'>{_COVERS}</p>"


def _average_row(content: Content) -> str:
    """Returns the last row of the table, which no sorting moves."""
    average, empty = content.average, "<td></td>"
    means = f"{_cell(average['bleu'], '.1f')}{empty * 2}{_cell(average['delta_bleu'], '+.1f')}"
    interval = f"<td>{interval_text(average['delta_ci95'])}</td>"
    rest = empty * len(content.metrics)
    return f"<tfoot><tr><th scope='row'>average</th>{empty * 3}{means}{interval}{rest}</tr></tfoot>"


def _cell(value: float | None, form: str, missing: str = "") -> str:
    if value is None:
        return f"<td data-value=''>{missing}</td>"
    return f"<td data-value='{value}'>{_minus(format(value, form))}</td>"


def interval_text(interval: Sequence[float] | None) -> str:
    """Returns an interval as readers of the page read it; "" if it is unknown."""
    return "" if interval is None else f"{_signed(interval[0])} to {_signed(interval[1])}"


def _signed(value: float) -> str:
    return _minus(f"{value:+.1f}")


def _colored(gain: float) -> web_page.Markup:
    kind = "gain" if gain > 0 else "loss"
    return web_page.Markup(f"<b class='{kind}'>{_signed(gain)}</b>")


def _minus(number: str) -> str:
    return number.replace("-", "\u2212")


def _samples(samples_of: Sequence[Sequence[Sequence[tuple[str, str]]]], names: Sequence[str]):
    """Yields the samples of each language. Those of a few languages are open."""
    with_samples = [place for place, blocks in enumerate(samples_of) if blocks]
    if not with_samples:
        return
    last = len(with_samples) - 1
    parts = max(_OPEN_SAMPLES - 1, 1)
    is_open = {with_samples[round(number * last / parts)] for number in range(_OPEN_SAMPLES)}
    yield (
        f"<h2>Samples</h2>\n<p>Sentences chosen at random with seed {samples.SEED}. The choice does not "
        "depend on the translations. The open ones are spread over the languages, from many training "
        "pairs to few.</p>"
    )
    for place in with_samples:
        opened = " open" if place in is_open else ""
        yield f"<details{opened}><summary>{html.escape(names[place])}</summary>"
        for block in samples_of[place]:
            rows = "".join(
                f'<tr><th>{html.escape(name)}</th><td dir="auto">{_sentence(text)}</td></tr>'
                for name, text in block
            )
            yield f"<table class='sample'>{rows}</table>"
        yield "</details>"


def _sentence(text: str) -> str:
    """Returns a sentence as HTML. It is cut if it is very long."""
    if not text:
        return "<i class='empty'>empty</i>"
    if len(text) <= _LONGEST_TEXT:
        return html.escape(text)
    return html.escape(f"{text[:_LONGEST_TEXT]} \u2026 ({len(text):,} characters)")


def _token_facts(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yields the training tokens of the run and of all baselines, if they are known of all languages."""
    # Two directions of one language name the same tokens.
    of_language = {row["lang"]: row for row in rows}.values()
    for key, name in (("tokens", "tokens of the run"), ("baseline_tokens", "tokens of baselines")):
        numbers = [row[key] for row in of_language]
        if None not in numbers:
            yield name, f"{sum(numbers):,} over {_count(len(numbers), 'language')}"


def _facts_named(content: Content, names: Sequence[str]) -> list[tuple[str, str]]:
    return [fact for fact in content.facts if fact[0] in names]


def _fact_table(title: str, facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    if facts:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in facts
        )
        yield f"<h2>{title}</h2>\n<table class='facts'>{rows}</table>"


def _commands(commands: Sequence[tuple[str, str]]) -> Iterator[str]:
    if commands:
        yield "<h2>How this report was made</h2>"
    for name, text in commands:
        if name != "command":
            yield f"<p>{html.escape(name)}</p>"
        yield f"<pre class='command'>{html.escape(text)}</pre>"


def _is_command(name: str) -> bool:
    return name == "command" or name.startswith("training command")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
