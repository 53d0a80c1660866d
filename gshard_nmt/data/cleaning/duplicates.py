"""Duplicates of a whole language pair, found by hashes in buckets on disk.

Each kind of duplicates has a hash of 64 bits for each row, its signature:

    pair      both sides, to the letter
    near      both sides without case, spaces and punctuation; numbers and placeholders count
    source    the source, to the letter
    target    the target, to the letter

A row is a duplicate if an earlier row has the same signature of any kind. "Earlier" is the order of the
inputs, whatever the split into chunks. The work has three parts, so that memory stays flat:

    1. write_signatures: one file for each chunk of rows, sorted into buckets by the first bits
    2. duplicates_of_bucket: reads one bucket of all files; equal rows are in the same bucket
    3. read_duplicates: the rows of one chunk to drop
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning.block import Block
from gshard_nmt.data.cleaning.config import DUPLICATES
from gshard_nmt.data.cleaning.hashes import hashes, of_pairs
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.data.sets.examples import SIDES

Rows = NDArray[np.uint32]

_ROWS_OF_BUCKET = 1 << 20
"""About 40 MiB while a bucket is sorted, which is less than the cleaning of a chunk needs."""
_HEADER = np.dtype("<i8")


def signatures(rows: Sequence[SentencePair], kinds: Sequence[str]) -> NDArray[np.uint64]:
    """Returns uint64[row, kind], the signatures of rows.

    Args:
      rows: the rows. The result of `clean` is faster than a list, because it knows some forms already.
      kinds: names of DUPLICATES.
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
    """Returns the number of buckets for a language pair with this number of rows, a power of two."""
    return 1 << max(0, (max(rows, 1) - 1) // _ROWS_OF_BUCKET).bit_length()


def write_signatures(path: Path, values: NDArray[np.uint64], buckets: int) -> None:
    """Writes the signatures of one chunk, sorted into buckets.

    Args:
      path: the file.
      values: uint64[row, kind].
      buckets: `buckets_for` the rows of the whole language pair.
    """
    count, kinds = values.shape
    starts, parts = [], []
    for kind in range(kinds):
        bucket = _bucket_of(values[:, kind], buckets)
        order = np.argsort(bucket, kind="stable")
        starts.append(np.searchsorted(bucket[order], np.arange(buckets + 1)))
        parts += [values[order, kind].astype("<u8").tobytes(), order.astype("<u4").tobytes()]
    header = np.array([count, kinds, buckets], _HEADER)
    offsets = np.array(starts, _HEADER).reshape(kinds, buckets + 1)
    path.write_bytes(b"".join([header.tobytes(), offsets.tobytes(), *parts]))


def duplicates_of_bucket(paths: Sequence[Path], bucket: int) -> list[list[Rows]]:
    """Returns the rows that are duplicates by the signatures of one bucket.

    Args:
      paths: the files of all chunks of a language pair, in the order of the inputs.
      bucket: the number of the bucket.

    Returns:
      For each chunk and each kind uint32[row], ascending.
    """
    kinds = _kinds_of(paths[0]) if paths else 0
    result: list[list[Rows]] = [[] for _ in paths]
    for kind in range(kinds):
        # One kind after the other, so that the signatures of one kind are in memory.
        chunks = [_read_bucket(path, bucket, kind) for path in paths]
        values = np.concatenate([signatures for signatures, _ in chunks])
        order = np.argsort(values, kind="stable")
        is_repeated = np.zeros(len(values), bool)
        ordered = values[order]
        is_repeated[order[1:]] = ordered[1:] == ordered[:-1]
        start = 0
        for (_, numbers), rows in zip(chunks, result, strict=True):
            rows.append(np.sort(numbers[is_repeated[start : start + len(numbers)]]))
            start += len(numbers)
    return result


def write_duplicates(path: Path, duplicates: Sequence[Sequence[Rows]]) -> None:
    """Writes the result of `duplicates_of_bucket`."""
    kinds = len(duplicates[0]) if duplicates else 0
    sizes = np.array([[len(rows) for rows in chunk] for chunk in duplicates], _HEADER)
    header = np.array([len(duplicates), kinds], _HEADER)
    parts = [rows.astype("<u4").tobytes() for chunk in duplicates for rows in chunk]
    path.write_bytes(b"".join([header.tobytes(), sizes.tobytes(), *parts]))


def read_duplicates(paths: Sequence[Path], chunk: int) -> list[Rows]:
    """Returns the duplicates of one chunk from the files of all buckets.

    Args:
      paths: the files that `write_duplicates` wrote, one for each bucket.
      chunk: the number of the chunk in the order of the inputs.

    Returns:
      For each kind uint32[row], ascending. A row is a duplicate of the first kind that finds it only.
    """
    by_kind: list[list[Rows]] = []
    for path in paths:
        for kind, rows in enumerate(_read_chunk(path, chunk)):
            if kind == len(by_kind):
                by_kind.append([])
            by_kind[kind].append(rows)
    result: list[Rows] = []
    seen = np.zeros(0, np.uint32)
    for parts in by_kind:
        rows = np.setdiff1d(np.concatenate(parts), seen)
        result.append(rows)
        seen = np.union1d(seen, rows)
    return result


def filter_name(kind: str) -> str:
    """Returns the name under which duplicates of a kind are counted, such as "duplicate pair"."""
    assert kind in DUPLICATES
    return f"duplicate {kind}"


def _bucket_of(values: NDArray[np.uint64], buckets: int) -> NDArray[np.int64]:
    bits = buckets.bit_length() - 1
    # A shift by 64 is undefined, so one bucket is a case of its own.
    return (values >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(values), int)


def _kinds_of(path: Path) -> int:
    """Returns the number of kinds in a file of signatures."""
    with path.open("rb") as file:
        _, kinds, _ = np.frombuffer(file.read(24), _HEADER).tolist()
    return kinds


def _read_bucket(path: Path, bucket: int, kind: int) -> tuple[NDArray[np.uint64], Rows]:
    """Returns the signatures of a kind and the row numbers in one bucket."""
    with path.open("rb") as file:
        count, kinds, buckets = np.frombuffer(file.read(24), _HEADER).tolist()
        file.seek(24 + 8 * (kind * (buckets + 1) + bucket))
        begin, end = np.frombuffer(file.read(16), _HEADER).tolist()
        base = 24 + 8 * kinds * (buckets + 1) + 12 * count * kind
        file.seek(base + 8 * begin)
        values = np.frombuffer(file.read(8 * (end - begin)), "<u8")
        file.seek(base + 8 * count + 4 * begin)
        return values, np.frombuffer(file.read(4 * (end - begin)), "<u4")


def _read_chunk(path: Path, chunk: int) -> list[Rows]:
    with path.open("rb") as file:
        chunks, kinds = np.frombuffer(file.read(16), _HEADER).tolist()
        sizes = np.frombuffer(file.read(8 * chunks * kinds), _HEADER).reshape(chunks, kinds)
        file.seek(4 * int(sizes[:chunk].sum()), 1)
        return [np.frombuffer(file.read(4 * size), "<u4") for size in sizes[chunk].tolist()]
