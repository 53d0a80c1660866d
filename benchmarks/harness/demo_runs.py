"""The programs of this package on a corpus of invented words, for benchmarks of whole runs."""

import random
import subprocess
import sys
from pathlib import Path

from gshard_nmt.data.sets.corpus import write_pairs

STEPS = 60
DECODED = 512
COMMON = {
    "STEPS": STEPS,
    "Train.log_every": 1,
    "Train.dev_every": 0,
    "Data.minimum_pairs": 1,
    "Data.languages": ("fr",),
}


def make_corpus(folder: Path) -> list[str]:
    rng = random.Random(1)
    words = ["".join(rng.choices("aeioubdgklmnprst", k=rng.randint(2, 9))) for _ in range(3000)]
    for split, count in (("train", 8000), ("dev", 16), ("test", DECODED)):
        english = [" ".join(rng.choices(words, k=rng.randint(3, 14))) for _ in range(count)]
        rows = [(line[::-1], line) for line in english]
        write_pairs(folder / "fr-en", split, "fr", "en", rows)
    return [row[0] + "\n" for row in rows]


def flags(config: str) -> list[str]:
    return ["--config", config, *(f"--gin={name} = {value!r}" for name, value in COMMON.items())]


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "gshard_nmt", name, *map(str, arguments)]


def run(name: str, *arguments: object) -> None:
    subprocess.run(command(name, *arguments), text=True, check=True, capture_output=True)
