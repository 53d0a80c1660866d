"""Mesh arithmetic: rules, tiles, and what does not divide."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh, tile_assignment

GRID = Mesh(("x", "y"), (2, 3), rules={"G": "x", "E": "x", "H": "y", "B": ("x", "y")})


def test_the_leftmost_letter_that_claims_an_axis_gets_it():
    assert GRID.partition("GSEC") == (("x",), (), (), ())
    assert GRID.partition("EGCM") == (("x",), (), (), ())
    assert GRID.partition("EMH") == (("x",), (), ("y",))
    assert GRID.partition("BLH") == (("x", "y"), (), ())


def test_an_override_by_name_comes_before_the_rules():
    mesh = Mesh(("x",), (2,), {"E": "x"}, overrides={"*/gate": [None, None]})
    assert mesh.partition("ME", "encoder/gate") == ((), ())
    assert mesh.partition("ME", "encoder/other") == ((), ("x",))


def test_the_papers_two_examples_of_tiles():
    """GSPMD Figure 1: a tiled and a partially tiled tensor on four devices."""
    mesh = Mesh(("x", "y"), (2, 2), rules={}, device_order=(0, 2, 1, 3))
    tiles, partial = tile_assignment(mesh, (("x",), ("y",)))
    assert (tiles.tolist(), partial) == ([[0, 2], [1, 3]], False)
    tiles, partial = tile_assignment(mesh, (("y",), ("x",)))
    assert (tiles.tolist(), partial) == ([[0, 1], [2, 3]], False)
    mesh = Mesh(("x", "y"), (2, 2), rules={})
    tiles, partial = tile_assignment(mesh, ((), ("x",)))
    assert (tiles.tolist(), partial) == ([[[0, 1], [2, 3]]], True)


@st.composite
def partitions(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axes = [f"a{i}" for i in range(len(sizes))]
    dims = [[] for _ in range(draw(st.integers(1, 3)))]
    for axis in draw(st.permutations(axes)):
        place = draw(st.integers(-1, len(dims) - 1))
        if place >= 0:
            dims[place].append(axis)
    count = int(np.prod(sizes))
    order = tuple(draw(st.permutations(range(count))))
    return Mesh(axes, sizes, rules={}, device_order=order), tuple(tuple(d) for d in dims)


@settings(deadline=None, max_examples=50)
@given(partitions())
def test_every_device_gets_one_tile_and_tiles_follow_its_mesh_coordinates(case):
    mesh, partition = case
    tiles, partial = tile_assignment(mesh, partition)
    assert sorted(tiles.ravel().tolist()) == list(range(mesh.num_devices))
    assert tiles.ndim == len(partition) + partial
    by_tile = tiles.reshape([mesh.axis_size(axes) for axes in partition] + [-1])
    for coordinates in itertools.product(*map(range, mesh.shape)):
        device = mesh.devices()[coordinates]
        where = dict(zip(mesh.axes, coordinates, strict=True))
        sizes = dict(zip(mesh.axes, mesh.shape, strict=True))
        tile = []
        for axes in partition:
            index = 0
            for axis in axes:
                index = index * sizes[axis] + where[axis]
            tile.append(index)
        assert device in by_tile[tuple(tile)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Mesh(("x",), (2, 2)),
            "Mesh: 1 axes ['x'] but a shape of 2 sizes [2, 2]; give each axis one size.",
        ),
        (
            lambda: Mesh(("x",), (2,), {"B": "z"}),
            "the rule for 'B' names the mesh axis 'z'; the mesh has ['x'].",
        ),
        (
            lambda: Mesh(("x",), (2,), {}, device_order=(0, 0)),
            "Mesh.device_order is [0, 0]; it must name each of the devices 0 to 1 once.",
        ),
        (
            lambda: GRID.check_divides("Model.experts", "E", (5,)),
            "Model.experts: dimension E has size 5, which does not divide over the 2 devices of mesh "
            "axes ['x']; the nearest legal sizes are 4 or 6.",
        ),
    ],
)
def test_errors_give_the_values_the_rule_and_the_remedy(make, message):
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value) == message
