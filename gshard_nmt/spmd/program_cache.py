"""The files of a cache of lowered and compiled programs, and the cache of the user.

A lowered function is a file `KEY.jaxexport`: a line of JSON with its signature and a SHA-256, and then
what jax exports. If it is damaged, it is made again. jax keeps XLA's compiled programs in `xla/`.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files, paths
from gshard_nmt.errors import UserError
from gshard_nmt.spmd.lowering import ArraySpec, ArraySpecs, Signature

USER_CACHE_DAYS = 30
"""Files of the cache of the user that were not used for this time are removed."""


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
            status = part.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                return None
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
    except (OSError, UserError):
        return None
    if not os.access(programs, os.W_OK | os.X_OK):
        return None
    prune(programs, USER_CACHE_DAYS)
    return programs


def prune(folder: Path, days: float) -> None:
    """Removes files that were not used for some days."""
    oldest = time.time() - days * 86400
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process may prune at the same time
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and max(status.st_atime, status.st_mtime) < oldest:
                path.unlink()


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
    """Writes a lowered function to the file that `load` reads; raises OSError if that fails."""
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
