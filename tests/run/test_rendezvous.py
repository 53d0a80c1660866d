"""All processes of a run meet at process 0, whatever else connects to its port."""

import contextlib
import socket
import threading
import time

import pytest

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run import rendezvous as module
from gshard_nmt.run.peers import News
from gshard_nmt.run.rendezvous import listening_address, rendezvous
from gshard_nmt.spmd.processes import Processes
from tests.run.supervised import coordinator, meet

__all__ = ["coordinator"]
SAME = {"Train.steps": "5", "--workdir": "runs/a"}


def test_a_rendezvous_of_all_processes_succeeds(coordinator):
    assert meet([Processes(coordinator, 3, index, 10) for index in range(3)]) == [None] * 3


def test_the_processes_of_a_run_have_a_name_for_its_start_in_common(coordinator):
    names = []

    def join(index: int) -> None:
        with rendezvous(Processes(coordinator, 2, index, 10), SAME) as peers:
            names.append(peers.attempt)

    threads = [threading.Thread(target=join, args=[index]) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(names) == 2
    assert len(set(names)) == 1


def test_the_port_is_free_after_the_rendezvous_while_the_connections_stay(coordinator):
    processes = [Processes(coordinator, 2, index, 10) for index in range(2)]
    heard, both = [], []

    def join() -> None:
        both.append(rendezvous(processes[1], {}))

    thread = threading.Thread(target=join)
    thread.start()
    with rendezvous(processes[0], {}) as zero:
        thread.join(10)
        with socket.create_server(processes[0].address), both[0] as one:
            arrived = threading.Event()
            zero.listen(lambda news: (heard.append(news), arrived.set()))
            one.tell(News(1, "ended", 2, "a shard is damaged"))
            assert arrived.wait(10)
    assert heard[0] == News(1, "ended", 2, "a shard is damaged")


def test_every_connected_process_names_the_missing_ones(coordinator):
    errors = meet([Processes(coordinator, 4, index, 1) for index in (0, 2)])
    assert [str(error) for error in errors] == [
        f"processes 1, 3 of 4 did not connect to {coordinator} within 1 s (--peer_timeout). Start all "
        "processes again, each with the same command and its own --process_id."
    ] * 2
    assert {type(error) for error in errors} == {TryAgain}


def test_missing_processes_are_named_while_the_others_wait(coordinator, capfd, monkeypatch):
    monkeypatch.setattr(module, "_REPORT_SECONDS", 0)
    zero, one, two = (Processes(coordinator, 3, index, 10) for index in range(3))
    late = threading.Timer(0.3, meet, [[two]])
    late.start()
    assert meet([zero, one]) == [None, None]
    late.join()
    _, printed = capfd.readouterr()
    assert f"gshard-train: waiting for process 2 of 3 at {coordinator}; " in printed


def test_without_a_coordinator_the_others_name_process_0(coordinator):
    (error,) = meet([Processes(coordinator, 2, 1, 1)])
    assert isinstance(error, TryAgain)
    assert str(error).startswith(f"process 0 of 2 did not connect to {coordinator} within 1 s")


GREETING = {"program": "gshard-nmt", "process": 1, "count": 3, "identity": SAME}


@pytest.mark.parametrize(
    ("changes", "index", "reason"),
    [
        ({}, 1, ""),
        ({"count": 4}, 1, "--num_processes is 4 in process 1 and 3 in process 0"),
        ({"process": 0}, 0, "another process has --process_id 0"),
        ({"process": 2}, 2, "another process has --process_id 2"),
        (
            {"identity": SAME | {"Train.steps": "6"}},
            1,
            "Train.steps is 6 in process 1 and 5 in process 0",
        ),
        (
            {"identity": {"--workdir": "runs/a", "jax": "1"}},
            1,
            "Train.steps is missing in process 1 and 5 in process 0; jax is 1 in process 1 and missing "
            "in process 0",
        ),
        ({"program": "another"}, -1, ""),
        ({"process": "1"}, -1, ""),
        ({"process": -2}, -1, ""),
        ({"identity": None}, -1, ""),
    ],
)
def test_a_process_of_another_run_is_refused_and_the_difference_named(changes, index, reason):
    processes = Processes("h:1", 3)
    assert module.check_greeting(GREETING | changes, processes, SAME, [2]) == (index, reason)


def test_a_refused_process_is_told_why_and_so_are_the_others(coordinator):
    zero, other = (Processes(coordinator, 2, index, 1) for index in range(2))
    errors = meet([zero, other], [SAME, SAME | {"Train.steps": "6"}])
    assert {type(error) for error in errors} == {UserError}
    difference = (
        "Train.steps is 6 in process 1 and 5 in process 0. Start all processes with the same "
    )
    assert str(errors[0]).startswith(f"process 1 of 2 was refused: {difference}")
    assert str(errors[1]).startswith(difference)


def connect(address: tuple[str, int]) -> socket.socket:
    """Connects to process 0 as soon as it listens."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(address, 2)
        except ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_strangers_cost_no_time_and_are_not_counted(coordinator):
    zero, one = (Processes(coordinator, 2, index, 20) for index in range(2))
    listening = threading.Thread(target=meet, args=[[zero]])
    listening.start()
    with contextlib.ExitStack() as strangers:
        for text in [b""] * 20 + [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b'{"process": 1}\n']:
            client = strangers.enter_context(connect(zero.address))
            client.sendall(text)
        began = time.monotonic()
        assert listening.is_alive()
        assert meet([one]) == [None]
        listening.join(10)
        assert not listening.is_alive()
        assert time.monotonic() - began < 5


def test_a_process_may_come_again_after_it_has_left(coordinator):
    zero, one, two = (Processes(coordinator, 3, index, 20) for index in range(3))
    listening = threading.Thread(target=meet, args=[[zero]])
    listening.start()
    greeting = b'{"program": "gshard-nmt", "process": 1, "count": 3, "identity": {}}\n'
    with connect(zero.address) as first:
        first.sendall(greeting)
    assert meet([one, two]) == [None, None]
    listening.join(10)


def test_a_process_that_comes_after_the_rendezvous_is_told_so(coordinator):
    late = Processes(coordinator, 2, 1, 1)
    with socket.create_server(late.address) as busy:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = busy.accept()
                    client.sendall(b"\0\0\x12\4\0\0\0\0\0")  # as an HTTP/2 server begins
                    client.close()

        threading.Thread(target=answer, daemon=True).start()
        (error,) = meet([late])
    assert isinstance(error, TryAgain)
    assert str(error).startswith(
        f"process 0 at {coordinator} does not wait for this process: it has all its processes, or "
    )


def test_a_port_in_use_is_an_error(coordinator):
    processes = Processes(coordinator, 2, 0, 1)
    with (
        socket.create_server(processes.address),
        pytest.raises(UserError, match=r"cannot listen there \(.*in use\)"),
    ):
        rendezvous(processes, {})


def test_the_address_to_listen_on_follows_the_coordinators():
    assert listening_address("127.0.0.1") == (socket.AF_INET, "127.0.0.1")
    assert listening_address("::1") == (socket.AF_INET6, "::1")
    assert listening_address("fe80::1") == (socket.AF_INET6, "")
    assert listening_address("10.0.0.1") == (socket.AF_INET, "")
    assert listening_address("localhost") == (socket.AF_INET, "127.0.0.1")


def loopbacks() -> list[str]:
    """Returns the loopback addresses of this machine. Some have no IPv6."""
    addresses = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        addresses.append("[::1]")
    return addresses


@pytest.mark.parametrize("host", loopbacks())
def test_processes_meet_on_every_loopback(host):
    family = socket.AF_INET6 if host == "[::1]" else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as probe:
        port = probe.getsockname()[1]
    processes = [Processes(f"{host}:{port}", 2, index, 10) for index in range(2)]
    assert meet(processes) == [None, None]
