"""Prepared data of random ids, so that tests of shards and batches need no text and no vocabulary."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.directions import directions_of
from gshard_nmt.data.sets.manifest import PreparedPair, SplitData, pair_folder, write_manifest
from gshard_nmt.data.sets.records import ShardWriter
from gshard_nmt.data.sets.shards import PreparedData, word_type
from gshard_nmt.data.text.vocabulary import EOS, SPECIALS

Ids = tuple[int, ...]


def random_examples(
    rng: np.random.Generator, number: int, config: Data, vocabulary: int = 500
) -> list[tuple[Ids, Ids]]:
    """Returns pairs of source and target ids; each ends in EOS and fits into the rows of `config`."""

    def sentence(longest: int) -> Ids:
        return (*rng.integers(SPECIALS, vocabulary, rng.integers(0, longest)).tolist(), EOS)

    return [(sentence(config.source_length), sentence(config.target_length)) for _ in range(number)]


def write_prepared_data(folder: Path, config: Data, sizes: Mapping[str, int]) -> PreparedData:
    """Writes `sizes[language]` train examples for each direction with English, and a quarter for dev."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for side in ("source", "target"):
        (folder / f"{side}.model").write_bytes(b"not read by these tests")
    pairs = []
    directions = [
        (language, *direction)
        for language in sizes
        for direction in directions_of(config.direction, language, "en")
    ]
    for language, source, target in directions:
        size = sizes[language]
        splits = {"test": SplitData(3)}
        for split, number in (("train", size), ("dev", size // 4)):
            writer = ShardWriter(folder / pair_folder(source, target), split, word_type(500))
            writer.write(random_examples(rng, number, config))
            splits[split] = SplitData(number, number, files=writer.close())
        pairs.append(PreparedPair(source, target, language, splits))
    facts = {
        "corpus_fingerprint": "0123456789abcdef",
        "data": config.shaping(),
        "direction": config.direction,
        "source_vocabulary": 500,
        "target_vocabulary": 500,
        "temperature": config.temperature,
    }
    write_manifest(folder, pairs, facts, {})
    return PreparedData.open(folder)
