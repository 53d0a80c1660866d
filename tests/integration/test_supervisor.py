"""Workers that jax connects: one of them hangs or fails, and all end, without a training run."""

import os
import signal
import time

import pytest

from tests.run.supervised import coordinator, ends, supervised

__all__ = ["coordinator", "supervised"]

TIMEOUT = 4
WORKER = """
os.environ["JAX_PLATFORMS"] = "cpu"
import numpy as np
from gshard_nmt.run import supervisor
assert supervisor.is_watched()
from gshard_nmt.spmd.processes import Processes
processes = Processes({coordinator!r}, 2, {index}, {timeout})
processes.join()
import jax
jax.devices()
time.sleep({late})
processes.barrier("all are there")
print(os.getpid(), flush=True)
with processes.waiting_for_lost_peers():
    {then}
"""


def worker(coordinator: str, index: int, then: str, late: float = 0) -> str:
    """Returns the program of a worker that connects, prints its process ID, and then does more.

    It comes to the first barrier `late` seconds after it has connected.
    """
    return WORKER.format(
        coordinator=coordinator, index=index, then=then, timeout=TIMEOUT, late=late
    )


@pytest.mark.slow
@pytest.mark.parametrize("index", [1, 0])
def test_a_worker_that_hangs_is_named_and_all_end_in_time(supervised, index):
    """Process 0 runs jax's coordination service, so the others notice that it hangs in another way."""
    workers = [worker(supervised.coordinator, i, "time.sleep(60)") for i in range(2)]
    processes = supervised.start(*workers)
    pids = [int(process.stderr.readline()) for process in processes]
    os.kill(pids[index], signal.SIGSTOP)
    began = time.monotonic()
    ended = ends(processes)
    assert [code for code, _ in ended] == [75, 75], ended
    name = f"gshard-train: process {index} of 2 died or stopped answering; "
    assert all(text.splitlines()[-1].startswith(name) for _, text in ended), ended
    # On an idle machine it takes the timeout and the grace of the supervisors.
    assert time.monotonic() - began < 3 * TIMEOUT


def test_an_error_of_one_worker_ends_all_long_before_the_timeout(supervised):
    """The other worker waits for it in a collective."""
    failing = worker(
        supervised.coordinator,
        1,
        "print('gshard-train: shard 3 is damaged.', flush=True); os._exit(2)",
    )
    waiting = worker(supervised.coordinator, 0, "processes.barrier('never')")
    processes = supervised.start(waiting, failing)
    began = time.monotonic()
    (zero, printed), (one, _) = ends(processes)
    assert (zero, one) == (2, 2)
    message = "gshard-train: process 1 of 2 ended with exit code 2: shard 3 is damaged."
    assert printed.splitlines()[-1] == message
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_process_may_be_slower_than_the_others_by_more_than_gloo_waits(supervised):
    """One host compiles 32 seconds longer. Gloo gives up after 30 seconds of the first collective."""
    workers = [
        worker(
            supervised.coordinator,
            index,
            "print(sum(processes.gather(2)))",
            late=32 * index,
        )
        for index in range(2)
    ]
    processes = supervised.start(*workers)
    for process in processes:
        process.stderr.readline()
    assert ends(processes, timeout=90) == [(0, "4\n")] * 2
