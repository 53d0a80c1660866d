"""Writing files so that a reader sees the old content or the new content, never a part of it."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from gshard_nmt import paths
from gshard_nmt.errors import UserError
from gshard_nmt.reading import AWAY

TEMPORARY_PREFIX = ".gshard-nmt-"
"""How the names of temporary files begin. A file that is older than its writer may be removed."""


def write(path: Path, content: bytes | str) -> None:
    """Writes a file in one step: writes a temporary file beside it, then renames it. Text is UTF-8.

    After a power cut the file has either its old content or its new content: the data is on the disk
    before the file gets its name. The name of the temporary file cannot be guessed, and a file or link
    that has this name already is never opened.

    If `path` is a symbolic link, the link stays and the file that it points to is replaced. Pipes,
    devices and what is under /dev, but not in /dev/shm, cannot be replaced, because other programs have
    them open: the content is written into them. A store replaces an object of a bucket in one step.

    Raises:
      OSError: the file cannot be written.
    """
    # The name of a file may have bytes that are not UTF-8. An escape is right in JSON, too.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    if paths.is_url(path):
        with paths.store_errors(path):
            path.write_bytes(data)
        return
    if is_stream(path):
        with path.open("ab") as file:
            file.write(data)
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            try:
                file.write(data)
                file.flush()
                if target.exists():
                    shutil.copymode(target, temporary)
                os.fsync(file.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        # The caller knows the file, and not the temporary one.
        error.filename = str(path)
        del error.filename2  # None would be printed as a second name
        raise
    # Then a rename outlives a power cut. Some file systems cannot do this; the file is complete anyway.
    with contextlib.suppress(OSError):
        sync(target.parent)


def write_json(path: Path, value: object) -> None:
    """Writes a value as JSON, as `write` does. Letters of all scripts stay readable."""
    write(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def sync(path: Path) -> None:
    """Writes the content of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def reported_as(what: str) -> Iterator[None]:
    """Turns an OSError of the block into a UserError, if it will not pass. `what` names flag and file."""
    try:
        yield
    except OSError as error:
        # The error of a bucket may also be one of permission.
        if error.errno in AWAY and "://" not in str(error.filename):
            raise
        raise UserError(f"{what}: it cannot be written: {error.strerror}.") from error


def is_stream(path: Path) -> bool:
    """Returns whether a path is a pipe or a device, whose content cannot be replaced."""
    place = path.absolute()
    is_device = place.is_relative_to("/dev") and not place.is_relative_to("/dev/shm")
    return (path.exists() and not path.is_file()) or is_device
