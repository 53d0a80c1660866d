"""The counters of a run: steps, tokens of all processes, seconds, and the step at which it ends."""

import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gshard_nmt.run import counters
from gshard_nmt.run.counters import RunCounters


def alone(counts):
    """The sum over the processes of a run of one process."""
    return counts


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets: `clock.now` in seconds."""
    clock = types.SimpleNamespace(now=100.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(counters, "time", clock)
    return clock


def test_tokens_count_only_after_the_sum_over_processes():
    run = RunCounters()
    run.count({"fr": 5, "de": 0})
    run.count({"fr": 2, "de": 1})
    assert (run.step, run.total_tokens) == (2, 0)
    run.add_counts_of_all_processes(alone)
    assert run.tokens == {"fr": 7, "de": 1}
    run.add_counts_of_all_processes(alone)
    assert run.total_tokens == 8


def test_every_sum_over_processes_has_the_same_languages():
    sums = []
    run = RunCounters()
    run.count({"fr": 5, "de": 0})
    for _ in range(2):
        run.add_counts_of_all_processes(lambda counts: sums.append(dict(counts)) or counts)
    assert sums == [{"fr": 5, "de": 0}, {"fr": 0, "de": 0}]


def test_every_process_has_the_tokens_of_all_processes():
    processes = [RunCounters(tokens={"fr": 10}), RunCounters(tokens={"fr": 10})]
    counted = [{"fr": 5, "de": 0}, {"fr": 0, "de": 3}]
    for _ in range(2):
        for run, tokens in zip(processes, counted, strict=True):
            run.count(tokens)
    total = {"fr": 10, "de": 6}  # what the two processes counted in two steps
    for run in processes:
        run.add_counts_of_all_processes(lambda own: {language: total[language] for language in own})
    assert processes[0].tokens == processes[1].tokens == {"fr": 20, "de": 6}


def test_seconds_leave_out_compilation_and_validation(clock):
    run = RunCounters(seconds=7.0)
    clock.now += 60  # compilation
    run.skip_time()
    clock.now += 2
    run.count({})
    clock.now += 30  # validation
    run.skip_time()
    clock.now += 3
    run.count({})
    clock.now += 1
    run.count({})
    assert run.seconds == 7 + 2 + 3 + 1


def test_a_run_without_a_token_limit_ends_at_its_number_of_steps():
    run = RunCounters(step=3, tokens={"fr": 10**9})
    assert run.last_step(max_steps=10, max_tokens=0) == 10
    assert not run.is_complete(10, 0)
    assert RunCounters(step=10).is_complete(10, 0)
    assert RunCounters().last_step(10, 100) == 10  # before the first step its speed is unknown


@given(
    step=st.integers(1, 1000),
    per_step=st.integers(1, 5000),
    max_steps=st.integers(1, 2000),
    max_tokens=st.integers(1, 10**6),
)
def test_at_a_constant_number_of_tokens_per_step_the_last_step_is_exact(
    step, per_step, max_steps, max_tokens
):
    run = RunCounters(step=step, tokens={"fr": step * per_step})
    last = run.last_step(max_steps, max_tokens)
    if run.is_complete(max_steps, max_tokens):
        assert last <= step
        return
    at_last = RunCounters(step=last, tokens={"fr": last * per_step})
    before = RunCounters(step=last - 1, tokens={"fr": (last - 1) * per_step})
    assert at_last.is_complete(max_steps, max_tokens)
    assert not before.is_complete(max_steps, max_tokens)
