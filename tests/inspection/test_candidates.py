"""Meshes and device orders: each is what its text says, and the boxes of chips are the good ones."""

import pytest

from gshard_nmt.inspection import links
from gshard_nmt.inspection.candidates import (
    device_orders,
    factorizations,
    meshes,
    place_on,
)
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology


def test_all_shapes_of_the_families_that_suit_a_model():
    assert list(factorizations(12, 2)) == [(2, 6), (3, 4), (4, 3), (6, 2)]
    dense, moe = ([(name, m.shape) for name, m in meshes(8, experts)] for experts in (False, True))
    assert ("data_expert_tensor", (2, 1, 4)) in dense
    assert ("data_expert_tensor", (2, 2, 2)) in moe
    assert {name for name, _ in moe} & {"data_tensor", "data_tensor_attempt1"} == set()
    assert len(dense) == len(set(dense)) == 2 + 2 + 3 * 2
    assert len(moe) == len(set(moe)) == 2 + 2 + 1 + 2


def test_orders_put_each_mesh_axis_on_a_box_of_chips():
    orders = list(device_orders(Topology.parse("v5e:4x2"), (2, 4)))
    assert len(set(orders)) > 2
    for order in orders:
        rows = Mesh(("x", "y"), (2, 4), {}, device_order=order).devices()
        # The chips of a row are a line, or two chips on each axis.
        sides = [(len(set(row % 4)), len(set(row // 4))) for row in rows]
        assert all(x * y == 4 for x, y in sides)
    assert "[8]" in device_orders(Topology.parse("h100:8"), (8,))


def test_figure_10_a_ring_of_neighbors_beats_a_row_of_the_machine():
    """GShard section A.3: data moves along the rows of 2 x 4 partitions on 8 devices in 2 rows of 4."""
    topology = Topology.parse("v5e:4x2")
    assert topology.chip is not None

    def seconds(order, kind: str) -> float:
        mesh = Mesh(("x", "y"), (2, 4), {}, device_order=order)
        placement = place_on(topology, mesh, ["y"])
        return links.seconds(kind, 2**20, placement, topology.chip)

    for kind in ("all-reduce", "all-gather", "all-to-all"):
        ring = seconds((0, 1, 5, 4, 2, 3, 7, 6), kind)
        assert ring == pytest.approx(seconds((0, 1, 2, 3, 4, 5, 6, 7), kind) / 2)
    best = min(device_orders(topology, (2, 4)), key=lambda order: seconds(order, "all-reduce"))
    rows = Mesh(("x", "y"), (2, 4), {}, device_order=best).devices()
    assert {frozenset(row) for row in rows.tolist()} == {
        frozenset((0, 1, 4, 5)),
        frozenset((2, 3, 6, 7)),
    }
