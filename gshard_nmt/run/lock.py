"""The lock of a run folder: only one trainer at a time may write to the folder.

Process 0 of a run holds `trainer.lock` while it trains. The file names the host and the process that hold
it, and a number in it rises every few seconds (the heartbeat). A second trainer is refused. It takes the
lock over if the owner is dead:

- On the same machine, if the process is gone. The start time of the process and the machine's boot id
  are compared too, so another process with the same number is not mistaken for the owner.
- On another machine or in another container, whose processes cannot be seen, if the new trainer watches
  the lock for a minute and sees no heartbeat. Clocks are never compared.

A trainer that was suspended for long may lose its lock. It calls `check` before it saves or logs, and
stops. A lock is created exclusively and taken over with a rename, because NFS does both atomically. An
object store has no renames, but it replaces an object only if nobody else has since it was read.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from gshard_nmt import files, json_shape, paths
from gshard_nmt.errors import UserError

LOCK_NAME = "trainer.lock"
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
"""An owner on another machine counts as dead if it shows no heartbeat for this time."""

_BEAT_DIGITS = 12
_FREE = b""
"""The lock in a bucket when nobody holds it. An object that is removed could be made by two hosts."""


@dataclasses.dataclass(frozen=True)
class Owner:
    """The process that holds a lock."""

    host: str
    pid: int
    started: int  # clock ticks from the boot of the machine to its start; 0 if unknown
    boot: str  # boot id of its machine; "" if unknown
    namespace: str  # where `pid` is valid: each container has its own. "" if unknown
    since: str  # when it took the lock, UTC, for messages
    token: str  # a random word that no other lock has

    @classmethod
    def this_process(cls) -> Self:
        now = datetime.datetime.now(datetime.UTC)
        state = state_of(os.getpid())
        namespace = ""
        with contextlib.suppress(OSError):
            namespace = os.readlink("/proc/self/ns/pid")
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            started=state[1] if state else 0,
            boot=_text_of("/proc/sys/kernel/random/boot_id"),
            namespace=namespace,
            since=f"{now:%Y-%m-%d %H:%M:%S} UTC",
            token=secrets.token_hex(8),
        )

    def is_visible_from(self, other: "Owner") -> bool:
        """Returns whether `other` runs on the same machine and can see this process by its number."""
        place = (self.boot, self.namespace)
        return all(place) and place == (other.boot, other.namespace)

    def is_running(self) -> bool:
        """Returns whether the process exists. It must be visible from this process."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it exists and belongs to another user
        state = state_of(self.pid)
        return state is None or (state[0] not in "ZX" and state[1] == self.started)


_OWNER = json_shape.fields(
    {
        **dict.fromkeys(("host", "boot", "namespace", "since", "token"), json_shape.text()),
        **dict.fromkeys(("pid", "started"), json_shape.whole()),
    },
    closed=True,
)
"""What a lock file says about its owner."""


def owner_of(content: bytes | None) -> Owner | None:
    """Returns the owner that a lock names; None if the lock is missing, damaged or not yet complete."""
    try:
        return Owner(**json_shape.parse((content or b"").partition(b"\n")[0], _OWNER))
    except ValueError:
        return None


class RunLock:
    """The lock of a run folder on a disk; entering it raises UserError if another trainer holds it."""

    def __init__(
        self,
        folder: Path,
        is_holder: bool = True,
        say: Callable[[str], None] = lambda _: None,
        clock: Any = time,
        owner: Owner | None = None,
    ) -> None:
        """Takes no lock yet. Only the first process of a run is the holder, and the others do nothing.

        `say` shows a line when this process begins to wait for a lock that may be stale.
        """
        self._path = folder / LOCK_NAME
        self._is_holder, self._say, self._clock = is_holder, say, clock
        self._owner = owner or Owner.this_process()
        self._beat_count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_the_end, daemon=True, name="lock")

    def __enter__(self) -> Self:
        if self._is_holder:
            with files.reported_as(f"--workdir {self._path.parent}"):
                while not self.create():
                    if (content := self.look()) is not None:
                        self._check_is_dead(content)
                        self.remove(content)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_holder:
            return
        self._ended.set()
        self._thread.join(2 * HEARTBEAT_SECONDS)
        with contextlib.suppress(OSError):
            content = self.look()
            if content is not None and self._is_own(content):
                self.remove(content)

    def check(self) -> None:
        """Raises UserError if this process has lost the lock. Call it before anything is written."""
        if not self._is_holder:
            return
        for _ in range(5):
            try:
                content = self.look()
            except OSError:
                return  # if the file server does not answer, the write that follows will tell
            if self._is_own(content):
                return
            if owner_of(content):
                break
            # A trainer that took our lock for a stale one puts it back at once. Look again.
            self._clock.sleep(0.2)
        owner = owner_of(content)
        by = f"{_name(owner)} took it over" if owner else "somebody removed it"
        raise UserError(
            f"{self._path.parent}: this process held the lock of the run folder, but {by}. It stops "
            "without saving; see which trainer is to go on, and start only that one."
        )

    def beat(self) -> None:
        """Writes the next heartbeat, if this process still holds the lock."""
        with self._path.open("r+b", buffering=0) as file:
            content = file.read()
            if self._is_own(content):
                self._beat_count += 1
                file.seek(content.index(b"\n") + 1)
                file.write(self._beats)

    def create(self, content: bytes = b"") -> bool:
        """Makes the lock of this process, or one with this content; returns False if there is one.

        Until its content is written, others take it for a damaged lock, and watch it.
        """
        try:
            file = self._path.open("xb", buffering=0)
        except FileExistsError:
            return False
        try:
            with file:
                file.write(content or self._content)
        except OSError:
            self._path.unlink()
            raise
        for path in self._path.parent.glob(f"{LOCK_NAME}.*"):
            # Killed trainers have moved it aside. One with our token is ours, and is put back.
            with contextlib.suppress(FileNotFoundError):
                if not self._is_own(path.read_bytes()):
                    path.unlink()
        return True

    def look(self) -> bytes | None:
        """Returns the content of the lock; None if nobody holds it."""
        try:
            # Opening a file makes an NFS client ask the server for its present content.
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def remove(self, known: bytes) -> None:
        """Removes a lock with this content, unless it has changed in the meantime."""
        aside = self._path.with_name(f"{LOCK_NAME}.{self._owner.token}")
        with contextlib.suppress(FileNotFoundError):  # another trainer was faster
            self._path.rename(aside)
            if (content := aside.read_bytes()) != known:
                self.create(content)  # the lock of another trainer, who was faster
            aside.unlink()

    @property
    def _content(self) -> bytes:
        return json.dumps(dataclasses.asdict(self._owner)).encode() + b"\n" + self._beats

    @property
    def _beats(self) -> bytes:
        return f"{self._beat_count:0{_BEAT_DIGITS}}\n".encode()

    def _beat_until_the_end(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            # A heartbeat that cannot be written is no reason to stop; `check` says what is.
            with contextlib.suppress(OSError):
                self.beat()

    def _is_own(self, content: bytes | None) -> bool:
        owner = owner_of(content)
        return owner is not None and owner.token == self._owner.token

    def _check_is_dead(self, first: bytes) -> None:
        """Returns when it is known that the owner of a lock is dead; raises UserError if it is alive."""
        owner = owner_of(first)
        if owner is not None and owner.is_visible_from(self._owner):
            if owner.is_running():
                raise self._refusal(owner)
            return
        self._say(
            f"{self._path.parent} is locked by {_name(owner)}; waiting {STALE_SECONDS:.0f} s for a sign "
            "that it is still alive"
        )
        ends = self._clock.monotonic() + STALE_SECONDS
        while self._clock.monotonic() < ends:
            self._clock.sleep(1.0)
            content = self.look()
            if content is None:
                return
            if content != first:
                raise self._refusal(owner_of(content))

    def _refusal(self, owner: Owner | None) -> UserError:
        return UserError(
            f"--workdir {self._path.parent} is in use: {_name(owner)} trains in it"
            f"{f' since {owner.since}' if owner else ''}. Wait until it ends, stop it, or give another "
            "--workdir."
        )


class BucketLock(RunLock):
    """The lock of a run folder in a bucket."""

    def beat(self) -> None:
        content = self.look()
        if content is not None and self._is_own(content):
            self._beat_count += 1
            paths.swap(self._path, self._content, content)

    def create(self, content: bytes = b"") -> bool:
        before = paths.read_now(self._path)
        return not before and paths.swap(self._path, content or self._content, before)

    def look(self) -> bytes | None:
        return paths.read_now(self._path) or None

    def remove(self, known: bytes) -> None:
        paths.swap(self._path, _FREE, known)


def run_lock(
    folder: Path, is_holder: bool = True, say: Callable[[str], None] = lambda _: None
) -> RunLock:
    return (BucketLock if paths.is_url(folder) else RunLock)(folder, is_holder, say)


def _name(owner: Owner | None) -> str:
    return f"process {owner.pid} on {owner.host}" if owner else "an unknown process"


def state_of(pid: int) -> tuple[str, int] | None:
    """Returns the state of a process as a letter, and its start time; None if they are unknown."""
    # The name of the program stands in parentheses and may itself have spaces and parentheses.
    fields = _text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], int(fields[19])) if len(fields) > 19 else None


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
