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
from gshard_nmt.data.preparation.plan import Direction
from gshard_nmt.data.preparation.work import Unit, WorkFolder
from gshard_nmt.data.sets.manifest import SplitData, checksum
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
class Tokens:
    """The shards of a split of a direction. `fit_twice` examples fit twice the limits."""

    data: SplitData
    files: tuple[Path, ...] = ()
    checksums: tuple[str, ...] = ()
    fit_twice: int = 0


def tokenize_all(
    work: WorkFolder,
    config: Data,
    texts: Sequence[tuple[Direction, str, CleanText]],
    models: Mapping[str, Path],
) -> dict[tuple[str, str], Tokens]:
    units: list[Unit] = []
    counts = []
    for d, split, text in texts:
        shards = groups(text.parts)
        call = functools.partial(
            tokenize,
            is_reversed=d.is_reversed,
            names=(d.source, d.target, d.pair.subset),
            models=(models["source"], models["target"]),
            limits=(config.source_length, config.target_length),
        )
        for number, parts in enumerate(shards):
            size = sum(part.rows for part in parts)
            own_call = functools.partial(call, parts=parts)
            units.append(Unit(f"{d.folder}/{split}/{number}", own_call, size))
        counts.append(len(shards))
    done = iter(work.run("tokenize", "tokenizing, pairs", units))
    tokens = {}
    for (d, split, text), count in zip(texts, counts, strict=True):
        own = [*itertools.islice(done, count)]
        sums = {name: sum(o.result[name] for o in own) for name in (*_COUNTS, "fit_twice")}
        fit_twice = sums.pop("fit_twice")
        too_long = text.rows - sums["examples"]
        removed = {**text.removed, **({TOO_LONG: too_long} if too_long else {})}
        written = [(o.folder / name, *facts) for o in own for name, *facts in o.result["shards"]]
        files = tuple(
            (f"{split}-{number:05}{place.suffix}", size, examples)
            for number, (place, size, examples, _) in enumerate(written)
        )
        data = SplitData(text.pairs, **sums, files=files, removed=removed)
        places, digests = (tuple(shard[n] for shard in written) for n in (0, -1))
        tokens[d.folder, split] = Tokens(data, places, digests, fit_twice)
    return tokens


def tokenize(
    folder: Path,
    parts: Sequence[Part],
    is_reversed: bool,
    names: tuple[str, str, str],
    models: tuple[Path, Path],
    limits: tuple[int, int],
) -> Mapping[str, Any]:
    """Writes a shard into a folder; none if no example is short enough.

    `names` are the languages and the subset, and `limits` the tokens of an example on both sides.
    `fit_twice` counts the examples that would fit if both limits were twice as large.
    """
    source, target = map(Vocabulary.load, models)
    tags, first = source.tags(*names), target.first(names[1])
    writer = ShardWriter(folder, "shard", word_type(source.size, target.size))
    totals: collections.Counter[str] = collections.Counter()
    for part in parts:
        chunk = chunks.read(part.file)
        sides = (chunk.targets, chunk.sources) if is_reversed else (chunk.sources, chunk.targets)
        for begin in range(0, len(chunk), _BLOCK):
            lines = [side[begin : begin + _BLOCK] for side in sides]
            encoded = zip(source.encode(lines[0], 1), target.encode(lines[1], 1), strict=True)
            pairs = [([*tags, *a, EOS], [*first, *b, EOS]) for a, b in encoded]
            examples = [pair for pair in pairs if _fits(pair, limits)]
            writer.write(examples)
            totals["fit_twice"] += sum(_fits(pair, limits, 2) for pair in pairs)
            totals["examples"] += len(examples)
            for side, name, vocabulary in ((0, "source", source), (1, "target", target)):
                flat = itertools.chain.from_iterable(pair[side] for pair in examples)
                ids = np.fromiter(flat, np.int32)
                totals[f"{name}_tokens"] += len(ids)
                totals["spelled_tokens"] += int(vocabulary.is_byte_fallback[ids].sum())
    shards = [(*file, checksum(folder / file[0])) for file in writer.close()]
    return {name: totals[name] for name in (*_COUNTS, "fit_twice")} | {"shards": shards}


def _fits(pair: tuple[list[int], list[int]], limits: tuple[int, int], times: int = 1) -> bool:
    return len(pair[0]) <= times * limits[0] and len(pair[1]) <= times * limits[1]
