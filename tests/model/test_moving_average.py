"""The moving average of the weights against its formula in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import moving_average


@pytest.mark.parametrize("decay", [0.25, 0.999])
def test_it_follows_the_formula_over_several_steps(decay):
    rng = np.random.default_rng(0)
    average = {"w": tf.constant(rng.normal(size=(2, 3)), tf.float32), "b": tf.zeros([4])}
    expected = {name: value.numpy().astype(np.float64) for name, value in average.items()}
    decays = []
    for step in (1, 2, 3, 100, 20_000):
        weights = {name: rng.normal(size=v.shape).astype(np.float32) for name, v in average.items()}
        average = moving_average.moved(average, weights, decay, tf.constant(step))
        decays.append(min(decay, (1 + step) / (10 + step)))
        for name, value in expected.items():
            expected[name] = decays[-1] * value + (1 - decays[-1]) * weights[name]
            assert average[name].dtype == tf.float32
            np.testing.assert_allclose(average[name], expected[name], rtol=1e-5, atol=1e-7)
    assert decays[0] == 2 / 11
    assert decays[-1] == decay


def test_weights_that_stay_leave_it_as_it_is_to_the_bit():
    weights = {"w": tf.constant([0.1, -3e-9, 7e8])}
    average = moving_average.moved(weights, weights, 0.9999, tf.constant(5))
    np.testing.assert_array_equal(average["w"], weights["w"])
