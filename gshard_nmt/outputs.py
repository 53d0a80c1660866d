"""The files and folders that a user names as outputs: checked before the long work, and never lost.

A program calls the checks first, so that hours of work do not end in "permission denied". At the end,
the new content takes the place of the old one in a single step.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn, TextIO

from gshard_nmt import files, paths
from gshard_nmt.errors import UserError
from gshard_nmt.reading import AWAY


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Adds the path of an output to the error of a full disk, if the error names no file.

    If a write to an open file fails, the error of Python does not name the file.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = str(path)
        raise


def check_folder(flag: str, folder: Path, replaced: bool = False) -> None:
    """Checks that a folder can be made, or that files can be written into it if it is there.

    Makes a temporary folder and removes it, because permission bits are not always right. If the folder
    will be `replaced`, the folder above it is checked too. `flag` is the flag with its dashes.
    """
    name = f"{flag} {folder}"
    if paths.is_url(folder):
        with paths.reaching(flag.removeprefix("--"), folder):
            if folder.is_file():
                raise UserError(f"{name}: it is not a folder. Give the path of another folder.")
            # Several processes may check the same folder at the same time.
            probe = folder / f"{files.TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            probe.write_bytes(b"")
            probe.unlink()
        return
    nearest, place = folder.absolute(), Path(os.path.realpath(folder))
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        raise UserError(f"{name}: {nearest} is not a folder. Give the path of another folder.")
    if replaced and os.path.ismount(place):
        raise UserError(
            f"{name}: it is a mount point, which cannot be replaced. Give a folder in it, such as "
            f"{folder / 'new'}."
        )
    try:
        for parent in {nearest, place.parent if replaced and place.exists() else nearest}:
            with tempfile.TemporaryDirectory(dir=parent, prefix=files.TEMPORARY_PREFIX):
                pass
    except OSError as error:
        _refuse(f"{name}: the folder cannot be made or written", "folder", error)


def check_new(flag: str, folder: Path) -> None:
    """Raises UserError if a folder cannot be made, or is there and not empty."""
    check_folder(flag, folder, replaced=True)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{flag} {folder} is not empty; give a new folder.")


def check_only_has(flag: str, folder: Path, names: Collection[str], program: str) -> None:
    """Checks that a folder, which is about to be replaced, has no file but `names` of a program."""
    for place, folders, files_here in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*files_here, *links):
            path = os.path.relpath(os.path.join(place, name), folder)
            if path not in names:
                raise UserError(
                    f"{flag} {folder} would be replaced, but {path} in it is not from {program}. Move "
                    "that file away, or choose another folder."
                )


def check_file(flag: str, file: Path) -> None:
    """Checks that a file can be written, without changing it."""
    name, parent = f"{flag} {file}", file.parent
    if file.is_dir():
        raise UserError(f"{name}: it is a folder. Give the path of a file.")
    if not parent.is_dir():
        what = "is not a folder" if parent.exists() else "does not exist"
        raise UserError(f"{name}: the folder {parent} {what}. Make it first, or give another.")
    try:
        if file.exists() and not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not files.is_stream(file):
            folder = os.path.dirname(os.path.realpath(file))
            with tempfile.NamedTemporaryFile(dir=folder, prefix=files.TEMPORARY_PREFIX):
                pass
    except OSError as error:
        _refuse(f"{name}: it cannot be written", "file", error)


def _refuse(what: str, kind: str, error: OSError) -> NoReturn:
    if error.errno in AWAY:
        raise error
    text = f"{what}: {error.strerror}. Give another {kind}, or change the permissions."
    raise UserError(text) from error


def is_same_file(first: Path, second: Path) -> bool:
    try:
        return first.is_file() and second.is_file() and first.samefile(second)
    except OSError:
        return False


def partial_path(path: Path) -> Path:
    """Returns the path that has what is finished of a file or folder until it is complete."""
    target = Path(os.path.realpath(path))
    return target.with_name(f"{target.name}.partial")


@contextlib.contextmanager
def text_file(path: Path) -> Iterator[TextIO]:
    """Opens a text file in UTF-8 that takes the place of `path` if the block ends without an error.

    Until then the text is in `partial_path(path)`, and `path` keeps its content. After an error or an
    interruption it stays there, and a note of the exception says so. The text for a pipe or a device goes
    into it at once.

    Raises:
      UserError: another program writes the same partial file.
      OSError: the file cannot be written.
    """
    if files.is_stream(path):
        with path.open("a", encoding="utf-8", newline="\n") as stream:
            yield stream
        return
    target, partial = Path(os.path.realpath(path)), partial_path(path)
    with locked(partial) as descriptor:
        os.ftruncate(descriptor, 0)
        try:
            with (
                named(partial),
                open(descriptor, "w", encoding="utf-8", newline="\n", closefd=False) as file,
            ):
                yield file
                file.flush()
                os.fsync(descriptor)
            if target.exists():
                shutil.copymode(target, partial)
            partial.replace(target)
        except BaseException as error:
            if os.fstat(descriptor).st_size:
                error.add_note(
                    f"The lines that were finished are in {partial}; {path} is as before."
                )
            else:
                partial.unlink()
            raise


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Opens a file to read and write, and makes it if it does not exist. Yields its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(partial: Path) -> Iterator[int]:
    """Opens or makes a file, and keeps other programs from opening it so. Yields its descriptor."""
    while True:
        with opened(partial, 0) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another program has locked {partial}. Wait until it has finished, or write to "
                    "another place."
                ) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                    raise  # some file systems have no locks
            # The other program may have finished in between: then this is its output, under a new name.
            is_there = False
            with contextlib.suppress(FileNotFoundError):
                is_there = os.path.samestat(os.fstat(descriptor), partial.stat())
            if is_there:
                yield descriptor
                return


@contextlib.contextmanager
def new_folder(path: Path, flag: str = "") -> Iterator[Path]:
    """Yields an empty folder that takes the place of `path` if the block ends without an error.

    If it ends with one, the folder is removed and `path` stays as it was. The folders above it are made.
    If it is a link to a folder, the link stays. With `flag`, which named it, `path` must be empty.

    Raises:
      UserError: another program makes the same folder at this moment, or has made it.
      OSError: the folder cannot be made, or cannot be renamed.
    """
    place = Path(os.path.realpath(path))
    with named(place), temporary_folder(place) as temporary:
        if flag:
            check_new(flag, place)
        folder = temporary / _NEW
        folder.mkdir()
        yield folder
        replace_folder(folder, place)


@contextlib.contextmanager
def temporary_folder(place: Path) -> Iterator[Path]:
    """Yields an empty folder beside `place`, and removes it at the end. The folders above it are made.

    If this process is killed, the next call removes the folder.

    Raises:
      UserError: another program is in such a block at this moment.
      OSError: the folder cannot be made.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f"{files.TEMPORARY_PREFIX}{place.name}")
    lock = temporary.with_name(f"{temporary.name}.lock")
    with locked(lock):
        try:
            _remove_temporary(temporary, place)
            temporary.mkdir()
            yield temporary
        finally:
            _remove_temporary(temporary, place)
            lock.unlink(missing_ok=True)


_NEW, _REPLACED = "new", ".replaced"


def _remove_temporary(temporary: Path, place: Path) -> None:
    """Removes the folder of `temporary_folder`, but not the only copy of what was at `place`."""
    aside = temporary / f"{_NEW}{_REPLACED}"
    if aside.exists() and not place.exists():
        aside.replace(place)  # the program ended between the two renames of `replace_folder`
    shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(new: Path, old: Path) -> None:
    """Renames a folder. If another folder has the new name, it is replaced.

    Both are on one disk. The old folder is first renamed to a place beside the new one and removed at the
    end. If the program dies in between, the content of both is still there. A link to the old one stays.

    Raises:
      OSError: a folder cannot be renamed. Then the old folder is at its place.
    """
    place = Path(os.path.realpath(old))
    if not place.exists():
        new.replace(place)
        return
    aside = new.with_name(f"{new.name}{_REPLACED}")
    try:
        place.replace(aside)
        new.replace(place)
    except BaseException:
        # An interruption may come right after either of them.
        if not place.exists():
            aside.replace(place)
        raise
    shutil.rmtree(aside, ignore_errors=True)
