"""Work in units: each is done once, by any process, and its files appear in one step.

A stage is a list of units and a function. The function turns the task of a unit into files and a small
result. The files of a unit are in a folder of its own:

    WORK/<stage>/<name of the unit>-<key>/result.json     the result, written last
    WORK/<stage>/<name of the unit>-<key>/...             the files
    WORK/unfinished/files/...                             files of units that are being done

The key is a hash of everything that the result depends on. A unit whose folder exists is not done
again. So a program that was killed goes on.
"""

import contextlib
import ctypes
import dataclasses
import functools
import gc
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gshard_nmt import outputs
from gshard_nmt.data.worker_pool import WorkerPool
from gshard_nmt.errors import UserError

_RESULT = "result.json"
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


class Watch(Protocol):
    """What `WorkFolder.run` tells about its progress."""

    def begin(self, about: str, total: int, done: int) -> None:
        """A stage of `total` rows begins, and `done` rows were finished before."""

    def advance(self, rows: int) -> None:
        """A unit of this number of rows is finished."""

    def end(self) -> None:
        """The stage is complete."""


def key_of(*parts: object) -> str:
    """Returns the SHA-256 of values for JSON, in hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class WorkFolder:
    """A folder with the files of finished units. A context manager: it holds a lock meanwhile."""

    def __init__(self, path: Path, pool: WorkerPool) -> None:
        """Makes nothing yet. The pool does the work, and its processes must see the folder."""
        self.path = path
        self._pool = pool
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> "WorkFolder":
        """Locks the folder, and removes what a killed program left unfinished.

        Raises:
          UserError: another program works in it at this moment, or it has files of the user.
        """
        unfinished = self._unfinished
        if self.path.exists() and any(self.path.iterdir()) and not unfinished.is_dir():
            raise UserError(
                f"{self.path} is needed for unfinished work, but it has files of another program. Move "
                "them away, or give another --out."
            )
        unfinished.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(outputs.locked(unfinished / "lock"))
            shutil.rmtree(self._files, ignore_errors=True)
            self._files.mkdir()
            self._lock = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def _unfinished(self) -> Path:
        return self.path / "unfinished"

    @property
    def _files(self) -> Path:
        return self._unfinished / "files"

    def is_finished(self, stage: Stage, unit: Unit) -> bool:
        """Returns whether the files of a unit are there."""
        return (self.path / stage.name / unit.folder / _RESULT).is_file()

    def run(self, stage: Stage, watch: Watch) -> list[Finished]:
        """Does the units of a stage that are not done yet.

        Returns:
          The outcome of each unit, in the order of the units.

        Raises:
          Exception: whatever the function of the stage raises. The finished units stay.
        """
        folder = self.path / stage.name
        folder.mkdir(exist_ok=True)
        (self._unfinished / _COMPLETE).unlink(missing_ok=True)
        there = set(os.listdir(folder))
        outcomes = {
            i: outcome
            for i, unit in enumerate(stage.units)
            if unit.folder in there and (outcome := _read(folder / unit.folder))
        }
        total = sum(unit.size for unit in stage.units)
        watch.begin(stage.about, total, sum(stage.units[i].size for i in outcomes))
        to_do = [i for i in range(len(stage.units)) if i not in outcomes]
        # The largest unit first, so that no process is left alone with it at the end.
        to_do.sort(key=lambda i: (-stage.units[i].size, i))
        tasks = [(stage.work, stage.units[i], folder, self._files) for i in to_do]
        small = sum(stage.units[i].size for i in to_do) < _SMALL
        with outputs.named(self.path):
            for number, outcome in self._pool.map(do_unit, tasks, here=small):
                outcomes[to_do[number]] = outcome
                watch.advance(stage.units[to_do[number]].size)
        watch.end()
        return [outcomes[i] for i in range(len(stage.units))]

    def keep_only(self, stage: Stage) -> None:
        """Removes the files of units that the stage no longer has, for instance of other settings."""
        if (self.path / stage.name).is_dir():
            needed = {unit.folder for unit in stage.units}
            for path in (self.path / stage.name).iterdir():
                if path.name not in needed:
                    shutil.rmtree(path, ignore_errors=True)

    def has_results(self) -> bool:
        """Returns whether any unit of any stage is finished."""
        return next(self.path.glob(f"*/*/{_RESULT}"), None) is not None

    def mark_complete(self) -> None:
        """Notes that the work is not needed when the result is in its place. Another stage ends that."""
        (self._unfinished / _COMPLETE).touch()

    def remove(self) -> None:
        """Removes the folder with all files of units."""
        with contextlib.suppress(OSError):
            self.mark_complete()
            # The sign goes last. If the program dies before, `remove_rest` goes on.
            for path in self.path.iterdir():
                if path != self._unfinished:
                    shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_rest(self) -> None:
        """Removes what a program left that died after `mark_complete`. Keeps unfinished work."""
        if not self._unfinished.is_dir():
            with contextlib.suppress(OSError):
                self.path.rmdir()  # only if it is empty
        elif (self._unfinished / _COMPLETE).exists() or not self.has_results():
            with contextlib.suppress(OSError, UserError), self:
                self.remove()


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
        # The result comes last, so a unit with a result is complete.
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
