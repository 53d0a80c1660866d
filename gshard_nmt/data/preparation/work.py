"""Work in units: each is done once, by any process, and its files appear in one step.

A stage is a list of units. A unit is a call of a function that writes files and returns a small result.
The files of a unit are in a folder of its own:

    WORK/<stage>/<name of the unit>-<key>/result.json     the result, written last
    WORK/<stage>/<name of the unit>-<key>/...             the files
    WORK/unfinished/files/...                             files of units that are being done

The key is a hash of the arguments. They name the files of earlier units by their folders, and so by their
keys. So a change of the text or of a setting makes those units anew that depend on it, and no others. A
unit whose folder exists is not done again, so a program that was killed goes on.
"""

import contextlib
import ctypes
import dataclasses
import functools
import gc
import hashlib
import itertools
import json
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files, outputs
from gshard_nmt.data.worker_pool import WorkerPool
from gshard_nmt.errors import UserError
from gshard_nmt.quantities import duration_text
from gshard_nmt.terminal import Terminal

_VERSION = 6
"""Changes whenever the function of a stage gives other files for the same arguments."""

LINE_SECONDS = 10.0
"""The seconds between two lines of progress."""

_RESULT = "result.json"
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of malloc.h."""
_ALLOCATIONS = 1 << 18
"""Python looks for reference cycles after this number of new objects. Its default of 700 makes it look at
each list of tokens several times, and at the lists of a whole block."""
_SMALL = 20_000
"""The size of all units of a stage, in rows or bytes, below which other processes are no gain."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """A piece of work that is done as a whole or not at all.

    The name is unique in its stage. The call takes an empty folder, writes files into it, and returns a
    result for JSON. Its function stands at the top of a module, and its keyword arguments are values for
    JSON, paths and dataclasses. The size is about how much work it is: rows, or bytes to read.
    `version` is for JSON, and identifies code that the files depend on.
    """

    name: str
    call: functools.partial[Mapping[str, Any]]
    size: int = 1
    version: object = None


@dataclasses.dataclass(frozen=True)
class Finished:
    """The folder of the files of a unit, and what its call returned."""

    folder: Path
    result: dict[str, Any]


def key_of(*parts: object) -> str:
    """Returns the SHA-256 of values for JSON, in hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class WorkFolder:
    """A folder with the files of finished units. A context manager: it holds a lock meanwhile."""

    def __init__(self, path: Path, pool: WorkerPool, console: Terminal) -> None:
        self.path = path
        self._pool, self._console = pool, console
        self._unfinished = path / "unfinished"
        self._files = self._unfinished / "files"
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> "WorkFolder":
        """Locks the folder, and removes what a killed program left unfinished.

        Raises:
          UserError: another program works in it at this moment, or it has files of the user.
        """
        if self.path.exists() and any(self.path.iterdir()) and not self._unfinished.is_dir():
            raise UserError(
                f"{self.path} is needed for unfinished work, but it has files of another program. Move "
                "them away, or give another --out."
            )
        self._unfinished.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(outputs.locked(self._unfinished / "lock"))
        shutil.rmtree(self._files, ignore_errors=True)
        self._files.mkdir(exist_ok=True)  # a worker that nobody stopped may still write
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def run(self, name: str, about: str, units: Sequence[Unit]) -> list[Finished]:
        """Does the units of a stage that are not done yet, and returns the outcomes in their order.

        `about` says what the stage does and counts, such as "cleaning, pairs". Files of other units of
        the stage are removed: they are of other settings or another text. The finished units stay if a
        call raises an error.
        """
        stage = self.path / name
        stage.mkdir(exist_ok=True)
        folders = [stage / self._folder_name(unit) for unit in units]
        done = {i: finished for i, folder in enumerate(folders) if (finished := _read(folder))}
        # If the result of a unit is damaged, its files are made again.
        for path in {*stage.iterdir()} - {finished.folder for finished in done.values()}:
            shutil.rmtree(path, ignore_errors=True)
        to_do = [i for i in range(len(units)) if i not in done]
        # The largest unit first, so that no process is left alone with it at the end.
        to_do.sort(key=lambda i: (-units[i].size, i))
        tasks = [(units[i].call, folders[i], self._files) for i in to_do]
        total, rest = sum(unit.size for unit in units), sum(units[i].size for i in to_do)
        what, _, unit_name = about.partition(", ")
        here, begin = 0, time.monotonic()
        said = begin
        with outputs.named(self.path):
            for number, outcome in self._pool.map(do_unit, tasks, here=rest < _SMALL):
                done[to_do[number]] = outcome
                here += units[to_do[number]].size
                now = time.monotonic()
                if now - said >= LINE_SECONDS:
                    said = now
                    left = duration_text((rest - here) * (now - begin) / max(here, 1))
                    count = f"{total - rest + here:,} of {total:,} {unit_name}"
                    self._console.print(f"{what}: {count}, {left} left")
        return [done[i] for i in range(len(units))]

    def run_groups(
        self, name: str, about: str, groups: Sequence[Sequence[Unit]]
    ) -> list[list[Finished]]:
        """Does a stage as `run` does, and returns the outcomes of each group of units."""
        done = iter(self.run(name, about, [*itertools.chain.from_iterable(groups)]))
        return [[*itertools.islice(done, len(group))] for group in groups]

    def _folder_name(self, unit: Unit) -> str:
        plain = re.sub("[^A-Za-z0-9._-]", "_", unit.name)
        facts = (_VERSION, unit.version, unit.call.keywords)
        text = json.dumps(facts, default=self._plain, sort_keys=True)
        return f"{plain[:180]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Path):
            inside = self.path in value.parents
            return (value.relative_to(self.path) if inside else value).as_posix()
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

    def remove(self) -> None:
        # The lock goes last. If the program dies before, the next one still knows the folder.
        for path in self.path.iterdir():
            if path != self._unfinished:
                shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)


def do_unit(call: functools.partial[Mapping[str, Any]], place: Path, scratch: Path) -> Finished:
    """Does a unit in `scratch`, a folder on the same disk, and moves its files to `place` in one step."""
    _tune_memory()
    temporary = scratch / uuid.uuid4().hex
    temporary.mkdir()
    try:
        content = json.dumps(dict(call(temporary)), ensure_ascii=False)
        for path in temporary.rglob("*"):
            if path.is_file():
                files.sync(path)
        # The result comes last, so a unit with a result is complete.
        (temporary / _RESULT).write_text(content, encoding="utf-8")
        files.sync(temporary / _RESULT)
        try:
            temporary.rename(place)
        except OSError:
            if _read(place) is None:  # otherwise another worker has done the unit too
                raise
        files.sync(place.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    # The objects of the result lie among those of the text, so they would keep its memory from being used
    # again. These are made after the text has gone.
    return Finished(place, json.loads(content))


def _read(folder: Path) -> Finished | None:
    try:
        result = json.loads((folder / _RESULT).read_bytes())
    except (OSError, ValueError):
        return None
    return Finished(folder, result) if isinstance(result, dict) else None


@functools.cache
def _tune_memory() -> None:
    """Lets this process look for cycles less often, and return free blocks above 1 MiB to the system.

    By default, glibc keeps larger and larger blocks after the first one is freed. The texts of chunks
    then leave holes, and memory grows with the number of chunks.
    """
    gc.set_threshold(_ALLOCATIONS)
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)
