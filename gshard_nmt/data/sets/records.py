"""The files of tokenized examples (shards): a writer, and a reader with a bounded number of open files.

A shard is its records, and then the offset of each record and of their end, as uint64. Everything is
little-endian, and the manifest knows how many records there are. A record is one example: the CRC-32
of the rest as uint32, the number of source ids, the source ids with tags and EOS, the target ids with
EOS. The example [7, 8, EOS] -> [9, EOS] is `crc 3 7 8 1 9 1`. Ids are uint16 if both vocabularies have
at most 65,536 ids, uint32 otherwise.

Two reads at computed places fetch any record, so an open shard needs no memory, and a read of single
records from hundreds of shards costs as little as a read of many from one.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gshard_nmt import files, paths
from gshard_nmt.data.sets.examples import Example, Examples, gather
from gshard_nmt.data.sets.manifest import damaged
from gshard_nmt.errors import UserError
from gshard_nmt.reading import UnsoundError, patiently_or_fail

MOST_OPEN = 512
"""The number of shards that are open at most. A process may have 1024 open files by default."""

_CHECKSUM, _OFFSET = 4, 8
"""Bytes of a CRC-32 and of an offset."""


class ShardWriter:
    """Writes the shard `folder/prefix-00000.ids` for number 0. `word` is the type of ids."""

    def __init__(self, folder: Path, prefix: str, word: np.dtype, number: int = 0) -> None:
        self.path = folder / f"{prefix}-{number:05}.ids"
        self._word = word
        self._file: BinaryIO | None = None
        self._ends = [0]

    def write(self, examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        if not examples:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("wb")
        records = [[len(source), *source, *target] for source, target in examples]
        flat = np.fromiter(itertools.chain.from_iterable(records), self._word)
        ids, begin = flat.tobytes(), 0
        content: list[bytes] = []
        for record in records:
            end = begin + len(record) * self._word.itemsize
            content += [zlib.crc32(ids[begin:end]).to_bytes(_CHECKSUM, "little"), ids[begin:end]]
            self._ends.append(self._ends[-1] + _CHECKSUM + end - begin)
            begin = end
        self._append(b"".join(content))

    def close(self) -> tuple[tuple[str, int, int], ...]:
        """Writes the offsets, and returns `SplitData.files`: the shard, or nothing without examples."""
        if self._file is None:
            return ()
        self._append(np.array(self._ends, "<u8").tobytes())
        size = self._file.tell()
        self._file.close()
        return ((self.path.name, size, len(self._ends) - 1),)

    def _append(self, content: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(content)
        except OSError:
            # The disk is full. To close the file is to try the same write again.
            with contextlib.suppress(OSError):
                self._file.close()
            raise


class OpenShards:
    """The shards that are open. If there are too many, the one that was not used for longest is closed.

    Threads may share it; they read one after the other.
    """

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._files: collections.OrderedDict[Path, int] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self.close()

    def read(self, path: Path, size: int, count: int, places: Sequence[int]) -> list[bytes]:
        """Returns the records of a shard at these places, with their checksums.

        `size` and `count` are its bytes and records by the manifest. Raises OSError, or UnsoundError if
        it is damaged.
        """
        with self._lock:
            file = self._open(path, size)
            try:
                return list(_records(file, size - _OFFSET * (count + 1), places))
            except OSError:
                os.close(self._files.pop(path))  # a stale handle stays stale
                raise

    def close(self) -> None:
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1])

    def _open(self, path: Path, size: int) -> int:
        if path in self._files:
            self._files.move_to_end(path)
            return self._files[path]
        if len(self._files) >= self._most:
            os.close(self._files.popitem(last=False)[1])
        if (actual := os.stat(path).st_size) != size:
            raise UnsoundError(f"it has {actual} bytes instead of {size}")
        self._files[path] = os.open(path, os.O_RDONLY)
        return self._files[path]


def _records(file: int, offsets: int, places: Sequence[int]) -> Iterator[bytes]:
    for place in places:
        entry = os.pread(file, 2 * _OFFSET, offsets + _OFFSET * place)
        if len(entry) < 2 * _OFFSET:
            raise UnsoundError("it ends too early")
        begin, end = struct.unpack("<QQ", entry)
        if not begin + _CHECKSUM < end <= offsets:
            raise UnsoundError(f"the offsets of record {place} are wrong")
        record = os.pread(file, end - begin, begin)
        expected = int.from_bytes(record[:_CHECKSUM], "little")
        if zlib.crc32(memoryview(record)[_CHECKSUM:]) != expected:
            raise UnsoundError(f"record {place} does not have its checksum")
        yield record


@dataclasses.dataclass(frozen=True)
class LocalCopies:
    """The shards of prepared data as files of this machine.

    Training reads shards at random places, which is slow in a bucket. So each shard of a bucket is copied
    into `folder` when its first example is read, and all processes of a host share the copies.
    """

    source: Path
    folder: Path
    checksums: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(cls, source: Path, identity: str, checksums: Mapping[str, str]) -> "LocalCopies":
        """Returns the copies for a hash of the manifest."""
        if not paths.is_url(source):
            return cls(source, source)
        cache = paths.user_cache()
        copies = cls(source, cache / "data" / identity, checksums)
        with _reported(copies.folder):
            # Others must not write here, because compiled programs are beside the data.
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            copies.folder.mkdir(parents=True, exist_ok=True)
        return copies

    def path(self, name: str, size: int) -> Path:
        """Returns a file of this machine with the content of a shard.

        Raises:
          FileNotFoundError: there is no such shard.
          UserError: it differs from the prepared file, or its copy does not fit on the disk.
          TryAgain: it cannot be read now.
        """
        copy = self.folder / name
        if not paths.is_url(self.source) or copy.exists():
            return copy
        file = self.source / name
        content = patiently_or_fail(file.read_bytes, file, f"--data {self.source}")
        digest = hashlib.sha256(content).hexdigest()
        if len(content) != size or digest != self.checksums.get(name, digest):
            raise UserError(
                f"--data {self.source} is damaged: {name} differs from the prepared file; copy the "
                "folder of gshard-data prepare to the bucket again."
            )
        with _reported(copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
            files.write(copy, content)  # in one step, so processes may do it at the same time
        return copy


@contextlib.contextmanager
def _reported(copy: Path) -> Iterator[None]:
    """Turns an OSError of the block into a UserError that says which folder needs space."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{copy}, a copy of a file of --data, cannot be written: {error.strerror}. Free some space, "
            "or set XDG_CACHE_HOME to a folder on a larger disk."
        ) from error


class ShardReader:
    """Random access to the examples of one split. Threads may share a reader."""

    def __init__(
        self,
        copies: LocalCopies,
        shards: Sequence[tuple[str, int, int]],
        word: np.dtype,
        opened: OpenShards | None = None,
    ) -> None:
        """Opens no shard yet. `shards` has the path, the bytes and the examples of each."""
        self._copies, self._shards, self._word = copies, shards, word
        self._counts = np.array([count for *_, count in shards], np.int64)
        self._ends = np.cumsum(self._counts)
        self._open = OpenShards() if opened is None else opened
        self._paths: dict[int, Path] = {}

    def read(self, indices: np.ndarray) -> list[Example]:
        """Returns the examples at int64[n] `indices`.

        Raises:
          UserError: a shard is missing or damaged; the checksum of each record is compared.
          TryAgain: a shard cannot be read now.
        """
        shards = np.searchsorted(self._ends, indices, side="right")
        places = indices - self._ends[shards] + self._counts[shards]
        return [*self.read_many(shards, places).each()]

    def read_many(self, shards: np.ndarray, places: np.ndarray) -> Examples:
        """Returns the examples at int64[n] places of int64[n] shards. Raises as `read`."""
        # Each shard is read from its beginning to its end.
        order = np.lexsort((places, shards))
        records: list[bytes] = []
        numbers, begins = np.unique(shards[order], return_index=True)
        for shard, part in zip(numbers.tolist(), np.split(places[order], begins[1:]), strict=True):
            records += self._read_shard(shard, part.tolist())
        lengths = np.fromiter(map(len, records), np.int64, len(records)) // self._word.itemsize
        words = np.frombuffer(b"".join(records), self._word)
        head = _CHECKSUM // self._word.itemsize
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        starts, lengths = (np.cumsum(lengths) - lengths)[place], lengths[place]
        starts += head + 1
        sources = words[starts - 1].astype(np.int64)
        targets = lengths - head - 1 - sources
        source, target = gather(words, starts, sources), gather(words, starts + sources, targets)
        return Examples(source, target, sources, targets, np.zeros(len(order), np.int64))

    def _read_shard(self, shard: int, places: Sequence[int]) -> list[bytes]:
        name, size, count = self._shards[shard]
        folder = self._copies.source
        try:
            path = self._paths.get(shard) or self._copies.path(name, size)
            if not paths.is_url(folder):  # a copy of a bucket's shard may be removed at any time
                self._paths[shard] = path
            read = functools.partial(self._open.read, path, size, count, places)
            return patiently_or_fail(read, path, f"--data {folder}")
        except FileNotFoundError as error:
            raise damaged(folder, f"{name} is missing") from error
        except UnsoundError as error:
            if paths.is_url(folder):
                raise UserError(
                    f"{path}, a copy of {name} of --data {folder}, is damaged ({error}). Remove it and "
                    "start again; if this does not help, copy the data into the bucket again."
                ) from error
            raise damaged(folder, f"{name} cannot be read ({error})") from error
