"""Measures time to the first step, training speed and decoding speed of the demo's models.

    make bench

Compare only figures of the same run, because machines differ and are noisy. The benchmark makes its own
corpus, so it needs nothing but the package.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gshard_nmt.data.corpus import write_pairs

STEPS = 60
DECODED = 512
MODELS = {
    "8 experts, 2 devices": ["--config", "demo"],
    "8 experts, 1 device": ["--config", "demo", "--gin", "Mesh.shape = (1,)"],
    "8 experts, einsum dispatch": ["--config", "demo", "--gin", "Model.dispatch = 'einsum'"],
    "dense, 2 devices": ["--config", "baseline", "--gin", "Data.rows = 16"],
}
COMMON = {
    "STEPS": STEPS,
    "Train.log_every": 1,
    "Train.dev_every": 0,
    "Data.minimum_pairs": 1,
    "Data.languages": ("fr",),
}


def main() -> int:
    """Prints one table."""
    table = Table(title="The demo's models on this machine")
    for column in ("model", "cold start, s", "warm start, s", "tokens/s", "relative"):
        table.add_column(column, justify="left" if column == "model" else "right")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        sentences = make_corpus(root / "corpus")
        run("data", "prepare", *flags("demo"), "--corpus", root / "corpus", "--out", root / "data")
        first = 0.0
        for name, config in MODELS.items():
            workdir = root / name.replace(" ", "_")
            cold = first_step(config, root / "data", workdir, STEPS)
            speed = tokens_per_second(workdir)
            warm = first_step(config, root / "data", workdir, STEPS + 1)
            first = first or speed
            table.add_row(
                name, f"{cold:.1f}", f"{warm:.1f}", f"{speed:,.0f}", f"{speed / first:.2f}"
            )
        decode = ["--workdir", root / next(iter(MODELS)).replace(" ", "_"), "--lang", "fr"]
        run("decode", *decode, text="".join(sentences[:DECODED]))
        start = timed(lambda: run("decode", *decode, text=sentences[0]))
        whole = timed(lambda: run("decode", *decode, text="".join(sentences[:DECODED])))
    console = Console()
    console.print(table)
    console.print(
        f"gshard-decode with a cached program: {start:.1f} s to the first line, then "
        f"{DECODED / max(whole - start, 1e-9):,.0f} sentences/s (beam 4, an untrained model)"
    )
    return 0


def make_corpus(folder: Path) -> list[str]:
    """Makes a corpus of invented words, spelled backwards in the source; returns the source lines."""
    rng = random.Random(1)
    words = ["".join(rng.choices("aeioubdgklmnprst", k=rng.randint(2, 9))) for _ in range(3000)]
    for split, count in (("train", 8000), ("dev", 16), ("test", DECODED)):
        english = [" ".join(rng.choices(words, k=rng.randint(3, 14))) for _ in range(count)]
        rows = [(line[::-1], line) for line in english]
        write_pairs(folder / "fr-en", split, "fr", "en", rows)
    return [row[0] + "\n" for row in rows]


def flags(config: str) -> list[str]:
    """Returns the flags of a config by name, with the settings of all runs here."""
    dense = {"EXPERTS"} if config == "baseline" else set()
    settings = {name: value for name, value in COMMON.items() if name not in dense}
    return ["--config", config, *(f"--gin={name} = {value!r}" for name, value in settings.items())]


def command(name: str, *arguments: object) -> list[str]:
    """Returns the command line of a program."""
    return [sys.executable, "-m", "gshard_nmt", name, *map(str, arguments)]


def run(name: str, *arguments: object, text: str | None = None) -> None:
    """Runs a program to its end; raises if it fails."""
    subprocess.run(
        command(name, *arguments), input=text, text=True, check=True, capture_output=True
    )


def first_step(config: list[str], data: Path, workdir: Path, steps: int) -> float:
    """Returns the seconds from the command to its first step; the run then goes on to `steps`."""
    arguments = [*flags(config[1]), *config[2:], f"--gin=Train.steps = {steps}"]
    arguments += [
        "--gin=Optimizer.cooldown_steps = 0",
        "--data",
        str(data),
        "--workdir",
        str(workdir),
    ]
    began, after = time.monotonic(), 0.0
    with subprocess.Popen(
        command("train", *arguments), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        output = []
        for line in process.stderr:
            output.append(line)
            after = after or (line.startswith("step ") and time.monotonic() - began) or 0.0
    if process.returncode:
        raise RuntimeError("".join(output))
    return after


def tokens_per_second(workdir: Path) -> float:
    """Returns the median speed after the first ten steps, in source and target tokens, no padding."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    speeds = sorted(line["tokens_per_second"] for line in lines[10:])
    return speeds[len(speeds) // 2]


def timed(action) -> float:
    """Returns the seconds that an action takes."""
    began = time.monotonic()
    action()
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
