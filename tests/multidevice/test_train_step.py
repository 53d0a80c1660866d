"""The training step: the same on one device and on asymmetric meshes, with few collectives."""

import dataclasses

import numpy as np
import tensorflow as tf

from gshard_nmt.inspection import hlo
from gshard_nmt.model import optimizer as adafactor
from gshard_nmt.model.loss import token_loss
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import within
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import CONTROL, as_groups, letters_of, state_specs, weights_of
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate
from tests.model.examples import MOE, packed
from tests.multidevice.compiled_function import Compiled, CompiledFunction, batch_specs, control

ROWS, LENGTH = 8, 16
# The dense layers of meshes are tested in test_meshes.py, encoders in test_equivalence.py.
MODEL = dataclasses.replace(MOE, encoder_layers=0)
STEPS = StepFunctions(MODEL, Optimizer(min_factored_size=8), 40, 48, languages=3)
CROSSED = {"B": "x", "G": ("x", "y"), "E": ("y", "x"), "V": "y", "H": "y"}
ONE_DEVICE = Mesh(("x",), (1,))
# Groups and experts are split over both axes.
MESH = Mesh(("x", "y"), (2, 4), rules=CROSSED)
BATCH = batch_specs(ROWS, LENGTH)
STATE = state_specs(STEPS)
PARAMETERS = weights_of(STATE)


def batch() -> dict[str, np.ndarray]:
    """Returns rows of two sentences and padding."""
    return packed([[1] * 7 + [2] * 6 + [0] * 3] * ROWS, 40, 48)


def loss_gradients_and_update(state, batch, control, other_gradients):
    """Returns metrics and gradients of a step, and the update of the state by `other_gradients`."""
    parameters, moments = within(state, "parameters"), within(state, "moments")
    step = state["step"] + 1
    gradients, metrics = STEPS.gradients(parameters, batch, control, step)
    rate = adafactor.learning_rate(STEPS.optimizer, step, control["max_steps"])
    declared = STEPS.declare_parameters()
    update = adafactor.update(
        STEPS.optimizer, declared, parameters, other_gradients, moments, step, rate
    )
    return [metrics | {"bound": update.bound}, gradients, update.values, update.moments]


def compute(mesh: Mesh, state, other_gradients) -> list[dict[str, np.ndarray]]:
    """`loss_gradients_and_update` on a mesh."""
    inputs = [STATE, BATCH, CONTROL, PARAMETERS]
    moments = {k.removeprefix("moments/"): s for k, s in STATE.items() if k.startswith("moments/")}
    outputs = [{}, letters_of(PARAMETERS), letters_of(PARAMETERS), letters_of(moments)]
    compiled = Compiled(loss_gradients_and_update, inputs, outputs, mesh)
    return compiled(state, batch(), control(), other_gradients)


def start() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns a state with moments that are not 0, and gradients that are independent of it."""
    rng = np.random.default_rng(1)
    (state,) = Compiled(STEPS.initialize, [CONTROL], [letters_of(STATE)], ONE_DEVICE)(control())
    for name, array in state.items():
        if name.startswith("moments/"):
            state[name] = rng.uniform(0.5, 2.0, array.shape).astype(np.float32)
    state["step"] = np.array(6, np.int32)
    return state, {k: rng.normal(size=s.shape).astype(np.float32) for k, s in PARAMETERS.items()}


def test_a_mesh_computes_the_loss_every_gradient_and_the_update_of_one_device():
    state = start()
    metrics, gradients, values, moments = compute(MESH, *state)
    expected_metrics, expected_gradients, expected_values, expected_moments = compute(
        ONE_DEVICE, *state
    )
    for key, value in metrics.items():
        np.testing.assert_allclose(value, expected_metrics[key], rtol=5e-6, err_msg=key)
    for key, value in gradients.items():
        # The tolerance is the rounding of a sum whose terms are as large as the largest gradient.
        scale = np.abs(expected_gradients[key]).max()
        np.testing.assert_allclose(
            value, expected_gradients[key], rtol=1e-4, atol=1e-5 * scale, err_msg=key
        )
    for key, value in values.items():
        np.testing.assert_allclose(value, expected_values[key], rtol=2e-6, atol=1e-7, err_msg=key)
    for key, value in moments.items():
        np.testing.assert_allclose(value, expected_moments[key], rtol=2e-6, err_msg=key)


def test_a_moe_layer_makes_four_all_to_alls_and_gathers_no_activation():
    """One for dispatch and one for combine, forward and backward; the average adds none."""
    steps = dataclasses.replace(STEPS, ema=0.9)
    state = state_specs(steps)
    inputs, outputs = [state, BATCH, CONTROL], [letters_of(state), {}]
    step = Compiled(steps.train_step, inputs, outputs, Mesh(("x",), (2,)), donate=(0,))
    # It takes over the memory of the average before, as the weights do.
    shards = [
        step.devices.sharding(s, k).shard_shape(s.shape) for k, s in as_groups(state)["ema"].items()
    ]
    assert step.program.memory().outputs < 4 * sum(int(np.prod(shape)) for shape in shards)
    counts = step.program.collectives()
    assert counts["all-to-all"] == 4
    assert counts["reduce-scatter"] == counts["collective-permute"] == 0
    gathers = [
        instruction
        for instruction in hlo.parse(step.text).by_name.values()
        if instruction.opcode == "all-gather"
    ]
    # It gathers Adafactor's second moments of the columns of the gate, one number for each expert.
    assert len(gathers) == counts["all-gather"] == 1
    assert all(gather.op_name.startswith("adafactor/") for gather in gathers)
    arrays = [array for gather in gathers for array in hlo.parse_shape(gather.shape)]
    assert [array.dims for array in arrays] == [(1, 8)]


def test_a_finer_split_of_groups_than_of_rows_does_not_reach_the_logits():
    """Groups split the mask of tokens over both axes, and the loss reads the same mask."""
    mesh = Mesh(("x", "y"), (4, 2), rules={"B": "x", "G": ("x", "y")})

    def gradient(logits, segments):
        is_token, labels = segments > 3, tf.zeros([ROWS, LENGTH], tf.int32)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = token_loss(annotate(logits, "BLV"), labels, is_token, 0.1, 1e-4).loss
        groups = tf.reshape(tf.cast(is_token, tf.float32), [2 * ROWS, LENGTH // 2])
        return annotate(tape.gradient(loss, logits), "BLV"), annotate(groups, "GS")

    assert "f32[2,16,48]" not in CompiledFunction(
        gradient, (ROWS, LENGTH, 48), (ROWS, LENGTH), mesh=mesh, letters="BLV"
    ).shapes_of("all-gather")
