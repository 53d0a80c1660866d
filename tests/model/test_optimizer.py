"""Adafactor against worked cases and its invariants."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.model import optimizer as adafactor
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import ZEROS, Parameter

SMALL = Optimizer(min_factored_size=1)


def step(optimizer, declared, values, gradients, moments, number, rate=0.01):
    values, gradients, moments = (
        {k: tf.constant(v, tf.float32) for k, v in group.items()}
        for group in (values, gradients, moments)
    )
    new = adafactor.update(
        optimizer, declared, values, gradients, moments, tf.constant(number), tf.constant(rate)
    )
    return tuple({k: v.numpy() for k, v in group.items()} for group in new)


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


def test_a_vector_is_not_factored_and_its_update_is_clipped():
    declared = {"scale": Parameter((1,), "M", ZEROS)}
    value = {"scale": np.ones(1)}
    new, moments = step(SMALL, declared, value, {"scale": [1.0]}, zeros(SMALL, declared), 1)
    np.testing.assert_allclose(new["scale"], [0.99], rtol=1e-6)
    new, moments = step(SMALL, declared, value, {"scale": [10.0]}, moments, 2)
    np.testing.assert_allclose(moments["full/scale"], [57.8605686], rtol=1e-6)
    np.testing.assert_allclose(new["scale"], [0.99], rtol=1e-6)  # 1.3146 clipped to 1


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


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**16), scale=st.floats(0.01, 100))
def test_updates_do_not_depend_on_the_gradients_scale(seed, scale):
    rng = np.random.default_rng(seed)
    declared = {"w": Parameter((2, 3, 4, 5), "REMH", ZEROS)}
    value, gradient = {"w": rng.normal(size=(2, 3, 4, 5))}, rng.normal(size=(2, 3, 4, 5))
    start = zeros(SMALL, declared)
    plain, _ = step(SMALL, declared, value, {"w": gradient}, start, 1)
    scaled, _ = step(SMALL, declared, value, {"w": gradient * scale}, start, 1)
    np.testing.assert_allclose(plain["w"], scaled["w"], rtol=1e-4, atol=1e-6)
    for repeat in range(2):  # the update of a layer is at most rate * max(epsilon2, RMS)
        change = plain["w"][repeat] - value["w"][repeat]
        bound = 0.01 * max(1e-3, np.sqrt(np.mean(value["w"][repeat] ** 2)))
        assert np.sqrt(np.mean(change**2)) <= bound * 1.001


def test_stacked_layers_and_experts_update_as_if_each_stood_alone():
    rng = np.random.default_rng(1)
    value, gradient = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 4, 5)) * 1e-2
    stacked = {"w": Parameter((3, 4, 5), "RMH", ZEROS)}
    alone = {"w": Parameter((4, 5), "MH", ZEROS)}
    together, _ = step(SMALL, stacked, {"w": value}, {"w": gradient}, zeros(SMALL, stacked), 1)
    for i in range(3):
        one, _ = step(SMALL, alone, {"w": value[i]}, {"w": gradient[i]}, zeros(SMALL, alone), 1)
        np.testing.assert_allclose(together["w"][i], one["w"], rtol=1e-5)


def test_the_schedule_is_the_papers():
    def rate(optimizer, number, last=10**6):
        return float(adafactor.learning_rate(optimizer, tf.constant(number), tf.constant(last)))

    assert [round(rate(Optimizer(), n), 6) for n in (1, 10_000, 40_000)] == [0.01, 0.01, 0.005]
    assert rate(Optimizer(linear_warmup_steps=10), 5) == pytest.approx(0.005)
    cooling = Optimizer(cooldown_steps=10)
    assert rate(cooling, 100, last=100) == pytest.approx(0.001)
    assert rate(cooling, 91, last=100) == pytest.approx(0.01)
