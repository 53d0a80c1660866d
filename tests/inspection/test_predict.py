"""Predicted work, traffic and memory, against counts by hand and against compiled programs."""

import pytest

from gshard_nmt.inspection.predict import Cost, cost_of
from gshard_nmt.inspection.products import step_of
from gshard_nmt.run.arrays import step_functions, training_arrays
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import CHIPS

GIB = 2**30
LAYER = ("Model.encoder_layers = 0", "Model.decoder_layers = 1", "Model.moe_every = 1")
"""A decoder of one layer, as the table of docs/sharding.md counts it."""


def cost(name: str, *settings: str, mesh: Mesh | None = None, rounds_operands: bool = True) -> Cost:
    config = load_config(name, settings)
    step = step_of(config, training_arrays(config, step_functions(config)), rounds_operands)
    return cost_of(step, mesh or config.mesh, CHIPS["v3"])


def sent(cost: Cost, kind: str) -> float:
    return sum(nbytes for (name, _), nbytes in cost.traffic.items() if name == kind)


def test_the_work_of_a_compiled_step_is_predicted_exactly_and_its_traffic_within_a_tenth():
    """Compare gshard-inspect --config gspmd_narrow_16b --topology v3:8x8, with libtpu 0.0.42."""
    predicted = cost("gspmd_narrow_16b")
    assert predicted.flops == 106157096042496
    assert sent(predicted, "all-gather") == pytest.approx(29.21 * GIB, rel=0.1)
    assert sent(predicted, "reduce-scatter") == pytest.approx(19.31 * GIB, rel=0.001)
    assert sent(predicted, "all-reduce") == 0  # 0.01 GiB, of norms and of the optimizer
    assert predicted.memory == pytest.approx(2.51 * GIB, rel=0.15)


def test_six_all_to_alls_of_an_moe_layer_and_an_all_reduce_of_what_is_replicated():
    """GShard sections 3.2 and 3.3: two each forward, backward, and computed again."""
    predicted = cost("moe_2048e_36l")
    local = 2048 * 2 * 1024 * 2  # one group's E x C slots of M bfloat16 numbers
    assert dict(predicted.traffic)["all-to-all", ("x",)] == 6 * 18 * local
    dense_layers, attentions = 18, 36 + 18
    weights = dense_layers * 2 * 1024 * 8192 + attentions * 4 * 1024 * 2048
    gates, embeddings = 18 * 1024 * 2048, (64000 + 2 * 32000) * 1024
    assert dict(predicted.traffic)["all-reduce", ("x",)] == 4 * (weights + gates + embeddings)


@pytest.mark.parametrize(
    ("name", "shape", "moved"),
    [
        # Nothing but the gradients.
        ("expert", (8,), {"all-reduce": {("x",)}}),
        # Each weight is gathered once, because nothing is computed again.
        ("zero", (8,), {"all-gather": {("x",)}, "reduce-scatter": {("x",)}}),
        ("data_tensor_attempt1", (4, 2), {"all-reduce": {("x",), ("y",)}}),
        ("data_tensor_attempt2", (4, 2),
         {"all-gather": {("x",)}, "all-reduce": {("y",)}, "reduce-scatter": {("x",)}}),
        ("data_tensor", (4, 2), {"all-gather": {("x",), ("y",)}, "reduce-scatter": {("x",), ("y",)}}),
    ],
)  # fmt: skip
def test_the_collectives_of_a_dense_layer_are_those_of_the_table_in_sharding_md(name, shape, moved):
    macros = ("DEVICES",) if len(shape) == 1 else ("X", "Y")
    sizes = [f"{macro} = {size}" for macro, size in zip(macros, shape, strict=True)]
    predicted = cost("demo", *LAYER, "Model.experts = 0", f"include 'meshes/{name}.gin'", *sizes)
    kinds: dict[str, set] = {}
    for (kind, axes), nbytes in predicted.traffic.items():
        assert nbytes > 0
        kinds.setdefault(kind, set()).add(axes)
    assert kinds == moved
    weights = 4 * (4 * 128 * 128 + 2 * 128 * 512)
    embedding = 4 * 4000 * 128
    if name == "zero":
        assert sent(predicted, "all-gather") == weights + 2 * embedding
        assert sent(predicted, "reduce-scatter") == weights + 2 * embedding
