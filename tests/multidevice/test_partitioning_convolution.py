"""Convolutions split along space: halos as in GShard section A.4, and pooling."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multidevice.partitioning import MESHES, Case, assert_equal, forward_collectives, table


def halo(
    base: int, axis: str, size=3, stride=1, low=1, high=1, dilation=1, rows: str | None = "other"
) -> Case:
    """Splits space over `axis`, and rows over the other one unless `rows` is None (GSPMD 5.6)."""

    def convolve(x, kernel):
        padding = [[0, 0], [low, high], [0, 0], [0, 0]]
        steps, x = [1, stride, 1, 1], x[:, :, tf.newaxis]
        return tf.nn.conv2d(x, kernel[:, tf.newaxis], steps, padding, dilations=[dilation, 1])[
            :, :, 0
        ]

    def by_definition(x, kernel):
        padded = tf.pad(x, [[0, 0], [low, high], [0, 0]])
        first = np.arange(0, padded.shape[1] - dilation * (size - 1), stride)[:, np.newaxis]
        places = first + np.arange(size) * dilation
        return tf.einsum("BWwI,wIO->BWO", tf.gather(padded, places, axis=1), kernel)

    return _along_space(convolve, base, axis, size, rows, by_definition)


def dilated(base: int, axis: str, times: int, outputs: int) -> Case:
    """A convolution with holes in its input, as in the gradient of a strided one."""

    def convolve(x, kernel):
        shape = [x.shape[0], outputs, 1, 2]
        kernel = tf.transpose(kernel, [0, 2, 1])[:, tf.newaxis]
        y = tf.nn.conv2d_transpose(x[:, :, tf.newaxis], kernel, shape, [times, 1], "SAME")
        return y[:, :, 0]

    return _along_space(convolve, base, axis, 3, "other")


def _along_space(function, base, axis, size, rows, reference=None) -> Case:
    other = {"x": "y", "y": "x"}[axis] if rows else -1
    split = [[other, axis, -1], [-1, -1, -1]]
    return Case(function, [(4, base, 3), (size, 3, 2)], split, split[0], reference=reference)


# There are 2 or 3 partitions over x, and 4 or 2 over y. On the mesh 2x4 these are the papers' examples.
HALOS = {
    "constant halo, as in Figure 5a": halo(8, "x"),
    "halo that grows with the partition, as in Figure 11": halo(12, "y", stride=2, high=4),
    "stride": halo(16, "y", stride=2, high=0),
    "base dilation": dilated(8, "y", 2, 16),
    "window dilation": halo(12, "y", low=2, high=2, dilation=2),
}

MORE = {
    "uneven base, 15 over 2": halo(15, "x"),
    "base dilation that does not divide": dilated(6, "x", 3, 17),
    "window wider than a shard": halo(9, "y", 7, low=3, high=3),
    "two dimensions": Case(
        lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"),
        [(2, 7, 9, 3), (3, 3, 3, 2)],
        [[-1, "x", "y", -1], [-1, -1, -1, -1]],
        [-1, "x", "y", -1],
    ),
    "strided, 15 rows": Case(
        lambda x, k: tf.nn.conv2d(x, k, 2, "SAME"),
        [(2, 15, 6, 3), (3, 3, 3, 2)],
        [["x", "y", -1, -1], [-1, -1, -1, -1]],
        ["x", "y", -1, -1],
    ),
    "max pooling": Case(
        lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"),
        [(2, 15, 6, 3)],
        [[-1, "y", "x", -1]],
        [-1, "y", "x", -1],
    ),
}


RESULTS = table(HALOS | MORE)


@pytest.mark.parametrize("name", [*HALOS, *MORE])
def test_partitioned_is_unpartitioned(name):
    assert_equal(name, *RESULTS("2x4"))


@pytest.mark.parametrize("name", [n for n, c in HALOS.items() if c.shapes[0][1] % 4 == 0])
def test_only_halos_are_exchanged(name):
    counts = forward_collectives(HALOS[name], MESHES["2x4"])
    assert {kind for kind, _ in counts} == {"collective-permute"}


def test_the_compilers_known_mistake():
    """If space is split and a mesh axis is unused, a kernel's gradient is also summed over this axis.

    XLA's convolution partitioner does so in plain jax as well (0.10.2, under GSPMD and under Shardy).
    docs/sharding.md tells how to avoid it. If this test fails, XLA has been corrected.
    """
    actual, expected = table({"unused axis": halo(16, "y", rows=None)})("3x2")
    for key in ("unused axis/result", "unused axis/0"):
        np.testing.assert_allclose(actual[key], expected[key], rtol=1e-6)
    np.testing.assert_allclose(actual["unused axis/1"] / expected["unused axis/1"], 3, rtol=1e-6)
