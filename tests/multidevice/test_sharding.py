"""Annotations in compiled programs: gradients, manual regions, device orders, what is left open."""

import re

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import (
    annotate,
    auto_to_manual,
    manual_axes,
    manual_to_auto,
    mesh_split,
    replicate,
    shard,
    split,
)
from tests.multidevice.collectives import collectives, parse
from tests.multidevice.partitioning import ranks

MESH = Mesh(("x", "y"), (2, 4), rules={"B": "x", "H": "y", "G": "y", "E": "y"})


class Compiled:
    """A function of one or more float32 tensors, compiled for a mesh."""

    def __init__(self, function, *shapes, mesh=MESH, letters=""):
        self.mesh, self.devices = mesh, runtime.start(mesh)
        self.specs = {
            f"a{i}": ArraySpec(tuple(shape), np.dtype(np.float32)) for i, shape in enumerate(shapes)
        }

        def flat(group):
            results = function(*(group[name] for name in sorted(group)))
            results = results if isinstance(results, list | tuple) else [results]
            return [{f"r{i}": result for i, result in enumerate(results)}]

        self.program = self.devices.compile(
            "function", lambda: lower(flat, [self.specs], [{"r0": letters}], mesh)
        )
        self.text = self.program.executable.as_text()

    def __call__(self):
        """The results for inputs of ranks; sharded arrays."""
        values = {name: ranks(spec.shape) for name, spec in self.specs.items()}
        (results,) = self.program(self.devices.put(values, self.specs))
        return [results[name] for name in sorted(results)]

    def shapes_of(self, opcode: str) -> set[str]:
        """The shapes, on one device, of all instructions of a kind."""
        return {
            re.sub(r"\{.*", "", one.shape)
            for computation in parse(self.text).values()
            for one in computation.values()
            if one.opcode == opcode
        }


def gradient_alone(annotation):
    """dx of y = annotation(sin(x)), given tanh(dy); y is not asked for, so it is not computed."""

    def function(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = annotation(tf.sin(x))
        return tape.gradient(y, x, output_gradients=tf.tanh(dy / 50))

    return function


@pytest.mark.parametrize(
    ("annotation", "shard_shape"),
    [
        (lambda x: x, "f32[16,12]"),
        (lambda x: annotate(x, "BH"), "f32[8,3]"),
        (lambda x: mesh_split(x, MESH, [-1, "x"]), "f32[16,6]"),
        (lambda x: mesh_split(x, MESH, ["x", -1], unspecified_dims=[1]), "f32[8,12]"),
        (lambda x: split(x, 0, 8), "f32[2,12]"),
        (lambda x: split(x, 1, 4), "f32[16,3]"),
        (lambda x: shard(x, [[0, 1], [2, 3], [4, 5], [6, 7]]), "f32[4,6]"),
    ],
)
def test_the_gradient_of_an_annotation_is_the_same_annotation(annotation, shard_shape):
    """The program has no forward part; what splits dy on its way is the annotation's gradient."""
    program = Compiled(gradient_alone(annotation), (16, 12), (16, 12))
    assert program.shapes_of("tanh") == {shard_shape}
    assert program.shapes_of("sine") == set()
    x = ranks((16, 12))
    np.testing.assert_allclose(program()[0], np.cos(x) * np.tanh(x / 50), rtol=1e-5, atol=1e-5)


def test_replicate_gathers_the_whole_on_every_device():
    program = Compiled(lambda x: annotate(replicate(annotate(x, "BH")) + 1, "BH"), (16, 12),
                       letters="BH")  # fmt: skip
    assert collectives(program.text, MESH) == {("all-gather", "x"): 1, ("all-gather", "y"): 1}
    np.testing.assert_array_equal(program()[0], ranks((16, 12)) + 1)


def test_an_unspecified_dimension_is_filled_in_by_propagation():
    """-1 says not split and costs an all-gather; unspecified keeps what the neighbours have."""

    def function(unspecified_dims):
        def annotated(x):
            x = tf.sin(annotate(x, "BH"))
            return annotate(tf.cos(mesh_split(x, MESH, ["x", -1], unspecified_dims)), "BH")

        return Compiled(annotated, (16, 12), letters="BH")

    closed, opened = function([]), function([1])
    assert set(collectives(closed.text, MESH)) == {("all-gather", "y")}
    assert not collectives(opened.text, MESH)
    np.testing.assert_array_equal(closed()[0], opened()[0])


ORDERS = [
    # GShard Figure 10: a tensor of 2 x 4 tiles with communication along its rows, on a grid of 2 x 4
    # devices: a row of tiles is a row of the grid, or a square, whose devices are nearer together.
    ((), [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ((0, 1, 5, 4, 2, 3, 7, 6), [[0, 1, 5, 4], [2, 3, 7, 6]]),
    ("[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
]


@pytest.mark.parametrize(("order", "devices"), ORDERS)
def test_the_devices_of_a_row_of_tiles_are_those_of_the_device_order(order, devices):
    mesh = Mesh(("x", "y"), (2, 4), rules={"B": "x", "H": "y"}, device_order=order)
    program = Compiled(
        lambda x: annotate(annotate(x, "BH") + 1.0, "BH"), (4, 8), mesh=mesh, letters="BH"
    )
    (result,) = program()
    for tile in result.addressable_shards:
        row, column = tile.index[0].start // 2, tile.index[1].start // 2
        assert tile.device.id == devices[row][column]
        np.testing.assert_array_equal(tile.data, ranks((4, 8))[tile.index] + 1.0)
    # The annotation and the runtime agree on the order: nothing moves.
    assert not collectives(program.text, mesh)


def test_shard_places_each_tile_on_its_device():
    """Another assignment than the mesh's: the tiles move there, and back for the result."""
    assignment = [[3, 2, 1, 0], [4, 5, 6, 7]]
    program = Compiled(lambda x: annotate(shard(annotate(x, "BH"), assignment) + 1, "BH"), (4, 8),
                       letters="BH")  # fmt: skip
    np.testing.assert_array_equal(program()[0], ranks((4, 8)) + 1)
    pairs = set(re.findall(r"source_target_pairs=(\{\{.*?\}\})", program.text))
    assert pairs
    assert all(
        {"{0,3}", "{1,2}", "{2,1}", "{3,0}"} <= set(re.findall(r"\{\d,\d\}", p)) for p in pairs
    )


def test_a_program_may_split_over_another_mesh_than_its_own():
    other = Mesh(("a", "b", "c"), (2, 2, 2), rules={})
    program = Compiled(lambda x: mesh_split(tf.cos(x), other, ["c", "a"]), (16, 12))
    assert program.shapes_of("cosine") == {"f32[8,6]"}
    np.testing.assert_allclose(program()[0], np.cos(ranks((16, 12))), rtol=1e-5, atol=1e-6)


def by_hand(axes, mapping):
    """Squares, then reverses the rows of each shard; the columns stay with the compiler, if open."""

    def function(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            local = auto_to_manual(x, MESH, mapping, axes)
            with manual_axes(*(axes or MESH.axes)):
                local = annotate(tf.reverse(tf.square(local), [0]), "BH")
            y = manual_to_auto(local, MESH, mapping, x.shape, axes)
        return y, tape.gradient(y, x, output_gradients=dy)

    return function


@pytest.mark.parametrize(
    ("axes", "mapping", "rows", "square"),
    [
        (None, ["x", "y"], 8, "f32[8,3]"),
        (None, ["x", -1], 8, "f32[8,12]"),
        (None, [("x", "y"), -1], 2, "f32[2,12]"),
        (["x"], ["x", -1], 8, "f32[8,3]"),
        (["y"], ["y", "x"], 4, "f32[4,6]"),
        (["y"], ["y", -1], 4, "f32[4,12]"),
        (["x"], ["x", "y"], 8, "f32[8,3]"),
    ],
)
def test_manual_partitioning_computes_each_shard_by_itself(axes, mapping, rows, square):
    program = Compiled(by_hand(axes, mapping), (16, 12), (16, 12))
    x = ranks((16, 12))
    flipped = (x**2).reshape(16 // rows, rows, 12)[:, ::-1].reshape(16, 12)
    result, dx = program()
    np.testing.assert_array_equal(result, flipped)
    dy = x.reshape(16 // rows, rows, 12)[:, ::-1].reshape(16, 12)
    np.testing.assert_array_equal(dx, 2 * x * dy)
    assert square in program.shapes_of("multiply")


def test_manual_regions_nest():
    """Along x by hand, and within that along y by hand."""

    def function(x):
        rows = auto_to_manual(x, MESH, ["x", -1], ["x"])
        with manual_axes("x"):
            both = auto_to_manual(annotate(rows, "BH"), MESH, [-1, "y"], ["y"])
            both = tf.reverse(both, [0, 1])
            rows = manual_to_auto(both, MESH, [-1, "y"], rows.shape, ["y"])
        return manual_to_auto(rows, MESH, ["x", -1], x.shape, ["x"])

    (result,) = Compiled(function, (16, 12))()
    tiles = ranks((16, 12)).reshape(2, 8, 4, 3)
    np.testing.assert_array_equal(result, tiles[:, ::-1, :, ::-1].reshape(16, 12))


def test_an_uneven_dimension_is_filled_with_zeros_for_manual_code():
    """15 over 2: the last shard sees a 16th row of zeros, and the whole has 15 again."""

    def function(x):
        local = auto_to_manual(x, MESH, ["x", -1], ["x"])
        total = tf.reduce_sum(local, axis=0, keepdims=True) + tf.zeros_like(local)
        return manual_to_auto(total, MESH, ["x", -1], x.shape, ["x"])

    (result,) = Compiled(function, (15, 4))()
    x = ranks((15, 4))
    np.testing.assert_array_equal(result[:8], np.broadcast_to(x[:8].sum(0), (8, 4)))
    np.testing.assert_array_equal(result[8:], np.broadcast_to(x[8:].sum(0), (7, 4)))


@pytest.mark.parametrize("axes", [None, ["x"], ["y"]])
def test_the_gradient_of_copies_is_their_sum(axes):
    """Weights that each device has a copy of, used on its own rows: their gradient is summed."""
    axis = (axes or ["x"])[0]

    def function(x, w, dy):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            rows = auto_to_manual(x, MESH, [axis, -1], axes)
            copy = auto_to_manual(w, MESH, [-1, -1], axes)
            y = manual_to_auto(tf.matmul(rows, copy), MESH, [axis, -1], [16, 6], axes)
        return [y, *tape.gradient(y, [x, w], output_gradients=dy)]

    result, dx, dw = Compiled(function, (16, 4), (4, 6), (16, 6))()
    x, w, dy = ranks((16, 4)), ranks((4, 6)), ranks((16, 6))
    np.testing.assert_allclose(result, x @ w, rtol=1e-6)
    np.testing.assert_allclose(dx, dy @ w.T, rtol=1e-6)
    np.testing.assert_allclose(dw, x.T @ dy, rtol=1e-6)


def test_gshards_dispatch_by_a_local_gather():
    """Section 3.2: tokens GSM gathered to EGCM within each group, by hand along G, then split by E."""
    g, s, m, e, c = 8, 6, 5, 4, 2
    indices = np.arange(e * g * c).reshape(e, g, c) * 7 % s

    def function(tokens):
        tokens = annotate(tokens, "GSM")
        places = annotate(tf.constant(indices, tf.int32), "_G_")
        local = auto_to_manual(tokens, MESH, ["y", -1, -1], ["y"])
        local_places = auto_to_manual(places, MESH, [-1, "y", -1], ["y"])
        found = tf.gather(local, tf.transpose(local_places, [1, 0, 2]), batch_dims=1)  # GECM
        found = tf.transpose(found, [1, 0, 2, 3])
        whole = manual_to_auto(found, MESH, [-1, "y", -1, -1], [e, g, c, m], ["y"])
        return annotate(whole, "EGCM")

    program = Compiled(function, (g, s, m), letters="E___")
    expected = np.stack([ranks((g, s, m))[np.arange(g)[:, np.newaxis], row] for row in indices])
    np.testing.assert_array_equal(program()[0], expected)
    # The gather needs nothing from elsewhere; the change from G to E is the only communication.
    assert collectives(program.text, MESH) == {("all-to-all", "y"): 1}
