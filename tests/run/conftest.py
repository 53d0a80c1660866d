"""A clock of the training loop that a test moves on; and SIGHUP, which tests hear also under `nohup`."""

import signal
import types

import pytest

from gshard_nmt.run import progress, training_state


@pytest.fixture
def now(monkeypatch):
    """The time of counters and time limits; a test adds seconds to its `now`."""
    time = types.SimpleNamespace(now=100.0)
    time.perf_counter = lambda: time.now
    for module in (progress, training_state):
        monkeypatch.setattr(module, "time", time)
    return time


@pytest.fixture(autouse=True)
def hangups_are_heard():
    """Makes this process, and those that it starts, end at SIGHUP. Under `nohup` they would ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
