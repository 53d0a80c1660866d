"""Meshes of another number of devices."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.resize import nearest_mesh, reduced_mesh, resized_mesh


def test_a_reduced_mesh_splits_every_axis_that_was_split():
    mesh = Mesh(("x", "y"), (32, 64), rules={})
    assert reduced_mesh(mesh, 8).shape == (4, 2)
    assert reduced_mesh(Mesh(("x",), (2048,)), 8).shape == (8,)
    with pytest.raises(UserError, match=r"Give --devices 4, or a power of 2"):
        reduced_mesh(mesh, 6)


def test_the_nearest_mesh_keeps_the_later_axes_as_far_as_they_divide():
    assert nearest_mesh(Mesh(("x", "y"), (1, 2)), 8).shape == (4, 2)
    assert nearest_mesh(Mesh(("x", "y", "z"), (4, 4, 6)), 8).shape == (1, 4, 2)
    mesh = Mesh(("x",), (8,))
    assert nearest_mesh(mesh, 8) is mesh


@pytest.mark.parametrize(
    ("shape", "devices", "nearest"),
    [
        ((2,), 8, (8,)),
        ((1, 2), 8, (4, 2)),
        ((1, 3), 8, (8, 1)),  # 3 does not divide 8
        ((4, 4, 6), 8, (1, 4, 2)),
        ((2, 4), 8, (2, 4)),
    ],
)
def test_the_nearest_mesh_has_the_wanted_number_of_devices(shape, devices, nearest):
    axes = ("x", "y", "z")[: len(shape)]
    assert nearest_mesh(Mesh(axes, shape, rules={}), devices).shape == nearest


def test_a_resized_mesh_changes_its_first_axis_only():
    mesh = Mesh(("x", "y"), (2, 4))
    assert resized_mesh(mesh, 32, "v3:4x4").shape == (8, 4)
    with pytest.raises(UserError, match=r"\[2, 4\] is 8 devices and cpu:6 has 6"):
        resized_mesh(mesh, 6, "cpu:6")


def test_a_device_order_is_dropped_with_the_shape_that_it_was_for():
    mesh = Mesh(("x",), (2,), device_order=(1, 0))
    assert nearest_mesh(mesh, 2).device_order == (1, 0)
    assert nearest_mesh(mesh, 4).device_order == ()


SHAPES = st.lists(st.integers(1, 12), min_size=1, max_size=3)
RULES = {"B": "x"}


def mesh_of(shape: list[int]) -> Mesh:
    return Mesh(("x", "y", "z")[: len(shape)], tuple(shape), RULES)


@given(SHAPES, st.integers(1, 200))
def test_every_nearest_mesh_has_all_devices_and_the_same_axes_and_rules(shape, devices):
    mesh = mesh_of(shape)
    nearest = nearest_mesh(mesh, devices)
    assert math.prod(nearest.shape) == nearest.num_devices == devices
    assert (nearest.axes, nearest.rules) == (mesh.axes, RULES)
    for size, before in zip(nearest.shape[1:], mesh.shape[1:], strict=True):
        assert before % size == 0
    # A mesh of this number of devices is near to itself.
    assert nearest_mesh(nearest, devices) is nearest


@given(SHAPES, st.integers(1, 50))
def test_a_mesh_with_a_longer_first_axis_is_resized_to_it_and_back(shape, times):
    mesh = mesh_of(shape)
    larger = resized_mesh(mesh, mesh.num_devices * times, "cpu")
    assert larger.shape == (mesh.shape[0] * times, *mesh.shape[1:])
    assert resized_mesh(larger, mesh.num_devices, "cpu") == mesh


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(0, 8))
def test_every_reduced_mesh_splits_the_axes_that_were_split(powers, power):
    mesh, devices = mesh_of([2**power for power in powers]), 2**power
    least = 2 ** sum(power > 0 for power in powers)
    if not least <= devices <= mesh.num_devices:
        with pytest.raises(UserError, match=rf"--equivalence on {devices} devices: "):
            reduced_mesh(mesh, devices)
        return
    reduced = reduced_mesh(mesh, devices)
    assert reduced.num_devices == devices
    for size, before in zip(reduced.shape, mesh.shape, strict=True):
        assert size <= before
        assert (size > 1) == (before > 1)
