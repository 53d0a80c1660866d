"""Manual regions in compiled programs: values, gradients and communication."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate, auto_to_manual, manual_axes, manual_to_auto
from tests.multidevice.collectives import collectives
from tests.multidevice.compiled_function import CompiledFunction
from tests.multidevice.partitioning import ranks

MESH = Mesh(("x", "y"), (2, 4), rules={"B": "x", "H": "y", "G": "y", "E": "y"})
Compiled = functools.partial(CompiledFunction, mesh=MESH)


def squares_and_reverses(axes, mapping):
    """Squares, then reverses the rows of each shard. The compiler splits the columns if it may."""

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
        (None, [("x", "y"), -1], 2, "f32[2,12]"),
        (["x"], ["x", -1], 8, "f32[8,3]"),
        (["y"], ["y", "x"], 4, "f32[4,6]"),
        (["x"], ["x", "y"], 8, "f32[8,3]"),
    ],
)
def test_manual_partitioning_computes_each_shard_by_itself(axes, mapping, rows, square):
    program = Compiled(squares_and_reverses(axes, mapping), (16, 12), (16, 12))
    x = ranks((16, 12))
    flipped = (x**2).reshape(16 // rows, rows, 12)[:, ::-1].reshape(16, 12)
    result, dx = program()
    np.testing.assert_array_equal(result, flipped)
    dy = x.reshape(16 // rows, rows, 12)[:, ::-1].reshape(16, 12)
    np.testing.assert_array_equal(dx, 2 * x * dy)
    assert square in program.shapes_of("multiply")


def test_manual_regions_nest():
    """A region that is manual along x contains one that is manual along y."""

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


def test_an_uneven_dimension_is_padded_with_zeros_for_manual_code():
    """15 rows over 2 devices: the last shard has a 16th row of zeros, and the full tensor has 15 rows."""

    def function(x):
        local = auto_to_manual(x, MESH, ["x", -1], ["x"])
        total = tf.reduce_sum(local, axis=0, keepdims=True) + tf.zeros_like(local)
        return manual_to_auto(total, MESH, ["x", -1], x.shape, ["x"])

    (result,) = Compiled(function, (15, 4))()
    x = ranks((15, 4))
    np.testing.assert_array_equal(result[:8], np.broadcast_to(x[:8].sum(0), (8, 4)))
    np.testing.assert_array_equal(result[8:], np.broadcast_to(x[8:].sum(0), (7, 4)))


@pytest.mark.parametrize("axes", [None, ["y"]])
def test_the_gradient_of_copies_is_their_sum(axes):
    """Each device uses its copy of the weights on its own rows, and the gradients are summed."""
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
    """GShard section 3.2: GSM is gathered to EGCM in each group, manually along G, then split by E."""
    g, s, m, e, c = 8, 6, 5, 4, 2
    indices = np.arange(e * g * c).reshape(e, g, c) * 7 % s

    def function(tokens):
        tokens = annotate(tokens, "GSM")
        places = annotate(tf.constant(indices, tf.int32), "_G_")
        local = auto_to_manual(tokens, MESH, ["y", -1, -1], ["y"])
        local_places = auto_to_manual(places, MESH, [-1, "y", -1], ["y"])
        gathered = tf.gather(local, tf.transpose(local_places, [1, 0, 2]), batch_dims=1)  # GECM
        gathered = tf.transpose(gathered, [1, 0, 2, 3])
        whole = manual_to_auto(gathered, MESH, [-1, "y", -1, -1], [e, g, c, m], ["y"])
        return annotate(whole, "EGCM")

    program = Compiled(function, (g, s, m), letters="E___")
    expected = np.stack([ranks((g, s, m))[np.arange(g)[:, np.newaxis], row] for row in indices])
    np.testing.assert_array_equal(program()[0], expected)
    # The gather is local to each device; only the change from G to E communicates.
    assert collectives(program.text, MESH) == {("all-to-all", "y"): 1}
