"""Every mesh of configs/meshes: it computes what one device computes, with the expected collectives."""

import collections
import dataclasses
import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model.config import Model
from gshard_nmt.model.counter_random import Key
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import CONTROL, letters_of, state_specs
from gshard_nmt.settings.config import configs_folder
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.lowering import annotations_in, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import COLLECTIVE_KINDS
from tests.model.examples import MOE, WITHOUT_DROPOUT
from tests.multidevice.collectives import Counts, axes_of, collectives, instructions_of
from tests.multidevice.compiled_function import Compiled, batch_specs, control

ROWS, LENGTH = 16, 16
SPARSE = dataclasses.replace(MOE, encoder_layers=0, heads=4, **WITHOUT_DROPOUT)
DENSE = dataclasses.replace(SPARSE, experts=0)
BATCH = {
    name: spec
    for name, spec in batch_specs(ROWS, LENGTH).items()
    if name.startswith("target") or name == "source_languages"
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A mesh of configs/meshes and the collectives of its training step, as docs/sharding.md has them."""

    sizes: dict[str, int]
    """The required macros of the config."""
    model: Model
    """DENSE or SPARSE."""
    layers: dict[tuple[str, str], int]
    """All collectives of the layers, forward and backward, except all-reduces."""
    all_reduced_over: set[str]
    """The mesh axes of the all-reduces of the whole step."""
    scattered: dict[str, int] = dataclasses.field(default_factory=dict)
    """Number of reduce-scatters of the whole step, along each axis."""
    layers_all_reduced: dict[str, int] = dataclasses.field(default_factory=dict)
    """Number of all-reduces of the layers, along those axes that do not also carry gradients."""


# Dispatch and combine, forward and backward.
EXPERTS = {("all-to-all", "x"): 4}
# M is split over x in the stored query, key, value and output matrices, and in a dense layer's wi and wo.
# The experts' matrices are not gathered: their E is split over x, and they are used in this layout.
DENSE_WEIGHTS, SPARSE_WEIGHTS = 6, 4
DENSE_GATHERED = {("all-gather", "x"): DENSE_WEIGHTS}
SPARSE_GATHERED = {("all-gather", "x"): SPARSE_WEIGHTS}

X_Y = {"X": 4, "Y": 2}
RUNS = {
    "expert": Run({"DEVICES": 8}, SPARSE, EXPERTS, {"x"}),
    "data_expert": Run(
        {"DATA_DEVICES": 2, "EXPERT_DEVICES": 4},
        SPARSE,
        {("all-to-all", "expert"): 4},
        # Gradients of replicated weights over both axes, gradients of experts over data.
        {"data expert", "data", "expert"},
    ),
    "data_tensor_attempt1": Run(X_Y, DENSE, {}, {"x", "y"}, layers_all_reduced={"x": 8, "y": 4}),
    # The tied embedding is used in two layouts, so its gradient is scattered twice.
    "data_tensor_attempt2": Run(
        X_Y,
        DENSE,
        DENSE_GATHERED,
        {"x", "y"},
        {"x": DENSE_WEIGHTS + 2},
        layers_all_reduced={"y": 4},
    ),
    # BLM is gathered before the attention and before the feed-forward layer, and again for the gradients.
    "data_tensor": Run(
        X_Y,
        DENSE,
        DENSE_GATHERED | {("all-gather", "y"): 8},
        {"x", "y"},
        {"x": DENSE_WEIGHTS + 2, "y": 8},
    ),
    "hybrid": Run(
        X_Y,
        SPARSE,
        SPARSE_GATHERED | EXPERTS | {("all-gather", "y"): 6},
        {"x", "y"},
        {"x": 7, "y": 8},
    ),
    "data_expert_tensor": Run(
        {"DATA_DEVICES": 2, "EXPERT_DEVICES": 2, "TENSOR_DEVICES": 2},
        SPARSE,
        {("all-to-all", "expert"): 4},
        {"data expert", "data", "expert", "tensor"},
        layers_all_reduced={"tensor": 4},
    ),
    # A group for each of two places, so that no token moves before its gate.
    "spread_groups": Run(
        {"GROUP_DEVICES": 2, "MEMBER_DEVICES": 4},
        dataclasses.replace(SPARSE, num_groups=2, dispatch="einsum"),
        # Along `member`: the counts of first and of second choices, outputs, gradients of inputs.
        {("all-to-all", "group"): 4, ("all-gather", "member"): 4},
        {"group member", "group", "member"},
        {"member": 2},
    ),
    # Tokens go to groups by a slice, and come back by an all-gather along y.
    "folded": Run(
        X_Y, SPARSE, {("all-to-all", "x y"): 4, ("all-gather", "y"): 4}, {"x", "y", "x y"}, {"y": 5}
    ),
    "zero": Run({"DEVICES": 8}, DENSE, DENSE_GATHERED, {"x"}, {"x": DENSE_WEIGHTS + 1}),
}


def mesh_of(name: str) -> Mesh:
    """Returns the mesh of a config, as gin reads it."""
    path = configs_folder() / "meshes" / f"{name}.gin"
    return load_config(str(path), [f"{k} = {v}" for k, v in RUNS[name].sizes.items()]).mesh


def steps(model: Model) -> StepFunctions:
    return StepFunctions(model, Optimizer(min_factored_size=8), 40, 48)


def values(model: Model) -> tuple[dict, dict, dict]:
    """Returns a state, a batch with two sentences per row, and the control scalars."""
    rng = np.random.default_rng(0)
    state = {}
    for name, spec in state_specs(steps(model)).items():
        state[name] = np.zeros(spec.shape, spec.dtype)
        if name.startswith("parameters/"):
            scale = 1.0 if name.endswith(("norm/scale", "embedding")) else 0.2
            state[name] += (rng.normal(size=spec.shape) * scale).astype(spec.dtype)
    shape = (ROWS, LENGTH)
    batch = {
        "target_inputs": rng.integers(4, 48, shape),
        "target_labels": rng.integers(4, 48, shape),
        "target_segments": np.array([[1] * 7 + [2] * 6 + [0] * 3] * ROWS),
        "target_positions": np.array([[*range(7), *range(6), 0, 0, 0]] * ROWS),
        "target_languages": np.array([[1] * 13 + [0] * 3] * ROWS),
        "source_languages": np.zeros(shape),
    }
    return state, {k: v.astype(np.int32) for k, v in batch.items()}, control()


def train(model: Model, mesh: Mesh, updates: int = 2) -> tuple[list[float], dict, str]:
    """Returns the losses, the state after the updates, and the text of the compiled program."""
    program_steps = steps(model)
    specs = state_specs(program_steps)
    inputs, letters = [specs, BATCH, CONTROL], [letters_of(specs), {}]
    step = Compiled(program_steps.train_step, inputs, letters, mesh, donate=(0,))
    (state, batch, scalars), losses = step.put(*values(model)), []
    for _ in range(updates):
        state, metrics = step.program(state, batch, scalars)
        losses.append(float(metrics["loss"]))
    return losses, step.devices.fetch(state), step.text


@functools.cache
def on_one_device(model: Model) -> tuple[list[float], dict, str]:
    return train(model, Mesh(("x",), (1,)))


def test_products_in_bfloat16_keep_the_collectives():
    """Only the inputs of the experts are gathered once more along `y`, in another order."""
    mesh, kept = mesh_of("hybrid"), dataclasses.replace(SPARSE, matmul_precision="bfloat16")
    losses, _, hlo = train(kept, mesh)
    np.testing.assert_allclose(losses, on_one_device(SPARSE)[0], rtol=2e-3)
    moved = {key: n for key, n in in_layers(hlo, mesh).items() if key[0] != "all-reduce"}
    assert moved == RUNS["hybrid"].layers | {("all-gather", "y"): 7}


@functools.cache
def on_its_mesh(name: str) -> tuple[list[float], dict, str]:
    return train(RUNS[name].model, mesh_of(name))


def in_layers(hlo: str, mesh: Mesh) -> Counts:
    """Counts the collectives inside the layers. It skips those of vectors, which are norm scales."""
    counts: Counts = collections.Counter()
    for instruction in instructions_of(hlo):
        inside = "decoder_0_" in instruction.op_name
        is_vector = re.fullmatch(r"\w+\[\d*\].*", instruction.shape)
        if instruction.opcode in COLLECTIVE_KINDS and inside and not is_vector:
            counts[instruction.opcode, " ".join(axes_of(instruction.attributes, mesh))] += 1
    return counts


@pytest.mark.parametrize("name", RUNS)
def test_a_mesh_computes_what_one_device_computes(name):
    expected_losses, expected, _ = on_one_device(RUNS[name].model)
    losses, state, _ = on_its_mesh(name)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-6)
    for array, value in expected.items():
        np.testing.assert_allclose(state[array], value, rtol=2e-4, atol=2e-5, err_msg=array)


@pytest.mark.parametrize("name", RUNS)
def test_a_mesh_has_the_expected_collectives_and_no_others(name):
    run, mesh = RUNS[name], mesh_of(name)
    hlo = on_its_mesh(name)[2]
    layers, step = in_layers(hlo, mesh), collectives(hlo, mesh)
    print(f"{name}: layers {dict(layers)}; step {dict(step)}")
    # XLA:CPU writes reduce-scatters as all-reduces. `collectives` tells them apart, `in_layers` does not.
    assert {key: n for key, n in layers.items() if key[0] != "all-reduce"} == run.layers
    for axes, count in run.layers_all_reduced.items():
        assert layers["all-reduce", axes] == count
    assert {axes for kind, axes in step if kind == "all-reduce"} == run.all_reduced_over
    assert {a: n for (kind, a), n in step.items() if kind == "reduce-scatter"} == run.scattered


@pytest.mark.parametrize("name", ["data_expert", "data_expert_tensor"])
def test_the_gradients_of_experts_are_summed_only_over_their_copies(name):
    """GSPMD section 5.4: the gradients of wi and wo are all-reduced along `data`."""
    assert collectives(on_its_mesh(name)[2], mesh_of(name))["all-reduce", "data"] == 2


def test_a_shared_update_computes_what_one_device_computes():
    """Mesh.shared_update: devices share the update of replicated weights."""
    model = dataclasses.replace(DENSE, decoder_layers=2, stack="scan")
    expected_losses, expected, alone = on_one_device(model)
    losses, state, hlo = train(model, Mesh(("x",), (8,), shared_update=True))
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-6)
    for array, value in expected.items():
        np.testing.assert_allclose(state[array], value, rtol=2e-4, atol=2e-5, err_msg=array)
    # No device updates a whole matrix, such as the target embedding [48, 16].
    assert "f32[48,16]" in updated(alone)
    assert "f32[48,16]" not in updated(hlo)


def updated(hlo: str) -> set[str]:
    """Returns the shapes of the optimizer's instructions."""
    lines = [line for line in hlo.splitlines() if "adafactor/" in line]
    return {shape for line in lines for shape in re.findall(r"= (f32\[[\d,]+\])", line)}


def test_zero_splits_every_large_weight_and_moment():
    mesh = mesh_of("zero")
    replicated = {
        name
        for name, spec in state_specs(steps(DENSE)).items()
        if not any(mesh.partition(spec.letters, name)) and len(spec.shape) > 1
    }
    # Norm scales, the bias of the attention, the counts, and the factored moments without M are small.
    small = r"(moments/(full|column)/.*|.*norm/scale|.*relative_bias|tokens)"
    assert all(re.fullmatch(small, name) for name in replicated), replicated


def annotations(model: Model) -> int:
    """Counts the annotations of the loss in training."""
    specs, mesh = state_specs(steps(model)), mesh_of("data_tensor")
    weights = {k.partition("/")[2]: v for k, v in specs.items() if k.startswith("parameters/")}

    def loss(p, batch):
        mode = Mode(key=Key.from_seed(tf.constant([1, 0], tf.uint32)))
        return [{"loss": steps(model)._loss(p, batch, mode)[0]}]

    return len(annotations_in(lower(loss, [weights, BATCH], [{}], mesh)))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (DENSE, 5),  # queries, keys, values, context and hidden units; weights follow their letters
        (SPARSE, 15),
    ],
    ids=["dense", "sparse"],
)
def test_annotations_of_a_layer(model, count):
    """GSPMD section 5.1 has 7 in a dense layer."""
    model = dataclasses.replace(model, **dict.fromkeys(WITHOUT_DROPOUT, 0.1))
    models = (dataclasses.replace(model, decoder_layers=n) for n in (1, 2))
    shallow, deeper = map(annotations, models)
    assert deeper - shallow == count
