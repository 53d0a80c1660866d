"""The reader of compiled programs that the tests of meshes use: notations of groups, and slices."""

import pytest

from gshard_nmt.spmd.mesh import Mesh
from tests.multidevice.collectives import axes_of, collectives

MESH = Mesh(("x", "y"), (4, 2), rules={})


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ["y"]),
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", ["x"]),
        ("replica_groups={{0,1,2,3,4,5,6,7}}", ["x", "y"]),
        ("replica_groups=[4,2]<=[8]", ["y"]),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", ["x"]),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", ["x"]),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=1,'axis_2'=2] {'axis_2'}", ["y"]),
        # The devices of [4,2] read by columns form a mesh of [2,4]; groups are lines along its axis of 4.
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_1'}", ["x"]),
        ("source_target_pairs={{0,2},{2,4},{4,6}}", ["x"]),
        ("source_target_pairs={{0,1},{1,0},{2,5}}", ["x", "y"]),
    ],
)
def test_the_axes_of_a_group(text, axes):
    assert axes_of(text, MESH) == axes


PROGRAM = """
%kept (p.0: f32[4,8]) -> f32[4,8] {
  %p.0 = f32[4,8]{1,0} parameter(0)
  ROOT %add.0 = f32[4,8]{1,0} add(%p.0, %p.0)
}

%sliced (p.1: u32[], p.2: f32[4,8]) -> f32[1,8] {
  %p.1 = u32[] parameter(0)
  %p.2 = f32[4,8]{1,0} parameter(1)
  %bitcast.0 = f32[4,8]{1,0} bitcast(%p.2)
  ROOT %slice.0 = f32[1,8]{1,0} dynamic-slice(%bitcast.0, %p.1), dynamic_slice_sizes={1,8}
}

ENTRY %main (a: f32[4,8], b: f32[4,8]) -> (f32[1,8], f32[4,8]) {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[4,8]{1,0} parameter(1)
  %partition-id = u32[] partition-id()
  %all-reduce = (f32[4,8]{1,0}, f32[4,8]{1,0}) all-reduce(%a, %b), replica_groups=[2,4]<=[4,2]T(1,0)
  %get.0 = f32[4,8]{1,0} get-tuple-element(%all-reduce), index=0
  %get.1 = f32[4,8]{1,0} get-tuple-element(%all-reduce), index=1
  %fusion.0 = f32[1,8]{1,0} fusion(%partition-id, %get.0), kind=kLoop, calls=%sliced
  %fusion.1 = f32[4,8]{1,0} fusion(%get.1), kind=kLoop, calls=%kept
  ROOT %tuple = (f32[1,8]{1,0}, f32[4,8]{1,0}) tuple(%fusion.0, %fusion.1)
}
"""


def test_an_all_reduce_whose_devices_keep_a_slice_is_a_reduce_scatter():
    assert collectives(PROGRAM, MESH) == {("reduce-scatter", "x"): 1, ("all-reduce", "x"): 1}
