"""Work in units: each is done once, in any process of any machine, and its files appear in one step.

A stage is a list of units and a function. The function turns the task of a unit into files and a small
result. The files of a unit are in a folder of its own:

    WORK/<stage>/<name of the unit>-<key>/result.json     the result, written last
    WORK/<stage>/<name of the unit>-<key>/...             the files
    WORK/unfinished/<share>/...                           files of units that are being done

The key is a hash of everything that the result depends on. A unit whose folder exists is not done
again. So a program that was killed goes on, and several machines can share the folder.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import functools
import gc
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gshard_nmt import outputs
from gshard_nmt.data.worker_pool import Pool
from gshard_nmt.errors import UserError

_RESULT = "result.json"
_UNFINISHED = "unfinished"
_COMPLETE = "complete"
"""A file in the folder of unfinished files: the result is there, and the work folder can go."""
_KEY_DIGITS = 16
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of malloc.h."""
_ALLOCATIONS = 1 << 18
"""Python looks for reference cycles after this number of new objects. Its default of 700 makes it look at
each list of tokens several times, and at the lists of a whole block."""
_SMALL = 20_000
"""The size of all units of a stage, in rows, below which other processes are not worth their start."""

Work = Callable[[Any, Path], Mapping[str, Any]]
"""Turns the task of a unit into files in an empty folder, and returns a result for JSON."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """A piece of work that is done as a whole or not at all.

    Attributes:
      name: unique in its stage. Characters other than letters, digits, ".", "-" and "_" become "_".
      key: see `key_of`.
      task: the argument of the stage's function; it can be sent to another process.
      size: about how much work it is, in rows of text.
    """

    name: str
    key: str
    task: Any
    size: int = 1

    @property
    def folder(self) -> str:
        """The name of the folder of its files."""
        plain = "".join(
            c if c.isascii() and (c.isalnum() or c in ".-_") else "_" for c in self.name
        )
        return f"{plain[:180]}-{self.key[:_KEY_DIGITS]}"


@dataclasses.dataclass(frozen=True)
class Stage:
    """Units that can be done in any order, by the same function.

    Attributes:
      name: the name of the stage; a folder of the work folder has it.
      about: what the stage does, for people, such as "reading".
      work: the function, at the top of a module.
      units: the units. Two units may be equal, and are done once then.
    """

    name: str
    about: str
    work: Work
    units: Sequence[Unit]


@dataclasses.dataclass(frozen=True)
class Finished:
    """The outcome of a unit.

    Attributes:
      folder: the folder of its files.
      result: what the function returned.
    """

    folder: Path
    result: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of the units that this machine does: unit number u, if u mod count is index."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Reads "0/4", the first of four machines.

        Raises:
          UserError: it is not of this form, or the first number is not below the second.
        """
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise UserError(
                f"--shard is {text!r}; it must be the number of this machine and the number of machines, "
                "from 0/4 to 3/4 for four machines. Give each machine another number."
            )
        return cls(int(index), int(count))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class Watch(Protocol):
    """What `WorkFolder.run` tells about its progress."""

    def begin(self, about: str, total: int, done: int) -> None:
        """A stage of `total` rows begins, and `done` rows were finished before."""

    def advance(self, rows: int) -> None:
        """A unit of this number of rows is finished."""

    def wait_for(self, missing: Mapping[int, Sequence[str]]) -> None:
        """Other machines are still at work: the names of their units, by the machine's number."""

    def end(self) -> None:
        """The stage is complete."""


class WorkIsGone(Exception):
    """The machine that writes the result has finished, and has removed the work folder."""


def key_of(*parts: object) -> str:
    """Returns the SHA-256 of values for JSON, in hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class WorkFolder:
    """A folder with the files of finished units. A context manager: it holds a lock meanwhile."""

    def __init__(self, path: Path, pool: Pool, share: Share = Share(), poll: float = 1.0):
        """Makes nothing yet.

        Args:
          path: the folder. Machines that share the work give the same folder.
          pool: what does the work, such as `WorkerPool`.
          share: the share of this machine.
          poll: seconds between two looks at the work of other machines.
        """
        self.path = path
        self.share = share
        self._pool = pool
        self._poll = poll
        self._lock = -1

    def __enter__(self) -> "WorkFolder":
        """Locks this machine's share, and removes what a killed program left unfinished.

        Raises:
          UserError: another program does the same share at this moment, or the folder has files of
            the user.
        """
        scratch = self._scratch
        if self.path.exists() and any(self.path.iterdir()) and not scratch.parent.is_dir():
            raise UserError(
                f"{self.path} is needed for unfinished work, but it has files of another program. Move "
                "them away, or give another --out."
            )
        scratch.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(f"{scratch}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UserError(
                f"another program works in {self.path} at this moment. Wait until it has finished, or "
                "give another --out."
            ) from None
        except OSError:
            pass  # Some file systems have no locks.
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
        except OSError:
            # A full disk. Without `__exit__`, the lock would stay as long as this process.
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    @property
    def _scratch(self) -> Path:
        return self.path / _UNFINISHED / f"{self.share.index}-of-{self.share.count}"

    def is_finished(self, stage: Stage, unit: Unit) -> bool:
        """Returns whether the files of a unit are there."""
        return (self.path / stage.name / unit.folder / _RESULT).is_file()

    def run(self, stage: Stage, watch: Watch) -> list[Finished]:
        """Does the units of a stage that nobody has done, and waits for those of other machines.

        Returns:
          The outcome of each unit, in the order of the units.

        Raises:
          WorkIsGone: another machine has finished everything.
          Exception: whatever the function of the stage raises. The finished units stay.
        """
        folder = self.path / stage.name
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise WorkIsGone from None
        (self._scratch.parent / _COMPLETE).unlink(missing_ok=True)
        outcomes = self._look(stage, range(len(stage.units)))
        total = sum(unit.size for unit in stage.units)
        watch.begin(stage.about, total, sum(stage.units[i].size for i in outcomes))
        to_do = [i for i in range(len(stage.units)) if i not in outcomes and self._is_ours(i)]
        # The largest unit first, so that no process is left alone with it at the end.
        to_do.sort(key=lambda i: (-stage.units[i].size, i))
        tasks = [(stage.work, stage.units[i], folder, self._scratch) for i in to_do]
        small = sum(stage.units[i].size for i in to_do) < _SMALL
        with outputs.named(self.path):
            for number, outcome in self._pool.map(do_unit, tasks, here=small):
                outcomes[to_do[number]] = outcome
                watch.advance(stage.units[to_do[number]].size)
        while missing := [i for i in range(len(stage.units)) if i not in outcomes]:
            names: dict[int, list[str]] = {}
            for i in missing:
                names.setdefault(i % self.share.count, []).append(stage.units[i].name)
            watch.wait_for(names)
            time.sleep(self._poll)
            arrived = self._look(stage, missing)
            outcomes |= arrived
            watch.advance(sum(stage.units[i].size for i in arrived))
        watch.end()
        return [outcomes[i] for i in range(len(stage.units))]

    def keep_only(self, stage: Stage) -> None:
        """Removes the files of units that the stage no longer has, for instance of other settings.

        Does nothing if several machines work in the folder, because one may have older settings.
        """
        if self.share.count == 1 and (self.path / stage.name).is_dir():
            needed = {unit.folder for unit in stage.units}
            for path in (self.path / stage.name).iterdir():
                if path.name not in needed:
                    shutil.rmtree(path, ignore_errors=True)

    def has_results(self) -> bool:
        """Returns whether any unit of any stage is finished."""
        return next(self.path.glob(f"*/*/{_RESULT}"), None) is not None

    def mark_complete(self) -> None:
        """Notes that the work is not needed when the result is in its place. Another stage ends that."""
        (self.path / _UNFINISHED / _COMPLETE).touch()

    def remove(self) -> None:
        """Removes the folder with all files of units."""
        with contextlib.suppress(OSError):
            self.mark_complete()
            # The sign goes last. If the program dies before, `remove_rest` goes on.
            for path in self.path.iterdir():
                if path.name != _UNFINISHED:
                    shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_rest(self) -> None:
        """Removes what a program left that died after `mark_complete`. Keeps unfinished work."""
        unfinished, own = self._scratch.parent, self._scratch.name
        if not unfinished.is_dir():
            with contextlib.suppress(OSError):
                self.path.rmdir()  # only if it is empty
            return
        # Other machines may begin at this moment.
        is_ours = {path.name for path in unfinished.iterdir()} <= {own, f"{own}.lock", _COMPLETE}
        if is_ours and ((unfinished / _COMPLETE).exists() or not self.has_results()):
            with contextlib.suppress(OSError, UserError), self:
                self.remove()

    def _is_ours(self, index: int) -> bool:
        return index % self.share.count == self.share.index

    def _look(self, stage: Stage, indices: Iterable[int]) -> dict[int, Finished]:
        """Returns the outcomes of those units that are finished."""
        folder = self.path / stage.name
        try:
            names: Collection[str] = set(os.listdir(folder))
        except FileNotFoundError:
            raise WorkIsGone from None
        outcomes = {}
        for i in indices:
            name = stage.units[i].folder
            if name in names and (outcome := _read(folder / name)):
                outcomes[i] = outcome
        return outcomes


def do_unit(work: Work, unit: Unit, folder: Path, scratch: Path) -> Finished:
    """Does a unit and puts its files into the folder of its stage, in one step.

    Args:
      work: the function of the stage.
      unit: the unit.
      folder: the folder of the stage.
      scratch: a folder on the same disk for files that are not complete.
    """
    _return_large_blocks()
    place = folder / unit.folder
    temporary = Path(tempfile.mkdtemp(dir=scratch))
    thresholds = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS)
    try:
        content = json.dumps(dict(work(unit.task, temporary)), ensure_ascii=False)
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        # A machine that sees the folder sees the result too, since the folder gets its name last.
        (temporary / _RESULT).write_text(content, encoding="utf-8")
        _sync(temporary / _RESULT)
        temporary.chmod(0o777 & ~_umask())
        try:
            temporary.rename(place)
        except OSError:
            if _read(place) is None:
                # What is there is damaged: the disk lost a part of it.
                shutil.rmtree(place)
                temporary.rename(place)
        _sync(folder)
    finally:
        gc.set_threshold(*thresholds)
        shutil.rmtree(temporary, ignore_errors=True)
    # The objects of the result lie among those of the text, so they would keep its memory from being used
    # again. These are made after the text has gone.
    return Finished(place, json.loads(content))


def _read(folder: Path) -> Finished | None:
    """Returns the outcome of a unit; None if its result is not there or damaged."""
    try:
        result = json.loads((folder / _RESULT).read_bytes())
    except (OSError, ValueError):
        return None
    return Finished(folder, result) if isinstance(result, dict) else None


def _sync(path: Path) -> None:
    """Writes the content of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@functools.cache
def _return_large_blocks() -> None:
    """Lets this process return blocks of memory above 1 MiB to the system as soon as they are free.

    By default, glibc keeps larger and larger blocks after the first one is freed. The texts of chunks
    then leave holes, and memory grows with the number of chunks.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


def _umask() -> int:
    """Returns the permissions that new files of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
