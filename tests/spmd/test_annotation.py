"""The parts of annotations: the active mesh, numbers of devices, and XLA's notations."""

from gshard_nmt.spmd.lowering import annotations_of
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate, mesh_split, shard, split

MESH = Mesh(("x", "y"), (2, 2), rules={"B": "x", "H": "y"})


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
