"""The worker process of a run of several processes: its command line, and how it ends.

The program runs in it as it does in a run of one process. Its supervisor (`run/supervisor.py`) watches
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
from gshard_nmt.cli.baseline_flags import BASELINE_FLAGS

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config
    from gshard_nmt.spmd.processes import Job, Processes


_WAITING_CODES = {0, 130}
"""Exit codes with which a worker that trains ends together with the others."""


def is_worker(job: "Job") -> bool:
    """Returns whether this process is the worker of a supervisor. Call it once.

    A worker that ends because of an error does not wait for the others: jax would wait for them until
    a timeout, but they wait for this worker in a collective.
    """
    from gshard_nmt.run import supervisor

    if not supervisor.is_watched(job):
        return False
    sys.excepthook = _print_and_leave
    if not job.trains:
        _WAITING_CODES.discard(130)  # an interruption ends it before the others know
        _keep_stdout_clean()
    return True


def _keep_stdout_clean() -> None:
    """Gives stdout another file descriptor, because libraries print their messages to number 1.

    These messages go to stderr.
    """
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)


def leave(code: int) -> NoReturn:
    """Ends this process with an exit code; a worker with an error ends at once."""
    if code not in _WAITING_CODES and sys.excepthook is _print_and_leave:
        _flush()
        os._exit(code)
    sys.exit(code)


def command_line(values: FlagValues, processes: "Processes") -> list[str]:
    """Returns the command line of the worker: the same program with the same flags.

    Flags with their defaults are left out, because some have no effect without others.

    Args:
      values: the flags of the program.
      processes: the processes that the flags or the cluster name.
    """
    numbers = {
        "coordinator": processes.coordinator,
        "num_processes": processes.count,
        "process_id": processes.index,
        "peer_timeout": processes.peer_timeout,
    }
    given = [name for name in values if not values[name].using_default_value]
    flags = {name: values[name].value for name in given} | numbers
    words = [word for name, value in flags.items() for word in _words(name, value)]
    program = processes.job.program.removeprefix("gshard-")
    return [sys.executable, "-m", "gshard_nmt", program, *words]


def identity(values: FlagValues, config: "Config") -> dict[str, str]:
    """Returns the values that all processes of a training run must share, by names for a message.

    They also identify the run: process 0 refuses a process of another run that connects to its port.

    Args:
      values: the flags of gshard-train.
      config: the config that they name.
    """
    from gshard_nmt import paths

    manifest = paths.folder_path("data", values.data) / "manifest.json"
    contents = manifest.read_bytes() if manifest.is_file() else b""
    return {
        "the program": "gshard-train",
        **_settings_and_packages(config),
        "manifest.json of --data": f"SHA-256 {hashlib.sha256(contents).hexdigest()[:16]}",
        "--workdir": values.workdir,
        "--baselines_of": values.baselines_of or "not given",
        "--init_from": f"{values.init_from or 'not given'}, --checkpoint {values.checkpoint}",
        **{f"--{name}": f"{values[name].value or 'not given'}" for name in BASELINE_FLAGS},
    }


_OWN_FLAGS = (
    *("coordinator", "num_processes", "process_id", "peer_timeout"),
    *("input", "output", "prefix", "score", "corpus", "report", "gin"),
)
"""Flags of programs that decode which may differ between processes, or whose values the config has.

Only process 0 reads the input and writes the output.
"""


def decoding_identity(values: FlagValues, config: "Config", job: "Job") -> dict[str, str]:
    """Returns the values that processes that decode together must share, as `identity` does.

    Args:
      values: the flags of the program.
      config: the config of the run, with the changes of the flags.
      job: the program.
    """
    flags = {name: values[name].value for name in values if name not in _OWN_FLAGS}
    given = {
        f"--{name}": "not given" if flags[name] is None else f"{flags[name]}" for name in flags
    }
    return {"the program": job.program, **_settings_and_packages(config), **given}


def _settings_and_packages(config: "Config") -> dict[str, str]:
    """Returns the settings of a config and the versions of the code, by name."""
    from gshard_nmt.settings.config import named_settings
    from gshard_nmt.spmd.runtime import source_fingerprint

    settings = named_settings(config.parts)
    return {
        **{f"{class_name}.{field}": repr(v) for (class_name, field), v in settings.items()},
        "gshard-nmt": f"{gshard_nmt.__version__} (code {source_fingerprint()})",
        **{package: importlib.metadata.version(package) for package in ("jax", "jaxlib")},
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
