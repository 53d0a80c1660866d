"""What the end of one of several processes means for its exit code, and what they compare."""

import signal
import threading

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.run import together
from gshard_nmt.spmd.processes import Job, Processes


class Store:
    """jax's store of keys and values, in which another process has other facts."""

    def __init__(self, values):
        self.values = values

    def key_value_try_get(self, key):
        return self.values[key]

    def key_value_set(self, key, value):
        self.values[key] = value


@pytest.fixture
def joined(monkeypatch):
    """Joins the two processes of a program, with a store of keys."""

    def join(trains, **values):
        store = Store({f"gshard-nmt {key}": value for key, value in values.items()})
        processes = Processes("h:1", 2, 0, job=Job("gshard-x", trains))
        monkeypatch.setattr(together, "_joined", together._Joined(processes))
        monkeypatch.setattr(together, "coordination_client", lambda: store)

    return join


def test_an_interruption_is_final_but_a_machine_that_is_taken_away_is_not(joined):
    saved = KeyboardInterrupt("saved run at step 3")
    joined(True, interrupted="1")
    assert together.after_interruption(saved, []) == (130, "saved run at step 3", True)
    joined(True)
    code, message, with_others = together.after_interruption(saved, [])
    assert (code, with_others) == (75, True)
    assert message.startswith("saved run at step 3. A machine is being taken away (SIGTERM). Start")
    joined(False)
    assert together.after_interruption(KeyboardInterrupt(), []) == (130, "interrupted", False)
    assert together.after_interruption(KeyboardInterrupt(), [signal.SIGTERM])[::2] == (75, False)


def test_one_process_is_always_interrupted(monkeypatch):
    monkeypatch.setattr(together, "_joined", None)
    assert together.after_interruption(KeyboardInterrupt(), [15]) == (130, "interrupted", True)
    together.leave(2, "it has joined nobody, so it goes on")


def test_all_processes_name_what_differs(monkeypatch):
    other = {"--num_processes": "2", "Train.steps": "5"}
    told = lambda _, own: [own, "another" if isinstance(own, str) else other]  # noqa: E731
    monkeypatch.setattr(Processes, "gather", told)
    with pytest.raises(UserError) as error:
        together.compare(Processes("h:1", 2), {"Train.steps": "6"})
    assert str(error.value).startswith(
        "Train.steps is 5 in process 1 and 6 in process 0. Start all"
    )


def test_no_thread_is_left_inside_of_jax_when_python_ends(joined):
    joined(True, failure="")
    listener = threading.Thread(target=together._listen, args=(together._joined,), daemon=True)
    listener.start()
    together._stop(together._joined, listener)
    assert not listener.is_alive()
