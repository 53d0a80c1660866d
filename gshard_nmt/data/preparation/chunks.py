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

import collections
import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import zstandard

from gshard_nmt.data.reading.reader import read_columns
from gshard_nmt.data.reading.rows import make_pair
from gshard_nmt.data.sets.corpus import Input, SentencePair, read_blocks

CHUNK_ROWS = 1 << 17
"""The largest number of rows in a chunk."""

CHUNK_CHARACTERS = 1 << 25
"""A chunk ends at the row with which its text has this number of characters or more."""

SHARDS = 256
"""A split has about this number of shards before its shards become larger than a chunk."""

LARGEST_SHARD = 1 << 20
"""The largest number of rows in a shard."""

_CHECKED_ROWS = 1 << 12
"""The number of rows after which the characters of a chunk are counted."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rows of a corpus.

    `scores` is float64[rows], NaN where a row has none; None if no row has one.
    """

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
        """Returns the rows at int64[n] `places`."""
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


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows as a chunk stores them: each side is lines of UTF-8, each with a newline at its end."""

    rows: int
    characters: int
    sides: tuple[bytes, bytes]
    scores: np.ndarray | None = None


def contents(
    item: Input, repaired: collections.Counter[str] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yields the chunks of an input: the number of rows, and the bytes before compression.

    The same rows give the same chunks, whatever their format. `repaired` is that of `read_blocks`.

    Raises:
      UserError: a file is damaged; see `reading/reader.py`.
    """
    if item.format == "aligned" and len(item.files) == 2:
        # The bytes of these files are those of the chunks, so no row becomes an object.
        blocks = read_columns(item, _CHECKED_ROWS)
        pieces = (
            Piece(a.count, a.characters + b.characters, (a.content, b.content)) for a, b in blocks
        )
        return split(pieces)
    return split(pieces_of(read_blocks(item, repaired)))


def pieces_of(blocks: Iterable[Sequence[SentencePair]]) -> Iterator[Piece]:
    """Yields rows in pieces of `_CHECKED_ROWS`, however they come in blocks; the last may have fewer."""
    waiting: list[SentencePair] = []
    for block in blocks:
        waiting.extend(block)
        while len(waiting) >= _CHECKED_ROWS:
            yield _piece(Chunk.of(waiting[:_CHECKED_ROWS]))
            waiting = waiting[_CHECKED_ROWS:]
    if waiting:
        yield _piece(Chunk.of(waiting))


def split(pieces: Iterable[Piece]) -> Iterator[tuple[int, bytes]]:
    waiting: list[Piece] = []
    rows = characters = 0
    for piece in pieces:
        waiting.append(piece)
        rows += piece.rows
        characters += piece.characters
        if rows == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield rows, _bytes(waiting)
            waiting, rows, characters = [], 0, 0
    if waiting:
        yield rows, _bytes(waiting)


def content_of(chunk: Chunk) -> bytes:
    return _bytes([_piece(chunk)])


def _piece(chunk: Chunk) -> Piece:
    sides = (chunk.sources, chunk.targets)
    characters = sum(sum(map(len, side)) for side in sides)
    return Piece(len(chunk), characters, (_joined(sides[0]), _joined(sides[1])), chunk.scores)


def _bytes(pieces: Sequence[Piece]) -> bytes:
    sides = [b"".join(side) for side in zip(*(piece.sides for piece in pieces), strict=True)]
    has_scores = any(piece.scores is not None for piece in pieces)
    head = {
        "rows": sum(piece.rows for piece in pieces),
        "bytes": [len(side) for side in sides],
        "scores": has_scores,
    }
    scores = [
        np.full(piece.rows, math.nan) if piece.scores is None else piece.scores
        for piece in pieces
        if has_scores
    ]
    tail = (array.astype("<f8").tobytes() for array in scores)
    return b"".join([json.dumps(head).encode(), b"\n", *sides, *tail])


def write(path: Path, content: bytes) -> None:
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(content))


def read(path: Path) -> Chunk:
    sides, scores = _parts(path)
    sources, targets = (side.decode("utf-8", "surrogatepass").split("\n")[:-1] for side in sides)
    return Chunk(sources, targets, scores)


def _parts(path: Path) -> tuple[list[bytes], np.ndarray | None]:
    content = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    end = content.index(b"\n") + 1
    head = json.loads(content[:end])
    sides = []
    for size in head["bytes"]:
        sides.append(content[end : end + size])
        end += size
    scores = np.frombuffer(content, "<f8", head["rows"], end) if head["scores"] else None
    return sides, scores


@dataclasses.dataclass(frozen=True)
class Part:
    """A chunk of which `rows` stay; the file `dropped` has the other places, sorted int64[n]."""

    file: Path
    rows: int
    dropped: Path | None = None

    def read(self) -> Chunk:
        chunk = read(self.file)
        if self.dropped is None:
            return chunk
        return chunk.take(self._places(len(chunk)))

    def read_lines(self) -> list[list[bytes]]:
        """Returns both sides of the rows that stay, as UTF-8, which SentencePiece reads faster."""
        sides = [side.split(b"\n")[:-1] for side in _parts(self.file)[0]]
        if self.dropped is None:
            return sides
        places = self._places(len(sides[0])).tolist()
        return [[side[i] for i in places] for side in sides]

    def _places(self, rows: int) -> np.ndarray:
        assert self.dropped is not None, "all rows stay"
        return np.delete(np.arange(rows), np.load(self.dropped))


def groups(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Returns the chunks of each shard: at least CHUNK_ROWS rows, at most about SHARDS shards."""
    limit = CHUNK_ROWS * -(-sum(part.rows for part in parts) // (CHUNK_ROWS * SHARDS))
    limit = min(max(limit, CHUNK_ROWS), LARGEST_SHARD)
    result: list[tuple[Part, ...]] = []
    first = size = 0
    for number, part in enumerate(parts):
        if size and size + part.rows > limit:
            result.append(tuple(parts[first:number]))
            first, size = number, 0
        size += part.rows
    if size:
        result.append(tuple(parts[first:]))
    return result


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
