"""metrics.jsonl and the event files of TensorBoard. If they cannot be written, the run goes on.

A line may be cut if the process is killed or the machine loses power. A run that is resumed removes a
cut line. It also removes all lines after the step that it resumes from, because it logs these steps
again.
"""

import contextlib
import itertools
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gshard_nmt import files, paths
from gshard_nmt.json_shape import fields, parse, whole

if TYPE_CHECKING:
    from gshard_nmt.run.folder import RunFolder

Say = Callable[[str], None]
"""Shows one line to the user."""

_FLUSH_SECONDS = 10.0
_COPY_SECONDS = 60.0
_LINE = fields({"step": whole()}, optional={"rollbacks": whole()})


class LineLog:
    """A file of JSON objects, one a line. Each object has the key "step".

    If the file cannot be written, lines wait in memory. The user is told once, each new line tries
    again, and training goes on.
    """

    def __init__(self, path: Path, say: Say) -> None:
        self._path, self._say = path, say
        self._waiting: list[bytes] = []

    def resume(self, step: int, rollbacks: float = math.inf) -> None:
        """Removes the lines after a step, those of more rollbacks, and damaged lines.

        A last line that was cut is dropped. If another line is damaged, this line and all later lines
        are moved to a file beside the log, so nothing is lost.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                self._resume(step, rollbacks)
        except OSError as error:
            self._say(f"{self._path}: {error.strerror}; lines of an earlier attempt may stay in it")

    def append(self, values: Mapping[str, Any]) -> None:
        """Writes one line, after the lines that could not be written before."""
        self._waiting.append(json.dumps(values).encode() + b"\n")
        try:
            self._write(b"".join(self._waiting))
        except OSError as error:
            if len(self._waiting) == 1:
                self._say(
                    f"{self._path} cannot be written: {error.strerror}. Training goes on; the lines are "
                    "written as soon as it is possible again"
                )
            return
        if len(self._waiting) > 1:
            self._say(f"{self._path} is written again")
        self._waiting.clear()

    def _write(self, data: bytes) -> None:
        """Appends to the file; leaves it as it was if not everything can be written."""
        # The file is opened anew each time. If somebody has removed it, it is made again.
        with self._path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(data)
                while rest:  # a disk that becomes full writes a part, then raises
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(before)
                raise

    def _resume(self, step: int, rollbacks: float) -> None:
        """Cuts the file in place, which needs no room, a line at a time: a log may be large."""
        end = begin = 0  # where the lines that stay end, and where the next line begins
        line, keeps = b"\n", True
        at: tuple[int, ...] = (0, 0)
        with self._path.open("r+b") as file:
            for line in file:
                if not (at := _place_of(line)):
                    break
                begin += len(line)
                keeps = keeps and at[0] <= step and at[1] <= rollbacks
                end = begin if keeps else end
            if not at and line.endswith(b"\n"):  # a last line that was cut is only dropped
                self._move_aside(file, begin)
            file.truncate(end)
            if at and keeps and not line.endswith(b"\n"):  # an editor has removed the newline
                file.seek(0, os.SEEK_END)
                file.write(b"\n")

    def _move_aside(self, file: Any, begin: int) -> None:
        names = (f"{self._path.stem}.damaged-{n}{self._path.suffix}" for n in itertools.count(1))
        aside = next(p for p in map(self._path.with_name, names) if not p.exists())
        file.seek(begin)
        with aside.open("xb") as copy:
            shutil.copyfileobj(file, copy)
        self._say(
            f"{self._path} is damaged {begin} bytes after its beginning; its lines from there on are now "
            f"in {aside.name}"
        )


class EventFiles:
    """The event files that TensorBoard shows. It hides older values of the steps from the first on.

    They are written in the calling thread. tensorboardX's own writer uses a thread that ends at the first
    error; its queue then fills up, and the next call waits forever.
    """

    def __init__(self, folder: Path, first_step: int, say: Say) -> None:
        self._folder, self._first_step, self._say = folder, first_step, say
        self._writer: Any = None
        self._next_flush = 0.0
        self._failed = False

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars by name. If writing fails, they are lost, and the next call tries again."""
        try:
            self._add(step, values)
        except OSError as error:
            if not self._failed:
                self._say(
                    f"{self._folder} cannot be written: {error.strerror}. Training goes on without "
                    "its curves"
                )
            self._failed = True
            # The file may end in a part of an event, so the next call begins a new file.
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
        self._writer = None

    def _add(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        def write(step: int, **content: Any) -> None:
            self._writer.write_event(event_pb2.Event(wall_time=time.time(), step=step, **content))

        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # The writer's own names have whole seconds, and it overwrites a file of the same name.
            self._writer = EventsWriter(str(self._folder / "events"), f".{time.time_ns()}")
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            write(self._first_step, session_log=start)
        for name, value in values.items():
            write(step, summary=summary.scalar(name, value))
        self._first_step = step + 1
        if time.monotonic() >= self._next_flush:  # a flush waits for the disk
            self._writer.flush()
            self._next_flush = time.monotonic() + _FLUSH_SECONDS


def _place_of(line: bytes) -> tuple[int, ...]:
    """Returns the step and the number of rollbacks in a line; () if the line is damaged."""
    try:
        value = parse(line, _LINE)
    except ValueError:
        return ()
    return value["step"], value.get("rollbacks", 0)


class MetricsLog:
    """Writes metrics.jsonl and TensorBoard event files. A log that cannot be written ends no run.

    An object of a bucket cannot grow, so the logs of a run in a bucket are written to a temporary folder.
    Files that have changed are copied once a minute, before each checkpoint, and at the end.
    """

    def __init__(
        self,
        run: "RunFolder",
        step: int,
        writes: bool = True,
        say: Say = lambda _: None,
        rollbacks: float = 0,
    ) -> None:
        """Removes the lines after `step`, from which the run resumes, and those of later rollbacks.

        `rollbacks` is how often the run had gone back to a checkpoint until that step. Only the first
        process of a run `writes`.
        """
        self._run, self._writes, self._say = run, writes, say
        self._folder = run.path
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._copied: dict[Path, tuple[int, int]] = {}
        self._next_copy, self._failed = time.monotonic() + _COPY_SECONDS, False
        if not writes:
            return
        if paths.is_url(run.path):
            self._temporary = tempfile.TemporaryDirectory(prefix="gshard-nmt-logs-")
            self._folder = Path(self._temporary.name)
            if run.metrics.exists():
                (self._folder / run.metrics.name).write_bytes(run.metrics.read_bytes())
        self._open(step, rollbacks)

    def _open(self, step: int, rollbacks: float) -> None:
        self._lines = LineLog(self._folder / self._run.metrics.name, self._say)
        self._lines.resume(step, rollbacks)
        self._events = EventFiles(self._folder / "tensorboard", step + 1, self._say)

    def go_back(self, step: int) -> None:
        """Removes the lines after a step: the run has gone back to it and will log them again."""
        if self._writes:
            self._events.close()
            self._open(step, rollbacks=math.inf)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a line to metrics.jsonl, with null for NaN and infinity, and to TensorBoard."""
        if self._writes:
            line = {name: value if math.isfinite(value) else None for name, value in values.items()}
            self._lines.append({"step": step, **line})
            self._events.add(step, values)
            if time.monotonic() >= self._next_copy:
                self.flush()

    def write_event(self, step: int, name: str, values: Mapping[str, Any]) -> None:
        """Writes one line to metrics.jsonl that has the key "event" besides its values."""
        if self._writes:
            self._lines.append({"step": step, "event": name, **values})

    def flush(self) -> None:
        """Copies what has changed if the run is in a bucket. Call it before each checkpoint."""
        if self._temporary is None:
            return
        self._next_copy = time.monotonic() + _COPY_SECONDS
        try:
            for file in sorted(path for path in self._folder.rglob("*") if path.is_file()):
                state = file.stat().st_size, file.stat().st_mtime_ns
                if self._copied.get(file) != state:
                    files.write(self._run.path / file.relative_to(self._folder), file.read_bytes())
                    self._copied[file] = state
            self._failed = False
        except OSError as error:
            if not self._failed:
                reason = error.strerror or error
                self._say(
                    f"the logs cannot be copied to {self._run.path}: {reason}. Training goes on"
                )
            self._failed = True

    def close(self) -> None:
        if self._writes:
            self._events.close()
            self.flush()
        if self._temporary is not None:
            self._temporary.cleanup()
