"""The guard: what it withholds, and how the usual gradient norm follows the norms."""

import math

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import guard
from gshard_nmt.model.guard import ARMED_AFTER, Guard, applied, declare_reference, judge

NEW = {"log_norm": tf.constant(0.0), "norms": tf.constant(0)}
ARMED = {"log_norm": tf.constant(math.log(2.0)), "norms": tf.constant(ARMED_AFTER)}
INFINITE = [float("nan"), float("inf"), float("-inf")]


def verdict(reference, loss=1.0, norm=2.0, bound=3.0, jump=100.0):
    values = (tf.constant(value, tf.float32) for value in (loss, norm, bound))
    return judge(Guard(jump), reference, *values)


def after(reference, norms):
    """Returns the statuses of these gradient norms in turn, and the usual norm after the last one."""
    statuses = []
    for norm in norms:
        result = verdict(reference, norm=norm)
        reference = result.reference
        statuses.append(int(result.status))
    return statuses, math.exp(float(reference["log_norm"])), reference


def test_the_reference_has_the_declared_arrays():
    for name, parameter in declare_reference().items():
        value = verdict(NEW).reference[name]
        assert (tuple(value.shape), value.dtype.name) == (parameter.shape, parameter.dtype)


def test_a_usual_step_is_fine():
    result = verdict(ARMED, norm=199.0)
    assert int(result.status) == guard.FINE
    assert bool(result.is_fine)
    assert float(result.usual_norm) == pytest.approx(2)
    assert float(verdict(NEW).usual_norm) == 0


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


def test_the_first_cause_is_the_reason():
    nan = float("nan")
    assert int(verdict(ARMED, nan, nan, nan).status) == guard.BAD_LOSS
    assert int(verdict(ARMED, 1.0, nan, nan).status) == guard.BAD_GRADIENT
    assert set(guard.REASONS) == {1, 2, 3, 4}


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


def test_one_bad_step_hardly_changes_the_usual_norm():
    for norm in (1e30, 1e-30):
        statuses, usual, _ = after(ARMED, [norm])
        assert statuses == [guard.JUMP if norm > 1 else guard.FINE]
        assert 2 / 1.1001 <= usual <= 2 * 1.1001
    for norm in (0.0, float("nan")):
        assert after(ARMED, [norm])[2] == ARMED


def test_a_norm_that_stays_a_thousand_times_higher_is_accepted_in_the_end():
    statuses, _, _ = after(ARMED, [2000.0] * 40)
    fine = statuses.index(guard.FINE)
    assert set(statuses[:fine]) == {guard.JUMP}
    assert set(statuses[fine:]) == {guard.FINE}
    assert fine == 25


def test_all_arrays_of_a_bad_update_keep_their_values():
    old, new = {"a": tf.constant([1.0, 2.0])}, {"a": tf.constant([float("nan"), 3.0])}
    assert applied(tf.constant(False), new, old)["a"].numpy().tolist() == [1, 2]
    assert applied(tf.constant(True), {"a": old["a"] + 1}, old)["a"].numpy().tolist() == [2, 3]
