"""The time from the start of gshard-decode to its first line, with its programs in the cache."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import environment, page
from harness.demo_runs import flags, make_corpus, run
from harness.records import Figure
from harness.rounds import Limit, median_text

STEPS = 20
IMPORTS = 12
"""The number of libraries in the table of imports."""


def measure(workdir: Path | None, build: Path, limit: Limit) -> page.Section:
    workdir = workdir or trained(build / "decoding-run")
    with tempfile.TemporaryDirectory() as cache:
        variables = environment.variables() | {"XDG_CACHE_HOME": cache}
        first_line(workdir, variables)  # compiles
        pairs: list[tuple[float, float]] = []
        while not limit.is_over(len(pairs)):
            pairs.append(first_line(workdir, variables))
        imports = import_times(workdir, variables)
    seconds, cpu_seconds = zip(*pairs, strict=True)
    measured = {"time": seconds, "CPU time": cpu_seconds}
    rows = [("gshard-decode, one line", "seconds", "interval")]
    rows += [(name, *median_text(values, ".2f")) for name, values in measured.items()]
    figures = [Figure.of(name, "s", values) for name, values in measured.items()]
    top = sorted(imports.items(), key=lambda item: -item[1])[:IMPORTS]
    shares = [("import", "seconds"), *((name, f"{value:.2f}") for name, value in top)]
    text = f"{page.table(rows)}\n{page.table(shares)}"
    return page.Section("first line", text, figures, len(pairs))


def trained(workdir: Path) -> Path:
    if not (workdir / "metrics.jsonl").exists():
        print(f"Training {workdir} for {STEPS} steps ...", file=sys.stderr)
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(temporary)
            make_corpus(root / "corpus")
            config = flags("demo")
            run("data", "prepare", *config, "--corpus", root / "corpus", "--out", root / "data")
            steps = [f"--gin=Train.steps = {STEPS}", "--gin=Optimizer.cooldown_steps = 0"]
            run("train", *config, *steps, "--data", root / "data", "--workdir", workdir)
    return workdir


def command(workdir: Path, *python: str) -> list[str]:
    return [sys.executable, *python, "-m", "gshard_nmt", "decode", "--workdir", str(workdir)]


def first_line(workdir: Path, variables: dict[str, str]) -> tuple[float, float]:
    began = time.monotonic()
    with subprocess.Popen(
        [*command(workdir), "--lang", "fr"],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("abc def\n")
        process.stdin.close()
        line = process.stdout.readline()
        after = time.monotonic() - began
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not line:
        raise RuntimeError(errors)
    return after, usage.ru_utime + usage.ru_stime


def import_times(workdir: Path, variables: dict[str, str]) -> dict[str, float]:
    """Returns the seconds that each top-level package takes to import, without what it imports.

    Python itself measures them, which makes every import slower.
    """
    done = subprocess.run(
        [*command(workdir, "-X", "importtime"), "--lang", "fr"],
        env=variables,
        input="abc def\n",
        capture_output=True,
        text=True,
        check=True,
    )
    seconds: dict[str, float] = {}
    for match in re.finditer(r"import time: +(\d+) \| +\d+ \| +([\w.]+)", done.stderr):
        package = match[2].partition(".")[0]
        seconds[package] = seconds.get(package, 0.0) + int(match[1]) / 1e6
    return seconds
