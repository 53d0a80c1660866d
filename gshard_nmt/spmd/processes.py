"""The processes of one run: who they are, how they meet, and what they must agree on.

Every process runs the same programs on its share of the devices. Process 0 is the coordinator: jax's
coordination service runs in it and tells the others when one of them is lost.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import time
from collections.abc import Iterator, Mapping

import numpy as np

from gshard_nmt.errors import TryAgain, UserError


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process among those of the run.

    Attributes:
      coordinator: host:port of process 0, the same for all; "" where the process is alone.
      count: number of processes.
      index: number of this one, from 0.
      peer_timeout: seconds after which a process that does not come, or does not answer, is lost.

    Raises:
      UserError: the numbers do not fit each other.
    """

    coordinator: str = ""
    count: int = 1
    index: int = 0
    peer_timeout: int = 60

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UserError(
                f"--process_id {self.index} with --num_processes {self.count}; it must be from 0 to "
                f"{self.count - 1}, another one for each process."
            )
        host, _, port = self.coordinator.rpartition(":")
        if self.count > 1 and not (host and port.isdigit() and 0 < int(port) < 65536):
            raise UserError(
                f"--coordinator {self.coordinator!r} with --num_processes {self.count}; it must be "
                "host:port of process 0, a free port that all can reach, such as 10.0.0.1:9911."
            )
        if self.peer_timeout < 1:
            raise UserError(f"--peer_timeout {self.peer_timeout} must be 1 second or more.")

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files of the run folder that one process writes."""
        return self.index == 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the coordinator."""
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)

    def others(self) -> list[int]:
        """The numbers of the other processes."""
        return [index for index in range(self.count) if index != self.index]

    def local_devices(self, num_devices: int) -> int:
        """Devices of a mesh that are this process's.

        Raises:
          UserError: the processes do not divide the devices.
        """
        if num_devices % self.count:
            legal = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
            raise UserError(
                f"--num_processes {self.count} with a mesh of {num_devices} devices; each process "
                f"takes as many devices, so it must be one of {', '.join(map(str, legal))}."
            )
        return num_devices // self.count

    def join(self) -> None:
        """Meets the others, once in the life of a process; before anything else uses jax."""
        if self.count > 1:
            _join(self)

    def barrier(self, name: str) -> None:
        """Waits until all processes are at the barrier of this name."""
        if self.count > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices(name)

    def sum(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The sums over all processes of counts below 2**62 that all name alike."""
        names = sorted(counts)
        rows = self.gather(np.array([counts[name] for name in names], np.int64))
        return dict(zip(names, rows.sum(0).tolist(), strict=True))

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The arrays int64[...] of all processes, one a row of the result."""
        if self.count == 1:
            return array[None]
        from jax.experimental import multihost_utils

        # jax has no int64 by default; two words of 32 bits carry it.
        words = np.ascontiguousarray(array, np.int64).view(np.int32)
        found = np.ascontiguousarray(multihost_utils.process_allgather(words))
        return found.view(np.int64).reshape(self.count, *array.shape)

    def should_stop(self, step: int) -> bool:
        """Whether some process was told to stop and this is the step at which all do.

        To be asked after every step, by all processes.
        """
        from jax.experimental import multihost_utils

        return self.count > 1 and multihost_utils.reached_preemption_sync_point(step)

    @contextlib.contextmanager
    def lost_peers_end_it(self) -> Iterator[None]:
        """A collective that fails inside the block leaves time to learn which process was lost."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if self.count == 1 or not _is_of_the_runtime(error):
                raise
            # The coordination service aborts this process as soon as it knows who is gone.
            time.sleep(2 * self.peer_timeout)
            raise TryAgain(
                f"a collective failed: {error}. Start all processes again with the same commands."
            ) from None


def _is_of_the_runtime(error: Exception) -> bool:
    # A call of a compiled function may turn the runtime's error into a ValueError.
    import jax

    return isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)


ALONE = Processes()
"""A run of one process."""


@functools.cache
def _join(processes: Processes) -> None:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    host, port = processes.address
    # The service listens on all addresses by default; a run on one machine needs but the loopback.
    bind = f"{host}:{port}" if host in ("localhost", "127.0.0.1") else None
    jax.distributed.initialize(
        processes.coordinator,
        processes.count,
        processes.index,
        initialization_timeout=processes.peer_timeout,
        heartbeat_timeout_seconds=processes.peer_timeout,
        coordinator_bind_address=bind,
    )
    # The coordination service has the handler of SIGTERM from here on.
    signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def detect(peer_timeout: int) -> Processes:
    """The processes that the cluster's environment names: Slurm, Open MPI, a TPU pod slice, or none."""
    counts = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    several = any(
        os.environ.get(name, "1").isdigit() and int(os.environ.get(name, "1")) > 1
        for name in counts
    )
    pod = "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
    if not several and not pod:
        return Processes(peer_timeout=peer_timeout)
    from jax._src.clusters import ClusterEnv

    coordinator, count, index, _ = ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, peer_timeout
    )
    if not coordinator or not count or index is None:
        return Processes(peer_timeout=peer_timeout)
    return Processes(coordinator, count, index, peer_timeout)
