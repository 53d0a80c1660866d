import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.resize import nearest_mesh, reduced_mesh, resized_mesh


def test_a_reduced_mesh_splits_every_axis_that_was_split():
    mesh = Mesh(("x", "y"), (32, 64), rules={})
    assert reduced_mesh(mesh, 8).shape == (4, 2)
    assert reduced_mesh(Mesh(("x",), (2048,)), 8).shape == (8,)
    with pytest.raises(UserError, match=r"give --devices 4, or another power of 2"):
        reduced_mesh(mesh, 6)


def test_the_nearest_mesh_keeps_the_later_axes_as_far_as_they_divide():
    assert nearest_mesh(Mesh(("x", "y"), (1, 2)), 8).shape == (4, 2)
    assert nearest_mesh(Mesh(("x", "y", "z"), (4, 4, 6)), 8).shape == (1, 4, 2)
    mesh = Mesh(("x",), (8,))
    assert nearest_mesh(mesh, 8) is mesh


def test_a_resized_mesh_changes_its_first_axis_only():
    mesh = Mesh(("x", "y"), (2, 4))
    assert resized_mesh(mesh, 32, "v3:4x4").shape == (8, 4)
    with pytest.raises(UserError, match=r"\[2, 4\] is 8 devices and cpu:6 has 6"):
        resized_mesh(mesh, 6, "cpu:6")
