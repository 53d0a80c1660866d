"""Decoding token by token: the same log-probabilities as with teacher forcing."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import decoder_step, stack, transformer
from gshard_nmt.model.layers import Mode
from tests.model.examples import (
    FOREIGN,
    MIXED,
    ONE,
    POST_NORM,
    SHARED,
    SMALL,
    TWO,
    parameters,
    read_weights,
    rows,
)


@pytest.mark.parametrize(
    ("model", "precision", "tolerance"),
    [
        (SMALL, None, 1e-4),
        (SMALL, "model", 1e-4),
        (MIXED, "model", 1e-4),
        (FOREIGN, "model", 1e-4),
        (POST_NORM, "model", 1e-4),
        (SHARED, "model", 1e-4),
        (SMALL, "bfloat16", 0.1),
    ],
)
def test_decoding_token_by_token_equals_teacher_forcing(model, precision, tolerance, monkeypatch):
    """With weights as they were trained and in each precision, and in stages of 1, 2 and 4 steps."""
    monkeypatch.setattr(decoder_step, "_FEWEST_STEPS", 1)
    p = parameters(model)
    batch = rows([ONE], [TWO], length=8)
    logits, *_ = transformer.encode_and_decode(model, p, batch, Mode())
    whole = tf.nn.log_softmax(logits).numpy()
    max_steps, beam = 4, 2
    if precision is not None:
        p = read_weights(model, p, precision)
    cache = decoder_step.start(model, p, batch, beam, max_steps)
    for i in range(max_steps):
        mask = np.zeros((2, beam, beam * max_steps), "f")
        for past in range(i + 1):
            mask[:, range(beam), past * beam + np.arange(beam)] = 1
        ids = tf.repeat(batch["target_inputs"][:, i, tf.newaxis], beam, axis=1)
        log_probs, cache = decoder_step.step(
            model, p, ids, tf.constant(mask), tf.constant(i), cache
        )
        for row, length in ((0, 3), (1, 4)):
            if i < length:
                expected = np.repeat(whole[row, i][np.newaxis], beam, axis=0)
                np.testing.assert_allclose(log_probs[row], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize("step", [0, 2])
def test_eager_and_compiled_writes_fill_the_slots_of_one_step_only(step, axis):
    """K = 2 and I = 3, so step i has the slots 2 i and 2 i + 1 of 6."""
    rng = np.random.default_rng(0)
    cache, new = rng.normal(size=(2, 3, 6, 4)), rng.normal(size=(2, 3, 2, 4))
    expected = cache.copy()
    expected[:, :, 2 * step : 2 * step + 2] = new
    arrays = [np.moveaxis(array, 2, axis) for array in (cache, new, expected)]
    write = functools.partial(stack.write, axis=axis)
    arguments = [tf.constant(arrays[0]), tf.constant(2 * step), tf.constant(arrays[1])]
    compiled = tf.function(write, jit_compile=True, autograph=False)
    np.testing.assert_array_equal(write(*arguments), arrays[2])
    np.testing.assert_array_equal(compiled(*arguments), arrays[2])


def test_what_is_recomputed_in_training_is_not_in_decoding():
    """Packed weights cannot pass through the recomputation of a traced program."""
    model = dataclasses.replace(SMALL, remat="layer")
    p, batch = read_weights(model, parameters(model), "model"), rows([ONE], [TWO], length=8)
    tf.function(lambda: decoder_step.start(model, p, batch, 2, 4)).get_concrete_function()
