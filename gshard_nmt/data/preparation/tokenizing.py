"""The last stage: rows of cleaned chunks become the records of a shard."""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.preparation.chunks import CHUNK_ROWS, Part
from gshard_nmt.data.sets.manifest import SplitData, checksum
from gshard_nmt.data.sets.records import ShardWriter
from gshard_nmt.data.sets.shards import word_type
from gshard_nmt.data.text.vocabulary import EOS, Vocabulary

SHARDS = 256
"""A split has about this number of shards before its shards become larger than a chunk."""

LARGEST_SHARD = 1 << 20
"""The largest number of rows in a shard."""

_BLOCK = 1 << 14
"""The number of rows that are tokenized at a time."""

_PREFIX = "shard"
TOO_LONG = "too long"
"""The name in `SplitData.removed` of pairs that have more tokens than a row of a batch."""


@dataclasses.dataclass(frozen=True)
class Tokenizing:
    """The task of a unit: a direction of translation, and the text of a shard.

    Attributes:
      parts: the text.
      is_reversed: whether the second side of each row is the source.
      source, target, subset: what the tags before the source depend on.
      vocabularies: the files of the source and the target vocabulary.
      source_length, target_length: the largest numbers of tokens of an example.
    """

    parts: tuple[Part, ...]
    is_reversed: bool
    source: str
    target: str
    subset: str
    vocabularies: tuple[Path, Path]
    source_length: int
    target_length: int


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of several examples, one after the other.

    Attributes:
      words: <uint16 or uint32>[n], see `data/sets/shards.py`.
      ends: int64[examples], the end of each record in `words`.
      source_tokens, target_tokens: the number of their tokens.
      fallback_tokens: see `SplitData`.
      fit_twice: the number of examples that would fit if both limits were twice as large.
    """

    words: np.ndarray
    ends: np.ndarray
    source_tokens: int
    target_tokens: int
    fallback_tokens: int
    fit_twice: int


def group(rows: Sequence[int]) -> list[range]:
    """Returns the chunks of each shard, for chunks with these numbers of rows.

    A shard has at least the rows of a chunk, if there are enough. It has more if there would be more than
    about `SHARDS` shards.
    """
    limit = CHUNK_ROWS * -(-sum(rows) // (CHUNK_ROWS * SHARDS))
    limit = min(max(limit, CHUNK_ROWS), LARGEST_SHARD)
    groups, first, size = [], 0, 0
    for number, count in enumerate(rows):
        if size and size + count > limit:
            groups.append(range(first, number))
            first, size = number, 0
        size += count
    if size:
        groups.append(range(first, len(rows)))
    return groups


def tokenize(task: Tokenizing, folder: Path) -> Mapping[str, Any]:
    """Writes a shard into a folder; none if no example is short enough.

    Returns:
      The fields of `SplitData`, without duplicates in `pairs`, the `checksums` of the shards, and
      `fit_twice` of `Records`.
    """
    vocabularies = tuple(map(Vocabulary.load, task.vocabularies))
    word = word_type(*(vocabulary.size for vocabulary in vocabularies))
    writer = ShardWriter(folder, _PREFIX, word)
    totals: collections.Counter[str] = collections.Counter()
    for sources, targets in _blocks(task):
        records = encode(sources, targets, task, vocabularies, word)
        writer.write_records(records.words, records.ends)
        totals.update(pairs=len(sources), examples=len(records.ends))
        for name in ("source_tokens", "target_tokens", "fallback_tokens", "fit_twice"):
            totals[name] += getattr(records, name)
    files = writer.close()
    names = ("pairs", "examples", "source_tokens", "target_tokens", "fallback_tokens", "fit_twice")
    return {name: totals[name] for name in names} | {
        "files": files,
        "checksums": [checksum(folder / name) for name, *_ in files],
    }


def total_of(results: Sequence[Mapping[str, Any]], prefix: str) -> tuple[SplitData, list[str]]:
    """Adds up the results of the units of a split.

    Args:
      results: what `tokenize` returned, in the order of the text.
      prefix: the first part of the names that the shards will have, such as "train".

    Returns:
      The data of the split, and the checksums of its shards.
    """
    names = ("pairs", "examples", "source_tokens", "target_tokens", "fallback_tokens")
    sums = {name: sum(result[name] for result in results) for name in names}
    shards = [shard for result in results for shard in result["files"]]
    files = tuple(
        (f"{prefix}-{number:05}{Path(name).suffix}", size, examples)
        for number, (name, size, examples) in enumerate(shards)
    )
    too_long = sums["pairs"] - sums["examples"]
    removed = {TOO_LONG: too_long} if too_long else {}
    checksums = [digest for result in results for digest in result["checksums"]]
    return SplitData(**sums, files=files, removed=removed), checksums


def encode(
    sources: Sequence[str] | Sequence[bytes],
    targets: Sequence[str] | Sequence[bytes],
    task: Tokenizing,
    vocabularies: Sequence[Vocabulary],
    word: np.dtype,
) -> Records:
    """Returns the records of some rows, without the examples that are too long.

    The examples are those of `Vocabulary.encode_source` and `encode_target`. Python would take as long to
    put lists of ids together as SentencePiece takes for all the rest, so numpy does it.
    """
    tags = vocabularies[0].tags(task.source, task.target, task.subset)
    first = vocabularies[1].first(task.target)
    sides = zip(vocabularies, (sources, targets), strict=True)
    ids, lengths = zip(*(_flat(vocabulary, side) for vocabulary, side in sides), strict=True)
    n, m = lengths[0] + len(tags) + 1, lengths[1] + len(first) + 1
    fits = (n <= task.source_length) & (m <= task.target_length)
    fit_twice = int(((n <= 2 * task.source_length) & (m <= 2 * task.target_length)).sum())
    ids = tuple(side[np.repeat(fits, count)] for side, count in zip(ids, lengths, strict=True))
    source_count, target_count = lengths[0][fits], lengths[1][fits]
    n, m = n[fits], m[fits]
    ends = np.cumsum(1 + n + m)
    starts = ends - (1 + n + m)
    words = np.empty(int(ends[-1]) if len(ends) else 0, word)
    words[starts] = n
    for place, tag in enumerate(tags, 1):
        words[starts + place] = tag
    words[_places(starts + 1 + len(tags), source_count)] = ids[0]
    words[starts + n] = EOS
    for place, tag in enumerate(first, 1):
        words[starts + n + place] = tag
    words[_places(starts + 1 + n + len(first), target_count)] = ids[1]
    words[ends - 1] = EOS
    fallback = sum(
        int(vocabulary.is_byte_fallback[side].sum())
        for vocabulary, side in zip(vocabularies, ids, strict=True)
    )
    return Records(words, ends, int(n.sum()), int(m.sum()), fallback, fit_twice)


def _flat(
    vocabulary: Vocabulary, lines: Sequence[str] | Sequence[bytes]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of all lines, int32[tokens], and the number of ids of each, int64[lines]."""
    ids = vocabulary.encode(lines, threads=1)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths


def _places(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the numbers from start to start + count, for each start: [5, 9] and [2, 1] give 5 6 9."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)


def _blocks(task: Tokenizing) -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
    """Yields some rows at a time: their sources and their targets, as UTF-8."""
    for part in task.parts:
        sides = part.read_lines()
        sources, targets = sides[::-1] if task.is_reversed else sides
        for first in range(0, len(sources), _BLOCK):
            yield sources[first : first + _BLOCK], targets[first : first + _BLOCK]
