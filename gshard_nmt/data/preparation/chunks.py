"""Chunks: files with some rows of a corpus, so that later work can begin at any of them.

A chunk is compressed with zstd. Its first line says the sizes of its parts, as JSON. Then come the lines
of the source, those of the target, and the scores if the corpus has them:

    {"rows": 2, "bytes": [12, 12], "scores": false}
    un chat
    oui
    one cat
    yes

A row never contains a newline character: it becomes a space.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard

from gshard_nmt.data.reading.rows import make_pair
from gshard_nmt.data.sets.corpus import SentencePair

CHUNK_ROWS = 1 << 17
"""The largest number of rows in a chunk."""

CHUNK_CHARACTERS = 1 << 25
"""A chunk ends soon after the row with which its text has this number of characters."""

SHARDS = 256
"""A split has about this number of shards before its shards become larger than a chunk."""

LARGEST_SHARD = 1 << 20
"""The largest number of rows in a shard."""

_CHECKED_ROWS = 1 << 12
"""The number of rows after which the characters of a chunk are compared."""

_LONG = 4 * CHUNK_CHARACTERS
"""Between the comparisons, a chunk ends after `_FEW_ROWS` rows if it has this number of characters."""
_FEW_ROWS = 1 << 6


class Part(NamedTuple):
    """A chunk of a text: its file and the number of its rows."""

    file: Path
    rows: int


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The rows of a chunk. `scores` is float64[rows], NaN if a row has none; None if no row has one."""

    sources: Sequence[str]
    targets: Sequence[str]
    scores: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def rows(self) -> list[SentencePair]:
        if self.scores is None:
            scores: Iterable[float | None] = itertools.repeat(None)
        else:
            scores = [None if math.isnan(score) else score for score in self.scores.tolist()]
        # The scores may be endless.
        return list(map(make_pair, zip(self.sources, self.targets, scores, strict=False)))

    def take(self, places: np.ndarray) -> "Chunk":
        """Returns the rows at int64[n] `places`, which are sorted."""
        if len(places) == len(self):
            return self
        scores = None if self.scores is None else self.scores[places]
        at = places.tolist()
        return Chunk([self.sources[i] for i in at], [self.targets[i] for i in at], scores)

    @classmethod
    def of(cls, rows: Sequence[SentencePair]) -> "Chunk":
        sources, targets, scores = zip(*rows, strict=True) if rows else ((), (), ())
        if scores.count(None) == len(scores):
            return cls(sources, targets)
        return cls(sources, targets, np.array(scores, np.float64))  # None becomes NaN


def split(blocks: Iterable[Iterable[SentencePair]]) -> Iterator[Chunk]:
    """Yields the chunks of a text. The same rows give the same chunks, however they come in blocks."""
    rows = itertools.chain.from_iterable(blocks)
    chunk: list[SentencePair] = []
    characters = 0
    while piece := list(itertools.islice(rows, _FEW_ROWS)):
        chunk += piece
        characters += sum(len(source) + len(target) for source, target, _ in piece)
        limit = _LONG if len(chunk) % _CHECKED_ROWS else CHUNK_CHARACTERS
        if len(chunk) == CHUNK_ROWS or characters >= limit:
            yield Chunk.of(chunk)
            chunk, characters = [], 0
    if chunk:
        yield Chunk.of(chunk)


def content_of(chunk: Chunk) -> bytes:
    """Returns the bytes of a chunk before their compression."""
    sides = [_joined(lines) for lines in (chunk.sources, chunk.targets)]
    sizes = [len(side) for side in sides]
    head = {"rows": len(chunk), "bytes": sizes, "scores": chunk.scores is not None}
    scores = b"" if chunk.scores is None else chunk.scores.astype("<f8").tobytes()
    return b"".join([json.dumps(head).encode(), b"\n", *sides, scores])


def _joined(lines: Sequence[str]) -> bytes:
    text = "".join(f"{line}\n" for line in lines)
    if text.count("\n") != len(lines):
        text = "".join("{}\n".format(line.replace("\n", " ")) for line in lines)
    return text.encode("utf-8", "surrogatepass")


def write(path: Path, content: bytes) -> None:
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(content))


def read(path: Path) -> Chunk:
    content = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    end = content.index(b"\n") + 1
    head = json.loads(content[:end])
    sides = []
    for size in head["bytes"]:
        text = content[end : end + size].decode("utf-8", "surrogatepass")
        sides.append(text.split("\n")[:-1])
        end += size
    scores = np.frombuffer(content, "<f8", head["rows"], end) if head["scores"] else None
    return Chunk(sides[0], sides[1], scores)


def groups(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Returns the chunks of each shard: about SHARDS shards, or fewer of up to CHUNK_ROWS rows."""
    limit = CHUNK_ROWS * -(-sum(part.rows for part in parts) // (CHUNK_ROWS * SHARDS))
    limit = min(max(limit, CHUNK_ROWS), LARGEST_SHARD)
    result: list[list[Part]] = [[]]
    size = 0
    for part in parts:
        if size and size + part.rows > limit:
            result.append([])
            size = 0
        result[-1].append(part)
        size += part.rows
    return [tuple(own) for own in result if any(part.rows for part in own)]
