"""Processes agree on checkpoints: all hear the numbers of the first one, and the worst problem of any."""

from hashlib import sha256

import numpy as np
import pytest

from gshard_nmt.reading import UnreadableError, UnsoundError
from gshard_nmt.run.checkpoint import agreement
from gshard_nmt.run.checkpoint.manifest import ForeignError
from gshard_nmt.spmd.processes import Processes


class Scripted(Processes):
    """A process whose peers answer what a test wrote down."""

    peers: list[list[np.ndarray]] = []  # noqa: RUF012
    said: list[np.ndarray] = []  # noqa: RUF012

    def gather(self, values):
        self.said.append(values)
        return np.stack(self.peers.pop(0))


@pytest.fixture
def second(monkeypatch):
    """Returns process 1 of two."""
    monkeypatch.setattr(Scripted, "peers", [])
    monkeypatch.setattr(Scripted, "said", [])
    return Scripted("host:1", 2, 1)


def test_a_single_process_decides_for_itself():
    assert agreement.numbers_of_first(Processes(), lambda: [3, 1]) == [3, 1]


def test_the_numbers_of_the_first_process_count(second):
    zero = np.zeros(1, np.int64)
    second.peers += [[np.array([2]), zero], [np.array([7, 5]), np.array([0, 0])]]
    assert agreement.numbers_of_first(second, pytest.fail) == [7, 5]
    assert second.said[0].tolist() == [0]


def test_all_hear_whether_they_have_the_same_text(second):
    assert agreement.is_same(Processes(), "alone")
    for first in ("one", "two"):
        second.peers.append(
            [np.frombuffer(sha256(t.encode()).digest(), np.int64) for t in (first, "one")]
        )
        assert agreement.is_same(second, "one") == (first == "one")


def words(problem: UnsoundError | None) -> np.ndarray:
    """Returns what a process with this problem says."""
    code = 0 if problem is None else 1 + agreement._PROBLEMS.index(type(problem))
    reason = f"{getattr(problem, 'advice', '')}\n{problem}" if problem else ""
    reason = reason.encode()[:240].ljust(240, b"\0")
    return np.concatenate([[code], np.frombuffer(reason, np.int64)])


def test_all_raise_the_worst_problem_of_any_process(second):
    first, own = ForeignError("it is of another run"), UnreadableError("no disk")

    def read(step):
        raise own

    second.peers.append([words(first), words(own)])
    with pytest.raises(ForeignError, match="process 0 cannot read it: it is of another run"):
        agreement.together(second, read, 5)
    second.peers.append([words(first), words(None)])
    with pytest.raises(ForeignError, match="process 0 cannot read it"):
        agreement.together(second, lambda step: step, 5)
    second.peers.append([words(None), words(own)])
    with pytest.raises(UnreadableError, match=r"^no disk$"):
        agreement.together(second, read, 5)
    second.peers.append([words(UnreadableError("no", "Do something")), words(None)])
    with pytest.raises(UnreadableError, match="process 0 cannot read it: no") as error:
        agreement.together(second, lambda step: step, 5)
    assert error.value.advice == "Do something"
    second.peers.append([words(None), words(None)])
    assert agreement.together(second, lambda step: step, 5) == 5
