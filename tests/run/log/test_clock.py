"""The steps and tokens of a run, what it waits for, and whether it is complete."""

import contextlib
import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gshard_nmt.run.log.clock import Clock, RunCounters, TimeLimit


def spend(clock: Clock, now, phase: str, seconds: float) -> None:
    with clock.phase(phase):
        now.now += seconds


def test_a_lap_leaves_out_validations_and_a_phase_counts_even_if_it_fails(now):
    clock = Clock()
    spend(clock, now, "input", 2.0)
    with contextlib.suppress(KeyError), clock.phase("step"):
        now.now += 6.0
        raise KeyError
    spend(clock, now, "save", 1.0)
    spend(clock, now, "validation", 50.0)
    now.now += 1.0  # the host's own work
    assert clock.lap() == (10.0, {"input": 2.0, "step": 6.0, "save": 1.0})
    now.now += 2.0
    assert clock.lap() == (2.0, {"input": 0.0, "step": 0.0, "save": 0.0})


def test_a_time_limit_of_0_never_ends(now):
    limit, no_limit = TimeLimit(2), TimeLimit()
    now.now += 119
    assert not limit.is_over()
    now.now += 2
    assert limit.is_over()
    assert not no_limit.is_over()


def test_a_part_of_the_work_has_the_limit_that_is_over_first(now):
    whole = TimeLimit(10)
    assert whole.within(0, "--each") is whole
    assert whole.within(11, "--each") is whole
    part = whole.within(3, "--each")
    assert (part.minutes, part.flag) == (3, "--each")
    now.now += 8 * 60
    assert part.is_over()
    assert not whole.is_over()
    assert whole.within(3, "--each") is whole
    assert TimeLimit().within(3, "--each").minutes == 3


LANGUAGES = ("fr", "de")


class TokensSeen:
    """The metric `tokens_seen`; it counts how often the host waits for it."""

    waits = 0

    def __init__(self, *numbers: int) -> None:
        self._words = np.array([[n % 2**32, n >> 32] for n in numbers], np.uint32)

    def __array__(self, dtype=None, copy=None):
        TokensSeen.waits += 1
        return self._words


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
    assert RunCounters(**dataclasses.asdict(run)) == run


def test_a_language_without_tokens_is_left_out():
    run = RunCounters()
    run.count(TokensSeen(5, 0), LANGUAGES)
    run.read()
    assert run.tokens == {"fr": 5}


def test_seconds_leave_out_compilation_and_validation(now):
    run, seen = RunCounters(seconds=7.0), TokensSeen(0, 0)
    now.now += 60  # compilation
    run.skip_time()
    now.now += 2
    run.count(seen, LANGUAGES)
    now.now += 30  # validation
    run.skip_time()
    now.now += 3
    run.count(seen, LANGUAGES)
    now.now += 1
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
            run = RunCounters(**dataclasses.asdict(run))
    assert run.step == last


def test_the_host_waits_for_few_steps_of_a_run_with_a_token_limit():
    """Batches are 90 % full. The host looks again only when full batches could have reached the limit."""
    run, before = RunCounters(), TokensSeen.waits
    while not run.is_complete(10**6, 900 * 2000, 1000):
        run.count(TokensSeen(900 * (run.step + 1), 0), LANGUAGES)
    assert run.step == 2000
    assert TokensSeen.waits - before <= 6
