"""The parts of annotations: the active mesh, numbers of devices, and XLA's notations."""

import numpy as np

from gshard_nmt.spmd.annotation import active, places_of, rules
from gshard_nmt.spmd.lowering import annotations_of
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate, mesh_split, shard, split

MESH = Mesh(("x", "y"), (2, 2), rules={"B": "x", "H": "y"})


def test_rules_nest_and_the_outer_mesh_is_active_again():
    other = Mesh(("a",), (4,), rules={})
    assert active.get().mesh is None
    with rules(MESH):
        with rules(other):
            assert active.get().mesh is other
        assert active.get().mesh is MESH
    assert active.get().mesh is None


def test_the_place_of_a_device_is_where_the_mesh_has_it():
    ordered = Mesh(("x",), (4,), device_order=(2, 0, 3, 1))
    with rules(ordered):
        assert places_of(np.array([2, 0, 3, 1])).tolist() == [0, 1, 2, 3]
        assert places_of(np.array([0, 1])).tolist() == [1, 3]
    assert places_of(np.array([2, 0])).tolist() == [2, 0]


def test_an_annotation_numbers_devices_by_their_place_in_the_mesh():
    """The runtime passes the devices in the order of the mesh."""
    ordered = Mesh(("x", "y"), (2, 2), rules={"B": "x", "H": "y"}, device_order=(0, 2, 1, 3))
    (text,) = annotations_of(lambda x: annotate(x, "BH"), (4, 6), mesh=ordered)
    assert text == "{devices=[2,2]<=[4]}"
    (text,) = annotations_of(lambda x: mesh_split(x, MESH, ["x", "y"]), (4, 6), mesh=ordered)
    assert text == "{devices=[2,2]0,2,1,3}"
    (text,) = annotations_of(lambda x: shard(x, [[0, 2], [1, 3]]), (4, 6), mesh=ordered)
    assert text == "{devices=[2,2]<=[4]}"


def test_an_annotation_is_as_long_for_thousands_of_devices_as_for_four():
    mesh = Mesh(("x", "y"), (32, 64), rules={"B": "x", "H": "y"})
    (text,) = annotations_of(lambda x: annotate(x, "HB"), (64, 64), mesh=mesh)
    assert text == "{devices=[64,32]<=[32,64]T(1,0)}"
    (text,) = annotations_of(lambda x: split(x, 0, 64), (64, 64), mesh=mesh)
    assert text == "{devices=[64,1,32]<=[32,64]T(1,0) last_tile_dim_replicate}"
