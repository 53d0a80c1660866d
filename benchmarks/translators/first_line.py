"""The time from the start of gshard-decode to its first line, with its programs in the cache."""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from training import flags, make_corpus, run
from translators import page

STEPS = 20
IMPORTS = 12
"""The number of libraries in the table of imports."""


def measure(arguments: argparse.Namespace, build: Path) -> str:
    """Times gshard-decode from its start to its first line; returns the tables as Markdown."""
    workdir = arguments.workdir or trained(build / "decoding-run")
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as cache:
        environment["XDG_CACHE_HOME"] = cache
        first_line(workdir, environment)  # compiles
        pairs = [first_line(workdir, environment) for _ in range(arguments.rounds)]
        imports = import_times(workdir, environment)
    seconds, cpu_seconds = zip(*pairs, strict=True)
    rows = [
        ("gshard-decode, one line", "median", "interval"),
        *(
            (name, f"{statistics.median(values):.2f} s", f"{min(values):.2f} to {max(values):.2f}")
            for name, values in (("time", seconds), ("CPU time", cpu_seconds))
        ),
    ]
    top = sorted(imports.items(), key=lambda item: -item[1])[:IMPORTS]
    shares = [("import", "seconds"), *((name, f"{value:.2f}") for name, value in top)]
    return f"{page.table(rows)}\n{page.table(shares)}"


def trained(workdir: Path) -> Path:
    """Trains the demo's model for a few steps, unless it is there; returns the run folder."""
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
    """Returns the command that translates stdin with a run."""
    return [sys.executable, *python, "-m", "gshard_nmt", "decode", "--workdir", str(workdir)]


def first_line(workdir: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Translates one line; returns the seconds until it is there, and the CPU seconds of the process."""
    began = time.monotonic()
    with subprocess.Popen(
        [*command(workdir), "--lang", "fr"],
        env=environment,
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


def import_times(workdir: Path, environment: dict[str, str]) -> dict[str, float]:
    """Returns the seconds that each top-level package takes to import, without what it imports.

    Python itself measures them, which makes every import slower.
    """
    done = subprocess.run(
        [*command(workdir, "-X", "importtime"), "--lang", "fr"],
        env=environment,
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
