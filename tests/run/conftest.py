"""Tests that send SIGHUP also pass under `nohup`, which makes all programs ignore this signal."""

import signal

import pytest


@pytest.fixture(autouse=True)
def hangups_are_heard():
    """Makes this process, and those that it starts, end at SIGHUP as they usually do."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
