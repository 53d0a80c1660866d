"""A corpus ten times as large as the memory that a process may have goes through `gshard-data prepare`.

First, the smallest limit is looked for under which a small corpus of a few chunks goes through. Then the
same program, with `SLACK` more, prepares a corpus of which the text has ten times the bytes of the limit.
The limit is RLIMIT_DATA, for each process by itself. No pair is a duplicate, and none may be lost.
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

MIB = 1 << 20
SMALL_ROWS = 400_000
STEP = 20 * MIB
SLACK = 1.05
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
    """Prepares the small corpus under several limits, and the large one under the best."""
    with tempfile.TemporaryDirectory(prefix="gshard-soak-memory-") as name:
        root = Path(name)
        (root / "program.py").write_text(PROGRAM)
        random_numbers = generator(seed, "memory")
        rows, _ = write_corpus(root / "small", random_numbers, rows=SMALL_ROWS)
        limit, failure = 100 * MIB, ""
        while not clock.is_over():
            failure = prepare(root, "small", limit, rows, clock.left)
            say(
                f"memory: {rows:,} pairs with {limit // MIB} MiB: {'too little' if failure else 'enough'}"
            )
            if not failure:
                break
            limit += STEP
        else:
            return Report("the small corpus did not go through in the time", [failure])
        limit = int(SLACK * limit)
        rows, size = write_corpus(root / "large", random_numbers, size=TIMES * limit)
        say(f"memory: {rows:,} pairs, {size / 1e9:.1f} GB of text, with {limit // MIB} MiB")
        failure = prepare(root, "large", limit, rows, None)
        tried = (
            f"{rows:,} pairs, {size / 1e9:.2f} GB of text, were prepared by processes that may have "
            f"{limit // MIB} MiB each"
        )
        return Report(tried, [failure] if failure else [])


def prepare(root: Path, corpus: str, limit: int, rows: int, seconds: float | None) -> str:
    """Prepares a corpus under a limit of memory; returns what went wrong."""
    words = [sys.executable, root / "program.py", root / corpus, root / f"out-{corpus}", str(limit)]
    # Threads of libraries have memory of their own, which would hide that of the text.
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{corpus}: not finished in time"
    if done.returncode:
        return f"{corpus}: exit code {done.returncode}\n{last_lines(done.stderr)}"
    (pair,) = PreparedData.open(root / f"out-{corpus}").pairs
    examples = pair.splits["train"].examples
    return "" if examples == rows else f"{corpus}: {examples:,} of {rows:,} pairs were kept"


def write_corpus(
    folder: Path, numbers: random.Random, rows: int | None = None, size: int = 0
) -> tuple[int, int]:
    """Writes a corpus of some rows, or with `size` bytes of text, in one file for each side.

    Returns:
      The number of rows, and the bytes of their text before compression.
    """
    (folder / "fr-en").mkdir(parents=True)
    written = count = 0
    lines = pairs(numbers)
    with (
        zstandard.open(folder / "fr-en" / "train.fr.zst", "wb") as sources,
        zstandard.open(folder / "fr-en" / "train.en.zst", "wb") as targets,
    ):
        while count < rows if rows is not None else written < size:
            some = list(itertools.islice(lines, 10_000))
            for side, file in ((0, sources), (1, targets)):
                text = "".join([pair[side] for pair in some]).encode()
                file.write(text)
                written += len(text)
            count += len(some)
    return count, written


def pairs(numbers: random.Random) -> Iterator[tuple[str, str]]:
    """Yields lines of two languages. The first words of a line count the lines."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    english = ["".join(numbers.choices(letters, k=6)) for _ in range(1000)]
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
