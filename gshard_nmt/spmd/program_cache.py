"""The files of a cache of lowered and compiled programs, and the cache of the user.

A lowered function is a file `KEY.jaxexport`: a line of JSON with its signature and a SHA-256, and then
what jax exports. XLA's compiled programs are in `xla/`. A file that is damaged is made again.

**Programs are code.** Whoever can write to a cache can run code as the user who reads it. Training keeps
its programs in the run folder. Programs that only read a run folder use the cache of the user instead, so
that they execute nothing that a run folder brought with it.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import stat
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files, paths
from gshard_nmt.errors import UserError
from gshard_nmt.spmd.lowering import ArraySpec, ArraySpecs, Signature

USER_CACHE_BYTES = 2 << 30
"""The cache of the user is cut down to this size when a program starts."""
USER_CACHE_DAYS = 60
"""Files of the cache of the user that were not used for this time are removed."""

_DAMAGED_ENTRY = "Error reading persistent compilation cache entry"
_UNWRITTEN_ENTRY = "Error writing persistent compilation cache entry"


def xla_folder(cache: Path) -> Path:
    return cache / "xla"


def user_cache() -> Path | None:
    """Returns the folder of the programs of this user, which nobody else can write to; makes it.

    It is `gshard-nmt/programs` in XDG_CACHE_HOME or ~/.cache. Old files are removed from it.

    Returns:
      The folder, or None if there is no home folder, if it cannot be written, or if somebody else can
      write to it. The caller then goes on without a cache.
    """
    try:
        folder = paths.user_cache()
        programs = folder / "programs"
        folder.parent.mkdir(parents=True, exist_ok=True)
        for part in (folder, programs):
            part.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(part):
                return None
    except (OSError, UserError):
        return None
    if not os.access(programs, os.W_OK | os.X_OK):
        return None
    prune(programs, USER_CACHE_BYTES, USER_CACHE_DAYS)
    return programs


def _is_private(folder: Path) -> bool:
    """Returns whether a path is a folder of this user, no link, that others cannot write to."""
    status = folder.lstat()
    others_write = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & others_write
    )


def prune(folder: Path, most_bytes: int, days: float) -> None:
    """Removes files that were not used for some days, then the oldest until `most_bytes` remain."""
    entries = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process may prune at the same time
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                entries.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    left = sum(size for _, size, _ in entries)
    oldest = time.time() - days * 86400
    for used, size, path in sorted(entries, key=lambda entry: entry[0]):
        if used >= oldest and left <= most_bytes:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        left -= size


def load(artifact: Path) -> tuple[Any, Signature] | None:
    """Reads a lowered function.

    Args:
      artifact: the path of its file, without the ending.

    Returns:
      jax's exported function and its signature. None if the file is missing or damaged, or if another
      version of TensorFlow lowered the function; a host without TensorFlow takes any version.
    """
    try:
        packed = artifact.with_suffix(".jaxexport").read_bytes()
        lowered_by = json.loads(packed.partition(b"\n")[0])["tensorflow"]
        return unpack(packed) if _tensorflow_version() in (None, lowered_by) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def store(artifact: Path, exported: Any, signature: Signature) -> None:
    """Writes a lowered function to the file that `load` reads.

    Raises:
      OSError: the file cannot be written.
    """
    files.write(artifact.with_suffix(".jaxexport"), pack(exported, signature))


def pack(exported: Any, signature: Signature) -> bytes:
    """Returns a lowered function as bytes, which `unpack` reads."""
    program = bytes(exported.serialize())
    description = {
        "tensorflow": _tensorflow_version(),
        "sha256": hashlib.sha256(program).hexdigest(),
        "inputs": _described(signature.inputs),
        "outputs": _described(signature.outputs),
    }
    return json.dumps(description).encode() + b"\n" + program


def unpack(packed: bytes) -> tuple[Any, Signature]:
    """Returns jax's exported function and its signature. Raises ValueError if the bytes are damaged."""
    from jax import export

    line, _, program = packed.partition(b"\n")
    description = json.loads(line)
    # A damaged file could be another program, so it is not even parsed.
    if hashlib.sha256(program).hexdigest() != description["sha256"]:
        raise ValueError("the checksum is wrong")
    inputs, outputs = (
        tuple(
            {name: ArraySpec(tuple(s), np.dtype(d), letters) for name, (s, d, letters) in g.items()}
            for g in description[groups]
        )
        for groups in ("inputs", "outputs")
    )
    return export.deserialize(bytearray(program)), Signature(inputs, outputs)


@contextlib.contextmanager
def mended(cache: Path | None) -> Iterator[None]:
    """Removes compiled programs that turn out to be damaged while the block compiles.

    jax writes them in place, so a killed process leaves a part of one. jax then compiles the program anew
    at every start, with a warning, but never replaces the damaged file.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    is_damaged = False
    for warning in caught:
        text = str(warning.message)
        is_damaged |= text.startswith(_DAMAGED_ENTRY)
        # A cache that cannot be written only costs time.
        if not text.startswith((_DAMAGED_ENTRY, _UNWRITTEN_ENTRY)):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if is_damaged and cache is not None:
        _remove_damaged(xla_folder(cache))


def _remove_damaged(folder: Path) -> None:
    """Removes compiled programs that zlib cannot unpack, because its checksum does not match.

    If jax uses another compression, because the package zstandard is installed, all are removed.
    """
    for path in folder.glob("*-cache"):
        with contextlib.suppress(OSError):
            try:
                zlib.decompress(path.read_bytes())
            except zlib.error:
                path.unlink()


def _tensorflow_version() -> str | None:
    try:
        return importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:
        return None


def _described(groups: Sequence[ArraySpecs]) -> list[dict[str, list]]:
    return [
        {name: [list(s.shape), np.dtype(s.dtype).name, s.letters] for name, s in group.items()}
        for group in groups
    ]
