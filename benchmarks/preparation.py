"""Measures gshard-data prepare against bare SentencePiece, both in one process.

    .venv/bin/python benchmarks/preparation.py [--corpus corpus --languages fr zh-CN]

It prepares the corpus with existing vocabularies: without cleaning, and with the default filters. Without
--corpus, the text is that of `make demo`, or else random words. --rows asks for random words.

Bare SentencePiece reads both columns of the text from memory, in blocks of 16,384 lines, and returns
lists of ids. Times are CPU seconds of a process and its children, since other programs may run meanwhile.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import environment, page
from harness.records import Figure
from harness.rounds import Limit, median_text

from gshard_nmt.data.sets.corpus import find_pairs, read_pairs
from gshard_nmt.data.text.vocabulary import Vocabulary

WAYS = {
    "filters off": ["--gin", "Cleaning.filters = []", "--gin", "Cleaning.duplicates = []"],
    "default filters": [],
}
DEMO_CORPUS = Path("data/demo/corpus")
BLOCK = 1 << 14
BARE = "bare SentencePiece"


def main() -> None:
    arguments = parse()
    busy, limit = environment.busy(), page.limit_of(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        if arguments.corpus is None and arguments.rows is None and DEMO_CORPUS.is_dir():
            arguments.corpus = DEMO_CORPUS
        elif arguments.corpus is None:
            arguments.corpus = root / "corpus"
            make_corpus(arguments.corpus, arguments.languages, arguments.rows or 50_000)
        section = speed_section(arguments, root, limit)
    page.publish(section, arguments.page, busy)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--corpus", type=Path, help="the corpus folder")
    parser.add_argument(
        "--languages",
        nargs="+",
        default=["fr", "zh-CN", "de", "ru"],
        help="languages with much text",
    )
    parser.add_argument("--config", default="demo", help="the config, for its settings of data")
    parser.add_argument("--rows", type=int, help="random sentences of each language")
    page.add_flags(parser, rounds=5)
    return parser.parse_args()


def make_corpus(folder: Path, languages: list[str], rows: int) -> None:
    rng = random.Random(0)
    letters = "etaoinshrdlu"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(20_000)]
    for language in languages:
        pair = folder / f"{language}-en"
        pair.mkdir(parents=True)
        for split, count in (("train", rows), ("dev", 100), ("test", 100)):
            for side in (language, "en"):
                lines = (" ".join(rng.choices(words, k=rng.randint(5, 15))) for _ in range(count))
                (pair / f"{split}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def speed_section(arguments: argparse.Namespace, root: Path, limit: Limit) -> page.Section:
    models = root / "models"
    training = prepare(arguments, models, "--workers", "1")
    columns = read_columns(arguments.corpus, arguments.languages)
    pairs = len(columns[0])
    seconds: dict[str, list[float]] = {name: [] for name in (BARE, *WAYS)}
    while not limit.is_over(len(seconds[BARE])):
        # Up to date: what the start of the program takes.
        start = prepare(arguments, models, "--workers", "1")
        seconds[BARE].append(bare(columns, models))
        for name, flags in WAYS.items():
            own = ["--vocabulary_of", str(models), "--workers", "1", *flags]
            seconds[name].append(prepare(arguments, fresh(root), *own) - start)
    rows, figures = [("", "us a pair", f"times {BARE}", "interval")], []
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(own, seconds[BARE], strict=True)]
        micros = [value / pairs * 1e6 for value in own]
        rows.append((name, f"{statistics.median(micros):.1f}", *median_text(ratios, ".2f")))
        figures.append(Figure.of(name, "CPU us a pair", micros, BARE, ratios))
    text = (
        f"{pairs:,} pairs of {', '.join(arguments.languages)}. The start takes {start:.1f} CPU seconds, "
        f"which are subtracted.\nWith new vocabularies, all takes {training:.1f} CPU seconds.\n\n"
        f"{page.table(rows)}"
    )
    return page.Section("preparation", text, figures, len(ratios))


def read_columns(corpus: Path, languages: list[str]) -> list[list[str]]:
    pairs = [p for p in find_pairs(corpus) if p.language in languages]
    rows = [row for p in pairs for row in read_pairs(p, "train", p.source, p.target)]
    return [[row[side] for row in rows] for side in (0, 1)]


def bare(columns: list[list[str]], models: Path) -> float:
    vocabularies = [Vocabulary.load(models / f"{side}.model") for side in ("source", "target")]
    began = time.process_time()
    for vocabulary, lines in zip(vocabularies, columns, strict=True):
        for first in range(0, len(lines), BLOCK):
            vocabulary.encode(lines[first : first + BLOCK], threads=1)
    return time.process_time() - began


def prepare(arguments: argparse.Namespace, out: Path, *flags: str) -> float:
    languages = "[" + ", ".join(f"'{language}'" for language in arguments.languages) + "]"
    command = [sys.executable, "-m", "gshard_nmt", "data", "prepare"]
    command += ["--config", arguments.config, "--gin", f"Data.languages = {languages}"]
    command += ["--gin", "Data.minimum_pairs = 1"]
    command += ["--corpus", str(arguments.corpus), "--out", str(out), *flags]
    cache = {"XDG_CACHE_HOME": str(out.parent / f"cache-{out.name}")}
    before = children()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | cache)
    return children() - before


def children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def fresh(root: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=root)) / "out"


if __name__ == "__main__":
    main()
