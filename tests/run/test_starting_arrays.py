"""The arrays that a run starts with, made from those of another run: both models compute the same."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.data.text.vocabulary_match import RowMatch
from gshard_nmt.model import inheritance
from gshard_nmt.model.config import Model
from gshard_nmt.model.inheritance import Origin
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run import starting_arrays
from gshard_nmt.run.starting_arrays import Recipe, assemble, placed
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from tests.model.examples import ONE, TOGETHER, TWO, declared, parameters, rows
from tests.model.examples import SMALL as FOUR_LAYERS

SMALL = dataclasses.replace(FOUR_LAYERS, encoder_layers=2)
DENSE = dataclasses.replace(SMALL, experts=0)
ONE_DEVICE = Mesh(axes=("x",), shape=(1,), rules={})
FOUR = Mesh(axes=("x",), shape=(4,), rules={"E": "x", "M": "x"})
BATCH = rows([ONE, TWO], [TWO], length=8)


@functools.cache
def host_parameters(model: Model) -> dict[str, np.ndarray]:
    return {f"parameters/{name}": value.numpy() for name, value in parameters(model).items()}


def specs_of(model: Model) -> dict[str, ArraySpec]:
    return {
        f"parameters/{name}": ArraySpec(p.shape, np.dtype(p.dtype), p.letters)
        for name, p in declared(model).items()
    }


def started(old: Model, new: Model, old_values=None, mesh=ONE_DEVICE) -> dict[str, np.ndarray]:
    """Returns the weights of a new model that starts from an old one, by name."""
    devices = runtime.start(mesh)
    plan = {
        f"parameters/{name}": [
            o and dataclasses.replace(o, name=f"parameters/{o.name}", resized=o.resized.strip("V"))
            for o in entries
        ]
        for name, entries in inheritance.origins(old, declared(old), new, declared(new)).items()
    }
    recipe = Recipe(plan, specs_of(old), specs_of(new), {})
    values = old_values or host_parameters(old)
    shardings = placed(devices, specs_of(old))
    arrays = {name: jax.device_put(values[name], shardings[name].sharding) for name in values}
    other = {name: value + 1 for name, value in host_parameters(new).items()}
    state = assemble(devices, recipe, arrays, devices.put(other, specs_of(new)))
    for name, array in state.items():
        assert array.sharding == devices.sharding(recipe.new_specs[name], name), name
    return {name.partition("/")[2]: np.asarray(array) for name, array in state.items()}


def nll(model: Model, weights: dict[str, np.ndarray]) -> float:
    functions = StepFunctions(model, Optimizer(), 50, 40, languages=2)
    (sums,) = functions.eval_step({n: tf.constant(w) for n, w in weights.items()}, BATCH)
    return float(sums["nll_sum"]) / float(sums["tokens"])


@functools.cache
def old_nll(model: Model) -> float:
    return nll(model, {n.partition("/")[2]: w for n, w in host_parameters(model).items()})


def test_an_equal_model_has_the_same_bits():
    weights = started(SMALL, SMALL)
    for name, value in host_parameters(SMALL).items():
        assert weights[name.partition("/")[2]].tobytes() == value.tobytes()
    assert nll(SMALL, weights) == old_nll(SMALL)


@pytest.mark.parametrize(
    "settings",
    [
        *(TOGETHER[name] for name in ("ours", "post-norm", "M2M-100")),
        TOGETHER["others"] | {"shared_expert_dim": 12, "routing": "switch"},
    ],
    ids=str,
)
def test_a_deeper_model_computes_the_same_function(settings):
    model = dataclasses.replace(SMALL, **settings)
    deeper = dataclasses.replace(model, encoder_layers=4, decoder_layers=6)
    weights = {n.partition("/")[2]: w for n, w in host_parameters(model).items()}
    for name, weight in weights.items():
        if name.endswith("scale"):  # new ones are 1, and a second norm then changes nothing
            waves = np.sin(np.arange(weight.size, dtype=weight.dtype))
            weights[name] = weight + np.float32(0.3) * waves.reshape(weight.shape)
    old = {f"parameters/{name}": weight for name, weight in weights.items()}
    is_same = nll(deeper, started(model, deeper, old)) == pytest.approx(
        nll(model, weights), rel=1e-6
    )
    assert is_same == (model.norm_place == "before")


@pytest.mark.parametrize("settings", TOGETHER.values(), ids=TOGETHER)
def test_an_upcycled_model_computes_the_dense_function(settings):
    # A token's two experts are equal and their weights add up to 1.
    model = dataclasses.replace(SMALL, **settings)
    dense = dataclasses.replace(DENSE, **settings)
    assert nll(model, started(dense, model)) == pytest.approx(old_nll(dense), rel=1e-6)


def test_the_experts_of_an_upcycled_model_are_equal_and_its_gate_is_new():
    weights = started(DENSE, SMALL)
    wi = weights["encoder/block/moe_0/wi"]
    np.testing.assert_array_equal(wi[:, 0], wi[:, 3])
    # The gate is new: each token can choose.
    other = weights | {"encoder/block/moe_0/wi": wi * [[[[1]], [[2]], [[3]], [[4]]]]}
    assert nll(SMALL, other) != pytest.approx(old_nll(DENSE), rel=1e-6)
    one_expert = dataclasses.replace(SMALL, routing="switch")
    assert nll(one_expert, weights) != pytest.approx(old_nll(DENSE), rel=1e-4)


def test_with_four_times_the_experts_a_token_stays_in_a_group_of_old_experts(monkeypatch):
    old, more = SMALL, dataclasses.replace(SMALL, experts=16)
    # A large noise decides the group of every token, and the old columns its two experts.
    monkeypatch.setattr(starting_arrays, "GROUP_NOISE", 1e3)
    assert nll(more, started(old, more)) == pytest.approx(old_nll(old), rel=1e-4)
    monkeypatch.setattr(starting_arrays, "GROUP_NOISE", 0.0)
    equal = started(old, more)
    gate = equal["encoder/block/moe_0/gate"]
    old_gate = host_parameters(old)["parameters/encoder/block/moe_0/gate"]
    np.testing.assert_array_equal(gate, np.tile(old_gate, 4))
    # Without it, both experts of a token are copies of its first one.
    assert nll(more, equal) != pytest.approx(old_nll(old), rel=1e-4)


def test_fewer_experts_are_the_first_ones():
    weights = started(SMALL, dataclasses.replace(SMALL, experts=2))
    old = host_parameters(SMALL)
    for word, index in (("wi", np.s_[:, :2]), ("gate", np.s_[..., :2])):
        name = f"encoder/block/moe_0/{word}"
        np.testing.assert_array_equal(weights[name], old[f"parameters/{name}"][index])


def test_a_mesh_gives_the_arrays_of_one_device():
    """Also with an old number of experts that does not divide over the mesh."""
    two = dataclasses.replace(SMALL, experts=2)
    more = dataclasses.replace(SMALL, experts=8, encoder_layers=4)
    alone, together = started(two, more), started(two, more, mesh=FOUR)
    for name, value in alone.items():
        np.testing.assert_array_equal(together[name], value, err_msg=name)


def test_rows_are_copied_averaged_or_new():
    devices = runtime.start(ONE_DEVICE)
    spec = {"w": ArraySpec((3, 2), np.dtype(np.float32), "VM")}
    new = {"w": ArraySpec((4, 2), np.dtype(np.float32), "VM")}
    match = RowMatch([(2,), (0, 1), (), (1,)], 3, [True, False, False, True])
    old = devices.put({"w": np.array([[1, -0.0], [3, 4], [5, 6]], np.float32)}, spec)
    initial = devices.put({"w": np.full((4, 2), 9, np.float32)}, new)
    recipe = Recipe({"w": [Origin("w", resized="V")]}, spec, new, {"w": match})
    rows = assemble(devices, recipe, old, initial)["w"]
    np.testing.assert_array_equal(rows, [[5, 6], [2, 2], [9, 9], [3, 4]])


def test_positions_beyond_the_old_ones_are_new():
    devices = runtime.start(ONE_DEVICE)
    spec = {"w": ArraySpec((2, 1), np.dtype(np.float32), "LM")}
    new = {"w": ArraySpec((3, 1), np.dtype(np.float32), "LM")}
    old = devices.put({"w": np.array([[1], [2]], np.float32)}, spec)
    initial = devices.put({"w": np.full((3, 1), 9, np.float32)}, new)
    recipe = Recipe({"w": [Origin("w", resized="L")]}, spec, new, {})
    assert np.ravel(assemble(devices, recipe, old, initial)["w"]).tolist() == [1, 2, 9]
    back = Recipe({"w": [Origin("w", resized="L")]}, new, spec, {})
    assert np.ravel(assemble(devices, back, initial, {"w": old["w"]})["w"]).tolist() == [9, 9]
