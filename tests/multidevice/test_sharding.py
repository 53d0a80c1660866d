"""Annotations in compiled programs: gradients, device orders, unspecified dimensions."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate, mesh_split, replicate, shard, split
from tests.multidevice.collectives import collectives
from tests.multidevice.compiled_function import CompiledFunction
from tests.multidevice.partitioning import ranks

MESH = Mesh(("x", "y"), (2, 4), rules={"B": "x", "H": "y", "G": "y", "E": "y"})
Compiled = functools.partial(CompiledFunction, mesh=MESH)


def gradient_alone(annotation):
    """Returns a function for dx of y = annotation(sin(x)) with dy = tanh(...), which does not need y."""

    def function(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = annotation(tf.sin(x))
        return tape.gradient(y, x, output_gradients=tf.tanh(dy / 50))

    return function


@pytest.mark.parametrize(
    ("annotation", "shard_shape"),
    [
        (lambda x: annotate(x, "BH"), "f32[8,3]"),
        (lambda x: mesh_split(x, MESH, [-1, "x"]), "f32[16,6]"),
        (lambda x: mesh_split(x, MESH, ["x", -1], unspecified_dims=[1]), "f32[8,12]"),
        (lambda x: split(x, 1, 4), "f32[16,3]"),
        (lambda x: shard(x, [[0, 1], [2, 3], [4, 5], [6, 7]]), "f32[4,6]"),
    ],
)
def test_the_gradient_of_an_annotation_is_the_same_annotation(annotation, shard_shape):
    """The program has no forward part, so only the gradient of the annotation can split dy."""
    program = Compiled(gradient_alone(annotation), (16, 12), (16, 12))
    assert program.shapes_of("tanh") == {shard_shape}
    assert program.shapes_of("sine") == set()
    x = ranks((16, 12))
    np.testing.assert_allclose(program()[0], np.cos(x) * np.tanh(x / 50), rtol=1e-5, atol=1e-5)


def test_replicate_gathers_the_whole_tensor_on_every_device():
    program = Compiled(lambda x: annotate(replicate(annotate(x, "BH")) + 1, "BH"), (16, 12),
                       letters="BH")  # fmt: skip
    assert collectives(program.text, MESH) == {("all-gather", "x"): 1, ("all-gather", "y"): 1}
    np.testing.assert_array_equal(program()[0], ranks((16, 12)) + 1)


def test_an_unspecified_dimension_is_filled_in_by_propagation():
    """-1 means not split and costs an all-gather; unspecified keeps the sharding of the neighbors."""

    def function(unspecified_dims):
        def annotated(x):
            x = tf.sin(annotate(x, "BH"))
            return annotate(tf.cos(mesh_split(x, MESH, ["x", -1], unspecified_dims)), "BH")

        return Compiled(annotated, (16, 12), letters="BH")

    closed, opened = function([]), function([1])
    assert set(collectives(closed.text, MESH)) == {("all-gather", "y")}
    assert not collectives(opened.text, MESH)
    np.testing.assert_array_equal(closed()[0], opened()[0])


@pytest.mark.parametrize(
    ("weights", "shard_shape", "kinds"),
    [
        ([-1, "y"], "f32[8,8]", {"all-gather"}),
        # Both operands of the product want x. The paper's figure is about this case.
        ([-1, "x"], "f32[16,16]", {"all-gather", "collective-permute"}),
    ],
)
def test_a_product_and_the_elementwise_operation_after_it_agree(weights, shard_shape, kinds):
    """GSPMD Figure 4: no other layout around an elementwise operation."""
    mesh = MESH

    def layer(x, w, bias):
        x, w = mesh_split(x, mesh, ["x", -1]), mesh_split(w, mesh, weights)
        # The result of the program is replicated, and so is the operation that makes it.
        return tf.tanh(tf.sin(tf.matmul(x, w) + mesh_split(bias, mesh, [-1])))

    program = Compiled(layer, (16, 24), (24, 32), (32,), mesh=mesh)
    assert program.shapes_of("dot") == program.shapes_of("sine") == {shard_shape}
    assert {kind for kind, _ in collectives(program.text, mesh)} == kinds


ORDERS = [
    # GShard Figure 10: a tensor of 2 x 4 tiles communicates along its rows, on a grid of 2 x 4 devices.
    # A row of tiles is either a row of the grid, or a square, whose devices are closer together.
    ((), [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ((0, 1, 5, 4, 2, 3, 7, 6), [[0, 1, 5, 4], [2, 3, 7, 6]]),
    ("[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
]


@pytest.mark.parametrize(("order", "devices"), ORDERS)
def test_a_row_of_tiles_is_on_the_devices_of_the_device_order(order, devices):
    mesh = Mesh(("x", "y"), (2, 4), rules={"B": "x", "H": "y"}, device_order=order)
    program = Compiled(
        lambda x: annotate(annotate(x, "BH") + 1.0, "BH"), (4, 8), mesh=mesh, letters="BH"
    )
    (result,) = program()
    for tile in result.addressable_shards:
        row, column = tile.index[0].start // 2, tile.index[1].start // 2
        assert tile.device.id == devices[row][column]
        np.testing.assert_array_equal(tile.data, ranks((4, 8))[tile.index] + 1.0)
    # The annotation and the runtime use the same order, so nothing is sent.
    assert not collectives(program.text, mesh)


def test_shard_places_each_tile_on_its_device():
    """The assignment is not that of the mesh, so the tiles move there, and back for the result."""
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
