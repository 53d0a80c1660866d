"""Hashes of text, and the duplicates of a whole language pair, found by hashes in buckets on disk.

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

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning.block import Block
from gshard_nmt.data.cleaning.config import DUPLICATES
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.data.sets.examples import SIDES

Hashes = NDArray[np.uint64]
Rows = NDArray[np.uint32]

_PIECE = 8192  # texts that are hashed at a time, so that the arrays stay in the cache of the CPU
_STEP = np.uint64(
    0x9E3779B97F4A7C15
)  # between the numbers that two neighbouring words are mixed with
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(8)], np.uint64)

_ROWS_OF_BUCKET = 1 << 20
"""About 40 MiB while a bucket is sorted, which is less than the cleaning of a chunk needs."""
_HEADER = np.dtype("<i8")


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
    return _mixed(first + _mixed(second + _STEP))


def _hashes(texts: Sequence[str], seed: np.uint64) -> Hashes:
    """Returns uint64[text], the hash of each of these texts, at least one."""
    content, starts, lengths = _encoded(texts)
    # The last word of a text has from 0 to 7 bytes of it.
    words = lengths // 8 + 1
    ends = np.cumsum(words)
    places = np.arange(ends[-1]) - np.repeat(ends - words, words)
    # A word may begin at any byte.
    every = np.ndarray((len(content) - 7,), "<u8", content, 0, (1,))
    values = every[np.repeat(starts, words) + 8 * places].astype(np.uint64, copy=False)
    values[ends - 1] &= _MASKS[lengths % 8]
    values += places.astype(np.uint64) * _STEP + seed
    sums = np.add.reduceat(_mixed(values), ends - words)
    return _mixed(sums + lengths.astype(np.uint64) * _STEP + seed)


def _encoded(texts: Sequence[str]) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """Returns the bytes of all texts and some more, the start of each text, and its length."""
    content = "\n".join([*texts, ""]).encode("utf-8", "surrogatepass")
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))
    if len(ends) != len(texts):  # a text has a newline character
        sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
        ends = np.cumsum(np.array(sizes, np.int64) + 1) - 1
    starts = np.concatenate(([0], ends[:-1] + 1))
    return content + bytes(8), starts, ends - starts


def _mixed(values: Hashes) -> Hashes:
    """Returns numbers in which each bit depends on all bits of a value (SplitMix64, Steele 2014)."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


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
    """Returns the number of buckets for a language pair with this number of rows, a power of two."""
    return 1 << max(0, (max(rows, 1) - 1) // _ROWS_OF_BUCKET).bit_length()


def write_signatures(path: Path, values: NDArray[np.uint64], buckets: int) -> None:
    """Writes the signatures of one chunk, uint64[row, kind], sorted into buckets.

    `buckets` is `buckets_for` the rows of the whole language pair.
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

    `paths` are the files of all chunks of a language pair, in the order of the inputs.

    Returns:
      For each chunk and each kind uint32[row], ascending.
    """
    kinds = int(np.fromfile(paths[0], _HEADER, 2)[1]) if paths else 0
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
    """Returns the duplicates of one chunk from what `write_duplicates` wrote for each bucket.

    `chunk` is the number of the chunk in the order of the inputs.

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
