"""Collectives between TPU slices, in the notation of the compiler for two and four slices."""

import numpy as np
import pytest

from gshard_nmt.inspection import communication, hlo
from gshard_nmt.inspection.causes import Context
from gshard_nmt.inspection.slices import group_in_slice, transfer_group, transfer_kind
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology

# An all-reduce over both axes: inside the slices, between them, and inside again. The channels of the
# first and the last are the same, as the compiler writes them.
PROGRAM = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[1024,256]) -> f32[1024,256] {
  %x = f32[1024,256]{1,0} parameter(0)
  %after-all = token[] after-all()
  %reduce-scatter.1 = f32[256,256]{1,0} reduce-scatter(%x), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={0}, to_apply=%add
  %send = (f32[256,256]{1,0}, u32[], token[]) send(%reduce-scatter.1, %after-all), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv = (f32[256,256]{1,0}, u32[], token[]) recv(%after-all), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true
  %recv-done = (f32[256,256]{1,0}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true
  %element = f32[256,256]{1,0} get-tuple-element(%recv-done), index=0
  ROOT %all-gather.1 = f32[1024,256]{1,0} all-gather(%element), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
}
"""  # noqa: E501


def context(order: str = "") -> Context:
    """Two slices of 2 x 2 chips of v5e, as a mesh of 2 x 4 or of another order."""
    chips = np.array([[x, y, s] for s in (0, 1) for y in (0, 1) for x in (0, 1)])
    mesh = Mesh(("data", "x"), (2, 4), rules={})
    if order == "slices inside":
        # Places 0 and 1 are the first chips of both slices.
        chips, mesh = (
            chips.reshape(2, 4, 3).swapaxes(0, 1).reshape(8, 3),
            Mesh(("x", "data"), (4, 2)),
        )
    return Context(Topology.parse("v5e:2x2*2", slice_link=1e9), mesh, {}, chips)


@pytest.mark.parametrize("order", ["", "slices inside"])
def test_an_all_reduce_is_divided_into_links_and_network(order):
    inside, between, after = communication.collectives(hlo.parse(PROGRAM), context(order))[:3]
    by_kind = {source.kind: source for source in (inside, between, after)}
    assert by_kind["reduce-scatter"].slices == by_kind["all-gather"].slices == 1
    assert by_kind["reduce-scatter"].axes == by_kind["all-gather"].axes == ("x",)
    reduced = by_kind["all-reduce"]
    assert (reduced.slices, reduced.axes, reduced.group_size) == (2, ("data",), 2)
    assert reduced.bytes == 256 * 256 * 4
    # Half of the share goes to the other slice, there and back, at 1 GB/s.
    assert reduced.seconds == pytest.approx(256 * 256 * 4 / 1e9)
    assert reduced.why.endswith("between 2 slices")
    assert all(source.asked_for for source in by_kind.values())
    assert "ends an all-reduce between slices" in by_kind["all-gather"].why


def transfer(target: str, kind: str) -> hlo.Instruction:
    attributes = f'_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"'
    return hlo.Instruction("send", "send", "", (), attributes)


def test_groups_of_transfers_in_all_notations():
    slice_of_place = [0, 0, 1, 1, 2, 2]
    product = transfer('"{1,2,3}x{0:1}"', "ALL_GATHER")
    assert transfer_kind(product) == "all-gather"
    assert transfer_group(product, slice_of_place) == (0, 2, 4)
    listed = transfer("{{100001,200001},{100000,200000}}", "ALL_TO_ALL")
    assert transfer_kind(listed) == "all-to-all"
    assert transfer_group(listed, slice_of_place) == (1, 3)
    pair = transfer("{{200000->300000},{300000->100000}}", "ONE_TO_ONE")
    assert transfer_kind(pair) == "collective-permute"
    assert transfer_group(pair, slice_of_place) == (2, 4)


def test_a_send_of_a_loop_is_no_transfer_between_slices():
    assert transfer_kind(hlo.Instruction("send", "send", "", (), "channel_id=1")) == ""


def test_a_group_in_a_slice_counts_the_devices_of_the_slice_in_the_order_of_the_mesh():
    assert group_in_slice((0, 1), [0, 1, 0, 1]) == (0, 2)
    assert group_in_slice((1,), [1, 0, 1, 0]) == (3,)
