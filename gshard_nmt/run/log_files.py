"""Files that grow while a run trains: lines of text, and events for TensorBoard."""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from gshard_nmt import files, paths

_UPLOAD_SECONDS = 60.0
"""An object store writes whole objects, so a log in a bucket is written again after this time."""


class AppendedFile:
    """A file that only grows. Nothing that was appended waits in the memory of this process.

    That is so on a disk. An object of a bucket cannot grow, so the whole file stays in memory, and
    replaces the object once a minute, at each `flush`, and at the end.
    """

    def __init__(self, path: Path, content: bytes = b"") -> None:
        """Writes the file with its first content, in place of an older file.

        Raises:
          OSError: the file cannot be written. It names the file, as all errors of this class do.
        """
        self._path = path
        self._is_url = paths.is_url(path)
        files.write(path, content)
        self._whole = bytearray(content)
        self._next_upload = time.monotonic() + _UPLOAD_SECONDS
        self._has_news = False
        self._file = -1 if self._is_url else os.open(path, os.O_WRONLY | os.O_APPEND)

    def append(self, content: bytes) -> None:
        """Adds content to the end of the file."""
        if not self._is_url:
            with files.naming(self._path):
                while content:
                    content = content[os.write(self._file, content) :]
            return
        self._whole += content
        self._has_news = True
        if time.monotonic() >= self._next_upload:
            self.flush()

    def flush(self) -> None:
        """Writes what a bucket does not have yet. Call it before a checkpoint is saved."""
        if self._has_news:
            files.write(self._path, bytes(self._whole))
            self._has_news = False
            self._next_upload = time.monotonic() + _UPLOAD_SECONDS

    def close(self) -> None:
        """Writes the rest and closes the file."""
        self.flush()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class EventLog:
    """An event file for TensorBoard.

    tensorboardX's own writer has a thread. If the disk is full, this thread dies with a traceback, and
    the program hangs when it logs the next values.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        """Starts a new event file; TensorBoard then hides what older files have from `first_step` on.

        Raises:
          OSError: the file cannot be written.
        """
        from tensorboardX.proto import event_pb2

        self._event_type = event_pb2.Event
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        version = event_pb2.Event(wall_time=now, file_version="brain.Event:2")
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        session = event_pb2.Event(wall_time=now, step=first_step, session_log=start)
        content = _record(version.SerializeToString()) + _record(session.SerializeToString())
        self._file = AppendedFile(folder / name, content)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds values of a step, each as a curve of its name."""
        from tensorboardX import summary

        now = time.time()
        records = [
            self._event_type(wall_time=now, step=step, summary=summary.scalar(name, value))
            for name, value in values.items()
        ]
        self._file.append(b"".join(_record(event.SerializeToString()) for event in records))

    def flush(self) -> None:
        """Does what `AppendedFile.flush` does."""
        self._file.flush()

    def close(self) -> None:
        """Writes the rest and closes the file."""
        self._file.close()


def _record(data: bytes) -> bytes:
    """Returns a TFRecord: the length, the data, and a checksum of each."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + checksums[0] + data + checksums[1]
