import socket
import subprocess
import sys
import threading
import time

import pytest

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run.supervisor import lost_peers, roll_call, supervise
from gshard_nmt.spmd.processes import Processes


@pytest.fixture
def coordinator() -> str:
    """A free port of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def called(everyone: list[Processes]) -> list[BaseException | None]:
    """What the roll call of each process ends with."""
    ended: list[BaseException | None] = [None] * len(everyone)

    def call(place: int) -> None:
        try:
            roll_call(everyone[place])
        except (TryAgain, UserError) as error:
            ended[place] = error

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(everyone))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return ended


def test_a_roll_call_of_all_lets_all_go(coordinator):
    assert called([Processes(coordinator, 3, index, 10) for index in range(3)]) == [None] * 3


def test_the_port_is_free_after_the_roll_call(coordinator):
    for _ in range(2):
        assert called([Processes(coordinator, 2, index, 10) for index in range(2)]) == [None, None]
    with socket.create_server(Processes(coordinator, 2, 0).address):
        pass


def test_all_who_came_hear_who_did_not(coordinator):
    ended = called([Processes(coordinator, 4, index, 1) for index in (0, 2)])
    assert [str(error) for error in ended] == [
        f"processes 1, 3 of 4 did not come to {coordinator} within 1 s (--peer_timeout). Start all "
        "processes again, each with the same command and its own --process_id."
    ] * 2
    assert {type(error) for error in ended} == {TryAgain}


def test_without_a_coordinator_the_others_miss_process_0(coordinator):
    (error,) = called([Processes(coordinator, 2, 1, 1)])
    assert isinstance(error, TryAgain)
    assert str(error).startswith(f"process 0 of 2 did not come to {coordinator} within 1 s")


def test_two_processes_with_one_number_are_a_mistake(coordinator):
    ended = called([Processes(coordinator, 3, index, 1) for index in (0, 1, 1)])
    refused = [error for error in ended if isinstance(error, UserError)]
    assert [str(error) for error in refused] == [
        "another process has --process_id 1; give each process its own number, and all the same count."
    ]


def test_a_different_count_is_a_mistake(coordinator):
    ended = called([Processes(coordinator, 2, 0, 1), Processes(coordinator, 3, 1, 1)])
    assert str(ended[1]).startswith("--num_processes is 3 here and 2 in process 0; ")


def test_a_stranger_at_the_port_is_not_counted(coordinator):
    zero, one = (Processes(coordinator, 2, index, 10) for index in range(2))
    listening = threading.Thread(target=roll_call, args=[zero])
    listening.start()
    by = time.monotonic() + 10
    while True:
        try:
            with socket.create_connection(zero.address, 2) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            break
        except ConnectionError:
            assert time.monotonic() < by
            time.sleep(0.01)
    assert listening.is_alive()
    roll_call(one)
    listening.join(10)
    assert not listening.is_alive()


def test_a_taken_port_is_said(coordinator):
    processes = Processes(coordinator, 2, 0, 1)
    with (
        socket.create_server(processes.address),
        pytest.raises(UserError, match=r"cannot listen there \(.*in use\)"),
    ):
        roll_call(processes)


UNHEALTHY = (
    "F1121 client.h:80] Terminating process ... UNAVAILABLE: The following tasks are unhealthy "
    "(stopped sending heartbeats):\n1\n3\nThe tasks have crashed. Check the task logs\n"
)


@pytest.mark.parametrize(
    ("said", "index", "lost"),
    [
        (UNHEALTHY, 0, [1, 3]),
        ("Status: UNAVAILABLE: Failed to send RPC to coordination service. Either", 2, [0]),
        ("RPC: /xla.coordination.CoordinationService/RegisterTask", 1, [0]),
        ("RPC: /xla.coordination.CoordinationService/RegisterTask", 0, [1, 2, 3]),
        ("Segmentation fault", 1, []),
    ],
)
def test_the_runtimes_last_words_name_the_lost(said, index, lost):
    assert lost_peers(said, Processes("h:1", 4, index)) == lost


def test_the_exit_code_and_the_words_of_the_watched_process_are_passed_on(coordinator, capfd):
    other = threading.Thread(target=roll_call, args=[Processes(coordinator, 2, 1, 10)])
    other.start()
    code = "import sys; print('step 1', file=sys.stderr); print('[Gloo] Rank 0 is'); sys.exit(2)"
    assert supervise(Processes(coordinator, 2, 0, 10), [sys.executable, "-c", code]) == 2
    other.join()
    assert capfd.readouterr() == ("", "step 1\n")


def test_a_watched_process_ends_when_its_supervisor_is_killed(coordinator):
    """The watched process prints its number, then sleeps; nobody but its supervisor knows it."""
    watched = (
        "import os, sys, time; from gshard_nmt.run import supervisor; assert supervisor.is_watched(); "
        "print(os.getpid(), file=sys.stderr, flush=True); time.sleep(60)"
    )
    supervising = (
        "import sys, threading; from gshard_nmt.run.supervisor import roll_call, supervise; "
        "from gshard_nmt.spmd.processes import Processes; "
        f"meet = lambda i: Processes({coordinator!r}, 2, i, 10); "
        "threading.Thread(target=roll_call, args=[meet(1)]).start(); "
        f"supervise(meet(0), [sys.executable, '-c', {watched!r}])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", supervising], stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stderr is not None
        assert int(parent.stderr.readline()) != parent.pid
        parent.kill()
        # The pipe ends only when the last process that may write to it has ended.
        assert parent.stderr.read() == ""
