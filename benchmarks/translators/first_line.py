"""The time from the start of gshard-decode to its first line, with its programs in the cache."""

import os
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


def measure(workdir: Path | None, build: Path, limit: Limit) -> page.Section:
    workdir = workdir or trained(build / "decoding-run")
    with tempfile.TemporaryDirectory() as cache:
        variables = environment.variables() | {"XDG_CACHE_HOME": cache}
        first_line(workdir, variables)  # compiles
        pairs: list[tuple[float, float]] = []
        while not limit.is_over(len(pairs)):
            pairs.append(first_line(workdir, variables))
    seconds, cpu_seconds = zip(*pairs, strict=True)
    measured = {"time": seconds, "CPU time": cpu_seconds}
    rows = [("gshard-decode, one line", "seconds", "interval")]
    rows += [(name, *median_text(values, ".2f")) for name, values in measured.items()]
    figures = [Figure.of(name, "s", values) for name, values in measured.items()]
    return page.Section("first line", page.table(rows), figures, len(pairs))


def trained(workdir: Path) -> Path:
    if not (workdir / "budget.json").exists():  # its first checkpoint is saved
        print(f"Training {workdir} for {STEPS} steps ...", file=sys.stderr)
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(temporary)
            make_corpus(root / "corpus")
            config = flags("demo")
            run("data", "prepare", *config, "--corpus", root / "corpus", "--out", root / "data")
            steps = [f"--gin=Train.steps = {STEPS}", "--gin=Optimizer.cooldown_steps = 0"]
            run("train", *config, *steps, "--data", root / "data", "--workdir", workdir)
    return workdir


def first_line(workdir: Path, variables: dict[str, str]) -> tuple[float, float]:
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "gshard_nmt", "decode", "--workdir", workdir, "--lang", "fr"],
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
