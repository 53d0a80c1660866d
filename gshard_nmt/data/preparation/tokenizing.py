"""The last stage: rows of cleaned chunks become the records of a shard."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Part, groups
from gshard_nmt.data.preparation.filtering import CleanText
from gshard_nmt.data.preparation.work import Unit, WorkFolder
from gshard_nmt.data.sets.corpus import CorpusPair
from gshard_nmt.data.sets.directions import directions_of
from gshard_nmt.data.sets.manifest import SplitData, checksum, pair_folder
from gshard_nmt.data.sets.records import ShardWriter
from gshard_nmt.data.sets.shards import word_type
from gshard_nmt.data.text.vocabulary import EOS, Vocabulary

_BLOCK = 1 << 14
"""The number of rows that are tokenized at a time."""

_COUNTS = ("examples", "source_tokens", "target_tokens", "spelled_tokens")
"""Fields of `SplitData`."""
TOO_LONG = "too long"
"""The name in `SplitData.removed` of pairs that have more tokens than a row of a batch."""


@dataclasses.dataclass(frozen=True)
class Direction:
    """A direction of translation: a pair of the corpus with its source and target language."""

    pair: CorpusPair
    source: str
    target: str

    @property
    def is_reversed(self) -> bool:
        return (self.source, self.target) != (self.pair.source, self.pair.target)

    @property
    def folder(self) -> str:
        return pair_folder(self.source, self.target, self.pair.subset)


def all_directions(config: Data, pairs: Sequence[CorpusPair]) -> list[Direction]:
    return [
        Direction(pair, source, target)
        for pair in pairs
        for source, target in directions_of(config.direction, pair.source, pair.target)
    ]


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The shards of a split of a direction, and their files with the checksums."""

    data: SplitData
    files: tuple[tuple[Path, str], ...] = ()


def tokenize_all(
    work: WorkFolder,
    config: Data,
    texts: Sequence[tuple[Direction, str, CleanText]],
    models: Sequence[Path],
) -> dict[tuple[str, str], Tokens]:
    """Returns the shards by the folder of the direction and the split."""
    units = []
    for d, split, text in texts:
        call = functools.partial(
            tokenize,
            is_reversed=d.is_reversed,
            # Text to translate has no tag of a subset, so dev text has none.
            names=(d.source, d.target, d.pair.subset if split == "train" else ""),
            models=models,
            limits=(config.source_length, config.target_length),
        )
        units.append(units_of(f"{d.folder}/{split}", call, text))
    tokens = {}
    done = work.run_groups("tokenize", "tokenizing, pairs", units)
    for (d, split, text), outcomes in zip(texts, done, strict=True):
        sums = {name: sum(o.result[name] for o in outcomes) for name in _COUNTS}
        too_long = text.rows - sums["examples"]
        removed = {**text.removed, **({TOO_LONG: too_long} if too_long else {})}
        written = [(o.folder / name, *rest) for o in outcomes for name, *rest in o.result["shards"]]
        files = tuple(
            (f"{split}-{number:05}{place.suffix}", size, examples)
            for number, (place, size, examples, _) in enumerate(written)
        )
        data = SplitData(text.text.total, **sums, files=files, removed=removed)
        places = tuple((place, digest) for place, *_, digest in written)
        tokens[d.folder, split] = Tokens(data, places)
    return tokens


def units_of(name: str, call: functools.partial[Mapping[str, Any]], text: CleanText) -> list[Unit]:
    """Returns the units that call a function with the `parts` of each shard of a text."""
    return [
        Unit(f"{name}/{n}", functools.partial(call, parts=parts), sum(part.rows for part in parts))
        for n, parts in enumerate(groups(text.parts))
    ]


def tokenize(
    folder: Path,
    parts: Sequence[Part],
    is_reversed: bool,
    names: tuple[str, str, str],
    models: Sequence[Path],
    limits: tuple[int, int],
) -> Mapping[str, Any]:
    """Writes a shard into a folder; none if no example is short enough.

    `names` are the languages and the subset, and `limits` the tokens of an example on both sides.
    """
    source, target = map(Vocabulary.load, models)
    tags, first = source.tags(*names), target.first(names[1])
    writer = ShardWriter(folder, "shard", word_type(source.size, target.size))
    totals = collections.Counter(dict.fromkeys(_COUNTS, 0))
    for part in parts:
        chunk = chunks.read(part.file)
        sides = (chunk.targets, chunk.sources) if is_reversed else (chunk.sources, chunk.targets)
        for begin in range(0, len(chunk), _BLOCK):
            lines = [side[begin : begin + _BLOCK] for side in sides]
            encoded = zip(source.encode(lines[0], 1), target.encode(lines[1], 1), strict=True)
            pairs = [([*tags, *a, EOS], [*first, *b, EOS]) for a, b in encoded]
            examples = [p for p in pairs if len(p[0]) <= limits[0] and len(p[1]) <= limits[1]]
            writer.write(examples)
            totals["examples"] += len(examples)
            for side, name, vocabulary in ((0, "source", source), (1, "target", target)):
                flat = itertools.chain.from_iterable(pair[side] for pair in examples)
                ids = np.fromiter(flat, np.int32)
                totals[f"{name}_tokens"] += len(ids)
                totals["spelled_tokens"] += int(vocabulary.is_byte_fallback[ids].sum())
    shards = [(*file, checksum(folder / file[0])) for file in writer.close()]
    return {**totals, "shards": shards}
