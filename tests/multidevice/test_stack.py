"""Stacks unrolled and scanned, remembered and recomputed: the same values and gradients."""

import dataclasses

import numpy as np
import tensorflow as tf

from gshard_nmt.model import counter_random, transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import initial_values
from gshard_nmt.model.steps import StepFunctions
from tests.model.examples import NARROW, packed

LANGUAGE_MODEL = Model(
    encoder_layers=0,
    decoder_layers=2,
    **NARROW,
    experts=4,
    moe_every=1,
    num_groups=2,
    router_z_loss_weight=0.01,
    input_dropout=0.0,
    attention_dropout=0.0,
)
TRANSLATION = dataclasses.replace(
    LANGUAGE_MODEL,
    encoder_layers=1,
    expert_stacks="decoder",
    second_expert="all",
    dispatch="einsum",
)


def batch() -> dict[str, tf.Tensor]:
    """Returns two rows, each with two segments and padding."""
    arrays = packed([[1, 1, 1, 2, 2, 2, 0, 0]] * 2, 20, 24)
    return {name: tf.constant(array) for name, array in arrays.items()}


def loss_and_gradients(model: Model) -> dict[str, np.ndarray]:
    """Returns the metrics and gradients of a compiled training step with dropout and random routing."""
    steps = StepFunctions(model, Optimizer(), 20, 24)
    key = counter_random.Key.from_seed(tf.constant([1, 2], tf.uint32))
    p = initial_values(transformer.declare(model, 20, 24), key)

    @tf.function(jit_compile=True, autograph=False)
    def compute(p, batch, one):
        with tf.GradientTape() as tape:
            tape.watch(p)
            total, metrics = steps._loss(p, batch, Mode(key=key))
        gradients = tape.gradient(total, p, output_gradients=one)
        gradients = {name: tf.convert_to_tensor(g) for name, g in gradients.items()}
        return {**gradients, **metrics, "total": total}

    return {name: value.numpy() for name, value in compute(p, batch(), tf.constant(1.0)).items()}


def test_a_scan_and_recomputation_change_no_value_and_no_gradient():
    """Each layer of a block is recomputed on its own, except the results of its projections."""
    scanned = {"stack": "scan", "remat": "layer", "remat_keeps": "projections"}
    values = loss_and_gradients(dataclasses.replace(TRANSLATION, **scanned))
    expected = loss_and_gradients(TRANSLATION)
    assert set(values) == set(expected)
    for name, value in values.items():
        np.testing.assert_allclose(value, expected[name], rtol=3e-5, atol=3e-6, err_msg=name)
