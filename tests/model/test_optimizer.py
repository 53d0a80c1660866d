"""Adafactor against worked cases and its invariants."""

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.errors import UserError
from gshard_nmt.model import optimizer as adafactor
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import ZEROS, Parameter

SMALL = Optimizer(min_factored_size=1)


def reference(x, g, row, column, t, optimizer, rate, experts):
    """Computes step t of Adafactor (Shazeer and Stern 2018, Algorithm 4; GShard A.2) in float64.

    Parameter and gradient are float64[experts, rows, columns], the moments [experts, rows] and [experts,
    columns]. If the parameter is not factored, `row` is the whole second moment and `column` is None.
    With `experts`, each expert has its own root mean squares.
    """
    beta2 = min(1 - t**-optimizer.decay_exponent, optimizer.maximum_beta2)
    square = g**2 + optimizer.epsilon1
    if column is None:
        row = beta2 * row + (1 - beta2) * square
        second = row
    else:
        row = beta2 * row + (1 - beta2) * square.mean(2)
        column = beta2 * column + (1 - beta2) * square.mean(1)
        second = row[:, :, None] * column[:, None, :] / row.mean(1)[:, None, None]
    u = g / np.sqrt(second)
    dims = (1, 2) if experts else None
    u = u / np.maximum(1, np.sqrt((u**2).mean(dims, keepdims=True)) / optimizer.clip_threshold)
    scale = rate
    if optimizer.scale_by_parameter:
        size = np.sqrt((x**2).mean(dims, keepdims=True))
        scale = rate * np.maximum(optimizer.epsilon2, size)
    return x - scale * u, row, column


def step(optimizer, declared, values, gradients, moments, number, rate=0.01):
    values, gradients, moments = (
        {k: tf.constant(v, tf.float32) for k, v in group.items()}
        for group in (values, gradients, moments)
    )
    new = adafactor.update(
        optimizer, declared, values, gradients, moments, tf.constant(number), tf.constant(rate)
    )
    return tuple({k: v.numpy() for k, v in group.items()} for group in (new.values, new.moments))


def zeros(optimizer, declared):
    moments = adafactor.declare_moments(optimizer, declared)
    return {name: np.zeros(p.shape) for name, p in moments.items()}


def test_two_steps_of_a_matrix_as_worked_by_hand():
    declared = {"w": Parameter((2, 2), "MH", ZEROS)}
    value = {"w": np.full((2, 2), 0.1)}
    new, moments = step(SMALL, declared, value, {"w": [[1, 2], [3, 4]]}, zeros(SMALL, declared), 1)
    np.testing.assert_allclose(moments["row/w"], [2.5, 12.5], rtol=1e-6)
    np.testing.assert_allclose(moments["column/w"], [5, 10], rtol=1e-6)
    update = (value["w"] - new["w"]) / (0.01 * 0.1)
    np.testing.assert_allclose(update, [[0.7745967, 1.0954451], [1.0392305, 0.9797959]], rtol=1e-3)
    new2, moments2 = step(SMALL, declared, value, {"w": np.ones((2, 2))}, moments, 2)
    np.testing.assert_allclose(moments2["row/w"], [1.6384762, 5.8949845], rtol=1e-6)
    np.testing.assert_allclose(moments2["column/w"], [2.7026033, 4.8308574], rtol=1e-6)
    update = (value["w"] - new2["w"]) / (0.01 * 0.1)
    np.testing.assert_allclose(update, [[0.9222975, 0.6898427], [0.486239, 0.3636879]], rtol=1e-3)


@pytest.mark.parametrize(
    ("letters", "shape", "row", "column"),
    [
        ("MND", (4, 2, 3), "M", "ND"),
        ("RNDM", (5, 2, 3, 4), "RM", "RND"),
        ("REMH", (5, 6, 4, 3), "REM", "REH"),
        ("VM", (7, 4), "M", "V"),
    ],
)
def test_moments_keep_batch_dimensions_and_one_side(letters, shape, row, column):
    moments = adafactor.declare_moments(SMALL, {"w": Parameter(shape, letters, ZEROS)})
    sizes = dict(zip(letters, shape, strict=True))
    assert moments["row/w"].letters == row
    assert moments["column/w"].letters == column
    for moment in moments.values():
        assert moment.shape == tuple(sizes[letter] for letter in moment.letters)


def test_the_schedule_is_the_papers():
    def rate(optimizer, number, last=10**6):
        return float(adafactor.learning_rate(optimizer, tf.constant(number), tf.constant(last)))

    assert [round(rate(Optimizer(), n), 6) for n in (1, 10_000, 40_000)] == [0.01, 0.01, 0.005]
    assert rate(Optimizer(linear_warmup_steps=10), 5) == pytest.approx(0.005)
    for cooling in (Optimizer(cooldown_steps=10), Optimizer(cooldown_steps=0.1)):
        assert rate(cooling, 100, last=100) == pytest.approx(0.001)
        assert rate(cooling, 91, last=100) == pytest.approx(0.01)


SWITCHES = [
    SMALL,
    Optimizer(min_factored_size=1, rms_over="expert"),
    Optimizer(min_factored_size=1, scale_by_parameter=False),
    Optimizer(min_factored_size=1, maximum_beta2=0.3),
    Optimizer(min_factored_size=128),
]


@pytest.mark.parametrize("optimizer", SWITCHES, ids=lambda o: f"{o.rms_over} {o.maximum_beta2}")
def test_five_steps_equal_the_reference_in_float64(optimizer):
    """Compares a parameter [R, E, M, H] with the reference for each repeat separately."""
    repeats, experts, m, h = 2, 3, 4, 5
    declared = {"w": Parameter((repeats, experts, m, h), "REMH", ZEROS)}
    rng = np.random.default_rng(4)
    # The experts have weights and gradients of different sizes, so that the settings differ.
    value = rng.normal(size=(repeats, experts, m, h)) * np.array([1, 0.1, 1e-5])[:, None, None]
    gradients = rng.normal(size=(5, *value.shape)) * np.array([1, 1e-3, 30])[:, None, None]
    moments = {k: tf.constant(v) for k, v in zeros(optimizer, declared).items()}
    factored = "row/w" in moments
    values = {"w": tf.constant(value)}
    expected = [
        (value[r], np.zeros((experts, m)), np.zeros((experts, h)))
        if factored
        else (value[r], np.zeros((experts, m, h)), None)
        for r in range(repeats)
    ]
    for t, gradient in enumerate(gradients, 1):
        rate = tf.constant(0.01, tf.float64)
        update = adafactor.update(
            optimizer, declared, values, {"w": tf.constant(gradient)}, moments, tf.constant(t), rate
        )
        values, moments = update.values, update.moments
        assert np.abs(values["w"]).max() <= float(update.bound) < 1e4
        each = optimizer.rms_over == "expert"
        expected = [
            reference(x, gradient[r], row, column, t, optimizer, 0.01, each)
            for r, (x, row, column) in enumerate(expected)
        ]
        for r, (x, row, column) in enumerate(expected):
            np.testing.assert_allclose(values["w"][r], x, rtol=1e-12)
            if column is None:
                np.testing.assert_allclose(moments["full/w"][r], row, rtol=1e-12)
            else:
                np.testing.assert_allclose(moments["row/w"][r], row, rtol=1e-12)
                np.testing.assert_allclose(moments["column/w"][r], column, rtol=1e-12)


def test_the_gate_is_factored_as_the_matrix_that_it_is():
    gate = Parameter((2, 256, 512), "RM_", ZEROS)
    moments = adafactor.declare_moments(Optimizer(), {"gate": gate})
    assert {k: p.shape for k, p in moments.items()} == {
        "row/gate": (2, 256),
        "column/gate": (2, 512),
    }


def test_the_smallest_epsilon1_times_the_smallest_weight_is_not_0():
    epsilon1 = np.float32(Optimizer(epsilon1=2e-31).epsilon1)
    assert epsilon1 * np.float32(2**-24) >= np.finfo(np.float32).tiny
    with pytest.raises(UserError, match=r"^Optimizer.epsilon1 is 1.9e-31; it must be from 2e-31 "):
        Optimizer(epsilon1=1.9e-31)


@pytest.mark.parametrize("rms_over", ["tensor", "expert"])
@pytest.mark.parametrize("part", ["values", "gradients", "moments"])
def test_the_bound_of_an_update_that_is_not_finite_is_not_finite(part, rms_over):
    """Also if only one value of one expert is NaN, and if the scale of the parameter is not used."""
    optimizer = Optimizer(min_factored_size=1, rms_over=rms_over, scale_by_parameter=False)
    declared = {"w": Parameter((2, 3, 4, 5), "REMH", ZEROS), "scale": Parameter((4,), "M", ZEROS)}
    groups = {
        "values": {name: np.ones(p.shape, np.float32) for name, p in declared.items()},
        "gradients": {name: np.ones(p.shape, np.float32) for name, p in declared.items()},
        "moments": {k: v.astype(np.float32) for k, v in zeros(optimizer, declared).items()},
    }

    def bound() -> float:
        inputs = [{k: tf.constant(v) for k, v in group.items()} for group in groups.values()]
        rate = tf.constant(0.1)
        return float(adafactor.update(optimizer, declared, *inputs, tf.constant(2), rate).bound)

    assert np.isfinite(bound())
    for name, array in groups[part].items():
        sound = array.copy()
        array.flat[-1] = np.nan
        assert not np.isfinite(bound()), name
        groups[part][name] = sound


@pytest.mark.parametrize("decay", [0.25, 0.999])
def test_it_follows_the_formula_over_several_steps(decay):
    rng = np.random.default_rng(0)
    average = {"w": tf.constant(rng.normal(size=(2, 3)), tf.float32), "b": tf.zeros([4])}
    expected = {name: value.numpy().astype(np.float64) for name, value in average.items()}
    decays = []
    for step in (1, 2, 3, 100, 20_000):
        weights = {name: rng.normal(size=v.shape).astype(np.float32) for name, v in average.items()}
        average = adafactor.moving_average(average, weights, decay, tf.constant(step))
        decays.append(min(decay, (1 + step) / (10 + step)))
        for name, value in expected.items():
            expected[name] = decays[-1] * value + (1 - decays[-1]) * weights[name]
            assert average[name].dtype == tf.float32
            np.testing.assert_allclose(average[name], expected[name], rtol=1e-5, atol=1e-7)
    assert decays[0] == 2 / 11
    assert decays[-1] == decay
