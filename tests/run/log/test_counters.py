"""The counters of a run: steps, tokens, seconds, and whether it is complete."""

import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gshard_nmt.run.log import counters
from gshard_nmt.run.log.counters import RunCounters, numbers_of

LANGUAGES = ("fr", "de")


class TokensSeen:
    """The metric `tokens_seen`; it counts how often the host waits for it."""

    waits = 0

    def __init__(self, *numbers: int) -> None:
        self._words = np.array([[n % 2**32, n >> 32] for n in numbers], np.uint32)

    def __array__(self, dtype=None, copy=None):
        TokensSeen.waits += 1
        return self._words


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets: `clock.now` in seconds."""
    clock = types.SimpleNamespace(now=100.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(counters, "time", clock)
    return clock


def test_words_of_32_bits_are_numbers_of_64():
    words = np.array([[[5, 0], [1, 3]]], np.uint32)
    assert numbers_of(words).tolist() == [[5, 3 * 2**32 + 1]]


def test_tokens_are_those_of_the_last_step_that_was_read():
    run = RunCounters()
    run.count(TokensSeen(5, 0), LANGUAGES)
    run.count(TokensSeen(2**40, 3), LANGUAGES)
    assert (run.step, run.total_tokens) == (2, 0)
    run.read()
    assert run.tokens == {"fr": 2**40, "de": 3}
    assert run.total_tokens == 2**40 + 3
    before = TokensSeen.waits
    run.read()
    assert TokensSeen.waits == before, "nothing is new"
    assert RunCounters(**run.metadata()) == run


def test_a_language_without_tokens_is_left_out():
    run = RunCounters()
    run.count(TokensSeen(5, 0), LANGUAGES)
    run.read()
    assert run.tokens == {"fr": 5}


def test_seconds_leave_out_compilation_and_validation(clock):
    run, seen = RunCounters(seconds=7.0), TokensSeen(0, 0)
    clock.now += 60  # compilation
    run.skip_time()
    clock.now += 2
    run.count(seen, LANGUAGES)
    clock.now += 30  # validation
    run.skip_time()
    clock.now += 3
    run.count(seen, LANGUAGES)
    clock.now += 1
    run.count(seen, LANGUAGES)
    assert run.seconds == 7 + 2 + 3 + 1


def test_a_run_without_a_token_limit_never_waits_for_its_tokens():
    run, before = RunCounters(step=3, tokens={"fr": 10**9}), TokensSeen.waits
    for _ in range(6):
        assert not run.is_complete(10, 0, 100)
        run.count(TokensSeen(10**9, 0), LANGUAGES)
    run.count(TokensSeen(10**9, 0), LANGUAGES)
    assert run.is_complete(10, 0, 100)
    assert TokensSeen.waits == before


@given(
    fills=st.lists(st.integers(1, 1000), min_size=1, max_size=60),
    max_tokens=st.integers(1, 20_000),
    log_every=st.integers(1, 70),
    resumed_at=st.integers(0, 60),
)
def test_a_run_ends_at_the_first_step_that_reaches_its_tokens(
    fills, max_tokens, log_every, resumed_at
):
    """Neither log_every nor a restart changes the step."""
    totals = [0, *np.cumsum(fills).tolist()]
    last = next((step for step, total in enumerate(totals) if total >= max_tokens), len(fills))
    run = RunCounters()
    while not run.is_complete(len(fills), max_tokens, 1000):
        run.count(TokensSeen(totals[run.step + 1], 0), LANGUAGES)
        if run.step % log_every == 0 or run.step == resumed_at:
            run.read()
        if run.step == resumed_at:
            run = RunCounters(**run.metadata())
    assert run.step == last


def test_the_host_waits_for_few_steps_of_a_run_with_a_token_limit():
    """Batches are 90 % full. The host looks again only when full batches could have reached the limit."""
    run, before = RunCounters(), TokensSeen.waits
    while not run.is_complete(10**6, 900 * 2000, 1000):
        run.count(TokensSeen(900 * (run.step + 1), 0), LANGUAGES)
    assert run.step == 2000
    assert TokensSeen.waits - before <= 6
