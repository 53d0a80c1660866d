"""A stack of layers as an eager pipeline: its microbatches, groups, totals and random numbers."""

import dataclasses

import numpy as np
import tensorflow as tf

from gshard_nmt.model import counter_random, transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.layer_stack import StackInputs, run_stack
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import initial_values
from gshard_nmt.model.steps import StepFunctions
from tests.model.examples import NARROW, WITHOUT_DROPOUT, packed

ROWS, MICROBATCHES = 8, 4
GATING = {"capacity_factor": 1.0, "second_expert": "all", "router_z_loss_weight": 0.01}
SIZES = {**NARROW, "moe_every": 1, "experts": 4, "num_groups": MICROBATCHES}
MODEL = Model(encoder_layers=2, decoder_layers=2, **SIZES, **GATING, **WITHOUT_DROPOUT)
KEY = counter_random.Key.from_seed(tf.constant([1, 2], tf.uint32))
PIPELINE = {"stack": "pipeline", "stages": 2}


def batch(rows=slice(None)) -> dict[str, tf.Tensor]:
    arrays = packed([[1, 1, 1, 2, 2, 0]] * ROWS, 20, 24)
    return {name: tf.constant(array[rows]) for name, array in arrays.items()}


def results(model: Model, rows=slice(None), microbatches: int = 1) -> dict[str, np.ndarray]:
    """Returns the loss, the metrics and all gradients."""
    steps = StepFunctions(model, Optimizer(), 20, 24, 3, microbatches=microbatches)
    p = initial_values(transformer.declare(model, 20, 24), KEY)
    with tf.GradientTape() as tape:
        tape.watch(p)
        total, metrics = steps._loss(p, batch(rows), Mode(key=KEY))
    gradients = tape.gradient(total, p)
    values = {"total": total, **metrics, **{f"d/{n}": d for n, d in gradients.items()}}
    return {name: tf.convert_to_tensor(value).numpy() for name, value in values.items()}


def test_a_pipeline_equals_the_stack_whose_groups_are_the_same():
    # A group of the whole batch is a microbatch if the rows are in this order.
    expected = results(MODEL, np.arange(ROWS).reshape(-1, MICROBATCHES).T.ravel())
    values = results(dataclasses.replace(MODEL, **PIPELINE), microbatches=MICROBATCHES)
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    # Some tokens lose an expert, so the groups matter.
    assert values["overflow_fraction"] > 0
    assert abs(results(MODEL)["total"] - expected["total"]) > 1e-5


def test_dropout_is_reproducible_and_differs_among_microbatches():
    model = dataclasses.replace(MODEL, **PIPELINE, experts=0, residual_dropout=0.5)
    p = initial_values(transformer.declare(model, 20, 24), KEY)
    # Eight equal rows. Two are in each microbatch.
    rows = batch(np.zeros(ROWS, np.int32))
    x = transformer.embed(model, p, "source", rows["source_ids"], rows["source_positions"])
    inputs = StackInputs(rows["source_segments"], microbatches=MICROBATCHES)
    mode = Mode(key=KEY)
    y, again = (run_stack(model, "encoder", p, x, inputs, mode)[0].numpy() for _ in range(2))
    np.testing.assert_array_equal(y, again)
    assert len(np.unique(y[:, 0], axis=0)) == ROWS
