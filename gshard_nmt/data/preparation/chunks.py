"""Chunks: files with some rows of a corpus, so that later work can begin at any of them.

A chunk is compressed with zstd. Its first line says the sizes of its parts, as JSON. Then come the lines
of the source, those of the target, and the scores if the corpus has them:

    {"rows": 2, "bytes": [9, 10], "scores": false}
    un chat
    oui
    one cat
    yes

A row never contains a newline character: it becomes a space.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import zstandard

from gshard_nmt.data.corpus import SentencePair
from gshard_nmt.data.reading.rows import make_pair

CHUNK_ROWS = 1 << 17
"""The largest number of rows in a chunk."""

CHUNK_CHARACTERS = 1 << 25
"""A chunk ends at the row with which its text has this number of characters or more."""

_CHECKED_ROWS = 1 << 12
"""The number of rows after which the characters of a chunk are counted."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rows of a corpus.

    Attributes:
      sources, targets: the two sides of each row, in the order of the pair's folder name.
      scores: float64[rows]; NaN if a row has no score. None if no row has one.
    """

    sources: Sequence[str]
    targets: Sequence[str]
    scores: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def rows(self) -> list[SentencePair]:
        """Returns the rows."""
        if self.scores is None:
            scores: Iterable[float | None] = itertools.repeat(None)
        else:
            scores = [None if math.isnan(score) else score for score in self.scores.tolist()]
        # The scores may be endless.
        return list(map(make_pair, zip(self.sources, self.targets, scores, strict=False)))

    def take(self, places: np.ndarray) -> "Chunk":
        """Returns the rows at int64[n] `places`."""
        if len(places) == len(self):
            return self
        scores = None if self.scores is None else self.scores[places]
        at = places.tolist()
        return Chunk([self.sources[i] for i in at], [self.targets[i] for i in at], scores)

    @classmethod
    def of(cls, rows: Sequence[SentencePair]) -> "Chunk":
        """Returns the chunk of some rows."""
        sources, targets, scores = zip(*rows, strict=True) if rows else ((), (), ())
        if scores.count(None) == len(scores):
            return cls(sources, targets)
        return cls(sources, targets, np.array(scores, np.float64))  # None becomes NaN


def split(blocks: Iterable[Sequence[SentencePair]]) -> Iterator[Chunk]:
    """Yields rows in chunks. The same rows give the same chunks, however they come in blocks."""
    waiting: list[SentencePair] = []
    checked = characters = 0
    for block in blocks:
        waiting.extend(block)
        while len(waiting) - checked >= _CHECKED_ROWS:
            sources, targets, _ = zip(*waiting[checked : checked + _CHECKED_ROWS], strict=True)
            checked += _CHECKED_ROWS
            characters += sum(map(len, sources)) + sum(map(len, targets))
            if checked == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
                yield Chunk.of(waiting[:checked])
                waiting = waiting[checked:]
                checked = characters = 0
    if waiting:
        yield Chunk.of(waiting)


def content_of(chunk: Chunk) -> bytes:
    """Returns the bytes of a chunk before compression."""
    sides = [_joined(side) for side in (chunk.sources, chunk.targets)]
    head = {
        "rows": len(chunk),
        "bytes": [len(side) for side in sides],
        "scores": chunk.scores is not None,
    }
    scores = b"" if chunk.scores is None else chunk.scores.astype("<f8").tobytes()
    return b"".join([json.dumps(head).encode(), b"\n", *sides, scores])


def write(path: Path, content: bytes) -> None:
    """Writes the bytes of a chunk, compressed."""
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(content))


def read(path: Path) -> Chunk:
    """Returns the chunk of a file that `write` wrote."""
    content = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    end = content.index(b"\n") + 1
    head = json.loads(content[:end])
    sides = []
    for size in head["bytes"]:
        sides.append(content[end : end + size].decode("utf-8", "surrogatepass").split("\n"))
        sides[-1].pop()
        end += size
    scores = np.frombuffer(content, "<f8", head["rows"], end) if head["scores"] else None
    return Chunk(sides[0], sides[1], scores)


@dataclasses.dataclass(frozen=True)
class Part:
    """A chunk without some of its rows.

    Attributes:
      file: the file of the chunk.
      rows: the number of rows that stay.
      dropped: the file of int64[n], the sorted places of the other rows; None if all rows stay.
    """

    file: Path
    rows: int
    dropped: Path | None = None

    def read(self) -> Chunk:
        """Returns the rows that stay."""
        chunk = read(self.file)
        if self.dropped is None:
            return chunk
        return chunk.take(np.delete(np.arange(len(chunk)), np.load(self.dropped)))


def digest_of(contents: Iterable[bytes]) -> str:
    """Returns 32 hexadecimal digits that identify the bytes of all chunks of an input."""
    digest = hashlib.blake2b(digest_size=16)
    for content in contents:
        digest.update(hashlib.blake2b(content).digest())
    return digest.hexdigest()


def _joined(lines: Sequence[str]) -> bytes:
    if not lines:
        return b""
    text = "\n".join(lines)
    if text.count("\n") != len(lines) - 1:
        text = "\n".join([line.replace("\n", " ") for line in lines])
    return f"{text}\n".encode("utf-8", "surrogatepass")
