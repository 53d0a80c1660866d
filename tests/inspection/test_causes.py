"""Each collective has a cause in words, and a remedy if nothing asks for it."""

import dataclasses

import numpy as np
import pytest

from gshard_nmt.inspection.causes import Context, explain
from gshard_nmt.inspection.hlo import Array
from gshard_nmt.inspection.origin import Origin
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology

WI = ArraySpec((2, 256, 1024), np.dtype(np.float32), "RMH")
CONTEXT = Context(
    Topology.parse("cpu:8"), Mesh(("x",), (8,)), {"encoder/block/feed_forward_1/wi": WI}
)
MOE = Origin("encoder 1 moe_0", "dispatch", "dispatch and combine")
NOWHERE = Origin("", "transpose", "other")
GRADIENT = Origin(
    "encoder 0 feed_forward_1", "einsum", "feed-forward", ("wi",), direction="backward"
)


@pytest.mark.parametrize(
    ("kind", "dims", "origin", "why", "asked_for"),
    [
        ("all-to-all", (8, 64), MOE, "sends tokens to their experts: GECM -> EGCM", True),
        ("all-reduce", (), NOWHERE, "adds up a statistic of the batch", True),
        ("all-reduce", (256, 1024), GRADIENT, "adds up the gradient of encoder/block/", True),
        ("collective-permute", (8, 64), NOWHERE, "moves f32[8,64] of other", False),
    ],
)
def test_a_collective_is_explained(kind, dims, origin, why, asked_for):
    reason = explain(kind, Array("f32", dims), origin, ("x",), CONTEXT)
    assert reason.why.startswith(why)
    assert reason.asked_for == asked_for


def test_the_collectives_of_a_pipeline_are_asked_for():
    mesh = Mesh(("stage", "x"), (4, 2), rules={"P": "stage", "B": "x"})
    context = dataclasses.replace(CONTEXT, mesh=mesh)
    rotation = explain("collective-permute", Array("f32", (8, 64)), NOWHERE, ("stage",), context)
    assert rotation.why.startswith("moves each microbatch to the next stage of the pipeline")
    gather = explain("all-gather", Array("f32", (8, 64)), NOWHERE, ("stage",), context)
    assert gather.why.startswith("gathers what every stage of the pipeline reads")
    total = explain("all-reduce", Array("f32", (4, 4, 16, 16)), NOWHERE, ("stage",), context)
    assert total.why.startswith("hands on what one stage of the pipeline has")
    assert rotation.asked_for
    assert gather.asked_for
    assert not explain("collective-permute", Array("f32", (8,)), NOWHERE, ("x",), context).asked_for


@pytest.mark.parametrize("part", ["token_counts", "figures"])
def test_a_sum_of_figures_is_a_statistic_of_the_batch(part):
    origin = Origin("", part, "gradients and metrics")
    assert explain("all-reduce", Array("s32", (100,)), origin, ("x",), CONTEXT).why.startswith(
        "adds up a statistic of the batch"
    )


@pytest.mark.parametrize(
    ("kind", "part", "direction", "why"),
    [
        ("reduce-scatter", "dispatch", "forward", "adds up the inputs of a group's slots over"),
        ("all-gather", "combine", "forward", "gathers the outputs of a group's slots for"),
        ("all-gather", "dispatch", "backward", "gathers the gradients of the inputs of a group's"),
        ("all-reduce", "combine", "backward", "adds up the gradients of the outputs of a group's"),
        (
            "all-gather",
            "gating",
            "forward",
            "gathers how many tokens of a group ask for each expert",
        ),
    ],
)
def test_the_devices_that_share_a_group_have_reasons_to_communicate(kind, part, direction, why):
    rules = {"G": "group", "S": "member", "E": ("member", "group")}
    mesh = Mesh(("group", "member"), (2, 4), rules=rules)
    context = dataclasses.replace(CONTEXT, mesh=mesh)
    origin = Origin("encoder 1 moe_0", part, part, direction=direction)
    reason = explain(kind, Array("f32", (8, 64)), origin, ("member",), context)
    assert reason.why.startswith(why)
    assert reason.asked_for


def test_an_unexpected_collective_of_a_layer_has_a_remedy():
    origin = Origin("decoder 2 self_attention_0", "transpose", "attention")
    reason = explain("collective-permute", Array("f32", (8, 64)), origin, ("x",), CONTEXT)
    assert reason.remedy.startswith("annotate the tensor in decoder 2 self_attention_0")
