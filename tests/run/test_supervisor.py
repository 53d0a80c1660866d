import socket
import subprocess
import sys
import threading
import time

import pytest

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run.supervisor import lost_peers, rendezvous, supervise
from gshard_nmt.spmd.processes import Processes


@pytest.fixture
def coordinator() -> str:
    """Returns the address of a free port of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def meet(processes: list[Processes]) -> list[BaseException | None]:
    """Runs the rendezvous of all processes at once, and returns the error of each."""
    errors: list[BaseException | None] = [None] * len(processes)

    def target(place: int) -> None:
        try:
            rendezvous(processes[place])
        except (TryAgain, UserError) as error:
            errors[place] = error

    threads = [threading.Thread(target=target, args=(place,)) for place in range(len(processes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return errors


def test_a_rendezvous_of_all_processes_succeeds(coordinator):
    assert meet([Processes(coordinator, 3, index, 10) for index in range(3)]) == [None] * 3


def test_the_port_is_free_after_the_rendezvous(coordinator):
    for _ in range(2):
        assert meet([Processes(coordinator, 2, index, 10) for index in range(2)]) == [None, None]
    with socket.create_server(Processes(coordinator, 2, 0).address):
        pass


def test_every_connected_process_names_the_missing_ones(coordinator):
    errors = meet([Processes(coordinator, 4, index, 1) for index in (0, 2)])
    assert [str(error) for error in errors] == [
        f"processes 1, 3 of 4 did not connect to {coordinator} within 1 s (--peer_timeout). Start all "
        "processes again, each with the same command and its own --process_id."
    ] * 2
    assert {type(error) for error in errors} == {TryAgain}


def test_without_a_coordinator_the_others_name_process_0(coordinator):
    (error,) = meet([Processes(coordinator, 2, 1, 1)])
    assert isinstance(error, TryAgain)
    assert str(error).startswith(f"process 0 of 2 did not connect to {coordinator} within 1 s")


def test_two_processes_with_the_same_number_are_an_error(coordinator):
    errors = meet([Processes(coordinator, 3, index, 1) for index in (0, 1, 1)])
    refused = [error for error in errors if isinstance(error, UserError)]
    assert [str(error) for error in refused] == [
        "another process has --process_id 1. Give each process its own --process_id, and all of them the "
        "same --num_processes."
    ]


def test_different_counts_are_an_error(coordinator):
    errors = meet([Processes(coordinator, 2, 0, 1), Processes(coordinator, 3, 1, 1)])
    assert str(errors[1]).startswith("--num_processes is 3 here and 2 in process 0. ")


def test_another_client_at_the_port_is_not_counted(coordinator):
    zero, one = (Processes(coordinator, 2, index, 10) for index in range(2))
    listening = threading.Thread(target=rendezvous, args=[zero])
    listening.start()
    deadline = time.monotonic() + 10
    while True:
        try:
            with socket.create_connection(zero.address, 2) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            break
        except ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert listening.is_alive()
    rendezvous(one)
    listening.join(10)
    assert not listening.is_alive()


def test_a_port_in_use_is_an_error(coordinator):
    processes = Processes(coordinator, 2, 0, 1)
    with (
        socket.create_server(processes.address),
        pytest.raises(UserError, match=r"cannot listen there \(.*in use\)"),
    ):
        rendezvous(processes)


UNHEALTHY = (
    "F1121 client.h:80] Terminating process ... UNAVAILABLE: The following tasks are unhealthy "
    "(stopped sending heartbeats):\n1\n3\nThe tasks have crashed. Check the task logs\n"
)


@pytest.mark.parametrize(
    ("messages", "index", "lost"),
    [
        (UNHEALTHY, 0, [1, 3]),
        ("Status: UNAVAILABLE: Failed to send RPC to coordination service. Either", 2, [0]),
        ("RPC: /xla.coordination.CoordinationService/RegisterTask", 1, [0]),
        ("RPC: /xla.coordination.CoordinationService/RegisterTask", 0, [1, 2, 3]),
        ("Segmentation fault", 1, []),
    ],
)
def test_the_runtimes_last_messages_name_the_lost_processes(messages, index, lost):
    assert lost_peers(messages, Processes("h:1", 4, index)) == lost


def test_exit_code_and_output_of_the_child_are_passed_on(coordinator, capfd):
    other = threading.Thread(target=rendezvous, args=[Processes(coordinator, 2, 1, 10)])
    other.start()
    code = "import sys; print('step 1', file=sys.stderr); print('[Gloo] Rank 0 is'); sys.exit(2)"
    assert supervise(Processes(coordinator, 2, 0, 10), [sys.executable, "-c", code]) == 2
    other.join()
    assert capfd.readouterr() == ("", "step 1\n")


def test_a_child_ends_when_its_supervisor_is_killed(coordinator):
    """The child prints its process ID, then sleeps."""
    watched = (
        "import os, sys, time; from gshard_nmt.run import supervisor; assert supervisor.is_watched(); "
        "print(os.getpid(), file=sys.stderr, flush=True); time.sleep(60)"
    )
    supervising = (
        "import sys, threading; from gshard_nmt.run.supervisor import rendezvous, supervise; "
        "from gshard_nmt.spmd.processes import Processes; "
        f"of = lambda i: Processes({coordinator!r}, 2, i, 10); "
        "threading.Thread(target=rendezvous, args=[of(1)]).start(); "
        f"supervise(of(0), [sys.executable, '-c', {watched!r}])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", supervising], stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stderr is not None
        assert int(parent.stderr.readline()) != parent.pid
        parent.kill()
        # The pipe ends only when the last process that can write to it has ended.
        assert parent.stderr.read() == ""
