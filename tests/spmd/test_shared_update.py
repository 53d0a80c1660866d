"""Shared updates: which part of a weight each device gets."""

import math

import numpy as np
import pytest

from gshard_nmt.spmd.lowering import annotations_of
from gshard_nmt.spmd.mesh import Mesh, tile_assignment
from gshard_nmt.spmd.sharding import exchange_parts
from gshard_nmt.spmd.shared_update import fine_mesh


@pytest.mark.parametrize(
    ("letters", "sizes", "parts"),
    [
        ("RMH", (9, 1024, 8192), (1, 128, 1)),  # 8 rows each, a tile of a TPU
        ("RMND", (9, 1024, 16, 128), (1, 1024, 1, 1)),
        ("VM", (32000, 1024), (32, 1)),
        ("RM", (9, 1024), (1, 1)),  # a vector
        ("MH", (100, 30), (1, 1)),  # nothing divides
        ("REMH", (9, 2048, 1024, 8192), (1, 2048, 1, 1)),  # no two devices hold the same expert
    ],
)
def test_the_parts_of_a_weight_on_a_pod(letters, sizes, parts):
    fine, partition = fine_mesh(Mesh(("x",), (2048,)), letters, sizes, "")
    assert tuple(fine.axis_size(axes) for axes in partition) == parts
    assert fine.num_devices == 2048


@pytest.mark.parametrize("order", [(), tuple(reversed(range(24)))])
def test_a_device_updates_a_part_of_the_shard_that_it_holds(order):
    mesh = Mesh(("x", "y"), (4, 6), rules={"H": "y"}, device_order=order)
    fine, partition = fine_mesh(mesh, "MH", (64, 768), "")
    coarse = tile_assignment(mesh, mesh.partition("MH")).devices(mesh.devices())
    parts = tile_assignment(fine, partition).devices(fine.devices())
    for column in range(6):
        assert set(parts[:, column].ravel()) == set(coarse[0, column].ravel())
    assert math.prod(parts.shape) == 24
    assert sorted(parts.ravel()) == list(np.arange(24))


def test_the_new_parts_are_gathered():
    mesh = Mesh(("x",), (8,), shared_update=True)

    def exchanged(x, one):
        return exchange_parts(x, "MH", "wi", one)

    assert annotations_of(exchanged, (64, 256), (), mesh=mesh) == [
        "{devices=[8,1]<=[8]}",
        "{replicated}",
    ]
