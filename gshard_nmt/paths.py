"""Paths that users give: folders of this machine, and URLs of folders in object stores.

A URL such as gs://bucket/run becomes an `epath.Path`, which has the methods of `pathlib.Path` that this
project uses: `/`, `name`, `parent`, `exists`, `is_dir`, `iterdir`, `read_text`, `read_bytes`. Its
`absolute` does not work, and it can neither append to a file nor lock one. So write files with
`files.write`, get absolute paths from `absolute`, and agree with other hosts through `swap`.
"""

import contextlib
import errno
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gshard_nmt.errors import UserError

_URL = "://"
_STORE = "gs"
_MODULES = {_STORE: ("gcsfs", "google.cloud.storage"), "s3": ("s3fs",)}
"""What each kind of URL needs. Text is read from s3://; runs and prepared data need gs://."""
_NAMES = {_STORE: "gcs", "s3": "s3"}
"""The names in fsspec, which our extras have too."""
_LOGIN = {_STORE: ": gcloud auth application-default login", "s3": ": aws configure"}


def folder_path(flag: str, text: str) -> Path:
    """Returns the path of a folder that a flag names: a local one, or gs://bucket/folder.

    file:///folder is a local folder. Messages name the flag.
    """
    return _path(flag, text, (_STORE,))


def source_path(flag: str, text: str) -> Path:
    """Returns the path of a folder that is only read, which may also be s3://bucket/folder."""
    return _path(flag, text, tuple(_MODULES))


def _path(flag: str, text: str, schemes: Sequence[str]) -> Path:
    scheme, separator, rest = text.partition(_URL)
    if not separator:
        return Path(text)
    if scheme == "file" and rest.startswith("/"):
        return Path(rest)
    if scheme not in schemes:
        urls = " or ".join(f"{scheme}://bucket/folder" for scheme in schemes)
        raise UserError(
            f"--{flag} {text}: this kind of URL is unknown; a folder is a path of this machine or a URL "
            f"{urls}. Copy the data to one of these."
        )
    bucket, _, folder = rest.partition("/")
    if not bucket or not folder.strip("/"):
        raise UserError(
            f"--{flag} {text}: the URL must name a bucket and a folder. Give {scheme}://bucket/folder."
        )
    _set_up_store(flag, text, scheme)
    from etils import epath

    return cast(Path, epath.Path(f"{scheme}{_URL}{bucket}/{folder.strip('/')}"))


def local_path(flag: str, text: str) -> Path:
    """Returns the path of a file or folder that must be on this machine."""
    scheme, separator, rest = text.partition(_URL)
    if separator and not (scheme == "file" and rest.startswith("/")):
        raise UserError(
            f"--{flag} {text}: it is a URL, but this flag takes a path of this machine. Copy it here, "
            "for instance from a bucket with gcloud storage cp -r, and give a local path."
        )
    return Path(rest if separator else text)


def is_url(path: Path) -> bool:
    return str(path).startswith(tuple(f"{scheme}{_URL}" for scheme in _MODULES))


def absolute(path: Path) -> Path:
    """Returns the absolute path, without `..` and links. A URL is absolute already."""
    return path if is_url(path) else Path(os.path.realpath(path))


def user_cache() -> Path:
    """Returns the folder of this project in the user's cache: below XDG_CACHE_HOME, or ~/.cache.

    The folder need not exist. Its contents may be removed at any time.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The XDG specification says that a relative path must be ignored.
        folder = Path(root) if root.startswith("/") else Path.home() / ".cache"
    except RuntimeError as error:
        raise UserError(
            "This user has no home folder for caches. Set XDG_CACHE_HOME to a folder."
        ) from error
    return folder / "gshard-nmt"


@contextlib.contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turns the errors of an object store's libraries in the block into OSErrors that name the file.

    Errors about a path of this machine stay as they are.
    """
    try:
        yield
    except (OSError, UserError):
        raise
    except Exception as error:
        if not is_url(path):
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise OSError(errno.EIO, reason, str(path)) from error


@contextlib.contextmanager
def reaching(flag: str, path: Path) -> Iterator[None]:
    """Turns an error of the block into a UserError if `path` is a URL. Use it at the first access.

    The libraries of an object store have exceptions of their own for a bucket that does not exist, an
    account that may not read it and a network that fails.
    """
    if not is_url(path):
        yield
        return
    try:
        with store_errors(path):
            yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"--{flag} {path} cannot be reached: {reason}. Check the name of the bucket, the network and "
            f"the account of this machine{_LOGIN[str(path).partition(_URL)[0]]}."
        ) from error


def entries(folder: Path) -> list[Path]:
    """Returns the paths in a folder, sorted by name; none if the folder does not exist.

    A bucket has no empty folders: a folder of a URL is missing until a file is written into it.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def sizes(folder: Path, names: Iterable[str]) -> Mapping[str, int]:
    """Returns the size in bytes of each of these files in a folder. A missing file is left out.

    If the folder is a URL, one request lists a thousand files. Then other files are in the result too.
    """
    if not is_url(folder):
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found[name] = (folder / name).stat().st_size
        return found
    import fsspec

    filesystem, root = fsspec.url_to_fs(str(folder))
    listing = filesystem.find(root, detail=True)
    return {name.removeprefix(f"{root}/"): entry["size"] for name, entry in listing.items()}


def read_now(path: Path) -> bytes | None:
    """Returns the content of a small file as the object store has it now; None if there is no file.

    Raises:
      OSError: the store does not answer.
    """
    with store_errors(path):
        current = _store_of(path).read(path.name).result()
    return current.value if current.state == "value" else None


def swap(path: Path, content: bytes, previous: bytes | None) -> bool:
    """Replaces the content of a small file if it still is `previous`. No other host can write in between.

    It needs an object store. On a file system use locks. `previous` is None if there was no file. The
    result is False if another process was faster.

    Raises:
      OSError: the store does not answer.
    """
    with store_errors(path):
        store = _store_of(path)
        current = store.read(path.name).result()
        if (current.value if current.state == "value" else None) != previous:
            return False
        stamp = store.write(path.name, content, if_equal=current.stamp.generation).result()
        return bool(stamp.generation)


def _store_of(path: Path) -> Any:
    import tensorstore

    return tensorstore.KvStore.open(f"{path.parent}/").result()


def _set_up_store(flag: str, text: str, scheme: str) -> None:
    """Chooses the libraries that read and write URLs, before epath gets a path of this kind.

    epath would take TensorFlow's file system if TensorFlow is installed. A program that resumes or
    decodes needs no TensorFlow and starts faster without. fsspec would keep the listing of a folder in
    memory; then this process would not see what orbax and other hosts have written.
    """
    os.environ.setdefault("EPATH_USE_TF", "false")
    try:
        for module in _MODULES[scheme]:
            importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"--{flag} {text}: a package that {scheme}:// needs is not installed ({error}). Install it: "
            f"pip install 'gshard-nmt[{_NAMES[scheme]}]'."
        ) from error
    import fsspec.config

    options: dict[str, Any] = fsspec.config.conf.setdefault(_NAMES[scheme], {})
    options.setdefault("use_listings_cache", False)
