"""Faults of the disk for tests: a disk that is full, without root.

`full_disk` limits the size of files in this process. It works everywhere, and a write fails with EFBIG.

`small_disks` runs a command on real small disks in a child process: each a tmpfs in a user namespace. It
has room for N files, so the creation of the N+1st fails with ENOSPC. With N = 1, 2, 3 and so on, each
file of a program fails in turn; sizes in bytes stop writes in the middle of a file. If the system allows
no user namespaces, the child limits the size of files instead.
"""

import contextlib
import dataclasses
import functools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def full_disk(largest_file: int = 0) -> Iterator[None]:
    """Lets every write beyond `largest_file` bytes of a file fail. Print nothing in the block."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command did on a small disk, and then on the same disk with enough room."""

    limit: str  # the room, such as "3 files" or "64 kB"
    code: int  # exit code on the small disk
    stderr: str  # what it printed there
    # the files and folders below the small disk after that, without those of the root's name
    left: list[str]
    # exit code of the same command when there was room; 0 if it needed no second start
    second_code: int


def small_disks(
    command: str,
    arguments: Sequence[object],
    scratch: Path,
    files: Sequence[int],
    kb: Sequence[int],
) -> list[Outcome]:
    """Runs a command of on_small_disks.py on disks with room for so many files, or 1,000 bytes."""
    words = [sys.executable, "-m", "tests.integration.on_small_disks", command]
    request = {"arguments": [str(a) for a in arguments], "files": list(files), "kb": list(kb)}
    request["namespaces"] = has_namespaces()
    (scratch / "request.json").write_text(json.dumps(request))
    prefix = ["unshare", "-Urm"] if request["namespaces"] else []
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([*prefix, *words, str(scratch)], cwd=ROOT, env=environment, check=True)
    return [Outcome(**outcome) for outcome in json.loads((scratch / "outcomes.json").read_text())]


@functools.cache
def has_namespaces() -> bool:
    """Returns whether this user may mount a tmpfs in a namespace of its own."""
    words = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
