import numpy as np
import pytest

from gshard_nmt.inspection import communication, hlo
from gshard_nmt.inspection.causes import Context
from gshard_nmt.inspection.communication import replica_group
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology

FLOAT = np.dtype(np.float32)
WEIGHTS = {
    "encoder/block/moe_0/gate": ArraySpec((2, 256, 8), FLOAT, "RME"),
    "encoder/block/moe_0/wi": ArraySpec((2, 8, 256, 512), FLOAT, "REMH"),
    "encoder/block/feed_forward_1/wi": ArraySpec((2, 256, 1024), FLOAT, "RMH"),
    "encoder/block/feed_forward_1/wo": ArraySpec((2, 1024, 256), FLOAT, "RHM"),
}
COORDINATES = np.repeat([[0, 0], [1, 0], [0, 1], [1, 1]], 2, axis=0)  # two cores a chip
CONTEXT = Context(Topology.parse("v3:2x2"), Mesh(("x",), (8,)), WEIGHTS, COORDINATES)
ALL = "replica_groups={{0,1,2,3,4,5,6,7}}"


def named(scope: str) -> str:
    return f'metadata={{op_name="jit(call)/lowered_program/{scope}"}}'


def sources(
    lines: str, context: Context = CONTEXT, computations: str = ""
) -> list[communication.Source]:
    text = f"{computations}\nENTRY %main (x: f32[2]) -> f32[2] {{\n{lines}\n}}\n"
    return communication.collectives(hlo.parse(text), context)


def test_a_moe_layers_all_to_alls_say_which_way_they_go():
    lines = "\n".join(
        f"  %p{i} = bf16[1,8,1,512,256]{{4,3,2,0,1}} parameter({i})\n"
        f"  %a{i} = bf16[1,8,1,512,256]{{4,3,2,0,1}} all-to-all(%p{i}), {ALL}, dimensions={{1}}, "
        f"{named(scope)}"
        for i, scope in enumerate(
            (
                "encoder_1_moe_0/dispatch/transpose",
                "encoder_1_moe_0/combine/transpose_1",
                "gradient_tape/encoder_1_moe_0/combine/transpose_1/transpose",
                "gradient_tape/encoder_1_moe_0/dispatch/transpose/transpose",
            )
        )
    )
    all_to_alls = sources(lines)
    assert [source.reason.why.partition(":")[0] for source in all_to_alls] == [
        "sends tokens to their experts",
        "sends the experts' results back to their tokens",
        "sends tokens to their experts",
        "sends the experts' results back to their tokens",
    ]
    assert {source.bytes for source in all_to_alls} == {8 * 512 * 256 * 2}
    assert {source.axes for source in all_to_alls} == {("x",)}
    assert not any(source.reason.remedy for source in all_to_alls)


COMBINED = f"  %all = (f32[1024,256]{{1,0}}, f32[256,1024]{{1,0}}) all-reduce(%a, %b), {ALL}"
# The GPU compiler writes it so: a fusion copies the flattened gradients one after another.
PACKED = (
    "  %flat.a = f32[262144]{0} bitcast(%a)\n  %flat.b = f32[262144]{0} bitcast(%b)"
    "\n  %buffer = f32[524288]{0} fusion(%flat.a, %flat.b), kind=kLoop, calls=%packing"
    f"\n  %all = f32[524288]{{0}} all-reduce-start(%buffer), {ALL}"
)
PACKING = """%packing (p.0: f32[262144], p.1: f32[262144]) -> f32[524288] {
  %p.0 = f32[262144]{0} parameter(0)
  %p.1 = f32[262144]{0} parameter(1)
  ROOT %packed = f32[524288]{0} concatenate(%p.0, %p.1), dimensions={0}
}
"""


@pytest.mark.parametrize(
    ("all_reduce", "computations"), [(COMBINED, ""), (PACKED, PACKING)], ids=["TPU", "GPU"]
)
def test_a_combined_all_reduce_is_taken_apart(all_reduce, computations):
    (wo, wi) = sources(
        "  %a = f32[1024,256]{1,0} add(), "
        + named("gradient_tape/encoder_0_feed_forward_1/wo/einsum_1")
        + "\n  %b = f32[256,1024]{1,0} add(), "
        + named("gradient_tape/encoder_0_feed_forward_1/wi/einsum_2")
        + f"\n{all_reduce}",
        computations=computations,
    )
    assert "gradient of encoder/block/feed_forward_1/wo," in wo.reason.why
    assert "gradient of encoder/block/feed_forward_1/wi," in wi.reason.why
    assert wo.bytes == wi.bytes == 1024 * 256 * 4


def test_a_small_weight_that_is_gathered_gets_the_override_that_avoids_it():
    (gathered,) = sources(
        "  %shard = f32[1,256,1]{2,1,0} parameter(0)\n"
        f"  %whole = f32[1,256,8]{{2,1,0}} all-gather(%shard), {ALL}, dimensions={{2}}, "
        + named("encoder_0_moe_0/gating/einsum")
    )
    assert gathered.bytes == 256 * 8 * 4
    assert gathered.reason.why.startswith(
        "encoder/block/moe_0/gate (RME) is split on E over mesh axes ['x']"
    )
    assert not gathered.reason.asked_for
    assert gathered.reason.overrides == {"encoder/block/moe_0/gate": {"E": None}}


def test_a_large_weight_is_gathered_as_its_rule_asks():
    weights = {"decoder/block/feed_forward_0/wi": ArraySpec((64, 8192, 65536), FLOAT, "RMH")}
    (gathered,) = sources(
        "  %shard = bf16[1024,65536]{1,0} parameter(0)\n"
        f"  %whole = bf16[8192,65536]{{1,0}} all-gather(%shard), {ALL}, dimensions={{0}}, "
        + named("while/decoder_feed_forward_0/einsum"),
        Context(Topology.parse("v3:2x2"), Mesh(("x",), (8,), rules={"M": "x", "B": "x"}), weights),
    )
    assert "the rule for M asks for this split" in gathered.reason.why
    assert gathered.reason.asked_for


def test_collectives_that_the_rules_imply_are_asked_for():
    """GSPMD Table 1, 2D finalized: BLM has M over y, and H of the weights is over y too."""
    rules, overrides = {"B": "x", "M": "y", "H": "y"}, {"*": {"M": "x"}}
    weights = {"decoder/block/feed_forward_0/wi": ArraySpec((64, 8192, 65536), FLOAT, "RMH")}
    annotated = {("BLM", (64, 1024, 8192))}
    mesh = Mesh(("x", "y"), (4, 2), rules=rules, overrides=overrides)
    context = Context(Topology.parse("v3:2x2"), mesh, weights, COORDINATES, annotated)
    pairs = "replica_groups={{0,1},{2,3},{4,5},{6,7}}"
    rows = "replica_groups={{0,2,4,6},{1,3,5,7}}"
    lines = (
        "  %half = bf16[16,1024,4096]{2,1,0} parameter(0)\n"
        f"  %whole = bf16[16,1024,8192]{{2,1,0}} all-gather(%half), {pairs}, dimensions={{2}}, "
        + named("while/decoder_feed_forward_0/wi/einsum")
        + "\n  %partial = bf16[16,1024,8192]{2,1,0} parameter(1)\n"
        f"  %sum = bf16[16,1024,8192]{{2,1,0}} all-reduce(%partial), {pairs}, "
        + named("while/decoder_feed_forward_0/wo/einsum")
        + "\n  %quarter = bf16[16,1024,8192]{2,1,0} parameter(2)\n"
        f"  %batch = bf16[64,1024,8192]{{2,1,0}} all-gather(%quarter), {rows}, dimensions={{0}}, "
        + named("while/decoder_feed_forward_0/wi/einsum")
    )
    by_shape = {(source.kind, source.shape): source for source in sources(lines, context)}
    gathered = by_shape["all-gather", "bf16[16,1024,8192]"]
    assert gathered.reason.asked_for
    assert "gathers an activation annotated BLM along M, for a product" in gathered.reason.why
    assert (
        "each device keeps its shard of M"
        in by_shape["all-reduce", "bf16[16,1024,8192]"].reason.why
    )
    # No product needs the whole batch.
    assert not by_shape["all-gather", "bf16[64,1024,8192]"].reason.asked_for


def test_an_all_reduce_fused_with_a_slice_is_a_reduce_scatter():
    """The TPU compiler writes it so for v3, and neither has the name of the product."""
    text = f"""
%scatter (input: f32[64,16]) -> f32[8,16] {{
  %input = f32[64,16]{{1,0}} parameter(0)
  %all = f32[64,16]{{1,0}} all-reduce(%input), channel_id=9, {ALL}
  %at = s32[] constant(0)
  ROOT %kept = f32[8,16]{{1,0}} dynamic-slice(%all, %at, %at), dynamic_slice_sizes={{8,16}}
}}

ENTRY %main (a: f32[64,16]) -> f32[8,16] {{
  %a = f32[64,16]{{1,0}} parameter(0)
  %sum = f32[64,16]{{1,0}} add(%a, %a), {named("decoder_0_feed_forward_1/wo/einsum")}
  ROOT %out = f32[8,16]{{1,0}} fusion(%sum), kind=kCustom, calls=%scatter
}}
"""
    (source,) = communication.collectives(hlo.parse(text), CONTEXT)
    assert (source.kind, source.bytes) == ("reduce-scatter", 64 * 16 * 4)
    assert source.origin.place == "decoder 0 feed_forward_1, wo"


def test_an_all_to_all_of_a_cpu_program_is_one_tensor_in_pieces():
    pieces = ", ".join(f"%p{i}" for i in range(8))
    lines = "\n".join(f"  %p{i} = f32[1,16]{{1,0}} parameter({i})" for i in range(8))
    shape = "(" + ", ".join(["f32[1,16]{1,0}"] * 8) + ")"
    (source,) = sources(f"{lines}\n  %a = {shape} all-to-all({pieces}), {ALL}")
    assert (source.shape, source.bytes) == ("f32[8,1,16]", 8 * 16 * 4)


def test_a_collective_in_several_fusions_with_one_channel_counts_once():
    """The TPU compiler writes it so from v5e on: start, a product at the same time, done."""
    gather = f"f32[512]{{0}} all-gather(%p), channel_id=2, {ALL}, dimensions={{0}}"
    fusions = "\n".join(
        f"%{name} (p: f32[64]) -> f32[512] {{\n  %p.{name} = f32[64]{{0}} parameter(0)\n"
        f"  ROOT %gather.{name} = {gather.replace('%p', f'%p.{name}')}\n}}"
        for name in ("start", "meanwhile", "done")
    )
    text = f"""{fusions}
ENTRY %main (x: f32[64]) -> f32[512] {{
  %x = f32[64]{{0}} parameter(0)
  %s = f32[512]{{0}} fusion(%x), kind=kCustom, calls=%start
  %m = f32[512]{{0}} fusion(%x), kind=kOutput, calls=%meanwhile
  ROOT %d = f32[512]{{0}} fusion(%x), kind=kCustom, calls=%done
}}
"""
    assert len(communication.collectives(hlo.parse(text), CONTEXT)) == 1


@pytest.mark.parametrize(
    ("attributes", "group"),
    [
        ("replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={1}", (0, 2, 4, 6)),
        ("replica_groups={}", tuple(range(8))),
        ("replica_groups=[2,4]<=[8]", (0, 1, 2, 3)),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6)),
        ("replica_groups=mesh['axis_0'=1,'axis_1'=8] {'axis_1'}", tuple(range(8))),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", (0, 2, 4, 6)),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}", (0, 4)),
        ("source_target_pairs={{0,1},{1,2}}", (0, 1)),
    ],
)
def test_groups_are_read_in_every_notation(attributes, group):
    assert replica_group(f"channel_id=1, {attributes}, x={{}}", 8) == group
