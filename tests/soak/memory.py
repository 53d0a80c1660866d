"""A corpus ten times as large as the memory that a process may have goes through `gshard-data prepare`.

The limit is RLIMIT_DATA, for each process by itself. No pair is a duplicate, and none may be lost.
tests/integration/test_preparation_memory.py compares the memory for two small corpora.
"""

import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zstandard

from gshard_nmt.data.sets.shards import PreparedData
from tests.soak.campaign import Clock, Report, generator, last_lines, say

LIMIT = 315 * (1 << 20)
"""Bytes; a corpus of a few chunks needs 300 MiB."""
TIMES = 10
WORDS = 60
"""The number of words of a line after those that make it unlike all others."""

PROGRAM = """
import dataclasses, pathlib, resource, sys
from gshard_nmt.data.preparation.job import Options
from gshard_nmt.prepare import prepare
from tests.data.preparation.small_corpus import CONFIG
if __name__ == "__main__":
    limit = int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    config = dataclasses.replace(CONFIG, source_vocabulary=2000, target_vocabulary=2000,
                                 vocabulary_sentences=20000, source_length=256, target_length=256)
    prepare(config, pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), Options(2))
"""


def campaign(clock: Clock, seed: int) -> Report:
    """Prepares one corpus, however long it takes."""
    del clock
    with tempfile.TemporaryDirectory(prefix="gshard-soak-memory-") as name:
        root = Path(name)
        (root / "program.py").write_text(PROGRAM)
        rows, size = write_corpus(root / "corpus", generator(seed, "memory"), TIMES * LIMIT)
        limit = f"{LIMIT >> 20} MiB"
        say(f"memory: {rows:,} pairs, {size / 1e9:.1f} GB of text, with {limit}")
        words = [sys.executable, root / "program.py", root / "corpus", root / "out", str(LIMIT)]
        # Threads of libraries have memory of their own, which would hide that of the text.
        own = {"PYTHONPATH": os.getcwd(), "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            words, env=os.environ | own, capture_output=True, text=True, check=False
        )
        tried = f"{rows:,} pairs, {size / 1e9:.2f} GB of text, in processes of {limit} each"
        if done.returncode:
            return Report(tried, [f"exit code {done.returncode}\n{last_lines(done.stderr)}"])
        (pair,) = PreparedData.open(root / "out").pairs
        kept = pair.splits["train"].examples
    return Report(tried, [] if kept == rows else [f"{kept:,} of {rows:,} pairs were kept"])


def write_corpus(folder: Path, numbers: random.Random, size: int) -> tuple[int, int]:
    """Writes at least `size` bytes of text, in a file for each side; returns the rows and the bytes."""
    (folder / "fr-en").mkdir(parents=True)
    written = count = 0
    lines = pairs(numbers)
    with (
        zstandard.open(folder / "fr-en" / "train.fr.zst", "wb") as sources,
        zstandard.open(folder / "fr-en" / "train.en.zst", "wb") as targets,
    ):
        while written < size:
            some = list(itertools.islice(lines, 10_000))
            for file, texts in zip((sources, targets), zip(*some, strict=True), strict=True):
                written += file.write("".join(texts).encode())
            count += len(some)
    return count, written


def pairs(numbers: random.Random) -> Iterator[tuple[str, str]]:
    """Yields lines of two languages. The first words of a line count the lines."""
    english = ["".join(numbers.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(1000)]
    french = [word[::-1] for word in english]
    ends = [numbers.choices(range(1000), k=WORDS) for _ in range(1000)]
    tails = [
        tuple(" ".join([words[i] for i in end]) for words in (french, english)) for end in ends
    ]
    for n in itertools.count():
        first = (n // 1_000_000 % 1000, n // 1000 % 1000, n % 1000)
        tail = tails[(n * 7919) % 1000]
        yield (
            f"{' '.join([french[i] for i in first])} {tail[0]}\n",
            f"{' '.join([english[i] for i in first])} {tail[1]}\n",
        )
