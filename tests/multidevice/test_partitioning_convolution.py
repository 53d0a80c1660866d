"""Convolutions split along space: halos of every kind (GShard section A.4), and pooling."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.multidevice.partitioning import MESHES, Case, assert_equal, forward_collectives, table


@dataclasses.dataclass(frozen=True)
class Window:
    """One spatial dimension of a convolution, as XLA configures it."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1

    def outputs(self, base: int) -> int:
        padded = self.base_dilation * (base - 1) + 1 + self.low + self.high
        return (padded - self.window_dilation * (self.size - 1) - 1) // self.stride + 1


def xla_convolution(x, kernel, window: Window):
    """BWI,wIO->BWO by XLA's own operator, for which TensorFlow has no gradient."""

    @tf.custom_gradient
    def convolve(x, kernel):
        base, outputs = x.shape[1], window.outputs(x.shape[1])
        dilated_base = window.base_dilation * (base - 1) + 1
        dilated_window = window.window_dilation * (window.size - 1) + 1
        dilated_outputs = window.stride * (outputs - 1) + 1

        def gradient(dy):
            low = dilated_window - window.low - 1
            high = dilated_base + dilated_window - 1 - dilated_outputs - low
            dx = _convolve(
                dy,
                tf.transpose(tf.reverse(kernel, [0]), [0, 2, 1]),
                Window(
                    window.size, window.base_dilation, low, high, window.stride,
                    window.window_dilation,
                ),
            )  # fmt: skip
            padding = dilated_outputs + dilated_window - dilated_base - 1
            d_kernel = _convolve(
                tf.transpose(x, [2, 1, 0]),
                tf.transpose(dy, [1, 0, 2]),
                Window(
                    outputs, window.window_dilation, window.low, padding - window.low,
                    window.base_dilation, window.stride,
                ),
            )  # fmt: skip
            return dx, tf.transpose(d_kernel, [1, 0, 2])

        return _convolve(x, kernel, window), gradient

    return convolve(x, kernel)


def _convolve(x, kernel, window: Window):
    from tensorflow.compiler.tf2xla.python import xla
    from tensorflow.compiler.xla import xla_data_pb2

    dimensions = xla_data_pb2.ConvolutionDimensionNumbers(
        input_batch_dimension=0,
        input_spatial_dimensions=[1],
        input_feature_dimension=2,
        kernel_spatial_dimensions=[0],
        kernel_input_feature_dimension=1,
        kernel_output_feature_dimension=2,
        output_batch_dimension=0,
        output_spatial_dimensions=[1],
        output_feature_dimension=2,
    )
    result = xla.conv(
        x,
        kernel,
        window_strides=[window.stride],
        padding=[[window.low, window.high]],
        lhs_dilation=[window.base_dilation],
        rhs_dilation=[window.window_dilation],
        dimension_numbers=dimensions,
    )
    result.set_shape([x.shape[0], window.outputs(x.shape[1]), kernel.shape[2]])
    return result


def by_definition(x, kernel, window: Window):
    """out[o] = sum_j kernel[j] * dilated[o * stride + j * window_dilation - low]."""
    b, base, i = x.shape
    holes = tf.pad(x[:, :, tf.newaxis], [[0, 0], [0, 0], [0, window.base_dilation - 1], [0, 0]])
    dilated = tf.reshape(holes, [b, base * window.base_dilation, i])
    dilated = dilated[:, : window.base_dilation * (base - 1) + 1]
    dilated = dilated[:, max(-window.low, 0) : dilated.shape[1] + min(window.high, 0)]
    padded = tf.pad(dilated, [[0, 0], [max(window.low, 0), max(window.high, 0)], [0, 0]])
    first = np.arange(window.outputs(base))[:, np.newaxis] * window.stride
    places = first + np.arange(window.size) * window.window_dilation
    return tf.einsum("BWwI,wIO->BWO", tf.gather(padded, places, axis=1), kernel)


def halo(base: int, axis: str, window: Window, rows: str | None = "other") -> Case:
    """Splits space over `axis`, and rows over the other axis unless `rows` is None (GSPMD 5.6)."""
    other = {"x": "y", "y": "x"}[axis] if rows else -1
    return Case(
        lambda x, kernel: xla_convolution(x, kernel, window),
        [(4, base, 3), (window.size, 3, 2)],
        [[other, axis, -1], [-1, -1, -1]],
        [other, axis, -1],
        reference=lambda x, kernel: by_definition(x, kernel, window),
    )


# There are 2 or 3 partitions over x, and 4 or 2 over y. On the mesh 2x4 these are the papers' examples.
HALOS = {
    "constant halo, as in Figure 5a": halo(8, "x", Window(3, 1, 1, 1)),
    "halo that grows with the partition, as in Figure 11": halo(12, "y", Window(3, 2, 1, 4)),
    "stride": halo(16, "y", Window(3, 2, 1, 0)),
    "uneven base, 15 over 2": halo(15, "x", Window(3, 1, 1, 1)),
    "base dilation, case 1: divides": halo(8, "x", Window(3, 1, 1, 2, 2)),
    "base dilation, case 2: stride 1, does not divide": halo(6, "x", Window(3, 1, 1, 0, 2)),
    "base dilation, case 3: stride 2, does not divide": halo(6, "x", Window(3, 2, 1, 0, 3)),
    "window dilation": halo(12, "y", Window(3, 1, 2, 2, 1, 2)),
    "base dilation 2 over 4, as in a gradient": halo(8, "y", Window(3, 1, 2, 1, 2)),
}

MORE = {
    "everything at once": halo(13, "y", Window(4, 3, 2, 5, 2, 3)),
    "window wider than a shard": halo(9, "y", Window(7, 1, 3, 3)),
    "negative padding": halo(15, "y", Window(3, 1, -1, -2)),
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
    actual, expected = table({"unused axis": halo(16, "y", Window(3, 1, 1, 1), rows=None)})("3x2")
    for key in ("unused axis/result", "unused axis/0"):
        np.testing.assert_allclose(actual[key], expected[key], rtol=1e-6)
    np.testing.assert_allclose(actual["unused axis/1"] / expected["unused axis/1"], 3, rtol=1e-6)
