"""A model with more experts learns more: the point of a Mixture of Experts.

The label of a token is a random function of the token and the one before it, so that it has to be
remembered; what can be remembered grows with the weights. A token's work is the same with two experts
as with sixteen.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import CONTROL, letters_of, state_specs
from gshard_nmt.spmd.mesh import Mesh
from tests.model.examples import WITHOUT_DROPOUT
from tests.multidevice.compiled_function import Compiled, batch_specs, control

TOKENS, ROWS, LENGTH, UPDATES = 32, 16, 32, 200
MODEL = Model(
    encoder_layers=0,
    decoder_layers=1,
    moe_every=1,
    model_dim=16,
    hidden_dim=16,
    heads=2,
    head_dim=8,
    experts=2,
    num_groups=8,
    label_smoothing=0.0,
    **WITHOUT_DROPOUT,
)
BATCH = batch_specs(ROWS, LENGTH)


def batches():
    """Rows of random tokens with the labels of a random table; the same for every model."""
    rng = np.random.default_rng(0)
    table = rng.integers(0, TOKENS, (TOKENS, TOKENS))
    ones = np.ones((ROWS, LENGTH), np.int32)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
    while True:
        inputs = rng.integers(0, TOKENS, (ROWS, LENGTH)).astype(np.int32)
        before = np.roll(inputs, 1, axis=1)
        before[:, 0] = 0
        batch = {"target_inputs": inputs, "target_labels": table[before, inputs].astype(np.int32)}
        for side in ("source", "target"):
            batch |= {f"{side}_segments": ones, f"{side}_positions": positions}
            batch[f"{side}_languages"] = ones
        yield {**batch, "source_ids": inputs}


def final_loss(experts: int) -> tuple[float, float]:
    """Nats a token over the last updates, and the busiest expert's load, 1 at balance."""
    model = dataclasses.replace(MODEL, experts=experts)
    steps = StepFunctions(model, Optimizer(warmup_steps=60, min_factored_size=8), TOKENS, TOKENS)
    specs = state_specs(steps)
    inputs, letters = [specs, BATCH, CONTROL], [letters_of(specs), {}]
    step = Compiled(steps.train_step, inputs, letters, Mesh(("x",), (2,)), donate=(0,))
    scalars = control() | {"max_steps": np.array(UPDATES, np.int32)}
    (state,) = steps.initialize({name: tf.constant(value) for name, value in scalars.items()})
    state = step.devices.put({name: value.numpy() for name, value in state.items()}, specs)
    scalars = step.devices.put(scalars, CONTROL)
    losses, busiest = [], 0.0
    for _, batch in zip(range(UPDATES), batches(), strict=False):
        state, metrics = step.program(state, step.devices.put(batch, BATCH), scalars)
        losses.append(float(metrics["nll"]))
        busiest = float(metrics["busiest_expert"])
    return float(np.mean(losses[-50:])), busiest


def test_more_experts_reach_a_lower_loss_at_equal_steps():
    few, _ = final_loss(experts=2)
    many, busiest = final_loss(experts=16)
    assert few < np.log(TOKENS) - 0.2, "nothing was learnt"
    assert many < few - 0.5
    assert busiest < 6, "the experts share the tokens"
