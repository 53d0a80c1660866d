"""Detects the processes of a run from the cluster: Slurm, Open MPI, TPU slices on GKE and on TPU VMs.

jax knows how each of them numbers its processes. We ask jax only if the machine seems to belong to a
cluster, because jax would ask a metadata server over the network.
"""

import glob
import os

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.processes import Processes

_COUNTS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
_HOST_LISTS = ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")
_TPU_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")


def detect(peer_timeout: int) -> Processes:
    """Returns the processes that the cluster names, or one process if there is no cluster.

    Slurm, Open MPI and GKE set environment variables. A TPU VM asks the metadata server of Compute
    Engine for the hosts of its slice.

    Args:
      peer_timeout: seconds after which a process counts as lost.

    Raises:
      UserError: there is a cluster, but its coordinator cannot be detected.
    """
    if not (_has_several_tasks() or _lists_several_hosts() or _has_tpu()):
        return Processes(peer_timeout=peer_timeout)
    from jax._src.clusters import ClusterEnv

    try:
        coordinator, count, index, _ = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, peer_timeout
        )
    except (OSError, RuntimeError, ValueError, LookupError, ImportError) as error:
        raise UserError(
            f"the processes of this cluster cannot be detected ({type(error).__name__}: {error}). Give "
            "--coordinator, --num_processes and --process_id."
        ) from None
    if not coordinator or not count or index is None:
        _check_open_mpi()
        return Processes(peer_timeout=peer_timeout)
    if count == 1:
        return Processes(peer_timeout=peer_timeout)
    return Processes(_with_brackets(coordinator), count, index, peer_timeout)


def _has_several_tasks() -> bool:
    counts = [os.environ.get(name, "1") for name in _COUNTS]
    return any(count.isdigit() and int(count) > 1 for count in counts)


def _lists_several_hosts() -> bool:
    return any("," in os.environ.get(name, "") for name in _HOST_LISTS)


def _has_tpu() -> bool:
    """Returns whether this machine may be a TPU VM. JAX_FORCE_TPU_INIT is jax's own variable."""
    devices = any(glob.glob(pattern) for pattern in _TPU_DEVICES)
    return devices or "JAX_FORCE_TPU_INIT" in os.environ


def _with_brackets(coordinator: str) -> str:
    """Puts the host of host:port into brackets if it is an IPv6 address."""
    host, _, port = coordinator.rpartition(":")
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else coordinator


def _check_open_mpi() -> None:
    """Refuses several tasks of Open MPI without a coordinator: each would train a run of its own.

    Raises:
      UserError: Open MPI has started several processes, but does not name a coordinator.
    """
    count = os.environ.get("OMPI_COMM_WORLD_SIZE", "1")
    if count.isdigit() and int(count) > 1:
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", "I")
        raise UserError(
            f"Open MPI has started {count} processes, but does not say where process 0 is. Give "
            f"--coordinator HOST:PORT --num_processes {count} --process_id {rank}; in each process, "
            "OMPI_COMM_WORLD_RANK is its number."
        )
