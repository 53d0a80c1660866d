"""Rounds in turns, and medians with their intervals."""

import itertools

import pytest

from gshard_nmt.inspection.timing import Estimate, estimate, in_turns


def test_the_interval_of_a_median_lies_between_two_of_the_values():
    # Of ten values, the true median is outside of the second to the ninth with a chance of 2.1 %, and
    # outside of the third to the eighth with one of 10.9 %.
    assert estimate([10, 9, 8, 7, 6, 5, 4, 3, 2, 1]) == Estimate(5.5, 2, 9)
    assert estimate(list(range(1, 7))) == Estimate(3.5, 1, 6)


def test_few_values_have_their_range_as_interval():
    assert estimate([3.0]) == Estimate(3.0, 3.0, 3.0)
    assert estimate([3.0, 1.0, 2.0]) == Estimate(2.0, 1.0, 3.0)


def test_programs_run_in_turns_and_the_first_round_does_not_count():
    now, order, rounds = itertools.count(), [], []
    seconds = in_turns(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        2,
        rounds.append,
        lambda: next(now),
    )
    assert order == ["a", "b"] * 3
    assert rounds == [1, 2]
    assert seconds == {"a": [1, 1], "b": [1, 1]}


def test_a_program_that_fails_ends_the_measurement():
    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_turns({"a": fail}, 2)
