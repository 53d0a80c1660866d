"""Hashes of text, and the duplicates of a whole language pair, found by hashes in buckets on disk.

Each kind of duplicates has a hash of 64 bits for each row, its signature:

    pair      both sides, to the letter
    near      both sides without case, spaces and punctuation; numbers and placeholders count
    source    the source, to the letter
    target    the target, to the letter

A row is a duplicate if an earlier row has the same signature of any kind. "Earlier" is the order of the
inputs, whatever the split into chunks. The work has three parts, so that memory stays flat:

    1. write_signatures: one file for each chunk of rows, with sorted signatures
    2. duplicates_of_bucket: reads those with the same first bits of all files, a bucket
    3. read_duplicates: the rows of one chunk to drop
"""

import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.batching.shuffle import mixed
from gshard_nmt.data.cleaning.block import Block
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.data.sets.examples import SIDES

Hashes = NDArray[np.uint64]
Rows = NDArray[np.uint32]

_PIECE = 8192  # texts that are hashed at a time, so that the arrays stay in the cache of the CPU
_STEP = np.uint64(0x9E3779B97F4A7C15)
"""Between the numbers that two neighbouring words are mixed with."""
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(8)], np.uint64)

_ROWS_OF_BUCKET = 1 << 20
"""About 40 MiB while a bucket is sorted, which is less than the cleaning of a chunk needs."""


def hashes(texts: Iterable[str], prefix: str = "") -> Hashes:
    """Returns uint64[text], equal on all machines and in all versions of Python.

    Texts with different prefixes have different hashes. A billion texts have two equal hashes with a
    probability of 3 %. A text is cut into words of 8 bytes, each word is mixed with its place, and their
    sum with the length, so numpy hashes thousands of texts at once, in a tenth of the time of a call for
    each text. It does not resist an attacker.
    """
    lines = texts if isinstance(texts, list) else list(texts)
    digest = hashlib.blake2b(prefix.encode(), digest_size=8).digest()
    seed = np.frombuffer(digest, "<u8").astype(np.uint64)[0]
    parts = [_hashes(lines[start : start + _PIECE], seed) for start in range(0, len(lines), _PIECE)]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def of_pairs(first: Hashes, second: Hashes) -> Hashes:
    """Returns uint64[n], a hash of each pair of hashes. The order of the two matters."""
    return mixed(first + mixed(second + _STEP))


def _hashes(texts: Sequence[str], seed: np.uint64) -> Hashes:
    """Returns uint64[text], the hash of each of these texts, at least one."""
    content = "\n".join([*texts, ""]).encode("utf-8", "surrogatepass")
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))
    if len(ends) != len(texts):  # a text has a newline character
        sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
        ends = np.cumsum(np.array(sizes, np.int64) + 1) - 1
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts
    # The last word of a text has from 0 to 7 bytes of it.
    words = lengths // 8 + 1
    ends = np.cumsum(words)
    places = np.arange(ends[-1]) - np.repeat(ends - words, words)
    # A word may begin at any byte, and the last one may end behind the text.
    every = np.ndarray((len(content) + 1,), "<u8", content + bytes(8), 0, (1,))
    values = every[np.repeat(starts, words) + 8 * places].astype(np.uint64, copy=False)
    values[ends - 1] &= _MASKS[lengths % 8]
    values += places.astype(np.uint64) * _STEP + seed
    sums = np.add.reduceat(mixed(values), ends - words)
    return mixed(sums + lengths.astype(np.uint64) * _STEP + seed)


def signatures(rows: Sequence[SentencePair], kinds: Sequence[str]) -> NDArray[np.uint64]:
    """Returns uint64[row, kind], the signatures of rows; `kinds` are names of DUPLICATES.

    The rows that `clean` returns are faster than a list, because they know some forms already.
    """
    if not len(rows) or not kinds:
        return np.zeros((len(rows), len(kinds)), np.uint64)
    block = rows if isinstance(rows, Block) else Block(rows, "", "")
    columns = []
    for kind in kinds:
        if kind in SIDES:
            columns.append(hashes(block.sides[SIDES.index(kind)].lines, kind))
            continue
        sides = [side.lines if kind == "pair" else side.near_forms for side in block.sides]
        columns.append(of_pairs(*(hashes(lines, kind) for lines in sides)))
    return np.stack(columns, axis=1)


def buckets_for(rows: int) -> int:
    return 1 << (max(rows - 1, 0) // _ROWS_OF_BUCKET).bit_length()


def write_signatures(path: Path, values: NDArray[np.uint64]) -> None:
    """Writes the signatures of one chunk, uint64[row, kind], of each kind in ascending order."""
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    save(path, np.stack([ordered.T, order.T.astype(np.uint64)], axis=1))


def duplicates_of_bucket(paths: Sequence[Path], bucket: int, buckets: int) -> Rows:
    """Returns the rows that are duplicates by the signatures of one of `buckets` buckets.

    `paths` are the files of all chunks of a language pair, at least one, in the order of the inputs, and
    `buckets` is `buckets_for` the rows of the pair.

    Returns:
      uint32[3, n]: the numbers of the chunk, of the kind and of the row, in this order.
    """
    found = []
    for kind in range(len(np.load(paths[0], mmap_mode="r"))):
        # One kind after the other, so that the signatures of one kind are in memory.
        parts = [_read_bucket(path, kind, bucket, buckets) for path in paths]
        chunk = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
        values, rows = np.concatenate(parts, axis=1)
        order = np.argsort(values, kind="stable")
        is_repeated = np.zeros(len(values), bool)
        ordered = values[order]
        is_repeated[order[1:]] = ordered[1:] == ordered[:-1]
        places = np.stack([chunk, np.full_like(chunk, kind), rows.astype(np.int64)])
        found.append(places[:, is_repeated].astype(np.uint32))
    every = np.concatenate(found, axis=1)
    return every[:, np.lexsort(every[::-1])]


def read_duplicates(paths: Sequence[Path], chunk: int, kinds: int) -> list[Rows]:
    """Returns the duplicates of one chunk from what `duplicates_of_bucket` found in each bucket.

    `chunk` is the number of the chunk in the order of the inputs.

    Returns:
      For each kind uint32[row], ascending. A row is a duplicate of the first kind that finds it only.
    """
    parts = [np.zeros((2, 0), np.uint32)]
    for path in paths:
        table = np.load(path, mmap_mode="r")
        begin, end = np.searchsorted(table[0], [chunk, chunk + 1])
        parts.append(np.array(table[1:, begin:end]))
    kind_of, rows = np.concatenate(parts, axis=1)
    result: list[Rows] = []
    seen = np.zeros(0, np.uint32)
    for kind in range(kinds):
        result.append(np.setdiff1d(rows[kind_of == kind], seen))
        seen = np.union1d(seen, result[-1])
    return result


def _read_bucket(path: Path, kind: int, bucket: int, buckets: int) -> NDArray[np.uint64]:
    """Returns uint64[2, n], the signatures of a kind in one bucket and their rows."""
    table = np.load(path, mmap_mode="r")[kind]
    least = [np.uint64(n * (2**64 // buckets)) for n in range(bucket, min(bucket + 2, buckets))]
    begin, *end = np.searchsorted(table[0], np.array(least)).tolist()
    return np.array(table[:, begin : end[0] if end else None])


def save(path: Path, array: NDArray[Any]) -> None:
    """Writes an array. If the disk is full, `np.save` into a file may lose its end without an error."""
    content = io.BytesIO()
    np.save(content, array)
    path.write_bytes(content.getvalue())
