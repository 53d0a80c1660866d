"""Models whose stacks are pipelines: the loss and every gradient of the unrolled stack on one device."""

import dataclasses
import re

import numpy as np
import pytest

from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import BATCH_ARRAYS, StepFunctions
from gshard_nmt.run.arrays import CONTROL, state_specs, weights_of
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from tests.multidevice.collectives import axes_of, parse

ROWS, LENGTH = 8, 8
ONE = Mesh(("x",), (1,))
DENSE = Model(
    encoder_layers=2,
    decoder_layers=4,
    moe_every=1,
    model_dim=8,
    hidden_dim=16,
    heads=2,
    head_dim=4,
    experts=0,
    input_dropout=0.0,
    residual_dropout=0.0,
    attention_dropout=0.0,
)
MOE = dataclasses.replace(
    DENSE,
    experts=4,
    num_groups=4,
    capacity_factor=1.0,
    second_expert="all",
    router_z_loss_weight=0.01,
)
LANGUAGE_MODEL = dataclasses.replace(DENSE, encoder_layers=0, decoder_layers=8)


def rules(data: str) -> dict:
    both = ("stage", data)
    return {
        "P": "stage", "R": "stage", "V": "stage", "B": both, "G": both,
        "E": data, "H": "tensor", "N": "tensor",
    }  # fmt: skip


def mesh(stages: int, data: int, tensor: int) -> Mesh:
    return Mesh(("stage", "data", "tensor"), (stages, data, tensor), rules=rules("data"))


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, how it runs as a pipeline, the number of microbatches, and the mesh."""

    model: Model
    pipeline: dict
    microbatches: int
    mesh: Mesh


CASES = {
    "data and tensor parallelism": Case(DENSE, {"stages": 2}, 4, mesh(2, 2, 2)),
    "experts": Case(MOE, {"stages": 2, "schedule": "circular"}, 2, mesh(2, 2, 2)),
    "experts, all blocks of a stage at once": Case(MOE, {"stages": 2}, 2, mesh(2, 2, 1)),
    "four stages": Case(LANGUAGE_MODEL, {"stages": 4}, 2, mesh(4, 2, 1)),
}


def batch(order: np.ndarray) -> dict[str, np.ndarray]:
    """Returns rows of two sentences and padding, in this order."""
    rng = np.random.default_rng(0)
    arrays = {
        "source_ids": rng.integers(4, 20, (ROWS, LENGTH)),
        "target_inputs": rng.integers(4, 24, (ROWS, LENGTH)),
        "target_labels": rng.integers(4, 24, (ROWS, LENGTH)),
    }
    segments = np.array([[1, 1, 1, 2, 2, 2, 0, 0]] * ROWS)
    for side in ("source", "target"):
        arrays[f"{side}_segments"] = segments
        arrays[f"{side}_positions"] = np.array([[0, 1, 2, 0, 1, 2, 0, 0]] * ROWS)
        arrays[f"{side}_languages"] = np.where(segments, 1 + np.arange(ROWS)[:, np.newaxis] % 3, 0)
    return {name: array[order].astype(np.int32) for name, array in arrays.items()}


def metrics_and_gradients(model: Model, microbatches: int, mesh: Mesh, order: np.ndarray):
    """Returns the metrics and gradients of a step, and the text of its program."""
    steps = StepFunctions(model, Optimizer(), 20, 24, languages=3, microbatches=microbatches)
    weights = weights_of(state_specs(steps))
    arrays = {n: ArraySpec((ROWS, LENGTH), np.dtype(np.int32), "BL") for n in BATCH_ARRAYS}
    rng = np.random.default_rng(1)
    parameters = {
        name: rng.normal(scale=0.3, size=spec.shape).astype(np.float32)
        for name, spec in sorted(weights.items())
    }
    control = {
        "seed": np.array([1, 0], np.uint32),
        "max_steps": np.array(100, np.int32),
        "max_tokens": np.array([0, 0], np.uint32),
        "one": np.array(1.0, np.float32),
    }

    def function(parameters, batch, control):
        gradients, metrics = steps.gradients(parameters, batch, control, 1)
        return [metrics, gradients]

    devices = runtime.start(mesh)
    letters = [{}, {name: spec.letters for name, spec in weights.items()}]
    inputs = [weights, arrays, CONTROL]
    program = devices.compile("step", lambda: lower(function, inputs, letters, mesh))
    values = (parameters, batch(order), control)
    placed = [devices.put(group, specs) for group, specs in zip(values, inputs, strict=True)]
    metrics, gradients = program(*placed)
    results = {name: np.asarray(value) for name, value in {**metrics, **gradients}.items()}
    return results, program.executable.as_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_pipeline_computes_the_loss_and_every_gradient_of_the_unrolled_stack(name):
    case, order = CASES[name], np.arange(ROWS)
    model = dataclasses.replace(case.model, stack="pipeline", **case.pipeline)
    results, text = metrics_and_gradients(model, case.microbatches, case.mesh, order)
    # The groups of the whole batch are those of the microbatches, if the rows are in their order.
    by_microbatch = order.reshape(-1, case.microbatches).T.ravel()
    expected, _ = metrics_and_gradients(case.model, 1, ONE, by_microbatch)
    for key, value in expected.items():
        if "layer_" in key or key == "busiest_expert":
            continue  # These are means over the microbatches, and not figures of the whole batch.
        np.testing.assert_allclose(results[key], value, rtol=2e-4, atol=2e-6, err_msg=key)
    if case.model.experts:
        assert results["overflow_fraction"] > 0
    stacks = sum(case.model.depth(stack) > 0 for stack in ("encoder", "decoder"))
    assert permutes_in_loops(text, case.mesh) == 2 * stacks


def permutes_in_loops(text: str, mesh: Mesh) -> int:
    """Counts the collective-permutes along the stages in the bodies of loops."""
    bodies = set(re.findall(r"body=%([\w.\-]+)", text))
    return sum(
        instruction.opcode.startswith("collective-permute")
        and not instruction.opcode.endswith("-done")
        and "stage" in axes_of(instruction.text, mesh)
        for name, computation in parse(text).items()
        if name in bodies
        for instruction in computation.values()
    )
