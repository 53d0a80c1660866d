"""Groups that are spread over several devices: slots, values, gradients and communication."""

import functools
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import counter_random
from gshard_nmt.model.gating import MoE
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.moe import declare_moe, moe_layer
from gshard_nmt.run.arrays import letters_of
from gshard_nmt.settings.config import configs_folder
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from tests.multidevice.collectives import collectives, instructions_of
from tests.multidevice.compiled_function import Compiled

ROWS, LENGTH, DIM, EXPERTS = 16, 6, 32, 8
# Groups, devices that share each group, dispatch. A group has fewer tokens than slots, and drops many.
SPREADS = [(4, 2, "gather"), (2, 4, "einsum")]


def layer(groups: int, dispatch: str) -> MoE:
    # 4, 8 or 15 slots for 24, 48 or 96 tokens that ask for up to 2 of 8 experts.
    return MoE(EXPERTS, 48, capacity_factor=1.25, num_groups=groups, dispatch=dispatch)


def mesh_of(groups: int, members: int) -> Mesh:
    settings = [f"GROUP_DEVICES = {groups}", f"MEMBER_DEVICES = {members}"]
    return load_config(str(configs_folder() / "meshes" / "spread_groups.gin"), settings).mesh


@functools.cache
def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    declared = declare_moe(DIM, layer(1, "einsum"))
    arrays = {name: (rng.normal(size=p.shape) / 4).astype("f") for name, p in declared.items()}
    arrays["x"] = rng.normal(size=(ROWS, LENGTH, DIM)).astype("f")
    arrays["is_token"] = (rng.random((ROWS, LENGTH)) < 0.9).astype("f")
    return arrays


def step(arrays, moe: MoE) -> dict[str, tf.Tensor]:
    """Returns the slots and the output of one layer, the gradients of its inputs, and its figures."""
    key = counter_random.Key.from_seed(tf.constant([3, 4], tf.uint32))
    arrays = dict(arrays)
    is_token = arrays.pop("is_token") > 0
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        y, routing = moe_layer(arrays, arrays["x"], is_token, moe, Mode(key))
        loss = tf.reduce_sum(tf.square(y)) + routing.aux_loss
    figures = {name: getattr(routing, name) for name in ("overflow_fraction", "load", "aux_loss")}
    return {"y": y, "slot": routing.slot, **tape.gradient(loss, arrays), **figures}


@functools.cache
def on_devices(groups: int, members: int, dispatch: str) -> tuple[dict[str, np.ndarray], str]:
    moe, mesh = layer(groups, dispatch), mesh_of(groups, members)
    kind = np.dtype(np.float32)
    specs = {name: ArraySpec(p.shape, kind, p.letters) for name, p in declare_moe(DIM, moe).items()}
    specs["x"] = ArraySpec((ROWS, LENGTH, DIM), kind, "BLM")
    specs["is_token"] = ArraySpec((ROWS, LENGTH), kind, "BL")
    letters = letters_of(specs) | {"y": "BLM", "slot": "GS_"}
    compiled = Compiled(lambda arrays: [step(arrays, moe)], [specs], [letters], mesh)
    (results,) = compiled(inputs())
    return results, compiled.text


@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_a_spread_group_routes_as_on_one_device(spread):
    groups, _, dispatch = spread
    expected = step({k: tf.constant(v) for k, v in inputs().items()}, layer(groups, dispatch))
    results, _ = on_devices(*spread)
    np.testing.assert_array_equal(results["slot"], expected["slot"])
    assert float(expected["overflow_fraction"]) > 0.1
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("spread", SPREADS[1:], ids=str)
def test_slots_move_and_no_device_gets_the_tokens_of_its_group(spread):
    """The sums of the slots are scattered; outputs of experts, and counts of tokens, are gathered."""
    groups, members, dispatch = spread
    text, mesh = on_devices(*spread)[1], mesh_of(groups, members)
    counts = collectives(text, mesh)
    assert counts["reduce-scatter", "member"] == 2  # forward and backward
    assert counts["all-to-all", "group"] == (4 if groups > 1 else 0)
    assert {kind for kind, _ in counts} <= {
        "reduce-scatter",
        "all-reduce",
        "all-gather",
        "all-to-all",
    }
    tokens = ROWS * LENGTH // groups
    slots = EXPERTS * layer(groups, dispatch).slots(tokens)
    gathered = [
        sorted(int(n) for n in re.search(r"\[([\d,]*)\]", instruction.shape)[1].split(","))
        for instruction in instructions_of(text)
        if instruction.opcode.startswith("all-gather")
    ]
    sizes = sorted(math.prod(shape) for shape in gathered)
    # The totals of each device for first and second choices; the outputs, and the gradients of inputs.
    assert sizes == sorted([members * EXPERTS] * 2 + [slots * DIM] * 2)
    assert not [shape for shape in gathered if shape[-2:] == sorted([tokens, DIM])]
