import pytest

from gshard_nmt.inspection.groups import axes_between, axes_of_group, replica_group
from gshard_nmt.spmd.mesh import Mesh


@pytest.mark.parametrize(
    ("attributes", "group"),
    [
        ("replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={1}", (0, 2, 4, 6)),
        ("replica_groups={}", tuple(range(8))),
        ("replica_groups=[2,4]<=[8]", (0, 1, 2, 3)),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6)),
        ("replica_groups=mesh['axis_0'=1,'axis_1'=8] {'axis_1'}", tuple(range(8))),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", (0, 2, 4, 6)),
        (
            "replica_groups=mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}",
            (0, 4),
        ),
        ("source_target_pairs={{0,1},{1,2}}", (0, 1)),
    ],
)
def test_groups_are_read_in_every_notation(attributes, group):
    assert replica_group(f"channel_id=1, {attributes}, x={{}}", 8) == group


def test_a_group_is_named_by_the_mesh_axes_along_which_it_lies():
    mesh = Mesh(("x", "y"), (4, 2), rules={})
    assert axes_of_group(mesh, (0, 1)) == ("y",)
    assert axes_of_group(mesh, (0, 2, 4, 6)) == ("x",)
    assert axes_of_group(mesh, tuple(range(8))) == ("x", "y")
    assert axes_of_group(mesh, (0, 3)) == ()


def test_a_rotation_is_named_by_the_axis_along_which_its_devices_are_neighbors():
    mesh = Mesh(("x", "y"), (4, 2), rules={})
    assert axes_between(mesh, (0, 2)) == axes_between(mesh, (6, 0)) == ("x",)
    assert axes_between(mesh, (2, 3)) == ("y",)
    assert axes_between(mesh, (0, 3)) == ("x", "y")
