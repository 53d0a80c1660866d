"""A clock that a test moves on, no pauses, and SIGHUP, which tests hear also under `nohup`."""

import signal
import types

import pytest

from gshard_nmt.run import progress, training_state
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints


@pytest.fixture
def now(monkeypatch):
    """The time of counters and time limits; a test adds seconds to its `now`."""
    time = types.SimpleNamespace(now=100.0)
    time.perf_counter = lambda: time.now
    for module in (progress, training_state):
        monkeypatch.setattr(module, "time", time)
    return time


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Files of checkpoints that cannot be read are read again at once."""
    monkeypatch.setattr(Checkpoints, "pauses", (0, 0))


@pytest.fixture(autouse=True)
def hangups_are_heard():
    """Makes this process, and those that it starts, end at SIGHUP. Under `nohup` they would ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
