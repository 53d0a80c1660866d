"""Measures the time from gshard-train to its first step, cold and with its programs in the cache.

    .venv/bin/python benchmarks/start.py

A cold start lowers and compiles the training step; a warm start resumes the same run. The runs are those
of the demo's model and of its baselines, in turns, on a corpus of invented words.
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from harness import environment, page
from harness.demo_runs import STEPS, command, flags, make_corpus, run
from harness.records import Figure
from harness.rounds import median_text

MODELS = {"8 experts": "demo", "dense": "baseline"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    page.add_flags(parser, rounds=3)
    arguments = parser.parse_args()
    busy, limit = environment.busy(), page.limit_of(arguments)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in MODELS}
    rounds = 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        make_corpus(root / "corpus")
        run("data", "prepare", *flags("demo"), "--corpus", root / "corpus", "--out", root / "data")
        while not limit.is_over(rounds):
            for name, config in MODELS.items():
                workdir = root / f"{config}-{rounds}"
                # The second run resumes the first.
                both = [first_step(config, root / "data", workdir, STEPS + i) for i in (0, 1)]
                seconds[name].append((both[0], both[1]))
            rounds += 1
    rows = [("seconds to the first step", "cold", "interval", "warm", "interval")]
    figures = []
    for name, pairs in seconds.items():
        cold, warm = ([pair[i] for pair in pairs] for i in (0, 1))
        rows.append((name, *median_text(cold, ".1f"), *median_text(warm, ".1f")))
        ratios = [a / b for a, b in pairs]
        figures.append(Figure.of(f"{name}, cold", "s", cold, f"{name}, warm", ratios))
        figures.append(Figure.of(f"{name}, warm", "s", warm))
    section = page.Section("start of training", page.table(rows), figures, rounds)
    page.publish(section, arguments.page, busy)


def first_step(config: str, data: Path, workdir: Path, steps: int) -> float:
    settings = [f"--gin=Train.steps = {steps}", "--gin=Optimizer.cooldown_steps = 0"]
    arguments = [*flags(config), *settings, "--data", data, "--workdir", workdir]
    began, after = time.monotonic(), 0.0
    with subprocess.Popen(
        command("train", *arguments), env=environment.variables(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        output = []
        for line in process.stderr:
            output.append(line)
            after = after or (line.startswith("step ") and time.monotonic() - began) or 0.0
    if process.returncode or not after:
        raise RuntimeError("".join(output))
    return after


if __name__ == "__main__":
    main()
