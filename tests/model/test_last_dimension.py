"""Reductions over the last dimension, beside numpy, for sizes with and without divisors."""

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import last_dimension

SIZES = [1, 2, 31, 32, 33, 37, 64, 250, 1021, 8000, 8003]


def numbers(size: int) -> np.ndarray:
    return np.random.default_rng(size).normal(size=(3, 2, size)).astype(np.float32)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("size", [1, 2, 37, 64, 250])
def test_a_running_total_is_that_of_numpy_on_any_axis(size, exclusive):
    x = np.random.default_rng(size).integers(0, 9, (2, size, 3)).astype(np.int32)
    total = last_dimension.running_total(tf.constant(x), 1, exclusive)
    np.testing.assert_array_equal(total, np.cumsum(x, 1) - x * exclusive)


@pytest.mark.parametrize("size", SIZES)
def test_every_number_counts_once(size):
    x = numbers(size)
    np.testing.assert_array_equal(last_dimension.maximum(x), x.max(-1, keepdims=True))
    np.testing.assert_array_equal(last_dimension.minimum(x), x.min(-1, keepdims=True))
    np.testing.assert_array_equal(last_dimension.total(np.ones([2, size], np.int32)), [[size]] * 2)
    # Each number alone, so that none is left out and none is counted twice.
    alone = np.eye(size, dtype=np.int32) * np.arange(1, size + 1, dtype=np.int32)[:, np.newaxis]
    if size < 2000:
        np.testing.assert_array_equal(
            last_dimension.total(alone)[:, 0], np.arange(1, size + 1, dtype=np.int32)
        )


@pytest.mark.parametrize("size", SIZES)
def test_softmax_is_that_of_float64(size):
    x = 5 * numbers(size)
    exact = x.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    np.testing.assert_allclose(last_dimension.log_softmax(x), exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(last_dimension.softmax(x), np.exp(exact), rtol=1e-5, atol=1e-7)


def test_nan_stays_and_minus_infinity_is_no_probability():
    x = numbers(100)
    x[0, 0, 7], x[1, 1, 8] = np.nan, -np.inf
    log_probs = last_dimension.log_softmax(x).numpy()
    assert np.isnan(log_probs[0, 0]).all()
    assert np.isneginf(log_probs[1, 1, 8])
    assert np.isfinite(np.delete(log_probs[1, 1], 8)).all()
