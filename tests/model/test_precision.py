"""With bfloat16 activations, some values are rounded and others stay float32."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import attention, counter_random, transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import initial_values
from gshard_nmt.model.steps import StepFunctions
from tests.model.examples import CONTROL, WIDTHS, packed

FLOAT32 = Model(encoder_layers=2, decoder_layers=2, **WIDTHS, experts=4, num_groups=2)
BFLOAT16 = dataclasses.replace(FLOAT32, activation_dtype="bfloat16")
KEY = counter_random.Key.from_seed(tf.constant([1, 2], tf.uint32))


def batch() -> dict[str, tf.Tensor]:
    arrays = packed([[1, 1, 1, 2, 2, 2, 2, 0]] * 2, 30, 30)
    return {name: tf.constant(array) for name, array in arrays.items()}


def logits_and_memory(model: Model):
    p = initial_values(transformer.declare(model, 30, 30), KEY)
    memory, _ = transformer.encode(model, p, batch(), Mode())
    logits, totals = transformer.decode(model, p, memory, batch(), Mode())
    return logits, memory, totals


@pytest.mark.parametrize("positions", ["relative", "sinusoidal"])
def test_logits_and_router_statistics_are_float32_and_near_either_way(positions):
    exact, exact_memory, _ = logits_and_memory(dataclasses.replace(FLOAT32, positions=positions))
    rounded, memory, totals = logits_and_memory(dataclasses.replace(BFLOAT16, positions=positions))
    assert exact_memory.dtype == tf.float32
    assert memory.dtype == tf.bfloat16
    assert rounded.dtype == tf.float32
    assert {value.dtype for value in totals.values()} == {tf.float32}
    assert np.abs(exact - rounded).max() > 0
    np.testing.assert_allclose(exact, rounded, atol=0.15)


def test_parameters_gradients_and_moments_stay_float32():
    steps = StepFunctions(BFLOAT16, Optimizer(min_factored_size=8), 30, 30)
    (state,) = steps.initialize(CONTROL)
    state, metrics = steps.train_step(state, batch(), CONTROL)
    counts = ("step", "tokens", "guard/norms")
    assert {value.dtype for name, value in state.items() if name not in counts} == {tf.float32}
    counts = ("tokens_seen", "last_step", "status")
    assert {value.dtype for name, value in metrics.items() if name not in counts} == {tf.float32}
    assert np.isfinite(float(metrics["loss"]))


def test_attention_logits_of_bfloat16_activations_are_float32():
    """300 and 300 * 1.0078125 are 300 and 302.34; bfloat16 would make the latter 302."""
    first, second = tf.constant([[[1.0]], [[0.0]]]), tf.constant([[[0.0]], [[1.0]]])
    p = {"query": first * 300.0, "key": first, "value": second, "output": tf.ones([1, 1, 2])}
    memory = tf.constant([[[1.0, 0.0], [1.0078125, 1.0]]], tf.bfloat16)
    x = tf.constant([[[1.0, 0.0]]], tf.bfloat16)
    output = attention.attend(p, x, memory, tf.zeros([1, 1, 1, 2]), Mode(), 0.0)
    assert output.dtype == tf.bfloat16
    # The weight of the second key.
    assert float(output[0, 0, 0]) == pytest.approx(1 / (1 + np.exp(-300 * 0.0078125)), abs=0.004)
