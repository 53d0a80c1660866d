"""The numbers of devices that a mesh may have, in the order in which they are tried."""

import pytest

from gshard_nmt.spmd import machine
from gshard_nmt.spmd.processes import Processes

TWO = Processes("h:1", 2, 0)


@pytest.fixture
def cores(monkeypatch):
    """Sets the number of cores of a machine on which jax has not started."""

    def set_cores(count: int) -> None:
        monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(count)))

    monkeypatch.setattr(machine, "_has_started", lambda: False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return set_cores


@pytest.mark.parametrize(
    ("number", "wanted", "processes", "counts"),
    [
        (2, 2, Processes(), [2, 1, 3, 4, 5, 6, 7, 8]),
        (2, 8, Processes(), [8, 2, 1]),  # a small mesh may have more devices than cores
        (2, 9, Processes(), [2, 1]),
        (16, 64, Processes(), list(range(16, 0, -1))),
        (2, 1, TWO, [2, 4, 6, 8, 10, 12, 14, 16]),
        (1, 64, TWO, [2]),
    ],
)
def test_a_cpu_host_has_as_many_devices_as_cores(cores, number, wanted, processes, counts):
    cores(number)
    assert machine.device_counts(wanted, processes)[0] == counts


def test_devices_that_have_started_are_counted():
    """The tests have eight of them."""
    import jax

    assert len(jax.devices()) == 8
    counts, words = machine.device_counts(64, Processes())
    assert counts == [8, 7, 6, 5, 4, 3, 2, 1]
    assert words == "this machine has 8 CPU devices"
    joined = Processes("h:1", 2, 0)
    object.__setattr__(joined, "join", lambda: None)
    assert machine.device_counts(64, joined)[0] == [8]
