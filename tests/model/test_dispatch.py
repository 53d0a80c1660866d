"""Dispatch and combine on a group that is routed by hand."""

import numpy as np
import tensorflow as tf

from gshard_nmt.model import dispatch
from gshard_nmt.model.gating import Routing
from gshard_nmt.spmd.lowering import ArraySpec, lower
from tests.model.test_gating import text_of

EXPERTS, CAPACITY = 3, 2
NO_SLOT = EXPERTS * CAPACITY
# One group of four tokens and two choices each. Token 2 lost both choices, token 3 its second choice.
SLOT = np.array([[[0, 3], [1, 4], [NO_SLOT, NO_SLOT], [2, NO_SLOT]]], np.int32)
WEIGHT = np.array([[[0.7, 0.3], [0.6, 0.4], [0, 0], [0.8, 0]]], np.float32)
TOKENS = np.random.default_rng(0).normal(size=(1, 4, 5)).astype(np.float32)


def routing(slot=SLOT, weight=WEIGHT) -> Routing:
    """A routing without losses, which dispatch does not read."""
    zero = tf.zeros([])
    return Routing(
        tf.constant(slot),
        tf.constant(weight),
        CAPACITY,
        zero,
        zero,
        lost=tf.zeros(weight.shape[:2]),
        requests=zero,
        overflow_fraction=zero,
        entropy=zero,
        load=tf.zeros([EXPERTS]),
    )


def scatters(function) -> int:
    """The scatters in the program of the gradient of a function of tokens."""

    def gradient(arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            y = function(arrays["tokens"])
        return [tape.gradient(y, arrays)]

    specs = {"tokens": ArraySpec(TOKENS.shape, np.dtype(np.float32))}
    program = lower(gradient, [specs], [{}], None)
    return sum("stablehlo.scatter" in line for line in text_of(program.stablehlo))


def test_gather_scatters_no_activation_in_either_direction():
    """A plain gather does, which shows that the test can see it."""
    chosen = tf.constant(SLOT[..., 0] % 4)
    assert scatters(lambda tokens: tf.gather(tokens, chosen, batch_dims=1)) > 0

    def there_and_back(tokens):
        to_slots, to_tokens = dispatch.by_gather(routing(), EXPERTS, tf.float32)
        return to_tokens(tf.square(to_slots(tokens)))

    assert scatters(there_and_back) == 0
