"""metrics.jsonl and the event files of TensorBoard. If they cannot be written, the run goes on."""

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gshard_nmt import files, paths
from gshard_nmt.json_shape import fields, parse, whole
from gshard_nmt.run.folder import RunFolder

_COPY_SECONDS = 60.0
LINE = fields({"step": whole()})
"""The shape of a line of metrics.jsonl."""


class MetricsLog:
    """Writes metrics.jsonl, one JSON object a line, and event files.

    If a write fails, the next one tries again, and the user is told once. Lines wait in memory; points of
    TensorBoard are lost.

    An object of a bucket cannot grow, so the logs of a run in a bucket are written to a temporary folder.
    Files that have changed are copied once a minute, before each checkpoint, and at the end.
    """

    def __init__(
        self,
        run: RunFolder,
        step: int,
        writes: bool = True,
        say: Callable[[str], None] = lambda _: None,
        validates: bool = False,
    ) -> None:
        """Removes the lines after `step`, from which the run resumes: it logs these steps again.

        Only the first process of a run `writes`. If it `validates` this step anew, its scores go too.
        """
        self._run, self._writes, self._say = run, writes, say
        self._folder = run.path
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._copied: dict[Path, tuple[int, int]] = {}
        self._next_copy = time.monotonic() + _COPY_SECONDS
        self._failed: set[Path] = set()
        self._waiting = b""
        self._events: Any = None
        self._first_event = step + 1
        if not writes:
            return
        if paths.is_url(run.path):
            self._temporary = tempfile.TemporaryDirectory(prefix="gshard-nmt-logs-")
            self._folder = Path(self._temporary.name)
            if run.metrics.exists():
                (self._folder / run.metrics.name).write_bytes(run.metrics.read_bytes())
        self._lines = self._folder / run.metrics.name
        with self._tolerated(self._lines), contextlib.suppress(FileNotFoundError):
            _cut(self._lines, step, validates)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a line to metrics.jsonl and to TensorBoard."""
        if self._writes:
            self._append({"step": step, **values})
            self._add_events(step, values)
            if time.monotonic() >= self._next_copy:
                self.flush()

    def write_event(self, step: int, name: str, values: Mapping[str, Any]) -> None:
        """Writes one line to metrics.jsonl that has the key "event" besides its values."""
        if self._writes:
            self._append({"step": step, "event": name, **values})

    def flush(self) -> None:
        """Copies what has changed if the run is in a bucket. Call it before each checkpoint."""
        if self._temporary is None:
            return
        self._next_copy = time.monotonic() + _COPY_SECONDS
        with self._tolerated(self._run.path):
            for file in sorted(path for path in self._folder.rglob("*") if path.is_file()):
                state = file.stat().st_size, file.stat().st_mtime_ns
                if self._copied.get(file) != state:
                    files.write(self._run.path / file.relative_to(self._folder), file.read_bytes())
                    self._copied[file] = state

    def close(self) -> None:
        self._close_events()
        self.flush()
        if self._temporary is not None:
            self._temporary.cleanup()

    @contextlib.contextmanager
    def _tolerated(self, path: Path) -> Iterator[None]:
        """Says once that a file or folder cannot be written."""
        try:
            yield
        except OSError as error:
            if path not in self._failed:
                reason = error.strerror or error
                self._say(f"the log {path} cannot be written: {reason}. Training goes on")
            self._failed.add(path)

    def _append(self, values: Mapping[str, Any]) -> None:
        # JSON has neither NaN nor infinity.
        is_bad = {n: isinstance(v, float) and not math.isfinite(v) for n, v in values.items()}
        line = json.dumps({name: None if is_bad[name] else values[name] for name in values})
        self._waiting += line.encode() + b"\n"
        # The file is opened anew each time. If somebody has removed it, it is made again.
        with self._tolerated(self._lines), self._lines.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(self._waiting)
                while rest:  # a disk that becomes full writes a part, then raises
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(before)
                raise
            self._waiting = b""

    def _add_events(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars by name, in this thread.

        tensorboardX's own writer uses a thread that ends at the first error; its queue then fills up, and
        the next call waits forever.
        """
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        def write(step: int, **content: Any) -> None:
            event = event_pb2.Event(wall_time=time.time(), step=step, **content)
            self._events.write_event(event)

        folder = self._folder / "tensorboard"
        with self._tolerated(folder):
            try:
                if self._events is None:
                    folder.mkdir(parents=True, exist_ok=True)
                    # The writer's own names have whole seconds, and it overwrites older files.
                    self._events = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
                    # TensorBoard hides older values of the steps from here on.
                    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                    write(self._first_event, session_log=start)
                for name, value in values.items():
                    write(step, summary=summary.scalar(name, value))
                self._events.flush()
            except OSError:
                # The file may end in a part of an event, so the next call begins a new file.
                self._close_events()
                raise
        self._first_event = step + 1

    def _close_events(self) -> None:
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()
        self._events = None


def _cut(path: Path, step: int, validates: bool) -> None:
    """Removes the lines after a step, perhaps its dev scores, and lines that are damaged.

    A line may be cut if the process is killed or the machine loses power. The file is changed in place,
    which needs no room, a line at a time: a log may be large.
    """
    kept = 0
    with path.open("r+b") as file:
        for line in iter(file.readline, b""):
            following = file.tell()
            if not _stays(line, step, validates):
                continue
            if kept < following - len(line):
                file.seek(kept)
                file.write(line)
                file.seek(following)
            kept += len(line)
        file.truncate(kept)


def _stays(line: bytes, step: int, validates: bool) -> bool:
    try:
        values = parse(line, LINE)
    except ValueError:
        return False
    is_owed = validates and values["step"] == step and "dev_nll" in values
    return line.endswith(b"\n") and bool(values["step"] <= step) and not is_owed
