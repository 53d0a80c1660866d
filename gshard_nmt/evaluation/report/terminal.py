"""What gshard-eval prints: the scores of all languages and systems, alarms, and signatures."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gshard_nmt.evaluation.metrics.metrics import TITLES
from gshard_nmt.evaluation.report.report import Report, average_text, interval_text, score_text
from gshard_nmt.evaluation.systems.systems import Result, labels


def show(report: Report, folder: Path | None) -> None:
    results, others = report.results, report.results[0].others
    is_compared = any(result.baseline_bleu is not None for result in results)
    has_pairs = any(result.test.train_pairs for result in results)

    def cells(result: Result) -> list[str]:
        base, gain = result.baseline_bleu, result.delta
        compared = ["" if base is None else f"{base:.1f}", "" if gain is None else f"{gain:+.1f}"]
        return [
            *([f"{result.test.train_pairs:,}"] if has_pairs else []),
            f"{result.bleu:.1f}",
            "" if result.chrf is None else f"{result.chrf:.1f}",
            *([*compared, interval_text(result.delta_ci95)] if is_compared else []),
            *(score_text(key, value) for key, value in result.others.items()),
        ]

    heads = [*(["training pairs"] if has_pairs else []), "BLEU", "chrF"]
    heads += ["baseline", "gain", "95 % interval"] if is_compared else []
    table = _table(report.title, "language", *heads, *(TITLES[key] for key in others))
    for name, result in zip(labels(results), results, strict=True):
        table.add_row(Text(name), *cells(result))
    average = report.average
    row = [*([""] if has_pairs else []), f"{average['bleu']:.1f}", ""]
    if is_compared:
        row += ["", f"{average['delta_bleu']:+.1f}", interval_text(average["delta_ci95"])]
    table.add_section()
    table.add_row("average", *row)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(table, soft_wrap=False)
    if report.systems.others:
        table = _table("systems", "system", "directions", "BLEU", "gain")
        for system in report.systems.compared:
            means = [average_text(system.average(), name) for name in ("bleu", "delta")]
            table.add_row(Text(system.name), f"{len(system.results):,}", *means)
        console.print(table, soft_wrap=False)
    console.print(report.headline)
    for section in report.sections:
        for alarm in section.alarms:
            console.print(alarm, style="bold")
        for note in (note for note in section.notes if note not in report.headline):
            console.print(note)
    if about := dict(report.facts).get("baselines"):
        console.print(f"baselines: {about}")
    for key, signature in report.signatures.items():
        if key in ("bleu", *others):
            console.print(f"{TITLES[key]} {signature}")
    if folder:
        console.print(f"report: {folder / 'index.html'}")


def _table(title: str, first: str, *heads: str) -> Table:
    table = Table(first, title=title)
    for head in heads:
        table.add_column(head, justify="right")
    return table
