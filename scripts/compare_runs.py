"""Compares runs that were repeated with several seeds: dev cross-entropy, by size of language.

    .venv/bin/python scripts/compare_runs.py dense=runs/d1,runs/d2,runs/d3 moe=runs/m1,runs/m2,runs/m3

prints a table of the nats at the last validation: the mean over all languages, over the quarter with the
most training tokens, and over the quarter with the fewest. The differences are against the first name,
seed by seed, so the n-th run of each name must have the same data and differ by what is compared alone.
The interval is Student's t over the seeds, 95 %, from three seeds on.

`--reports runs/r1,runs/r2,runs/r3`, a seed each, made by `gshard-eval --workdir runs/d1 --workdir runs/m1
--report runs/r1`, adds the gain of the second run in BLEU; its interval covers languages and strings too.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gshard_nmt.evaluation.significance import interval_of_mean

COLUMNS = ("all languages", "largest quarter", "smallest quarter")
PREFIX = "dev_nll/"


def nats(run: Path) -> list[float]:
    """Returns the means of the last validation of a run, one for each of `COLUMNS`."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    validations = [row for row in map(json.loads, lines) if any(k.startswith(PREFIX) for k in row)]
    if not validations:
        raise ValueError(
            f"{run} has no validation by language; train it with Train.dev_every above 0"
        )
    last = validations[-1]
    budget = json.loads((run / "budget.json").read_text(encoding="utf-8"))
    if last["step"] != budget["steps"]:
        steps = f"step {budget['steps']}, its last validation at {last['step']}"
        raise ValueError(f"{run} has not ended: it is at {steps}")
    tokens = budget["tokens_by_language"]
    by_size = [last[k] for n in sorted(tokens, key=tokens.get)[::-1] if (k := PREFIX + n) in last]
    if None in by_size:
        raise ValueError(f"{run}: the last validation is not finite; the run has diverged")
    n = max(1, len(by_size) // 4)
    return [float(np.mean(part)) for part in (by_size, by_size[:n], by_size[-n:])]


def cell(values: np.ndarray, base: np.ndarray) -> str:
    """Returns the mean of float64[seeds], and the mean difference from `base` with its interval."""
    less = values - base
    text = f"{values.mean():.3f} ({less.mean():+.3f}"
    if interval := interval_of_mean(less.tolist()):
        text += f", {interval[0]:+.3f} to {interval[1]:+.3f}"
    return text + ")"


def gain_in_bleu(reports: list[Path]) -> str:
    """Returns the mean gain of the second runs over the first, and its 95 % interval."""
    pages = [json.loads((report / "bleu.json").read_text(encoding="utf-8")) for report in reports]
    seconds = [second["average"] for _, second in (page["systems"] for page in pages)]
    gains = [average["difference"] for average in seconds]
    seeds = interval_of_mean(gains)
    # All seeds have the same languages and strings, so their part does not shrink with more seeds.
    others = float(np.mean([np.ptp(average["difference_ci95"]) for average in seconds]))
    mean, half = np.mean(gains), math.hypot(np.ptp(seeds) if seeds else 0.0, others) / 2
    covered = f"languages, strings and {f'{len(gains)} seeds' if seeds else 'no seed'}"
    return f"gain in BLEU: {mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f}: {covered})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    runs = "a name and its run folders, a seed each"
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN,RUN,...", help=runs)
    parser.add_argument(
        "--reports", metavar="REPORT,...", help="reports of two runs beside each other, a seed each"
    )
    results, arguments = {}, parser.parse_args()
    for argument in arguments.runs:
        name, found, folders = argument.partition("=")
        runs = [Path(folder) for folder in folders.split(",")]
        missing = [run for run in runs if not (run / "budget.json").is_file()]
        if not found or missing:
            parser.error(
                f"{argument!r} must be a name, = and the folders of finished runs; "
                f"{', '.join(map(str, missing[:1]))} is none"
            )
        try:
            results[name] = np.array([nats(run) for run in runs])
        except (OSError, ValueError) as error:
            parser.error(str(error))
    base = next(iter(results.values()))
    if any(len(values) != len(base) for values in results.values()):
        parser.error("each name must have as many runs as the first one")
    print(f"| dev nats | seeds | {' | '.join(COLUMNS)} |\n|---|---|---|---|---|")
    for name, values in results.items():
        pairs = zip(values.T, base.T, strict=True)
        cells = [f"{a.mean():.3f}" if values is base else cell(a, b) for a, b in pairs]
        print(f"| {name} | {len(values)} | {' | '.join(cells)} |")
    if arguments.reports:
        try:
            print(f"\n{gain_in_bleu([Path(report) for report in arguments.reports.split(',')])}")
        except (OSError, LookupError, TypeError, ValueError):
            text = "must be reports of two runs each, made by gshard-eval with --workdir twice"
            parser.error(f"--reports {arguments.reports} {text}")


if __name__ == "__main__":
    main()
