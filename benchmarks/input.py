"""Measures the tokens that training's input delivers, against a plain loop over the same arrays.

    .venv/bin/python benchmarks/input.py [--examples 200000] [--batches 200]

It writes prepared data of random sentences, in 8 languages, and times two things in turns, in seconds of
the CPU: the input (it draws, reads, packs and lays out batches), and a loop that copies the same batches
from ready arrays. The training of the demo takes about 20,000 tokens a second on 2 cores.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import environment, page
from harness.records import Figure
from harness.rounds import median_text

from gshard_nmt.data.batching.batches import new_position
from gshard_nmt.data.batching.packing import batch_arrays
from gshard_nmt.data.batching.streams import Draws, Streams
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.manifest import PreparedPair, SplitData, write_manifest
from gshard_nmt.data.sets.records import OpenShards, ShardWriter
from gshard_nmt.data.sets.shards import PreparedData, word_type
from gshard_nmt.data.text.vocabulary import EOS, SPECIALS

LANGUAGES, VOCABULARY = 8, 8000
CONFIG = Data(source_length=64, target_length=64, rows=64)


def prepared_data(folder: Path, examples: int) -> PreparedData:
    rng = np.random.default_rng(0)
    for side in ("source", "target"):
        (folder / f"{side}.model").write_bytes(b"not read by this program")
    pairs = []
    for number in range(LANGUAGES):
        size = examples * 2 ** (LANGUAGES - number) // 2 ** (LANGUAGES + 1)
        lengths = np.clip(rng.lognormal(2.5, 0.7, (size, 2)), 1, 63).astype(int)
        ids = [rng.integers(SPECIALS, VOCABULARY, lengths[:, side].sum()) for side in (0, 1)]
        sides = [np.split(i, np.cumsum(lengths[:, s])[:-1]) for s, i in enumerate(ids)]
        writer = ShardWriter(folder / f"x{number}-en", "train", word_type(VOCABULARY))
        writer.write(
            [([*s.tolist(), EOS], [*t.tolist(), EOS]) for s, t in zip(*sides, strict=True)]
        )
        splits = {"train": SplitData(size, size, files=writer.close())}
        splits |= {"dev": SplitData(0), "test": SplitData(0)}
        pairs.append(PreparedPair(f"x{number}", "en", f"x{number}", splits))
    facts = {
        "corpus_fingerprint": "random",
        "data": CONFIG.shaping(),
        "direction": CONFIG.direction,
        "source_vocabulary": VOCABULARY,
        "target_vocabulary": VOCABULARY,
        "temperature": CONFIG.temperature,
    }
    write_manifest(folder, pairs, facts)
    return PreparedData.open(folder)


def cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    """Prints a table, and writes it to docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--examples", type=int, default=200_000, help="sentences of the data; default 200000"
    )
    parser.add_argument("--batches", type=int, default=200, help="batches of a turn; default 200")
    page.add_flags(parser, rounds=5)
    arguments = parser.parse_args()
    busy, limit = environment.busy(), page.limit_of(arguments)
    lengths = (CONFIG.source_length, CONFIG.target_length)
    with tempfile.TemporaryDirectory() as folder:
        data = prepared_data(Path(folder), arguments.examples)
        shards = OpenShards()
        draws = Draws.open(data, CONFIG, shards)
        start = dict.fromkeys(range(draws.streams), new_position(CONFIG)[0])
        ready = _batches(Streams(draws, CONFIG, start), arguments.batches)
        tokens = sum(
            int(np.count_nonzero(b[f"{s}_segments"])) for b in ready for s in ("source", "target")
        )
        times: dict[str, list[float]] = {"input": [], "plain loop": []}
        while not limit.is_over(len(times["plain loop"])):
            streams = Streams(draws, CONFIG, start)
            times["input"].append(cpu_seconds(lambda s=streams: _batches(s, arguments.batches)))
            times["plain loop"].append(
                cpu_seconds(lambda: [{k: a.copy() for k, a in b.items()} for b in ready])
            )
        shards.close()
    positions = arguments.batches * CONFIG.rows * sum(lengths)
    rows = [("", "tokens a second of one CPU", "interval")]
    figures = []
    for name, seconds in times.items():
        speeds = [tokens / own for own in seconds]
        ratios = [b / a for a, b in zip(seconds, times["plain loop"], strict=True)]
        rows.append((name, *median_text(speeds, ",.0f")))
        figures.append(Figure.of(name, "tokens/s", speeds, "plain loop", ratios))
    text = (
        f"{tokens:,} tokens in {arguments.batches} batches, which are {tokens / positions:.1%} full.\n\n"
        f"{page.table(rows)}"
    )
    page.publish(page.Section("input", text, figures, len(ratios)), arguments.page, busy)


def _batches(streams: Streams, number: int) -> list[dict[str, np.ndarray]]:
    batches = []
    for _ in range(number):
        examples, rows = streams.next_rows()
        arrays = batch_arrays(
            examples, rows, CONFIG.rows, CONFIG.source_length, CONFIG.target_length
        )
        batches.append(arrays)
    return batches


if __name__ == "__main__":
    main()
