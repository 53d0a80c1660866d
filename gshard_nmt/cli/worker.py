"""The worker process of a run of several processes: its command line, and how it ends.

gshard-train runs in it as it does in a run of one process. Its supervisor (`run/supervisor.py`) watches
it.
"""

import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from absl.flags import FlagValues

import gshard_nmt

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config
    from gshard_nmt.spmd.processes import Processes


def is_worker() -> bool:
    """Returns whether this process is the worker of a supervisor. Call it once.

    A worker that ends because of an error does not wait for the others: jax would wait for them until
    a timeout, but they wait for this worker in a collective.
    """
    from gshard_nmt.run import supervisor

    if not supervisor.is_watched():
        return False
    sys.excepthook = _print_and_leave
    return True


def leave(code: int) -> NoReturn:
    """Ends this process with an exit code; a worker with an error ends at once."""
    if code not in (0, 130) and sys.excepthook is _print_and_leave:
        _flush()
        os._exit(code)
    sys.exit(code)


def command_line(values: FlagValues, processes: "Processes") -> list[str]:
    """Returns the command line of the worker: gshard-train with the same flags.

    Args:
      values: the flags of gshard-train.
      processes: the processes that the flags or the cluster name.
    """
    numbers = {
        "coordinator": processes.coordinator,
        "num_processes": processes.count,
        "process_id": processes.index,
        "peer_timeout": processes.peer_timeout,
    }
    flags = {name: values[name].value for name in values} | numbers
    words = [word for name, value in flags.items() for word in _words(name, value)]
    return [sys.executable, "-m", "gshard_nmt", "train", *words]


def identity(values: FlagValues, config: "Config") -> dict[str, str]:
    """Returns the values that all processes of a run must share, by names for an error message.

    They also identify the run: process 0 refuses a process of another run that connects to its port.

    Args:
      values: the flags of gshard-train.
      config: the config that they name.
    """
    from gshard_nmt import paths
    from gshard_nmt.spmd.runtime import source_fingerprint

    settings = (line.partition(" = ") for line in config.text.splitlines() if " = " in line)
    manifest = paths.folder_path("data", values.data) / "manifest.json"
    contents = manifest.read_bytes() if manifest.is_file() else b""
    return {
        **{name: value for name, _, value in settings},
        "gshard-nmt": f"{gshard_nmt.__version__} (code {source_fingerprint()})",
        **{package: importlib.metadata.version(package) for package in ("jax", "jaxlib")},
        "manifest.json of --data": f"SHA-256 {hashlib.sha256(contents).hexdigest()[:16]}",
        "--workdir": values.workdir,
        "--baselines_of": values.baselines_of or "not given",
    }


def _words(name: str, value: Any) -> Iterator[str]:
    """Yields the words of a command line that give a flag its value."""
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no{name}"
    elif isinstance(value, list):
        yield from (f"--{name}={item}" for item in value)
    elif value is not None:
        yield f"--{name}={value}"


def _print_and_leave(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    sys.__excepthook__(kind, error, traceback)
    _flush()
    os._exit(1)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
