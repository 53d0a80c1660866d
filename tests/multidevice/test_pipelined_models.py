"""Models whose stacks are pipelines: a training step of the unrolled stack on one device."""

import dataclasses
import re

import numpy as np
import pytest

from gshard_nmt.inspection.hlo import parse
from gshard_nmt.model.config import Model
from gshard_nmt.model.guard import FINE
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import CONTROL, letters_of, state_specs, weights_of
from gshard_nmt.spmd.lowering import ArraySpecs
from gshard_nmt.spmd.mesh import Mesh
from tests.model.examples import NARROW, WITHOUT_DROPOUT, packed
from tests.multidevice.collectives import axes_of
from tests.multidevice.compiled_function import Compiled, Watched, batch_specs, control

ROWS, LENGTH = 8, 8
ONE = Mesh(("x",), (1,))
GATING = {"capacity_factor": 1.0, "second_expert": "all", "router_z_loss_weight": 0.01}
SIZES = {**NARROW, "moe_every": 1, "experts": 4, "num_groups": 4}
MOE = Model(encoder_layers=2, decoder_layers=4, **SIZES, **GATING, **WITHOUT_DROPOUT)


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
    # Stages of two blocks, whose two layers are recomputed one by one.
    "experts, layers recomputed one by one": Case(
        dataclasses.replace(MOE, encoder_layers=0, decoder_layers=8, moe_every=2),
        {"stages": 2, "remat": "layer", "remat_keeps": "projections"},
        2,
        mesh(2, 2, 2),
    ),
    "experts, circular": Case(
        MOE, {"stages": 2, "schedule": "circular", "remat_keeps": "projections"}, 2, mesh(2, 2, 2)
    ),
}


def batch(order: np.ndarray) -> dict[str, np.ndarray]:
    """Returns rows of two sentences in this order, half of them padded, so that microbatches differ."""
    segments = [[1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 2, 2, 2, 2, 2]] * (ROWS // 2)
    return {name: array[order] for name, array in packed(segments, 20, 24).items()}


def training_state(specs: ArraySpecs) -> dict[str, np.ndarray]:
    """Returns the state after a few steps: with moments, because first updates depend on signs only."""
    rng = np.random.default_rng(1)
    state = {}
    for name, spec in sorted(specs.items()):
        if name.startswith("parameters/"):
            values = rng.normal(scale=0.3, size=spec.shape)
        else:
            values = rng.uniform(1e-4, 2e-4, spec.shape) if name.startswith("moments/") else 0
        state[name] = np.broadcast_to(values, spec.shape).astype(spec.dtype)
    return state | {"step": np.array(3, np.int32)}


def compiled_step(model: Model, microbatches: int, mesh: Mesh):
    """Compiles a step: (order of rows, seed) -> metrics, gradients and new state, and its text."""
    optimizer = Optimizer(warmup_steps=4)
    steps = Watched(model, optimizer, 20, 24, languages=3, microbatches=microbatches)
    state = state_specs(steps)
    inputs = [state, batch_specs(ROWS, LENGTH), CONTROL]
    compiled = Compiled(steps.train_step, inputs, [letters_of(state), {}], mesh)

    def step(order: np.ndarray, seed: int = 1):
        new_state, metrics = compiled(training_state(state), batch(order), control(seed))
        return metrics | new_state, compiled.text

    return step


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_pipelined_step_equals_that_of_the_unrolled_stack(name):
    """The loss, every gradient and the whole new state are equal."""
    case, order = CASES[name], np.arange(ROWS)
    model = dataclasses.replace(case.model, stack="pipeline", **case.pipeline)
    results, text = compiled_step(model, case.microbatches, case.mesh)(order)
    # The groups of the whole batch are those of the microbatches, if the rows are in their order.
    expected, _ = compiled_step(case.model, 1, ONE)(order.reshape(-1, case.microbatches).T.ravel())
    assert results["status"] == FINE
    for key, value in expected.items():
        atol = 2e-5 if key.startswith("parameters/") else 2e-6
        np.testing.assert_allclose(results[key], value, rtol=2e-4, atol=atol, err_msg=key)
    assert results["overflow_fraction"] > 0
    stacks = sum(case.model.depth(stack) > 0 for stack in ("encoder", "decoder"))
    assert permutes_in_loops(text, case.mesh) == 2 * stacks


@pytest.mark.slow
def test_validation_of_a_pipeline_with_experts_equals_that_of_the_unrolled_stack():
    case = CASES["experts, circular"]

    def nll(model: Model, microbatches: int, mesh: Mesh) -> float:
        steps = StepFunctions(model, Optimizer(), 20, 24, languages=3, microbatches=microbatches)
        state = state_specs(steps)
        inputs = [weights_of(state), batch_specs(ROWS, LENGTH)]
        eval_step = Compiled(steps.eval_step, inputs, [{}], mesh)
        (sums,) = eval_step(weights_of(training_state(state)), batch(np.arange(ROWS)))
        return float(sums["nll_sum"])

    model = dataclasses.replace(case.model, stack="pipeline", **case.pipeline)
    result = nll(model, case.microbatches, case.mesh)
    assert result == pytest.approx(nll(case.model, 1, ONE), rel=1e-5)


DROPOUT = {"input_dropout": 0.1, "residual_dropout": 0.2, "attention_dropout": 0.3}


@pytest.mark.slow
def test_dropout_in_stages_draws_the_same_numbers_on_any_mesh():
    """With dropout, a pipelined step on a mesh equals that of the same pipeline on one device."""
    case, order = CASES["experts, circular"], np.arange(ROWS)
    case = dataclasses.replace(case, model=dataclasses.replace(MOE, encoder_layers=0))
    model = dataclasses.replace(case.model, stack="pipeline", **case.pipeline, **DROPOUT)
    results, _ = compiled_step(model, case.microbatches, case.mesh)(order)
    program = compiled_step(model, case.microbatches, ONE)
    expected, other = (program(order, seed)[0] for seed in (1, 2))
    assert results["status"] == FINE
    gradient = "gradients/decoder/block/self_attention_0/value"
    assert not np.allclose(expected[gradient], other[gradient], rtol=0.1)
    for key, value in expected.items():
        atol = 2e-5 if key.startswith("parameters/") else 2e-6
        np.testing.assert_allclose(results[key], value, rtol=2e-4, atol=atol, err_msg=key)


def permutes_in_loops(text: str, mesh: Mesh) -> int:
    """Counts the collective-permutes along the stages in the bodies of loops."""
    bodies = set(re.findall(r"body=%([\w.\-]+)", text))
    return sum(
        instruction.opcode.startswith("collective-permute")
        and not instruction.opcode.endswith("-done")
        and "stage" in axes_of(instruction.attributes, mesh)
        for name, body in parse(text).computations.items()
        if name in bodies
        for instruction in body
    )
