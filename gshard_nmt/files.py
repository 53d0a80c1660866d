"""Writing files so that a reader sees the old content or the new content, never a part of it."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from gshard_nmt import paths
from gshard_nmt.errors import UserError


def write(path: Path, content: bytes | str) -> None:
    """Writes a file in one step: writes a temporary file beside it, then renames it. Text is UTF-8.

    If `path` is a symbolic link, the link stays and the file that it points to is replaced. Pipes,
    devices and everything under /dev cannot be replaced, because other programs have them open. The
    content is written into them instead. An object of a bucket is replaced in one step by its store.

    Raises:
      OSError: the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    if paths.is_url(path):
        path.write_bytes(data)
        return
    if is_stream(path):
        with path.open("ab") as file:
            file.write(data)
        return
    temporary = _temporary_path(path)
    try:
        temporary.write_bytes(data)
        temporary.replace(os.path.realpath(path))
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Checks that `write` can write to `path`, without changing it. Call it before a long computation.

    Raises:
      OSError: the file cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    temporary = _temporary_path(path)
    temporary.touch()
    temporary.unlink()


@contextlib.contextmanager
def reported_as(what: str) -> Iterator[None]:
    """Turns an OSError of the block into a UserError. `what` names the flag and the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: it cannot be written: {error.strerror}.") from error


def is_stream(path: Path) -> bool:
    """Returns whether a path is a pipe or a device, whose content cannot be replaced."""
    return (path.exists() and not path.is_file()) or path.absolute().is_relative_to("/dev")


def _temporary_path(path: Path) -> Path:
    """Returns the path of a temporary file in the folder of the file that `path` points to."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.{os.getpid()}")
