"""Files that a reader sees old or new, never half."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from gshard_nmt.errors import UserError


def write(path: Path, content: bytes | str) -> None:
    """Replaces a file at once: written beside it, then renamed. Text is UTF-8.

    A link stays, and what it leads to is replaced. What is no plain file (a pipe, a device, and
    whatever is reached through /dev) cannot be replaced without taking it away from others: the
    content is written into it.

    Raises:
      OSError: as writing does.
    """
    data = content.encode() if isinstance(content, str) else content
    if _is_open_ended(path):
        with path.open("ab") as file:
            file.write(data)
        return
    temporary = _beside(path)
    try:
        temporary.write_bytes(data)
        temporary.replace(os.path.realpath(path))
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Finds out, before the content is there, whether `write` could write it; `path` stays as it is.

    Raises:
      OSError: it could not.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if _is_open_ended(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    temporary = _beside(path)
    temporary.touch()
    temporary.unlink()


@contextlib.contextmanager
def told_as(what: str) -> Iterator[None]:
    """Tells whoever runs a program why a file cannot be written; `what` is the flag and the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: it cannot be written: {error.strerror}.") from error


def _is_open_ended(path: Path) -> bool:
    return (path.exists() and not path.is_file()) or path.absolute().is_relative_to("/dev")


def _beside(path: Path) -> Path:
    """A new name in the folder of the file that `path` leads to."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.{os.getpid()}")
