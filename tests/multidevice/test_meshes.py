"""Every mesh of configs/meshes: one training step is what one device computes, and what it sends."""

import collections
import dataclasses
import functools
import re

import numpy as np
import pytest

from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import BATCH_ARRAYS, StepFunctions
from gshard_nmt.run.arrays import CONTROL, state_specs
from gshard_nmt.settings.find import configs_folder
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, count_annotations, lower
from gshard_nmt.spmd.mesh import Mesh
from tests.multidevice.collectives import Counts, axes_of, collectives, parse

ROWS, LENGTH = 16, 16
DENSE = Model(
    encoder_layers=0,
    decoder_layers=1,
    model_dim=16,
    hidden_dim=32,
    heads=4,
    head_dim=8,
    experts=0,
    input_dropout=0.0,
    residual_dropout=0.0,
    attention_dropout=0.0,
)
SPARSE = dataclasses.replace(DENSE, experts=8, moe_every=1, num_groups=8)
BATCH = {
    name: ArraySpec((ROWS, LENGTH), np.dtype(np.int32), "BL")
    for name in BATCH_ARRAYS
    if name.startswith("target")
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A mesh of configs/meshes on eight devices, and what its training step must communicate.

    Attributes:
      sizes: the config's required macros.
      model: dense or sparse.
      layers: what the layers do, forward and backward, beside all-reduces; all else is forbidden.
      all_reduced_over: the axes that all-reduces of the whole step run along.
      scattered: how many weights have their gradients reduce-scattered along x.
    """

    sizes: dict[str, int]
    model: Model
    layers: dict[tuple[str, str], int]
    all_reduced_over: set[str]
    scattered: int = 0


# Dispatch and combine, forward and backward.
EXPERTS = {("all-to-all", "x"): 4}
# Query, key, value and output, and of a dense layer wi and wo: M is split over x where they rest. The
# experts' matrices are not gathered: their E is on x, which is where they are used.
DENSE_WEIGHTS, SPARSE_WEIGHTS = 6, 4
EMBEDDINGS = 1
DENSE_GATHERED = {("all-gather", "x"): DENSE_WEIGHTS}
SPARSE_GATHERED = {("all-gather", "x"): SPARSE_WEIGHTS}

X_Y = {"X": 4, "Y": 2}
RUNS = {
    "expert": Run({"DEVICES": 8}, SPARSE, EXPERTS, {"x"}),
    "data_expert": Run(
        {"DATA_DEVICES": 2, "EXPERT_DEVICES": 4},
        SPARSE,
        {("all-to-all", "expert"): 4},
        # Over both for what is replicated; over data for the experts.
        {"data expert", "data", "expert"},
    ),
    "data_tensor_attempt1": Run(X_Y, DENSE, {}, {"x", "y"}),
    "data_tensor_attempt2": Run(X_Y, DENSE, DENSE_GATHERED, {"x", "y"}, DENSE_WEIGHTS + EMBEDDINGS),
    # BLM before attention and before the feed-forward layer, and their gradients and BLM anew.
    "data_tensor": Run(
        X_Y,
        DENSE,
        DENSE_GATHERED | {("all-gather", "y"): 8},
        {"x", "y"},
        DENSE_WEIGHTS + EMBEDDINGS,
    ),
    "hybrid": Run(
        X_Y,
        SPARSE,
        SPARSE_GATHERED | EXPERTS | {("all-gather", "y"): 6},
        {"x", "y"},
        SPARSE_WEIGHTS + EMBEDDINGS,
    ),
    "data_expert_tensor": Run(
        {"DATA_DEVICES": 2, "EXPERT_DEVICES": 2, "TENSOR_DEVICES": 2},
        SPARSE,
        {("all-to-all", "expert"): 4},
        {"data expert", "data", "expert", "tensor"},
    ),
    "zero": Run({"DEVICES": 8}, DENSE, DENSE_GATHERED, {"x"}, DENSE_WEIGHTS + EMBEDDINGS),
}


def mesh_of(name: str) -> Mesh:
    """A mesh config as gin reads it."""
    path = configs_folder() / "meshes" / f"{name}.gin"
    return load_config(str(path), [f"{k} = {v}" for k, v in RUNS[name].sizes.items()]).mesh


def steps(model: Model) -> StepFunctions:
    return StepFunctions(model, Optimizer(min_factored_size=8), 40, 48)


def values(model: Model) -> tuple[dict, dict, dict]:
    """A state, a batch of two sentences a row, and the control scalars; the same for every mesh."""
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
    }
    control = {
        "seed": np.array([1, 0], np.uint32),
        "last_step": np.array(100, np.int32),
        "one": np.array(1.0, np.float32),
    }
    return state, {k: v.astype(np.int32) for k, v in batch.items()}, control


def train(model: Model, mesh: Mesh, updates: int = 2) -> tuple[list[float], dict, str]:
    """Losses, the state after the updates, and the compiled program."""
    program_steps = steps(model)
    specs = state_specs(program_steps)
    letters = {name: spec.letters for name, spec in specs.items()}
    devices = runtime.start(mesh)
    program = devices.compile(
        f"train {mesh}",
        lambda: lower(program_steps.train_step, [specs, BATCH, CONTROL], [letters, {}], mesh),
        donate=(0,),
    )
    state, batch, control = values(model)
    state, batch = devices.put(state, specs), devices.put(batch, BATCH)
    control, losses = devices.put(control, CONTROL), []
    for _ in range(updates):
        state, metrics = program(state, batch, control)
        losses.append(float(metrics["loss"]))
    return losses, {k: np.asarray(v) for k, v in state.items()}, program.executable.as_text()


@functools.cache
def on_one_device(model: Model) -> tuple[list[float], dict, str]:
    return train(model, Mesh(("x",), (1,)))


@functools.cache
def on_its_mesh(name: str) -> tuple[list[float], dict, str]:
    return train(RUNS[name].model, mesh_of(name))


def in_layers(hlo: str, mesh: Mesh) -> Counts:
    """The collectives that the layers themselves ask for, but of vectors, the norms' scales."""
    counts: Counts = collections.Counter()
    for computation in parse(hlo).values():
        for one in computation.values():
            name = re.search(r'op_name="([^"]*)"', one.text)
            inside = name is not None and "decoder_0_" in name[1]
            is_vector = re.fullmatch(r"\w+\[\d*\].*", one.shape)
            if one.opcode in runtime.COLLECTIVES and inside and not is_vector:
                counts[one.opcode, " ".join(axes_of(one.text, mesh))] += 1
    return counts


@pytest.mark.parametrize("name", RUNS)
def test_a_mesh_computes_what_one_device_computes(name):
    expected_losses, expected, _ = on_one_device(RUNS[name].model)
    losses, state, _ = on_its_mesh(name)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-6)
    for array, value in expected.items():
        np.testing.assert_allclose(state[array], value, rtol=2e-4, atol=2e-5, err_msg=array)


@pytest.mark.parametrize("name", RUNS)
def test_a_mesh_communicates_what_it_must_and_nothing_else(name):
    run, mesh = RUNS[name], mesh_of(name)
    hlo = on_its_mesh(name)[2]
    inside, step = in_layers(hlo, mesh), collectives(hlo, mesh)
    print(f"{name}: layers {dict(inside)}; step {dict(step)}")
    # XLA:CPU writes reduce-scatters as all-reduces; of the step they are told apart.
    assert {k: n for k, n in inside.items() if k[0] != "all-reduce"} == run.layers
    assert {axes for kind, axes in step if kind == "all-reduce"} == run.all_reduced_over
    # An embedding that is also the projection to logits may be scattered once for each use.
    assert step["reduce-scatter", "x"] >= run.scattered
    assert bool(step["reduce-scatter", "x"]) == bool(run.scattered)
    activations_scattered = ("all-gather", "y") in run.layers
    assert bool(step["reduce-scatter", "y"]) == activations_scattered


@pytest.mark.parametrize("name", ["data_expert", "data_expert_tensor"])
def test_the_experts_gradients_are_summed_over_their_copies_alone(name):
    """GSPMD section 5.4: no all-reduce for experts but along `data`, of wi and of wo."""
    counts = collectives(on_its_mesh(name)[2], mesh_of(name))
    assert counts["all-reduce", "data"] == 2


def test_zero_keeps_a_share_of_every_weight_and_moment_on_each_device():
    mesh = mesh_of("zero")
    replicated = {
        name
        for name, spec in state_specs(steps(DENSE)).items()
        if not any(mesh.partition(spec.letters, name)) and len(spec.shape) > 1
    }
    # Norms' scales, the bias of the attention and what a factored moment keeps beside M are small.
    small = r"(moments/(full|column)/.*|.*norm/scale|.*relative_bias)"
    assert all(re.fullmatch(small, name) for name in replicated), replicated


def annotations(model: Model, whole_step: bool):
    """Counted in the training step, or in the loss alone."""
    specs = state_specs(steps(model))
    mesh = mesh_of("data_tensor")
    if whole_step:
        return count_annotations(lower(steps(model).train, [specs, BATCH, CONTROL], [{}, {}], mesh))
    weights = {k.partition("/")[2]: v for k, v in specs.items() if k.startswith("parameters/")}
    return count_annotations(lower(steps(model).eval_step, [weights, BATCH], [{}], mesh))


def test_annotations_of_a_transformer_layer():
    """GSPMD section 5.1 has 7 a layer, 0.7 % of all tensors."""
    shallow = dataclasses.replace(
        DENSE, input_dropout=0.1, residual_dropout=0.1, attention_dropout=0.1
    )
    deeper = dataclasses.replace(shallow, decoder_layers=2)
    one, two = annotations(shallow, whole_step=False), annotations(deeper, whole_step=False)
    # Queries, keys, values, context and hidden layer. Weights are laid out by their declared letters.
    assert two.forward - one.forward == 5
    assert one.gradient == two.gradient == 0
    step = annotations(deeper, whole_step=True)
    print(f"{step}: {step.share:.2%}")
    # As many again by differentiation; the optimiser annotates the gradient of each weight.
    assert step.gradient >= 10
    assert step.share < 0.01
