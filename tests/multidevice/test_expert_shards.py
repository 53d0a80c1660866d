"""Experts on blocks, compiled: values, communication, and bits that depend on one token."""

import functools

import numpy as np
import pytest

from gshard_nmt.model import blocks, expert_shards
from gshard_nmt.model.gating import MoE
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.moe import declare_moe, moe_layer
from gshard_nmt.run.arrays import letters_of
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from tests.multidevice.collectives import collectives, instructions_of
from tests.multidevice.compiled_function import Compiled

RULES = MoE(4, hidden_dim=256, second_expert="all", dispatch="blocks", biases=True)
ROWS, LENGTH, DIM = 24, 4, 128
BOTH = ("data", "expert")
MESHES = {
    "one": Mesh(("x",), (1,)),
    "experts": Mesh(("x",), (4,), rules={"B": "x", "G": "x", "E": "x"}),
    "data and experts": Mesh(BOTH, (2, 2), rules={"B": BOTH, "G": BOTH, "E": "expert"}),
    "apart": Mesh(BOTH, (2, 2), rules={"B": "data", "G": "data", "E": "expert"}),
    "tensor": Mesh(
        ("expert", "tensor"), (2, 2), rules={"B": "expert", "G": "expert", "E": "expert", "H": "tensor"}
    ),
    "spread": Mesh(
        BOTH, (2, 2), rules={"B": BOTH, "G": "data", "S": "expert", "E": ("expert", "data")}
    ),
}  # fmt: skip


class Layer(Compiled):
    """One MoE layer, compiled for a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        declared = declare_moe(DIM, RULES)
        kind = np.dtype(np.float32)
        specs = {name: ArraySpec(p.shape, kind, p.letters) for name, p in declared.items()}
        specs["x"] = ArraySpec((ROWS, LENGTH, DIM), kind, "BLM")
        specs["is_token"] = ArraySpec((ROWS, LENGTH), kind, "BL")

        def function(inputs):
            p = {name: inputs[name] for name in declared}
            y, _ = moe_layer(p, inputs["x"], inputs["is_token"] > 0, RULES, Mode())
            return [{"y": y}]

        super().__init__(function, [specs], [letters_of(specs) | {"y": "BLM"}], mesh)

    def __call__(self, **arrays) -> np.ndarray:
        (results,) = super().__call__({**inputs(), **arrays})
        return results["y"]


@functools.cache
def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        name: (rng.normal(size=p.shape) / 16).astype("f")
        for name, p in declare_moe(DIM, RULES).items()
    }
    arrays["x"] = rng.normal(size=(ROWS, LENGTH, DIM)).astype("f")
    arrays["is_token"] = (rng.random((ROWS, LENGTH)) < 0.9).astype("f")
    return arrays


@functools.cache
def layer_of(mesh: str) -> Layer:
    return Layer(MESHES[mesh])


@pytest.mark.parametrize("mesh", [name for name in MESHES if name != "one"])
def test_a_mesh_computes_what_one_device_computes(mesh):
    splits_a_sum = mesh == "tensor"
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if splits_a_sum else {"rtol": 0}
    np.testing.assert_allclose(layer_of(mesh)(), layer_of("one")(), **tolerance)


@pytest.mark.parametrize(
    ("mesh", "copies", "loops"), [("one", 9, 0), ("one", 3, 1), ("experts", 9, 2), ("tensor", 3, 2)]
)
def test_a_program_for_accelerators_computes_the_same(mesh, copies, loops, monkeypatch):
    """On a mesh, a loop that runs once holds what each device does; there is room for some copies."""
    expected = layer_of("one")()
    monkeypatch.setattr(runtime.Runtime, "is_cpu", False)
    monkeypatch.setattr(blocks, "MOST_BYTES", copies * 4 * 2 * DIM * 256 + 9000)
    layer = Layer(MESHES[mesh])
    np.testing.assert_allclose(layer(), expected, rtol=1e-4, atol=1e-5)
    assert layer.text.count(" while(") == loops


def test_tokens_move_and_experts_stay():
    """There are three gathers, of tokens, choices and weights of choices, then one sum of outputs."""
    counts = collectives(layer_of("apart").text, MESHES["apart"])
    assert counts == {("all-reduce", "expert"): 1}  # all tokens are there already
    for mesh, axis in (("experts", "x"), ("data and experts", "expert")):
        layer = layer_of(mesh)
        counts = collectives(layer.text, MESHES[mesh])
        assert {kind for kind, over in counts if axis in over.split()} <= {
            "all-gather",
            "reduce-scatter",
            "all-reduce",
        }
        gathered = [
            instruction.shape
            for instruction in instructions_of(layer.text)
            if instruction.opcode.startswith("all-gather")
        ]
        experts = {str(list(p.shape)).replace(" ", "") for p in declare_moe(DIM, RULES).values()}
        assert gathered
        assert not [shape for shape in gathered if any(expert in shape for expert in experts)]


def test_pieces_change_no_bit(monkeypatch):
    """With at most 24 tokens on a device, a piece has half of the 4 positions of each row."""
    monkeypatch.setattr(expert_shards, "MOST_TOKENS", 24)
    mesh = "data and experts"
    assert expert_shards.piece_size(ROWS // 2, LENGTH) == 2
    np.testing.assert_array_equal(Layer(MESHES[mesh])(), layer_of(mesh)())


@pytest.mark.parametrize("mesh", ["one", "experts"])
def test_the_order_of_the_rows_does_not_change_a_bit(mesh):
    layer, (x, is_token) = layer_of(mesh), (inputs()[name] for name in ("x", "is_token"))
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(ROWS)
        permuted = layer(x=x[order], is_token=is_token[order])
        np.testing.assert_array_equal(permuted, layer_of("one")()[order])


@pytest.mark.parametrize("kept", [slice(0, 1), slice(5, 12), slice(20, ROWS)], ids=str)
def test_the_neighbors_of_a_row_do_not_change_a_bit(kept):
    """The other rows become other tokens, equal tokens, padding, or numbers that are not finite."""
    x, is_token = inputs()["x"], inputs()["is_token"]
    other = np.random.default_rng(1).normal(size=x.shape).astype("f")
    for neighbors, are_tokens in ((other, 1), (0 * x + x[3], 1), (x, 0), (x * np.nan, 1)):
        changed, mask = neighbors.copy(), np.full_like(is_token, are_tokens)
        changed[kept], mask[kept] = x[kept], is_token[kept]
        result = layer_of("one")(x=changed, is_token=mask)
        np.testing.assert_array_equal(result[kept], layer_of("one")()[kept])
