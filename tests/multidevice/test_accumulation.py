"""A training step in microbatches: equal to the step of the whole batch, on one device and on meshes."""

import dataclasses
import functools

import numpy as np
import pytest

from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.run.arrays import CONTROL, letters_of, state_specs
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import Program
from tests.model.examples import MOE, WITHOUT_DROPOUT
from tests.multidevice.compiled_function import Compiled, Watched, batch_specs, control

ROWS, LENGTH = 8, 16
# Every row is a group, so the groups are the same in microbatches. Experts overflow.
SCAN = {"second_expert": "all", "router_z_loss_weight": 0.1, "stack": "scan", **WITHOUT_DROPOUT}
MODEL = dataclasses.replace(MOE, capacity_factor=1.0, **SCAN)
# A group has two rows, and others in microbatches. Nothing is dropped.
DENSE = dataclasses.replace(MODEL, stack="unrolled", experts=0, encoder_layers=0)
TENSOR = {"B": "x", "G": "x", "E": "x", "H": "y", "N": "y", "M": "y"}
CASES = {"a dense model": (DENSE, 0.9, Mesh(("x",), (1,)), 2)}
SLOW_CASES = {"a scan on 4x2 devices": (MODEL, 0.9, Mesh(("x", "y"), (4, 2), rules=TENSOR), 2)}
BATCH = batch_specs(ROWS, LENGTH)


def batch() -> dict[str, np.ndarray]:
    """Returns rows of one sentence, of 1 to 15 tokens, in three languages."""
    rng = np.random.default_rng(0)
    vocabularies = {"source_ids": 40, "target_inputs": 48, "target_labels": 48}
    arrays = {name: rng.integers(4, n, (ROWS, LENGTH)) for name, n in vocabularies.items()}
    for side in ("source", "target"):
        lengths = rng.permutation(range(1, LENGTH, 2))
        segments = (np.arange(LENGTH) < lengths[:, np.newaxis]).astype(np.int32)
        languages = segments * rng.integers(1, 4, (ROWS, 1))
        arrays |= {f"{side}_segments": segments, f"{side}_languages": languages}
        arrays[f"{side}_positions"] = segments * np.arange(LENGTH)
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def start(specs) -> dict[str, np.ndarray]:
    """Returns a state in the middle of a run, so that no update depends on the sign of a gradient."""
    rng = np.random.default_rng(1)
    state = {}
    for name, spec in specs.items():
        array = rng.normal(size=spec.shape) / np.sqrt(max(spec.shape[-2:], default=1))
        if name.startswith("moments/"):
            array = rng.uniform(1e-4, 2e-4, spec.shape)
        elif name.startswith("guard/") or name == "tokens":
            array = np.zeros(spec.shape)
        state[name] = np.array(6 if name == "step" else array, spec.dtype)
    return state


@functools.cache
def compute(
    model: Model, ema: float, shape: tuple[int, ...], microbatches: int
) -> tuple[Program, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the compiled step, the new state, and the metrics with the gradients."""
    mesh = next(m for _, _, m, _ in (CASES | SLOW_CASES).values() if tuple(m.shape) == shape)
    functions = Watched(
        model, Optimizer(min_factored_size=8), 40, 48, 3, ema=ema, microbatches=microbatches
    )
    state = state_specs(functions)
    step = Compiled(functions.train_step, [state, BATCH, CONTROL], [letters_of(state), {}], mesh)
    return step.program, *step(start(state), batch(), control())


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW_CASES)]
)
def test_microbatches_give_the_loss_the_gradients_and_the_state_of_the_whole_batch(case):
    model, ema, mesh, microbatches = (CASES | SLOW_CASES)[case]
    _, expected_state, expected = compute(model, ema, (1,), 1)
    _, state, metrics = compute(model, ema, tuple(mesh.shape), microbatches)
    assert set(metrics) == set(expected)
    overflows = bool(model.experts) and model.capacity_factor < 8
    assert (expected["overflow_fraction"] > 0.1) == overflows
    for name, value in metrics.items():
        scale = np.abs(expected[name]).max() if name.startswith("gradients/") else 0.0
        if name == "aux_loss" and model.num_groups < ROWS:
            continue  # it depends on which rows are a group
        np.testing.assert_allclose(
            value, expected[name], rtol=1e-4, atol=1e-5 * scale, err_msg=name
        )
    np.testing.assert_array_equal(metrics["tokens_seen"], expected["tokens_seen"])
    name = "language_target_tokens"
    np.testing.assert_array_equal(metrics[name], expected[name])
    assert set(state) == set(expected_state)
    for name, value in state.items():
        np.testing.assert_allclose(value, expected_state[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_four_microbatches_need_less_memory_than_one():
    one, four = (compute(MODEL, 0.9, (1,), number)[0].memory() for number in (1, 4))
    assert four.arguments == one.arguments
    assert four.temporaries < 0.6 * one.temporaries
