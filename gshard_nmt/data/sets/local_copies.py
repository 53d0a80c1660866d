"""Copies of shards that lie in a bucket, in the user's cache folder.

Training reads shards at random places, which is slow in an object store. So each shard is copied when
its first example is read. All processes of a host share the copies. The folder of a data set is
named by a hash of its manifest, so data that was prepared anew gets new copies. When a data set is
opened, the copies of data sets that nobody has opened for a week are removed.
"""

import contextlib
import dataclasses
import fcntl
import functools
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from gshard_nmt import paths
from gshard_nmt.data.sets.manifest import checksum, damaged
from gshard_nmt.errors import UserError
from gshard_nmt.reading import UnreadableError, failure, patiently, reading

_UNUSED_SECONDS = 7 * 24 * 3600
_BLOCK = 8 << 20


@dataclasses.dataclass(frozen=True)
class LocalCopies:
    """The copies in `folder` of the files of one data set. If `source` is no URL, nothing is copied.

    A file without an entry in `checksums`, its SHA-256, is checked by its size alone.
    """

    source: Path
    folder: Path
    checksums: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(
        cls, source: Path, identity: str, checksums: Mapping[str, str] | None = None
    ) -> "LocalCopies":
        """Returns the copies for a hash of the manifest; removes unused copies of others."""
        if not paths.is_url(source):
            return cls(source, source)
        cache = paths.user_cache()
        folder = cache / "data" / identity
        with _reported(folder):
            # Others must not write here, because compiled programs are beside the data.
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            os.utime(folder)
            _remove_unused(folder.parent)
        return cls(source, folder, checksums or {})

    def path(self, name: str, size: int) -> Path:
        """Returns a path of this machine with the content of a file, and copies the file if needed.

        Raises:
          UserError: the file is missing, differs from the prepared file, or does not fit on the disk.
          TryAgain: it cannot be read now.
        """
        if not paths.is_url(self.source):
            return self.source / name
        copy = self.folder / name
        if _size(copy) == size:
            return copy
        with _reported(copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
            lock = copy.with_name(f".{copy.name}.lock").open("w")
        # One process copies. The others wait for it, and then find the copy.
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _size(copy) != size:
                try:
                    patiently(functools.partial(self._copy, name, size, copy))
                except UnreadableError as problem:
                    raise failure(f"--data {self.source}", problem) from problem
        return copy

    def _copy(self, name: str, size: int, copy: Path) -> None:
        # The lock is held, so this name is free, or a process that was killed has left it.
        temporary = copy.with_name(f".{copy.name}.partial")
        try:
            with _reported(copy), temporary.open("wb") as file:
                for block in self._blocks(name):
                    file.write(block)
            wrong, expected = "", self.checksums.get(name)
            if (actual := _size(temporary)) != size:
                wrong = f"{name} has {actual} bytes instead of {size}"
            elif expected not in (None, checksum(temporary)):
                wrong = f"the SHA-256 of {name} is not {expected}"
            if wrong:
                raise UserError(
                    f"--data {self.source} is damaged: {wrong}; copy the folder of gshard-data prepare "
                    "to the bucket again."
                )
            temporary.replace(copy)
        finally:
            temporary.unlink(missing_ok=True)

    def _blocks(self, name: str) -> Iterator[bytes]:
        try:
            with reading(self.source / name), (self.source / name).open("rb") as file:
                while block := file.read(_BLOCK):
                    yield block
        except FileNotFoundError as error:
            raise damaged(self.source, f"{name} is missing") from error


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


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _remove_unused(folder: Path) -> None:
    limit = time.time() - _UNUSED_SECONDS
    for data in folder.iterdir():
        if data.stat().st_mtime < limit:
            # Another process may be removing it too.
            shutil.rmtree(data, ignore_errors=True)
