"""The whole training step: the same on 1, 2 and 8 devices and on a grid, with all-to-alls."""

import numpy as np
import pytest

from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import BATCH_ARRAYS, Steps
from gshard_nmt.programs import CONTROL, Programs, specs_of
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh

ROWS, LENGTH = 8, 16
MODEL = Model(
    encoder_layers=2,
    decoder_layers=2,
    model_dim=16,
    hidden_dim=32,
    heads=2,
    head_dim=8,
    experts=8,
    num_groups=8,
    capacity_factor=2.0,
)
STEPS = Steps(MODEL, Optimizer(min_factored_size=8), 40, 48)
MESHES = {
    "1": Mesh(("x",), (1,)),
    "2": Mesh(("x",), (2,)),
    "8": Mesh(("x",), (8,)),
    "4x2": Mesh(("x", "y"), (4, 2), rules={"B": "x", "G": "x", "E": "x", "H": "y", "N": "y"}),
}
BATCH = {name: ArraySpec((ROWS, LENGTH), np.dtype(np.int32), "BL") for name in BATCH_ARRAYS}


def batch() -> dict[str, np.ndarray]:
    """Two sentences and padding a row."""
    rng = np.random.default_rng(0)
    segments = np.array([[1] * 7 + [2] * 6 + [0] * 3] * ROWS)
    positions = np.array([[*range(7), *range(6), 0, 0, 0]] * ROWS)
    made = {
        "source_ids": rng.integers(4, 40, (ROWS, LENGTH)),
        "target_inputs": rng.integers(4, 48, (ROWS, LENGTH)),
        "target_labels": rng.integers(4, 48, (ROWS, LENGTH)),
    }
    for side in ("source", "target"):
        made |= {f"{side}_segments": segments, f"{side}_positions": positions}
    return {name: array.astype(np.int32) for name, array in made.items()}


def run(mesh: Mesh, updates: int = 2) -> tuple[list[float], dict[str, np.ndarray], dict]:
    """Losses, the state after the updates, and the collectives of the step."""
    devices = runtime.start(mesh)
    state_specs = specs_of(STEPS)
    letters = {name: spec.letters for name, spec in state_specs.items()}
    init = devices.compile(
        f"init {mesh}", lambda: lower(STEPS.initialize, [CONTROL], [letters], mesh)
    )
    step = devices.compile(
        f"step {mesh}",
        lambda: lower(STEPS.train, [state_specs, BATCH, CONTROL], [letters, {}], mesh),
        donate=(0,),
    )
    control = devices.put(
        {
            "seed": np.array([1, 0], np.uint32),
            "last_step": np.array(100, np.int32),
            "one": np.array(1.0, np.float32),
        },
        CONTROL,
    )
    (state,) = init(control)
    arrays, losses = devices.put(batch(), BATCH), []
    for _ in range(updates):
        state, metrics = step(state, arrays, control)
        losses.append(float(metrics["loss"]))
    return losses, {k: np.asarray(v) for k, v in state.items()}, step.collectives()


@pytest.fixture(scope="module")
def one_device():
    return run(MESHES["1"])


@pytest.mark.parametrize("name", ["2", "8", "4x2"])
def test_a_mesh_computes_what_one_device_computes(name, one_device):
    losses, state, _ = run(MESHES[name])
    np.testing.assert_allclose(losses, one_device[0], rtol=2e-6)
    for array, expected in one_device[1].items():
        np.testing.assert_allclose(state[array], expected, rtol=2e-4, atol=2e-5, err_msg=array)


def test_a_moe_layer_makes_four_all_to_alls_and_gathers_no_activation(one_device):
    """Dispatch and combine, forward and backward, for each of the two MoE layers."""
    assert sum(one_device[2].values()) == 0
    _, _, counts = run(MESHES["2"], updates=0)
    assert counts["all-to-all"] == 2 * 4
    assert counts["reduce-scatter"] == counts["collective-permute"] == 0


def test_parameters_of_a_state_are_named_as_declared():
    names = Programs.parameters_of(specs_of(STEPS))
    assert set(names) == set(STEPS.declare_parameters())
