"""The numbers of a run's processes, and what the environment says about them."""

import numpy as np
import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.processes import ALONE, Processes, detect


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("h:1", 2, 2), "--process_id 2 with --num_processes 2; it must be from 0 to 1. "),
        (("", 2, 0), "--coordinator '' with --num_processes 2; it must be host:port"),
        (("h:99999", 2, 0), "--coordinator 'h:99999'"),
        (("h:1", 2, 0, 0), "--peer_timeout 0 must be 1 second or more"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(arguments, message):
    with pytest.raises(UserError) as raised:
        Processes(*arguments)
    assert str(raised.value).startswith(message)


def test_processes_must_divide_the_devices():
    assert Processes("h:1", 4).local_devices(8) == 2
    with pytest.raises(UserError, match="must be one of 1, 2, 4, 8"):
        Processes("h:1", 3).local_devices(8)


def test_slurm_gives_the_number_of_each_process(monkeypatch):
    for name, value in {
        "SLURM_JOB_ID": "4711",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "node[07-10]",
        "SLURM_JOB_NUM_NODES": "4",
    }.items():
        monkeypatch.setenv(name, value)
    processes = detect(30)
    assert (processes.count, processes.index, processes.peer_timeout) == (4, 2, 30)
    assert processes.address[0] == "node07"


def test_a_lone_machine_is_one_process(monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    assert detect(30).count == 1


def test_one_process_gathers_its_own_values():
    array = np.arange(6).reshape(2, 3) + 2**40
    np.testing.assert_array_equal(ALONE.gather(array), array[np.newaxis])
    assert ALONE.is_first
    assert not ALONE.should_stop(7)


def test_an_error_of_one_process_is_not_taken_for_a_lost_peer():
    with pytest.raises(ValueError, match="unrelated"), ALONE.waiting_for_lost_peers():
        raise ValueError("unrelated")


def test_the_others_and_the_coordinators_address():
    processes = Processes("[fe80::1]:9911", 4, 2)
    assert processes.others() == [0, 1, 3]
    assert processes.address == ("fe80::1", 9911)
