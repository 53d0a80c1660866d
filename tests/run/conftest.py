"""A clock of the training loop that a test moves on; and SIGHUP, which tests hear also under `nohup`."""

import signal
import types

import pytest

from gshard_nmt.run.log import clock as clock_module


@pytest.fixture
def now(monkeypatch):
    """The time of `run/log/clock.py`; a test adds seconds to its `now`."""
    time = types.SimpleNamespace(now=100.0)
    time.perf_counter = lambda: time.now
    monkeypatch.setattr(clock_module, "time", time)
    return time


@pytest.fixture(autouse=True)
def hangups_are_heard():
    """Makes this process, and those that it starts, end at SIGHUP. Under `nohup` they would ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
