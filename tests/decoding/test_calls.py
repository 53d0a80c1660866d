"""Calls of process 0 are made in all processes, with the same arguments and in the same order."""

import queue

import pytest

from gshard_nmt.decoding import calls
from gshard_nmt.spmd.processes import Processes


class Channel(Processes):
    """Two processes in one, between which a queue carries the broadcasts."""

    sent: "queue.Queue[bytes]" = queue.Queue()

    def broadcast(self, content: bytes = b"") -> bytes:
        if self.is_first:
            self.sent.put(content)
            return content
        return self.sent.get(timeout=5)


ZERO, ONE = (Channel("h:1", 2, index) for index in range(2))


class Recorder:
    """Keeps its calls."""

    step = 3

    def __init__(self) -> None:
        self.calls: list[object] = []

    def translate(self, ids, limit=0):
        self.calls.append((ids, limit))
        return sum(map(sum, ids)) + limit

    def describe(self):
        return "only process 0 needs to know"


def test_the_other_process_makes_the_same_calls_and_ends(tmp_path):
    first, second = Recorder(), Recorder()
    leader = calls.leading(first, ZERO, ["translate"])
    with calls.ending(ZERO):
        assert leader.translate([[1, 2], [3]]) == 6
        assert leader.translate([], limit=4) == 4
        assert leader.describe() == "only process 0 needs to know"
    assert leader.step == 3
    calls.follow(second, ONE)
    assert first.calls == second.calls == [([[1, 2], [3]], 0), ([], 4)]
    assert ZERO.sent.empty()


def test_paths_arrive_as_text(tmp_path):
    class Printer:
        seen: list[object] = []  # noqa: RUF012

        def show(self, path):
            self.seen.append(path)

    leader = calls.leading(Printer(), ZERO, ["show"])
    with calls.ending(ZERO):
        leader.show(tmp_path)
    calls.follow(Printer(), ONE)
    assert Printer.seen == [tmp_path, str(tmp_path)]


def test_an_error_ends_nobody():
    """The supervisors end the other processes then, with the reason."""
    with pytest.raises(ValueError, match="bad line"), calls.ending(ZERO):
        raise ValueError("bad line")
    assert ZERO.sent.empty()


def test_one_process_calls_directly():
    recorder = Recorder()
    assert calls.leading(recorder, Processes(), ["translate"]) is recorder
    with calls.ending(Processes()):
        pass
