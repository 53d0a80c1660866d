"""Reads files that a disk, a file server or a network may fail to give now.

An error of reading is no answer: it says neither that a file is missing nor that it is damaged.
"""

import contextlib
import errno
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from gshard_nmt import paths
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run.manifest import UnreadableError

Result = TypeVar("Result")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an error of reading a file or folder into UnreadableError, unless it is missing."""
    try:
        with paths.store_errors(path) if paths.is_url(path) else contextlib.nullcontext():
            yield
    except FileNotFoundError:
        raise
    except OSError as error:
        denied = error.errno in (errno.EACCES, errno.EPERM)
        raise UnreadableError(
            f"{path.name} cannot be read: {error.strerror or error}", denied
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


def patiently(read: Callable[[], Result], pauses: Sequence[float]) -> Result:
    """Calls a function, and calls it again after a pause if it raises UnreadableError.

    Args:
      read: the function.
      pauses: seconds to wait before each further call. There is no further call if the user has no
        permission.

    Raises:
      UnreadableError: the last call raised it.
    """
    for pause in pauses:
        try:
            return read()
        except UnreadableError as problem:
            if problem.is_denied:
                raise
            time.sleep(pause)
    return read()


def failure(path: Path, problem: UnreadableError) -> UserError | TryAgain:
    """Returns the error that ends a program because a folder cannot be read now."""
    if problem.is_denied:
        return UserError(
            f"{path}: {problem}. Give this user permission for all files in it, then start the same "
            "command again."
        )
    return TryAgain(
        f"{path}: {problem}. It may be sound, so it was not touched. Start the same command again when "
        "the disk or the server answers; if it never will, move this folder away first."
    )
