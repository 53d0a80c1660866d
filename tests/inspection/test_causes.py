"""Each collective has a cause in words, and a remedy if nothing asks for it."""

import dataclasses

import numpy as np
import pytest

from gshard_nmt.inspection.causes import Context, explain
from gshard_nmt.inspection.compute import Origin
from gshard_nmt.inspection.hlo import Array
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


def test_only_the_weights_of_a_circular_pipeline_are_asked_to_move():
    mesh = Mesh(("stage",), (2,), rules={"P": "stage", "R": "stage"})
    weights = {**CONTEXT.weights, "output_embedding": ArraySpec((512, 256), WI.dtype, "VM")}
    context = dataclasses.replace(CONTEXT, mesh=mesh, weights=weights, is_circular=True)
    for kind in ("all-to-all", "collective-permute"):
        moved = explain(kind, Array("f32", (1, 1, 1024, 256)), NOWHERE, (), context)
        assert moved.why.startswith("moves weights to the stages of the circular schedule")
        assert moved.asked_for
        assert not explain(kind, Array("f32", (512, 256)), NOWHERE, (), context).asked_for
        assert not explain(kind, Array("f32", (256, 1024)), GRADIENT, (), context).asked_for
        gpipe = dataclasses.replace(context, is_circular=False)
        assert not explain(kind, Array("f32", (256, 1024)), NOWHERE, (), gpipe).asked_for


def test_a_weight_that_is_to_be_whole_keeps_the_rest_of_its_own_entry():
    mesh = Mesh(("x", "y"), (4, 2), overrides={"*/wi": {"M": "x", "H": "y"}})
    context = dataclasses.replace(CONTEXT, mesh=mesh)
    reason = explain("all-gather", Array("f32", (256, 512)), GRADIENT, ("x",), context)
    assert list(reason.overrides.values()) == [{"M": None, "H": ("y",)}]


ADAFACTOR = Origin("", "adafactor", "optimizer")
GUARD = Origin("", "guard", "optimizer")


def test_a_shared_update_asks_for_gathers_of_weights_and_moments():
    context = dataclasses.replace(CONTEXT, mesh=Mesh(("x",), (8,), shared_update=True))
    # Its groups are parts of the axis x, which have no name.
    for origin, what in ((GUARD, "the new weights"), (ADAFACTOR, "second moments")):
        reason = explain("all-gather", Array("f32", (2, 256, 1024)), origin, (), context)
        assert reason.asked_for
        made = "each device has made a part of them (Mesh.shared_update)"
        assert reason.why == f"gathers {what}: {made}"
        assert not explain("all-gather", Array("f32", (2, 4)), origin, (), CONTEXT).asked_for
    # A whole gradient is gathered: no device needs it.
    norm = Origin("", "gradient norm", "gradients and metrics")
    assert not explain("all-gather", Array("f32", (2, 256, 1024)), norm, (), context).asked_for


@pytest.mark.parametrize(
    ("kind", "part", "direction", "why"),
    [
        ("reduce-scatter", "dispatch", "forward", "adds up the inputs of a group's slots over"),
        ("all-gather", "combine", "forward", "gathers the outputs of a group's slots for"),
        ("all-gather", "dispatch", "backward", "gathers the gradients of the inputs of a group's"),
        ("all-gather", "gating", "forward", "gathers how many tokens of a group ask for each expert"),
    ],
)  # fmt: skip
def test_the_devices_that_share_a_group_have_reasons_to_communicate(kind, part, direction, why):
    rules = {"G": "group", "S": "member", "E": ("member", "group")}
    context = dataclasses.replace(CONTEXT, mesh=Mesh(("group", "member"), (2, 4), rules=rules))
    origin = Origin("encoder 1 moe_0", part, part, direction=direction)
    reason = explain(kind, Array("f32", (8, 64)), origin, ("member",), context)
    assert reason.why.startswith(why)
    assert reason.asked_for
