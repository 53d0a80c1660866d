"""Writes the files of a report. Its page needs no network."""

import hashlib
import html
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from gshard_nmt import files
from gshard_nmt.evaluation.metrics import TITLES
from gshard_nmt.evaluation.report import figures, web_page
from gshard_nmt.evaluation.report.report import Report, has_gains, interval_text
from gshard_nmt.evaluation.systems import Direction, Result, labels

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
SEED = 1
"""The seed of the choice of samples. The page states it."""
_MOST_OF_A_LANGUAGE = 3
_MOST = 150
"""Samples in a report, if every language can have at least one. More would make the page slow to load."""


def write(report: Report, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        files.write(folder / f"trendline.{kind}", _trend(report, kind))
    files.write_json(folder / "bleu.json", report.as_json())
    files.write(folder / "bleu.csv", report.as_csv())
    files.write(folder / "index.html", render(report))


def _trend(report: Report, kind: str) -> bytes:
    systems = report.systems.compared
    return figures.image(lambda: figures.draw_trend(systems, report.title), kind)


def render(report: Report) -> str:
    starts = ("command", "training command")
    commands = [fact for fact in report.facts if fact[0].startswith(starts)]
    budgets = [fact for fact in report.facts if fact[0] in _BUDGET_FACTS]
    others = [fact for fact in report.facts if fact not in (*commands, *budgets)]
    others += [(f"{TITLES[key]} signature", text) for key, text in report.signatures.items()]
    alt = "the scores of each language, as in the table"
    trend = web_page.image(_trend(report, "svg"), "svg", alt)
    what = "Gain" if has_gains(report.results) else "BLEU"
    body = [
        *_alarms(report.alarms),
        f"<h2>{what} by language, most training pairs first</h2>",
        f'<div class="chart">{trend}</div>',
        *_extremes(report.results),
        *_language_table(report),
        *_samples(report.results),
        *(f"<h2>{html.escape(part.title)}</h2>\n{part.html}" for part in report.sections),
        *_fact_table("Training budget", budgets),
        *_fact_table("What was measured", others),
        *_commands(commands),
    ]
    return web_page.page(report.title, report.headline, "\n".join(body))


def _alarms(alarms: Sequence[str]) -> Iterator[str]:
    if alarms:
        yield "<div class='alarms'><h2>Before you use these scores</h2>"
        yield from (f"<p class='alarm'>{html.escape(alarm)}</p>" for alarm in alarms)
        yield "</div>"


def _extremes(results: Sequence[Result]) -> Iterator[str]:
    """Yields the languages that gain most and lose most, compared with their baselines."""
    named = zip(labels(results), results, strict=True)
    compared = sorted((-r.delta, name, r.delta_ci95) for name, r in named if r.delta is not None)
    if not compared:
        return
    gains = [row for row in compared if row[0] < 0]
    losses = [row for row in reversed(compared) if row[0] > 0]
    yield "<div class='two'>"
    for kind, chosen, better in (("gain", gains, "better"), ("loss", losses, "worse")):
        rows = []
        for loss, name, interval in chosen[:_EXTREMES]:
            number = web_page.Markup(f"<b class='{kind}'>{_number(-loss, '+.1f')}</b>")
            rows.append((name, number, _minus(interval_text(interval)) or "unknown"))
        nothing = f"<p>No language is {better} than its baseline.</p>"
        table = web_page.table(("language", "gain", "95 % interval"), rows) if rows else nothing
        title = "Largest gains" if kind == "gain" else "Largest losses"
        yield f"<section><h2>{title}</h2>{table}</section>"
    yield "</div>"


def _language_table(report: Report) -> Iterator[str]:
    results, average = report.results, report.average
    others = list(results[0].others)
    heads = ["language", "training pairs", "tokens seen", "sentences", "BLEU", "chrF"]
    heads += ["baseline BLEU", "gain", "95 % interval", *(TITLES[key] for key in others)]
    rows = [
        [
            name,
            _number(result.test.train_pairs, ","),
            _number(result.tokens, ",", "unknown"),
            _number(len(result.lines), ","),
            _number(result.bleu, ".1f"),
            _number(result.chrf, ".1f"),
            _number(result.baseline.bleu if result.baseline else None, ".1f"),
            _number(result.delta, "+.1f"),
            _minus(interval_text(result.delta_ci95)),
            *(_number(value, ".1f") for value in result.others.values()),
        ]
        for name, result in zip(labels(results), results, strict=True)
    ]
    means = [_number(average["bleu"], ".1f"), "", "", _number(average["delta_bleu"], "+.1f")]
    interval = _minus(interval_text(average["delta_ci95"]))
    foot = ["average", "", "", "", *means, interval, *[""] * len(others)]
    yield f"<h2>Languages</h2>\n{web_page.table(heads, rows, foot)}\n<p class='hint'>{_COVERS}</p>"


def _number(value: float | None, form: str, missing: str = "") -> str:
    return missing if value is None else _minus(format(value, form))


def _minus(number: str) -> str:
    return number.replace("-", "\u2212")


def chosen_samples(direction: Direction, sentences: int, directions: int) -> list[int]:
    """Returns the positions of the sentences of a test set that the page shows, in increasing order.

    They follow from the seed, the direction and the number of sentences. They do not depend on the
    translations, so they are the same for all systems.
    """
    name = "\t".join((str(SEED), *direction))
    generator = random.Random(hashlib.sha256(name.encode()).digest())
    number = max(1, min(_MOST_OF_A_LANGUAGE, _MOST // max(directions, 1)))
    return sorted(generator.sample(range(sentences), min(number, sentences)))


def _samples(results: Sequence[Result]) -> Iterator[str]:
    """Yields the samples of each language. Those of a few languages are open."""
    last = len(results) - 1
    opened = {round(number * last / (_OPEN_SAMPLES - 1)) for number in range(_OPEN_SAMPLES)}
    yield (
        f"<h2>Samples</h2>\n<p>Sentences chosen at random with seed {SEED}. The choice does not depend "
        "on the translations. The open ones are spread over the languages, from many training pairs to "
        "few.</p>"
    )
    for place, (name, result) in enumerate(zip(labels(results), results, strict=True)):
        chosen = chosen_samples(result.direction, len(result.lines), len(results))
        tables = (web_page.texts(_sample(result, number)) for number in chosen)
        yield web_page.folded(name, "".join(tables), place in opened)


def _sample(result: Result, number: int) -> Iterator[tuple[str, str]]:
    rows = {
        "source": result.test.sources,
        "reference": result.test.references,
        "multilingual": result.lines,
        "baseline": result.baseline.lines if result.baseline else (),
    }
    for name, lines in rows.items():
        if lines:
            yield name, _sentence(lines[number])


def _sentence(text: str) -> str:
    if not text:
        return web_page.Markup("<i class='empty'>empty</i>")
    rest = f" \u2026 ({len(text):,} characters)" if len(text) > _LONGEST_TEXT else ""
    return f"{text[:_LONGEST_TEXT]}{rest}"


def _fact_table(title: str, facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    if facts:
        cells = (tuple(map(html.escape, fact)) for fact in facts)
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells)
        yield f"<h2>{title}</h2>\n<table class='facts'>{rows}</table>"


def _commands(commands: Sequence[tuple[str, str]]) -> Iterator[str]:
    if commands:
        yield "<h2>How this report was made</h2>"
    for name, text in commands:
        if name != "command":
            yield f"<p>{html.escape(name)}</p>"
        yield f"<pre class='command'>{html.escape(text)}</pre>"
