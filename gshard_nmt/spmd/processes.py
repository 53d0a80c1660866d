"""The processes of one run: how they are numbered and connected.

Every process runs the same programs on its share of the devices. Process 0 is the coordinator. jax's
coordination service runs in it, and tells the other processes if one of them is lost.
"""

import collections
import contextlib
import dataclasses
import functools
import glob
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from gshard_nmt.errors import TryAgain, UserError


@dataclasses.dataclass(frozen=True)
class Job:
    """The program that several processes run together."""

    program: str = "gshard-train"  # its name, which begins its messages
    # whether it trains. An interrupted training saves, and all processes stop at the same step. Other
    # programs end at once, write their results to stdout, and only read the run folder.
    trains: bool = True

    @property
    def start_again(self) -> str:
        """The sentence that tells the user to start all processes again."""
        resumes = "; the run resumes from its last checkpoint" if self.trains else ""
        return f"Start all processes again with the same commands{resumes}."


TRAINING = Job()


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run, and the number of this process.

    Raises:
      UserError: the numbers contradict each other.
    """

    # host:port of process 0, the same for all processes; "" if there is only one process
    coordinator: str = ""
    count: int = 1  # Number of processes
    index: int = 0  # Number of this process, from 0
    # Seconds without a heartbeat after which jax counts a process as lost, and aborts the others
    peer_timeout: int = 60
    job: Job = TRAINING  # The program that the processes run together

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UserError(
                f"--process_id {self.index} with --num_processes {self.count}; it must be from 0 to "
                f"{self.count - 1}. Give each process a number of its own."
            )
        host, _, port = self.coordinator.rpartition(":")
        if self.count > 1 and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise UserError(
                f"--coordinator {self.coordinator!r} with --num_processes {self.count}; it must be "
                "host:port of process 0, such as 10.0.0.1:9911. The port must be free, and all processes "
                "must be able to reach it."
            )

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def start_seconds(self) -> int:
        """Seconds for which a process waits at its start until all others have connected."""
        return _STARTS * self.peer_timeout

    def local_devices(self, num_devices: int) -> int:
        """Returns the number of devices of a mesh that belong to this process.

        Raises:
          UserError: the number of devices is not a multiple of the number of processes.
        """
        if num_devices % self.count:
            divisors = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
            raise UserError(
                f"--num_processes {self.count} with a mesh of {num_devices} devices; each process must "
                "have the same number of devices. --num_processes must be one of "
                f"{', '.join(map(str, divisors))}."
            )
        return num_devices // self.count

    def join(self) -> None:
        """Connects to the other processes, at most once. Call it before anything else uses jax."""
        if self.count > 1:
            _join(self)

    def barrier(self, name: str) -> None:
        """Waits until all processes have reached the barrier of this name, however long it takes.

        All processes must reach the same barriers in the same order. jax's coordination service does
        this. A collective would not do: on CPU devices the first one fails if a process comes to it
        30 seconds after the others.
        """
        if self.count > 1:
            coordination_client().wait_at_barrier(
                f"{name} {next(_CALLS['barrier'])}", timeout_in_ms=_BARRIER_MILLISECONDS
            )

    def broadcast(self, content: bytes = b"") -> bytes:
        """Returns the bytes of process 0 in every process, however long they take to come.

        All processes must call it in the same order. Signals are handled while a process waits.

        Args:
          content: the bytes, in process 0. The other processes give none.
        """
        if self.count == 1:
            return content
        client = coordination_client()
        key = f"gshard-nmt broadcast {next(_CALLS['broadcast'])}"
        if self.is_first:
            client.key_value_set_bytes(key, content)
        else:
            content = _wait_for(client, key)
        self.barrier("received")
        if self.is_first:
            client.key_value_delete(key)
        return content

    def from_first(self, decide: Callable[[], Any]) -> Any:
        """Calls a function in process 0, and returns its result, a JSON value, in every process."""
        if self.count == 1:
            return decide()
        content = json.dumps(decide()).encode() if self.is_first else b""
        return json.loads(self.broadcast(content))

    def gather(self, value: Any) -> list[Any]:
        """Returns the JSON values of all processes, by their numbers, however long they take to come.

        There are as many as have joined process 0, even if this process expects another number.
        """
        if self.count == 1:
            return [value]
        client = coordination_client()
        folder = f"gshard-nmt gather {next(_CALLS['gather'])}"
        client.key_value_set_bytes(f"{folder}/{self.index}", json.dumps(value).encode())
        self.barrier("told")
        told = {int(key.rpartition("/")[2]): v for key, v in client.key_value_dir_get_bytes(folder)}
        self.barrier("heard")
        if self.is_first:
            client.key_value_delete(folder)
        return [json.loads(told[index]) for index in sorted(told)]

    def should_stop(self) -> bool:
        """Returns whether all processes must stop now, because one of them was told to stop.

        All processes must call it after every step. jax wants a number that rises with each call.
        """
        from jax.experimental import multihost_utils

        return self.count > 1 and multihost_utils.reached_preemption_sync_point(next(_STEPS))

    @contextlib.contextmanager
    def waiting_for_lost_peers(self) -> Iterator[None]:
        """Gives the reason time to become known if a collective fails because a process is lost.

        A process that fails tells the others why, and `run/together.py` ends this process then. Other
        errors leave the block at once.

        Raises:
          TryAgain: a collective failed, and no process has told why.
        """
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if self.count == 1 or not is_loss_of_a_peer(error):
                raise
            time.sleep(_REASON_SECONDS)
            what = str(error).partition("\n")[0][:300].rstrip(".")
            raise TryAgain(
                "another process died or stopped answering, and its own output gives the reason "
                f"({what}). {self.job.start_again}"
            ) from None


_STARTS = 5
"""A process waits this number of time-outs for the others to connect, which may start later."""
_REASON_SECONDS = 6.0
"""Seconds for the reason to arrive after a collective has failed."""
_BARRIER_MILLISECONDS = 24 * 3600 * 1000
"""More than any process needs. If one is lost, the others are ended long before."""
_CALLS: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)
"""Numbers of the barriers, broadcasts and gathers, because jax knows each by its name for ever."""
_WAIT_MILLISECONDS = 1000
"""The longest time without a look at signals while a process waits for a broadcast."""
_STEPS = itertools.count(1)
"""Numbers of the calls of `should_stop`."""

_LOSS = re.compile(
    r"Gloo|NCCL|^(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED)\b|coordination service|heartbeat"
    r"|Connection (closed|reset|refused)|Broken pipe|[Bb]arrier"
)
_OWN_FAULT = re.compile(
    r"RESOURCE_EXHAUSTED|[Oo]ut of memory|INVALID_ARGUMENT|No space left on device"
)


def is_loss_of_a_peer(error: Exception) -> bool:
    """Returns whether the runtime's error says that another process does not answer any more."""
    # Calling a compiled function may turn the runtime's error into a ValueError.
    import jax

    text = str(error)
    is_of_the_runtime = isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in text
    return bool(is_of_the_runtime and _LOSS.search(text) and not _OWN_FAULT.search(text))


ALONE = Processes()
"""A run of one process."""


def coordination_client() -> Any:
    """Returns the client of jax's coordination service, after `Processes.join`."""
    from jax._src import distributed

    return distributed.global_state.client


def _wait_for(client: Any, key: str) -> bytes:
    """Waits until a key of jax's coordination service has a value, and returns the value."""
    import jax

    while True:
        try:
            return bytes(client.blocking_key_value_get_bytes(key, _WAIT_MILLISECONDS))
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("DEADLINE_EXCEEDED"):
                raise


@functools.cache
def _join(processes: Processes) -> None:
    import jax

    jax.config.update("jax_enable_preemption_service", processes.job.trains)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    host = processes.coordinator.rpartition(":")[0].strip("[]")
    # The service listens on all addresses by default. A run on one machine needs only the loopback.
    is_loopback = host in ("localhost", "127.0.0.1", "::1")
    bind = processes.coordinator if is_loopback else None
    jax.distributed.initialize(
        processes.coordinator,
        processes.count,
        processes.index,
        initialization_timeout=processes.start_seconds,
        heartbeat_timeout_seconds=processes.peer_timeout,
        shutdown_timeout_seconds=processes.peer_timeout,
        coordinator_bind_address=bind,
    )


_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
_HOST_LISTS = ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")
_TPU_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")


def detect(peer_timeout: int) -> Processes:
    """Returns the processes that the cluster names, or one process if there is no cluster.

    Slurm, Open MPI and GKE set environment variables. A TPU VM asks the metadata server of Compute
    Engine for the hosts of its slice. jax knows how each of them numbers its processes. We ask jax only
    if the machine seems to belong to a cluster, because jax would ask a metadata server over the network.

    Raises:
      UserError: there is a cluster, but its coordinator cannot be detected.
    """
    alone = Processes(peer_timeout=peer_timeout)
    counts = [os.environ.get(name, "1") for name in _TASK_COUNTS]
    has_tasks = any(count.isdigit() and int(count) > 1 for count in counts)
    has_hosts = any("," in os.environ.get(name, "") for name in _HOST_LISTS)
    # JAX_FORCE_TPU_INIT is jax's own variable.
    has_tpu = "JAX_FORCE_TPU_INIT" in os.environ or any(map(glob.glob, _TPU_DEVICES))
    if not (has_tasks or has_hosts or has_tpu):
        return alone
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
    if coordinator and count and count > 1 and index is not None:
        host, _, port = coordinator.rpartition(":")
        if ":" in host and not host.startswith("["):  # an IPv6 address
            coordinator = f"[{host}]:{port}"
        return Processes(coordinator, count, index, peer_timeout)
    # Without a coordinator, each of several tasks of Open MPI would train a run of its own.
    tasks = os.environ.get("OMPI_COMM_WORLD_SIZE", "1")
    if count != 1 and tasks.isdigit() and int(tasks) > 1:
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", "I")
        raise UserError(
            f"Open MPI has started {tasks} processes, but does not say where process 0 is. Give "
            f"--coordinator HOST:PORT --num_processes {tasks} --process_id {rank}; in each process, "
            "OMPI_COMM_WORLD_RANK is its number."
        )
    return alone
