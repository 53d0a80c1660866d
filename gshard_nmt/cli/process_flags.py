"""The flags of a program that may run in several processes, and the start of its worker."""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt.cli import worker
from gshard_nmt.cli.flags import Flags

if TYPE_CHECKING:
    from pathlib import Path

    from gshard_nmt.settings.config import Config
    from gshard_nmt.spmd.processes import Job, Processes


PROCESS_NEEDS = dict.fromkeys(("coordinator", "process_id"), "num_processes")
"""The flags of processes that have no effect without another one."""


def define_processes(flags: Flags) -> None:
    """Defines --coordinator, --num_processes, --process_id and --peer_timeout."""
    flags.text(
        "coordinator",
        "HOST:PORT",
        "address of process 0, if there are several processes. Under Slurm and Open MPI and on TPU "
        "slices, this flag and the next two are detected",
        default="",
    )
    flags.integer("num_processes", "N", "number of processes", 1, minimum=1)
    flags.integer("process_id", "I", "number of this process, from 0", 0, minimum=0)
    flags.integer(
        "peer_timeout",
        "SECONDS",
        "seconds to wait for another process to connect or to answer before it counts as lost",
        60,
        minimum=1,
    )


def define_decoding_settings(flags: Flags) -> None:
    """Defines --gin for the settings of decoding."""
    flags.texts(
        "gin",
        "'NAME = VALUE'",
        "a setting of Mesh or Decode that replaces the run's, such as 'Mesh.shape = (8,)' for 8 devices; "
        "may be given several times",
    )


def define_decoding_processes(flags: Flags) -> None:
    """Defines the flags of `define_processes`, and --gin for the settings of decoding."""
    define_decoding_settings(flags)
    define_processes(flags)


def read_processes(values: FlagValues, job: "Job") -> "Processes":
    """Returns the processes that the flags name, or else the processes that the cluster names.

    Args:
      values: the flags.
      job: the program that the processes run.
    """
    import dataclasses

    from gshard_nmt.spmd.cluster import detect
    from gshard_nmt.spmd.processes import Processes

    if not values.coordinator and values.num_processes == 1:
        return dataclasses.replace(detect(values.peer_timeout), job=job)
    return Processes(
        values.coordinator, values.num_processes, values.process_id, values.peer_timeout, job
    )


def become_worker(
    values: FlagValues, processes: "Processes", workdir: "Path", identity: Mapping[str, str]
) -> None:
    """Returns if this process is the only one, or the worker of a supervisor.

    Otherwise this process is a supervisor: it starts a worker, and ends with its exit code.

    Args:
      values: the flags. The worker gets the same ones.
      processes: the processes.
      workdir: the run folder.
      identity: what all processes must have in common.
    """
    if processes.count > 1 and not worker.is_worker(processes.job):
        from gshard_nmt.run import supervisor

        command = worker.command_line(values, processes)
        sys.exit(supervisor.supervise(processes, command, workdir, identity))


def join_to_decode(
    values: FlagValues, program: str, workdir: "Path", config: Callable[[], "Config"]
) -> "Processes":
    """Returns the processes of a program that decodes, in the worker of this process, and joins them.

    Args:
      values: the flags.
      program: the name of the program, such as "gshard-decode".
      workdir: the run folder.
      config: returns the config of the run, with the changes of the flags. It is called only if there
        are several processes.
    """
    from gshard_nmt.spmd.processes import Job

    job = Job(program, trains=False)
    processes = read_processes(values, job)
    identity = worker.decoding_identity(values, config(), job) if processes.count > 1 else {}
    become_worker(values, processes, workdir, identity)
    if processes.count > 1:
        from gshard_nmt.run.identity import check_same_settings
        from gshard_nmt.spmd import runtime

        runtime.choose_platform()
        processes.join()
        check_same_settings(config(), processes)
    return processes
