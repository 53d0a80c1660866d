"""The lock of a run folder that is in a bucket.

It works as the lock of a folder on a disk (lock.py), with two differences. An object store has no links
and no renames, but it replaces an object only if nobody else has replaced it since it was read. And its
clock is not asked: a lock of another machine is taken over after a minute of watching.
"""

from collections.abc import Callable
from pathlib import Path

from gshard_nmt import paths
from gshard_nmt.run.lock import RunLock, Sighting

_FREE = b""
"""The content of the lock when nobody holds it. An object that is removed could be made by two hosts."""


def run_lock(
    folder: Path, is_holder: bool = True, say: Callable[[str], None] | None = None
) -> RunLock:
    """Returns the lock of a run folder on a disk or in a bucket. `RunLock` explains the arguments."""
    return (BucketLock if paths.is_url(folder) else RunLock)(folder, is_holder, say)


class BucketLock(RunLock):
    """The lock of a run folder in a bucket, as a context manager."""

    def beat(self) -> None:
        """Writes the next heartbeat, if this process still holds the lock."""
        sighting = self._look()
        if sighting is not None and self._is_own(sighting):
            self._beat_count += 1
            paths.swap(self._path, self._content(), sighting.content)

    def _create(self) -> bool:
        """Writes the lock in one step; returns False if there is a lock already."""
        before = self._look(of_anybody=True)
        if before is not None and before.content != _FREE:
            return False
        return paths.swap(self._path, self._content(), before.content if before else None)

    def _remove(self, dead: Sighting) -> None:
        """Frees a lock, unless it has changed in the meantime."""
        paths.swap(self._path, _FREE, dead.content)

    def _release(self) -> None:
        """Frees the lock of this process."""
        sighting = self._look()
        if sighting is not None and self._is_own(sighting):
            self._remove(sighting)

    def _look(self, of_anybody: bool = False) -> Sighting | None:
        """Reads the lock; returns None if nobody holds it."""
        content = paths.read_now(self._path)
        if content is None or (content == _FREE and not of_anybody):
            return None
        return Sighting(content, 0)

    def _now_of_the_file_system(self) -> int:
        return 0
