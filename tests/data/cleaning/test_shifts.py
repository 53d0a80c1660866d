"""Shifted and unrelated lines are found by the lengths of the lines, and told where they are."""

import numpy as np

from gshard_nmt.data.cleaning.shifts import Drift, find_drifts


def lengths(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of lines and of their translations."""
    rng = np.random.default_rng(seed)
    first = rng.lognormal(4, 0.6, number)
    return first.astype(int) + 1, (1.1 * first * rng.lognormal(0, 0.15, number)).astype(int) + 1


def test_aligned_lines_have_no_drift():
    assert find_drifts(*lengths(5000)) == []


def test_a_missing_line_is_found_at_its_place():
    first, second = lengths(20_000)
    (drift,) = find_drifts(first[:-1], np.delete(second, 10_000))
    assert abs(drift.first - 10_001) <= 5
    assert (drift.last, drift.shift) == (19_999, -1)


def test_each_of_two_drifts_is_found():
    first, second = lengths(6000)
    second = np.concatenate([second[:2000], [40, 50], second[2000:4000], second[4002:]])
    (drift,) = find_drifts(first, second)
    assert drift.shift == 2
    assert abs(drift.first - 2001) <= 5
    assert abs(drift.last - 4000) <= 5


def test_shuffled_lines_are_found():
    first, second = lengths(6000)
    shuffled = np.random.default_rng(1).permutation(second)
    assert find_drifts(first, shuffled) == [Drift(1, 6000, 0)]
    second = np.concatenate([second[:3000], shuffled[:3000]])
    (drift,) = find_drifts(first, second)
    assert drift.shift == 0
    assert abs(drift.first - 3001) <= 300
    assert drift.last == 6000


def test_lines_of_equal_length_say_nothing():
    same = np.full(1000, 30)
    assert find_drifts(same, same) == []
    assert find_drifts(*lengths(30)) == []
    assert find_drifts([], []) == []
