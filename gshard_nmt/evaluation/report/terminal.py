"""What gshard-eval prints: the scores of all languages and systems, alarms, and signatures."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from gshard_nmt.evaluation.metrics.metrics import TITLES
from gshard_nmt.evaluation.report import report, tables


def show(evaluation: report.Report, folder: Path | None) -> None:
    """Prints the scores of all languages, the signature, and the path of the report."""
    table = Table(title=evaluation.title)
    compared = any(result.baseline_bleu is not None for result in evaluation.languages)
    has_pairs = any(result.train_pairs for result in evaluation.languages)
    columns = ["language", *(["training pairs"] if has_pairs else []), "BLEU", "chrF"]
    columns += ["baseline", "gain", "95 % interval"] if compared else []
    others = evaluation.languages[0].scores
    for name in (*columns, *(TITLES[key] for key in others)):
        table.add_column(name, justify="left" if name == "language" else "right")
    for result in evaluation.sorted():
        base, delta = result.baseline_bleu, result.delta_bleu
        cells = ["", ""] if base is None else [f"{base:.1f}", f"{delta:+.1f}"]
        table.add_row(
            evaluation.label(result),
            *([f"{result.train_pairs:,}"] if has_pairs else []),
            f"{result.bleu:.1f}",
            f"{result.chrf:.1f}",
            *([*cells, report.interval_text(result.delta_ci95)] if compared else []),
            *(report.score_text(key, value) for key, value in result.scores.items()),
        )
    average = evaluation.average()
    delta = average["delta_bleu"]
    table.add_section()
    interval = report.interval_text(average["delta_ci95"])
    gain = [] if delta is None else ["", f"{delta:+.1f}", interval]
    table.add_row("average", *([""] if has_pairs else []), f"{average['bleu']:.1f}", "", *gain)
    console = Console(highlight=False, markup=False)
    console.print(table)
    if len(evaluation.systems) > 1:
        console.print(tables.terminal_table(evaluation.systems))
    headline = evaluation.headline()
    console.print(headline, markup=False, soft_wrap=True)
    for section in evaluation.sections:
        for alarm in section.alarms:
            console.print(alarm, style="bold", markup=False, soft_wrap=True)
        for note in (note for note in section.notes if note not in headline):
            console.print(note, markup=False, soft_wrap=True)
    if about := dict(evaluation.facts).get("baselines"):
        console.print(f"baselines: {about}", markup=False, soft_wrap=True)
    for key, signature in evaluation.signatures.items():
        if key in ("bleu", *others):
            console.print(f"{TITLES[key]} {signature}", markup=False, soft_wrap=True)
    if folder:
        console.print(f"report: {folder / 'index.html'}", soft_wrap=True)
