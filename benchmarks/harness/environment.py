"""The virtual environment of the peers, and the facts of the machine."""

import hashlib
import os
import platform
import subprocess
import sys
import time
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[1] / "peers-requirements.txt"

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")


class NoPeers(Exception):
    """The environment of the peers could not be set up."""


def peers_python(folder: Path, requirements: Path = REQUIREMENTS) -> Path:
    python = folder / "bin" / "python"
    fingerprint = hashlib.sha256(requirements.read_bytes()).hexdigest()
    installed = folder / "requirements.sha256"
    if installed.exists() and installed.read_text() == fingerprint:
        return python
    print(f"Installing {requirements.name} into {folder} (a minute or more) ...", file=sys.stderr)
    try:
        venv.create(folder, clear=True, with_pip=True)
    except subprocess.CalledProcessError as error:
        raise NoPeers(f"{sys.executable} cannot make a virtual environment: {error}") from error
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "-r", requirements], capture_output=True, text=True, check=False
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NoPeers("\n".join(errors or done.stderr.splitlines()[-3:]))
    installed.write_text(fingerprint)
    return python


def cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def variables() -> dict[str, str]:
    """Returns the environment variables for a program that is timed from its start.

    Python keeps compiled modules, as it usually does: to compile this package takes a tenth of a second.
    """
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def machine() -> str:
    fields = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    vectors = ", ".join(flag for flag in _FLAGS if flag in flags) or "no AVX2"
    name = fields.get("model name", platform.machine())
    return f"{name}, {len(cores())} cores; {vectors}"


def busy() -> str:
    idle_before = _idle_seconds()
    time.sleep(_WATCHED_SECONDS)
    busy_cores = os.cpu_count() - (_idle_seconds() - idle_before) / _WATCHED_SECONDS
    if busy_cores < 0.1:
        return ""
    return (
        f"The machine was busy before the start: {busy_cores:.1f} of its cores. Do not compare these "
        "figures with those of another run."
    )


_WATCHED_SECONDS = 2.0


def _idle_seconds() -> float:
    fields = Path("/proc/stat").read_text(encoding="ascii").split()
    return int(fields[4]) / os.sysconf("SC_CLK_TCK")
