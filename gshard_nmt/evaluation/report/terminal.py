"""What gshard-eval prints: the scores of all languages and systems, alarms, and signatures."""

import itertools
from pathlib import Path

from gshard_nmt.evaluation.metrics import TITLES
from gshard_nmt.evaluation.report.report import Report, average_text, interval_text
from gshard_nmt.evaluation.systems import labels
from gshard_nmt.terminal import Terminal, table


def show(report: Report, folder: Path) -> None:
    results, others, average = report.results, report.results[0].others, report.average
    columns: dict[str, list[str]] = {"language": [*labels(results), "average"]}
    columns["training pairs"] = [f"{r.test.train_pairs:,}" for r in results]
    columns["BLEU"] = [f"{value:.1f}" for value in (*(r.bleu for r in results), average["bleu"])]
    columns["chrF"] = [f"{r.chrf:.1f}" for r in results]
    if any(result.baseline for result in results):
        gains = [*(r.delta for r in results), average["delta_bleu"]]
        intervals = [*(r.delta_ci95 for r in results), average["delta_ci95"]]
        columns["baseline"] = [f"{r.baseline.bleu:.1f}" if r.baseline else "" for r in results]
        columns["gain"] = ["" if gain is None else f"{gain:+.1f}" for gain in gains]
        columns["95\N{NO-BREAK SPACE}% interval"] = [*map(interval_text, intervals)]
    columns |= {TITLES[key]: [f"{r.others[key]:.1f}" for r in results] for key in others}
    rows = itertools.zip_longest(*columns.values(), fillvalue="")
    console = Terminal()
    console.print(table(report.title, list(columns), rows))
    if report.systems.others:
        systems = []
        for s in report.systems.compared:
            means = (average_text(s.average(), name) for name in ("bleu", "delta"))
            systems.append((s.name, f"{len(s.results):,}", *means))
        console.print(table("systems", ("system", "directions", "BLEU", "gain"), systems))
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
    console.print(f"report: {folder / 'index.html'}")
