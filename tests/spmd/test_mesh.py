"""Mesh arithmetic: rules, overrides, tiles, device orders, and dimensions that do not divide."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.errors import UserError
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.mesh import (
    Mesh,
    UnevenDimension,
    nearest_mesh,
    reduced_mesh,
    resized_mesh,
    tile_assignment,
)

GRID = Mesh(("x", "y"), (2, 3), rules={"G": "x", "E": "x", "H": "y", "B": ("x", "y")})


def test_the_leftmost_letter_that_claims_an_axis_gets_it():
    assert GRID.partition("GSEC") == (("x",), (), (), ())
    assert GRID.partition("EGCM") == (("x",), (), (), ())
    assert GRID.partition("EMH") == (("x",), (), ("y",))
    assert GRID.partition("BLH") == (("x", "y"), (), ())


def test_an_override_by_letter_fits_tensors_of_any_rank():
    """GSPMD Table 1: M on x in weights, on y in activations."""
    mesh = Mesh(
        ("x", "y"),
        (2, 3),
        {"B": "x", "M": "y", "H": "y"},
        overrides={"parameters/*/gate": {"M": None}, "parameters/*": {"M": "x"}},
    )
    assert mesh.partition("BLM") == (("x",), (), ("y",))
    assert mesh.partition("RMH", "parameters/ff/wi") == ((), ("x",), ("y",))
    assert mesh.partition("M", "parameters/norm") == (("x",),)
    assert mesh.partition("ME", "parameters/moe/gate") == ((), ())
    assert mesh.partition("ME", "moe/gate") == mesh.partition("ME", "ema/moe/gate") == ((), ())
    bare = Mesh(("x",), (2,), {"M": "x"}, overrides={"moe/*": {"M": None}})
    assert bare.partition("MH", "parameters/moe/wi") == bare.partition("MH", "moe/wi") == ((), ())
    assert bare.partition("MH", "moments/m/moe/wi") == (("x",), ())
    every = Mesh(("x",), (2,), {"B": "x"}, overrides={"parameters/*": {"B": None}})
    assert every.partition("BL", "source_ids") == (("x",), ())


def test_uneven_dimensions_are_records_with_the_nearest_sizes():
    assert list(GRID.uneven("BLM", (12, 5, 7))) == []
    uneven = list(GRID.uneven("EMH", (5, 3, 4)))
    assert uneven == [UnevenDimension("E", 5, ("x",), 2), UnevenDimension("H", 4, ("y",), 3)]
    assert [dimension.nearest_sizes for dimension in uneven] == [(4, 6), (3, 6)]
    assert UnevenDimension("B", 5, ("x", "y"), 6).nearest_sizes == (6,)
    by_name = Mesh(("x",), (2,), {}, overrides={"*/gate": [None, "x"]})
    assert list(by_name.uneven("ME", (3, 3), "moe/gate")) == [UnevenDimension("E", 3, ("x",), 2)]
    assert list(by_name.uneven("ME", (3, 3), "moe/wi")) == []


def assignment(mesh, partition):
    """Returns the device of each tile, and whether the last dimension is replicas (GSPMD Figure 1)."""
    tiles = tile_assignment(mesh, partition)
    devices = tiles.devices(mesh.devices())
    if tiles.replicas > 1:
        return devices.reshape([*tiles.tiles, tiles.replicas]).tolist(), True
    return devices.reshape(tiles.tiles).tolist(), False


def test_the_papers_two_examples_of_tiles():
    """GSPMD Figure 1: a tiled and a partially tiled tensor on four devices."""
    mesh = Mesh(("x", "y"), (2, 2), rules={}, device_order=(0, 2, 1, 3))
    assert assignment(mesh, (("x",), ("y",))) == ([[0, 2], [1, 3]], False)
    assert assignment(mesh, (("y",), ("x",))) == ([[0, 1], [2, 3]], False)
    mesh = Mesh(("x", "y"), (2, 2), rules={})
    assert assignment(mesh, ((), ("x",))) == ([[[0, 1], [2, 3]]], True)


def test_manual_axes_make_a_group_of_their_own():
    mesh = Mesh(("x", "y", "z"), (2, 3, 2), rules={})
    tiles = tile_assignment(mesh, (("z",),), manual=("x",))
    assert (tiles.tiles, tiles.manual, tiles.replicas) == ((2,), 2, 3)
    assert tiles.devices(mesh.devices())[0].tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize(
    ("order", "devices"),
    [
        ((), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        # A grid of 4 rows by 2 columns read by columns: the lines of the mesh are its long sides.
        ("[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[2,2,2]T(1,0,2)", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ((0, 1, 3, 2, 4, 5, 7, 6), [[0, 1, 3, 2], [4, 5, 7, 6]]),
    ],
)
def test_the_order_of_devices(order, devices):
    assert Mesh(("x", "y"), (2, 4), rules={}, device_order=order).devices().tolist() == devices


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
    tiles = tile_assignment(mesh, partition)
    devices = tiles.devices(mesh.devices())
    assert sorted(devices.ravel().tolist()) == list(range(mesh.num_devices))
    assert tiles.tiles == tuple(mesh.axis_size(axes) for axes in partition)
    by_tile = devices.reshape([*tiles.tiles, -1])
    for coordinates in itertools.product(*map(range, mesh.shape)):
        device = mesh.devices()[coordinates]
        coordinate = dict(zip(mesh.axes, coordinates, strict=True))
        sizes = dict(zip(mesh.axes, mesh.shape, strict=True))
        tile = []
        for axes in partition:
            index = 0
            for axis in axes:
                index = index * sizes[axis] + coordinate[axis]
            tile.append(index)
        assert device in by_tile[tuple(tile)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mesh(("x",), (2, 2)),
         "Mesh.axes is ['x'] and Mesh.shape [2, 2]; give each axis one size."),
        (lambda: Mesh(("x",), (2,), {"B": "z"}),
         "Mesh.rules['B'] names the mesh axis 'z'; Mesh.axes is ['x']."),
        (
            lambda: Mesh(("x",), (2,), {"b": "x"}),
            "Mesh.rules has the key 'b'; a key must be the capital letter of a dimension, such as B "
            "for the rows of a batch.",
        ),
        (
            lambda: Mesh(("x",), (2,), {}, device_order=(0, 0)),
            "Mesh.device_order is (0, 0); it must name each of the devices 0 to 1 of Mesh.shape "
            "[2] once.",
        ),
        (lambda: Mesh(("x", "y"), (2, 2), {}, overrides={"w": ["x", "x"]}),
         "Mesh.overrides['w'] names a mesh axis twice: ['x', 'x']; name each axis at most once."),
        (lambda: Mesh(("x",), (2,), {}, overrides={"w*": ["x"]}).partition("MH", "wi"),
         "Mesh.overrides['w*'] is ['x'], but wi has the dimensions MH; give one entry per dimension."),
    ],
)  # fmt: skip
def test_errors_give_the_values_the_rule_and_the_remedy(make, message):
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value) == message


def test_a_mesh_of_any_rank_comes_from_gin(tmp_path):
    path = tmp_path / "mesh.gin"
    path.write_text(
        "Mesh.axes = ('a', 'b', 'c', 'd')\n"
        "Mesh.shape = (2, 1, 3, 2)\n"
        "Mesh.rules = {'B': ('a', 'c'), 'H': 'd', 'M': None}\n"
        "Mesh.overrides = {'*/gate': [None, 'b'], '*': {'M': ['c', 'a']}}\n"
        "Mesh.device_order = '[2,6]T(1,0)'\n"
    )
    mesh = load_config(str(path)).mesh
    assert mesh.devices().shape == (2, 1, 3, 2)
    assert mesh.devices().ravel().tolist() == [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    assert mesh.partition("BLMH") == (("a", "c"), (), (), ("d",))
    assert mesh.partition("ME", "moe/gate") == ((), ("b",))
    assert mesh.partition("MH", "ff/wi") == (("c", "a"), ("d",))


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
