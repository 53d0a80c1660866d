"""The last stage: rows of cleaned chunks become the records of a shard."""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.chunks import Part, groups
from gshard_nmt.data.preparation.filtering import CleanText
from gshard_nmt.data.preparation.plan import Direction
from gshard_nmt.data.preparation.vocabularies import Measuring, Sample, measure, measuring_units
from gshard_nmt.data.preparation.work import Unit, WorkFolder
from gshard_nmt.data.sets.manifest import SplitData, checksum
from gshard_nmt.data.sets.records import ShardWriter
from gshard_nmt.data.sets.shards import word_type
from gshard_nmt.data.text.vocabulary import EOS, Vocabulary
from gshard_nmt.data.text.vocabulary_report import Fit

_BLOCK = 1 << 14
"""The number of rows that are tokenized at a time."""

_PREFIX = "shard"
_COUNTS = ("pairs", "examples", "source_tokens", "target_tokens", "fallback_tokens")
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
    samples: Sequence[Sample],
) -> tuple[dict[tuple[str, str], Tokens], list[Fit]]:
    """Tokenizes texts, and measures the vocabularies on `samples` at the same time."""
    units: list[Unit] = []
    counts = []
    both = (models["source"], models["target"])
    lengths = (config.source_length, config.target_length)
    for d, split, text in texts:
        shards = groups(text.parts)
        for number, parts in enumerate(shards):
            names = (d.source, d.target, d.pair.subset)
            task = Tokenizing(parts, d.is_reversed, *names, both, *lengths)
            size = sum(part.rows for part in parts)
            units.append(Unit(f"{d.folder}/{split}/{number}", task, size))
        counts.append(len(shards))
    units += measuring_units(samples, models)
    done = iter(work.run("tokenize", "tokenizing, pairs", _tokenize_or_measure, units))
    tokens = {}
    for (d, split, text), count in zip(texts, counts, strict=True):
        own = [next(done) for _ in range(count)]
        sums = {name: sum(o.result[name] for o in own) for name in (*_COUNTS, "fit_twice")}
        written = [(o.folder / name, size, n) for o in own for name, size, n in o.result["files"]]
        files = tuple(
            (f"{split}-{number:05}{place.suffix}", size, examples)
            for number, (place, size, examples) in enumerate(written)
        )
        too_long = sums.pop("pairs") - sums["examples"]
        removed = {**text.removed, **({TOO_LONG: too_long} if too_long else {})}
        fit_twice = sums.pop("fit_twice")
        data = SplitData(text.pairs, **sums, files=files, removed=removed)
        digests = tuple(digest for o in own for digest in o.result["checksums"])
        places = tuple(place for place, *_ in written)
        tokens[d.folder, split] = Tokens(data, places, digests, fit_twice)
    return tokens, [Fit(**outcome.result) for outcome in done]


def _tokenize_or_measure(task: "Tokenizing | Measuring", folder: Path) -> Mapping[str, Any]:
    return measure(task) if isinstance(task, Measuring) else tokenize(task, folder)


@dataclasses.dataclass(frozen=True)
class Tokenizing:
    """A direction of translation, the text of a shard, and the limits of an example in tokens."""

    parts: tuple[Part, ...]
    is_reversed: bool
    source: str
    target: str
    subset: str
    vocabularies: tuple[Path, Path]
    source_length: int
    target_length: int


def tokenize(task: Tokenizing, folder: Path) -> Mapping[str, Any]:
    """Writes a shard into a folder; none if no example is short enough."""
    vocabularies = tuple(map(Vocabulary.load, task.vocabularies))
    word = word_type(*(vocabulary.size for vocabulary in vocabularies))
    writer = ShardWriter(folder, _PREFIX, word)
    totals: collections.Counter[str] = collections.Counter()
    for sources, targets in _blocks(task):
        words, ends, counts = encode(sources, targets, task, vocabularies, word)
        writer.write_records(words, ends)
        totals.update(pairs=len(sources), examples=len(ends), **counts)
    files = writer.close()
    return {name: totals[name] for name in (*_COUNTS, "fit_twice")} | {
        "files": files,
        "checksums": [checksum(folder / name) for name, *_ in files],
    }


def encode(
    sources: Sequence[str] | Sequence[bytes],
    targets: Sequence[str] | Sequence[bytes],
    task: Tokenizing,
    vocabularies: Sequence[Vocabulary],
    word: np.dtype,
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Returns the records of some rows, without the examples that are too long, and their counts.

    The records are those of `ShardWriter.write_records`. The counts are `source_tokens`, `target_tokens`,
    `fallback_tokens`, and `fit_twice`, the examples that would fit if both limits were twice as large.

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
    counts = {"source_tokens": int(n.sum()), "target_tokens": int(m.sum())}
    return words, ends, {**counts, "fallback_tokens": fallback, "fit_twice": fit_twice}


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
    for part in task.parts:
        sides = part.read_lines()
        sources, targets = sides[::-1] if task.is_reversed else sides
        for first in range(0, len(sources), _BLOCK):
            yield sources[first : first + _BLOCK], targets[first : first + _BLOCK]
