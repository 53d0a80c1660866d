"""The flags of a program that may run in several processes, and how such a program joins the others."""

import hashlib
import importlib.metadata
import os
import sys
from typing import TYPE_CHECKING

from absl.flags import FlagValues

import gshard_nmt
from gshard_nmt import paths
from gshard_nmt.cli.flags import Flags

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config
    from gshard_nmt.spmd.processes import Processes

PROCESS_NEEDS = dict.fromkeys(("coordinator", "process_id"), "num_processes")
"""The flags of processes that have no effect without another one."""
_OWN_FLAGS = (
    *("coordinator", "num_processes", "process_id", "peer_timeout", "config", "gin", "data"),
    *("input", "output", "prefix", "score", "corpus", "report", "profile", "max_minutes"),
)
"""Flags that may differ between processes, or whose meaning is compared otherwise.

Only process 0 reads the input of a program that decodes, and writes its output.
"""


def define_processes(flags: Flags) -> None:
    # fmt: off
    flags.text("coordinator", "HOST:PORT",
        "address of process 0, if there are several processes. Under Slurm and Open MPI and on TPU "
        "slices, this flag and the next two are detected", default="")
    flags.integer("num_processes", "N",
        "number of processes; if it is given, no cluster is asked", 1, minimum=1)
    flags.integer("process_id", "I", "number of this process, from 0", 0, minimum=0)
    flags.integer("peer_timeout", "SECONDS",
        "seconds without a sign of life after which another process counts as lost", 60, minimum=1,
        maximum=1_000_000)


def join(values: FlagValues, program: str, trains: bool = False) -> "Processes":
    """Returns the processes that the flags name, or else those of the cluster, and joins them."""
    import dataclasses

    from gshard_nmt.spmd.processes import Job, Processes, detect

    numbers = values.coordinator, values.num_processes, values.process_id
    is_given = values.coordinator or not values["num_processes"].using_default_value
    timeout = values.peer_timeout
    processes = Processes(*numbers, timeout) if is_given else detect(timeout)
    processes = dataclasses.replace(processes, job=Job(program, trains))
    if processes.count > 1:
        from gshard_nmt.run import together

        _keep_stdout_clean()
        together.join(processes)
    return processes


def compare(values: FlagValues, config: "Config", processes: "Processes") -> None:
    """Raises UserError in all processes if two differ in settings, flags, data or packages."""
    if processes.count > 1:
        from gshard_nmt.run import together

        together.compare(processes, facts(values, config))


def facts(values: FlagValues, config: "Config") -> dict[str, str]:
    """Returns what all processes of a program must have in common, by names for a message."""
    from gshard_nmt.settings.config import named_settings
    from gshard_nmt.spmd.runtime import source_fingerprint

    settings = named_settings(config.parts)
    result = {
        **{f"{class_name}.{field}": repr(v) for (class_name, field), v in settings.items()},
        "gshard-nmt": f"{gshard_nmt.__version__} (code {source_fingerprint()})",
        **{package: importlib.metadata.version(package) for package in ("jax", "jaxlib")},
    }
    for name in values:
        if name not in _OWN_FLAGS:
            result[f"--{name}"] = (
                "not given" if values[name].value is None else f"{values[name].value}"
            )
    if "data" in values:
        manifest = paths.folder_path("data", values.data) / "manifest.json"
        contents = manifest.read_bytes() if manifest.is_file() else b""
        digest = hashlib.sha256(contents).hexdigest()
        result["manifest.json of --data"] = f"SHA-256 {digest[:16]}"
    return result


def _keep_stdout_clean() -> None:
    """Gives stdout another file descriptor, because libraries print their messages to number 1.

    These messages go to stderr.
    """
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)
