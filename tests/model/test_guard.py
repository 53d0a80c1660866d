"""The guard: what it withholds, and how the usual gradient norm follows the norms."""

import math

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import guard
from gshard_nmt.model.guard import ARMED_AFTER, applied, judge

NEW = {"log_norm": tf.constant(0.0), "norms": tf.constant(0)}
ARMED = {"log_norm": tf.constant(math.log(2.0)), "norms": tf.constant(ARMED_AFTER)}
INFINITE = [float("nan"), float("inf"), float("-inf")]


def verdict(reference, loss=1.0, norm=2.0, bound=3.0, jump=100.0):
    values = (tf.constant(value, tf.float32) for value in (loss, norm, bound))
    return judge(jump, reference, *values)


def after(reference, norms):
    """Returns the statuses of these gradient norms in turn, and the usual norm after the last one."""
    statuses = []
    for norm in norms:
        result = verdict(reference, norm=norm)
        reference = result.reference
        statuses.append(int(result.status))
    return statuses, math.exp(float(reference["log_norm"])), reference


@pytest.mark.parametrize("value", INFINITE)
@pytest.mark.parametrize(
    ("name", "status"),
    [("loss", guard.BAD_LOSS), ("norm", guard.BAD_GRADIENT), ("bound", guard.BAD_UPDATE)],
)
def test_a_value_that_is_not_finite_is_seen_from_the_first_step_on(name, status, value):
    for reference in (NEW, ARMED):
        result = verdict(reference, **{name: value})
        assert int(result.status) == status
        assert not bool(result.is_fine)
        assert all(np.isfinite(array).all() for array in result.reference.values())


def test_a_norm_jumps_only_above_the_factor_and_only_when_the_guard_is_armed():
    assert int(verdict(ARMED, norm=201.0).status) == guard.JUMP
    assert int(verdict(ARMED, norm=201.0, jump=200.0).status) == guard.FINE
    assert int(verdict(ARMED, norm=1e30, jump=0.0).status) == guard.FINE
    early = {**ARMED, "norms": tf.constant(ARMED_AFTER - 1)}
    assert int(verdict(early, norm=201.0).status) == guard.FINE


def test_the_usual_norm_is_first_the_geometric_mean_of_all_norms():
    _, usual, reference = after(NEW, [1.0, 10.0, 100.0])
    assert usual == pytest.approx(10, rel=1e-5)
    assert int(reference["norms"]) == 3
    assert after(ARMED, [2.1])[1] == pytest.approx(2 * 1.05**0.05, rel=1e-6)


def test_a_norm_that_stays_a_thousand_times_higher_is_accepted_in_the_end():
    statuses, _, _ = after(ARMED, [2000.0] * 40)
    assert statuses == [guard.JUMP] * 25 + [guard.FINE] * 15


def test_all_arrays_of_a_bad_update_keep_their_values():
    old, new = {"a": tf.constant([1.0, 2.0])}, {"a": tf.constant([float("nan"), 3.0])}
    assert applied(tf.constant(False), new, old)["a"].numpy().tolist() == [1, 2]
    assert applied(tf.constant(True), {"a": old["a"] + 1}, old)["a"].numpy().tolist() == [2, 3]
