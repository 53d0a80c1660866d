"""Supervisors pass news on to each other, and notice if one of them is gone."""

import contextlib
import queue
import socket
from collections.abc import Iterator

import pytest

from gshard_nmt.run.peers import Connection, News, Peers, in_words, lost
from gshard_nmt.spmd.processes import MOST_PEER_SECONDS, Processes


def connected(peer_timeout: int = 10) -> tuple[Connection, Connection]:
    """Returns both ends of a TCP connection over the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    return Connection(one, peer_timeout), Connection(other, peer_timeout)


@pytest.fixture
def star() -> Iterator[list[tuple[Peers, "queue.Queue[News]"]]]:
    """Yields the peers of three processes, each with the queue of the news that it gets."""
    processes = [Processes("h:1", 3, index) for index in range(3)]
    to_one, one = connected()
    to_two, two = connected()
    with contextlib.ExitStack() as stack:
        star = []
        for at, connections in zip(
            processes, ({1: to_one, 2: to_two}, {0: one}, {0: two}), strict=True
        ):
            peers = stack.enter_context(Peers(at, connections, "start"))
            star.append((peers, queue.Queue()))
            peers.listen(star[-1][1].put)
        yield star


def test_processes_may_wait_for_days_for_each_other():
    """TCP cannot: it would refuse the connection."""
    one, other = connected(MOST_PEER_SECONDS)
    with contextlib.closing(one), contextlib.closing(other):
        one.send({"go": "start"})
        assert other.receive() == [{"go": "start"}]


def test_process_0_passes_news_on_to_all_others(star):
    (_, at_zero), (one, at_one), (_, at_two) = star
    news = News(1, "ended", 2, "the disk is full.")
    one.tell(news)
    assert at_zero.get(timeout=10) == at_two.get(timeout=10) == news
    assert at_one.empty()


def test_a_connection_that_closes_without_news_is_a_lost_process(star):
    (_, at_zero), (one, _), (_, at_two) = star
    one.__exit__()
    message = lost([1], Processes("h:1", 3))
    assert at_zero.get(timeout=10) == at_two.get(timeout=10) == News(1, "ended", 75, message)


def test_a_process_that_has_ended_well_is_not_lost_when_it_leaves(star):
    (_, at_zero), (one, _), (two, at_two) = star
    one.tell(News(1, "ended"))
    one.__exit__()
    two.tell(News(2, "taken"))
    assert at_zero.get(timeout=10) == News(1, "ended")
    assert at_zero.get(timeout=10) == News(2, "taken")
    assert at_two.get(timeout=10) == News(1, "ended")
    assert at_two.empty()


@pytest.mark.parametrize("line", [b"[1]\n", b"{\n", b"\xff\n", b""])
def test_only_json_objects_are_received(line):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = socket.create_connection(listening.getsockname())
        receiver = Connection(listening.accept()[0], 10)
    with sender, contextlib.closing(receiver):
        sender.sendall(line)
        sender.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError):
            receiver.receive()


def test_an_object_may_arrive_in_pieces():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = socket.create_connection(listening.getsockname())
        receiver = Connection(listening.accept()[0], 10)
    with sender, contextlib.closing(receiver):
        sender.sendall(b'{"process"')
        assert receiver.receive() == []
        sender.sendall(b': 1}\n{"go": "a"}\n')
        assert receiver.receive() == [{"process": 1}, {"go": "a"}]


def test_a_gone_receiver_is_no_error():
    one, other = connected()
    other.close()
    with contextlib.closing(one):
        one.send({"go": "a"})
        one.send({"go": "a"})


def test_processes_in_words():
    assert in_words([3], Processes("h:1", 4)) == "process 3 of 4"
    assert in_words([1, 3], Processes("h:1", 4)) == "processes 1, 3 of 4"
