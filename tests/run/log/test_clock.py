"""What a run waits for, in numbers and in words."""

import pytest

from gshard_nmt.run.log import clock as clock_module
from gshard_nmt.run.log.clock import (
    Clock,
    TimeLimit,
    process_metrics,
    slow_process,
    slow_process_text,
)


def spend(clock: Clock, now, phase: str, seconds: float) -> None:
    with clock.phase(phase):
        now.now += seconds


def test_shares_are_of_the_time_without_validations(now):
    clock = Clock()
    for _ in range(2):
        spend(clock, now, "input", 1.0)
        spend(clock, now, "step", 3.0)
        clock.count_step()
    spend(clock, now, "save", 1.0)
    spend(clock, now, "validation", 50.0)
    now.now += 1.0  # the host's own work
    interval = clock.interval()
    assert interval.metrics() == {
        "seconds_per_step": 5.0,
        "share_input": 0.2,
        "share_step": 0.6,
        "share_save": 0.1,
    }
    assert interval.own_seconds == 4.0
    # The next interval starts at zero.
    now.now += 2.0
    assert clock.interval().phases == dict.fromkeys(clock_module.PHASES, 0.0)


def test_a_phase_counts_even_if_it_fails(now):
    clock = Clock()

    def fail():
        now.now += 2.0
        raise KeyError

    with pytest.raises(KeyError), clock.phase("input"):
        fail()
    assert clock.interval().phases["input"] == 2.0


def test_the_process_that_the_others_wait_for_is_named():
    seconds = [1.0] * 4
    assert slow_process(seconds, [0.01, 0.01, 0.5, 0.01]) == 2
    assert slow_process_text(2, [0.01, 0.01, 0.5, 0.01]) == (
        "process 2 is slow: its host works 0.500 s in each step while the devices wait "
        "(0.010 s in the median of all processes)"
    )
    assert slow_process(seconds, [0.3, 0.3, 0.31, 0.3]) is None
    # A host that works little is not slow, whatever the ratio.
    assert slow_process(seconds, [0.001, 0.001, 0.09, 0.001]) is None
    assert process_metrics([1.0, 2.0], [0.25, 0.5]) == {
        "process_seconds/0": 1.0,
        "process_seconds/1": 2.0,
        "process_own_seconds/0": 0.25,
        "process_own_seconds/1": 0.5,
    }


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
