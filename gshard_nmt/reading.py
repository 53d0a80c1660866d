"""Reads files that a disk, a file server or a network may fail to give now.

An error of reading is no answer: it says neither that a file is missing nor that it is damaged. Damage
is a checksum that differs, a file that is too short or wrong, or a missing file.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from gshard_nmt import paths
from gshard_nmt.errors import TryAgain, UserError

Result = TypeVar("Result")

PAUSES = (0.5, 2.0)
"""Seconds to wait before each further attempt to read a file."""

AWAY = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EREMOTEIO)
"""Errors of a disk or a file server that may pass by themselves."""

DENIED = "Give this user permission for all files in it"
"""The advice to a user who may not read a file."""

_LASTING = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), DENIED),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit of open files (ulimit -n)"),
    errno.EISDIR: "A file belongs there; remove that folder",
}
"""Errors that stay until the user does something, and what to do."""


class UnsoundError(Exception):
    """Files cannot be used. The message says why: they are damaged, incomplete, or a subclass.

    Attributes:
      is_damage: whether it is proven that the files are damaged. Nothing else removes a checkpoint.
    """

    is_damage = True


class UnreadableError(UnsoundError):
    """Files cannot be read now, because a disk, a file server or a network fails.

    Attributes:
      advice: what the user must do before it is useful to try again; "" if the error may pass by itself.
    """

    is_damage = False

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an error of reading a file or folder into UnreadableError, unless it is missing."""
    try:
        with paths.store_errors(path):
            yield
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args, error.filename) from error
    except OSError as error:
        is_named = isinstance(error.filename, (str, bytes, os.PathLike))
        name = Path(os.fsdecode(error.filename if is_named else path)).name
        advice = _LASTING.get(error.errno or 0, "")
        raise UnreadableError(
            f"{name} cannot be read: {error.strerror or error}", advice
        ) from error


def exists(file: Path) -> bool:
    """Returns whether there is a file. Unlike `Path.exists`, it takes no error for an answer.

    Raises:
      UnreadableError: nobody knows, because the disk or the server fails.
    """
    with reading(file):
        try:
            if paths.is_url(file):
                return file.exists()
            file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def patiently(read: Callable[[], Result], pauses: Sequence[float] = PAUSES) -> Result:
    """Calls a function, and calls it again after each pause, in seconds, if it raises UnreadableError.

    There is no further call if the user must do something first.

    Raises:
      UnreadableError: the last call raised it.
    """
    for pause in pauses:
        try:
            return read()
        except UnreadableError as problem:
            if problem.advice:
                raise
            time.sleep(pause)
    return read()


def patiently_or_fail(read: Callable[[], Result], path: Path, what: str) -> Result:
    """Calls a function that reads `path`, as `patiently` does. An error of reading ends the program.

    `what` is the folder with its flag, for messages.

    Raises:
      FileNotFoundError: the file is missing.
      UserError: it may not be read.
      TryAgain: it cannot be read now.
    """

    def attempt() -> Result:
        with reading(path):
            return read()

    try:
        return patiently(attempt)
    except UnreadableError as problem:
        raise failure(what, problem) from problem


def failure(what: str | Path, problem: UnreadableError) -> UserError | TryAgain:
    """Returns the error that ends a program because `what`, a folder with its flag, cannot be read."""
    if problem.advice:
        return UserError(f"{what}: {problem}. {problem.advice}, then start the same command again.")
    return TryAgain(
        f"{what}: {problem}. It may be sound, so it was not touched. Start the same command again when "
        "the disk or the server answers. If it never will, restore it from a copy, or move it away."
    )
