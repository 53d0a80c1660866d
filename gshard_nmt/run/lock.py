"""The lock of a run folder: only one trainer at a time may write to the folder.

Process 0 of a run holds `trainer.lock` while it trains, and the file says who it is. On a disk or a file
server, the kernel locks the file (flock), and frees it when the process ends in any way.

A bucket has no such locks, but it replaces an object only if nobody else has since it was read. There a
number in the lock rises every few seconds (the heartbeat). A second trainer watches it for a minute, and
takes the lock over if there is no heartbeat. Clocks are never compared.

A trainer may still lose its lock: it was suspended for long, somebody removed the file, or the file
system has no locks. So it calls `check` before it saves or logs, and stops.
"""

import contextlib
import datetime
import fcntl
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from gshard_nmt import files, paths
from gshard_nmt.errors import UserError

LOCK_NAME = "trainer.lock"
HEARTBEAT_SECONDS = 5.0
LEASE_SECONDS = 100.0
"""More than a file server keeps the locks of a machine that is lost; 90 seconds are usual."""
STALE_SECONDS = 60.0
"""The owner of a lock in a bucket counts as dead if it shows no heartbeat for this time."""


class InUseError(UserError):
    """Another trainer holds the lock."""


class RunLock:
    """The lock of a run folder on a disk; entering it raises InUseError if another trainer holds it.

    That of another machine is waited for: a file server needs a while to notice that a machine is lost.
    """

    def __init__(
        self,
        folder: Path,
        is_holder: bool = True,
        say: Callable[[str], None] = lambda _: None,
        waits: bool = True,
    ) -> None:
        """Takes no lock yet. Only the first process of a run is the holder, and the others do nothing.

        `say` shows a line about a lock that may be stale, or that protects less. With `waits`, the lock
        of another machine, which may be lost, is waited for.
        """
        self._path, self._waits = folder / LOCK_NAME, waits
        self._is_holder, self._say = is_holder, say
        now = datetime.datetime.now(datetime.UTC)
        self._owner = (
            f"process {os.getpid()} on {socket.gethostname()} trains in it since "
            f"{now:%Y-%m-%d %H:%M:%S} UTC ({secrets.token_hex(8)} {_boot()})"
        ).encode()

    def __enter__(self) -> Self:
        if self._is_holder:
            with files.reported_as(f"--workdir {self._path.parent}"):
                self._take()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_holder:
            with contextlib.suppress(OSError):
                self._free()

    def check(self) -> None:
        """Raises UserError if this process has lost the lock. Call it before anything is written."""
        if not self._is_holder:
            return
        try:
            content = self._read()
        except OSError:
            return  # if the file server does not answer, the write that follows will tell
        if not self._is_own(content):
            by = f"now {_text(content)}" if content else "somebody removed it"
            raise UserError(
                f"{self._path.parent}: this process held the lock of the run folder, but {by}. It stops "
                "without saving; see which trainer is to go on, and start only that one."
            )

    def _is_own(self, content: bytes) -> bool:
        return content.startswith(self._owner)

    def _refusal(self, content: bytes) -> InUseError:
        return InUseError(
            f"--workdir {self._path.parent} is in use: {_text(content)}. Wait until it ends, stop it, or "
            "give another --workdir."
        )

    def _read(self) -> bytes:
        """Returns the content of the lock; b"" if there is none."""
        try:
            # Opening a file makes an NFS client ask the server for its present content.
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _take(self) -> None:
        is_locked = has_said = False
        ends = time.monotonic() + LEASE_SECONDS * self._waits
        while not is_locked:
            self._file = self._path.open("a+b", buffering=0)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()
                holder = self._read()
                # Two machines, or a pod and its successor, may have one name.
                is_here = _boot().encode() in holder
                if is_here or time.monotonic() >= ends:
                    raise self._refusal(holder) from None
                if holder and not has_said:
                    self._say(f"{self._path.parent} may be in use: {_text(holder)}. Waiting for it")
                    has_said = True
                # A file server keeps the lock of a machine that is lost until its lease ends.
                time.sleep(1.0)
                continue
            except OSError as error:
                self._say(
                    f"{self._path} cannot be locked ({error.strerror}): start no second trainer here"
                )
            # The last owner may have removed the file after it was opened here.
            with contextlib.suppress(FileNotFoundError):
                is_locked = os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
            if not is_locked:
                self._file.close()
        try:
            self._file.truncate(0)
            self._file.write(self._owner)
        except OSError:
            self._free()
            raise

    def _free(self) -> None:
        with self._file:
            if self._read() in (b"", self._owner):
                self._path.unlink()


class BucketLock(RunLock):
    """The lock of a run folder in a bucket. It is b"" if nobody holds it."""

    def _read(self) -> bytes:
        return paths.read_now(self._path) or b""

    def _take(self) -> None:
        before = paths.read_now(self._path)
        if before:
            self._say(
                f"{self._path.parent} may be in use: {_text(before)}. Waiting {STALE_SECONDS:.0f} s for "
                "a sign that this is so"
            )
        ends = time.monotonic() + STALE_SECONDS
        while before and time.monotonic() < ends:
            time.sleep(1.0)
            content = paths.read_now(self._path)
            if content and content != before:
                raise self._refusal(content)
            before = content
        if not paths.swap(self._path, self._owner, before):
            raise self._refusal(self._read())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="lock")
        self._thread.start()

    def _beat(self) -> None:
        beats = 0
        while not self._ended.wait(HEARTBEAT_SECONDS):
            # A heartbeat that cannot be written is no reason to stop; `check` says what is.
            with contextlib.suppress(OSError):
                if self._is_own(content := self._read()):
                    beats += 1
                    paths.swap(self._path, self._owner + b"\n%d\n" % beats, content)

    def _free(self) -> None:
        self._ended.set()
        self._thread.join(2 * HEARTBEAT_SECONDS)
        if self._is_own(content := self._read()):
            # An object that is removed could be made by two hosts.
            paths.swap(self._path, b"", content)


def run_lock(folder: Path, *rest: Any) -> RunLock:
    return (BucketLock if paths.is_url(folder) else RunLock)(folder, *rest)


def _boot() -> str:
    """Returns what tells the kernel of this machine, since it was started, from all others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # a container may hide it
        return socket.gethostname()


def _text(content: bytes) -> str:
    """Returns who holds a lock, in words."""
    words = content.partition(b" (")[0].decode(errors="replace")
    return words or "an unknown process trains in it"
