"""Operations that move data, with gradients: uneven dimensions, moved shard boundaries, indices."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multidevice.partitioning import Case, assert_equal, table

CASES = {
    # Uneven dimensions: 15 over 2 as in GShard section 3.3.3, 15 over 4; 3 over 8 leaves shards empty.
    "add_15": Case(lambda a, b: a + 2 * b, [(15,), (15,)], [["x"], ["x"]], ["x"]),
    "add_15_over_y": Case(lambda a, b: a * b, [(15,), (15,)], [["y"], ["y"]], ["y"]),
    "fewer_rows_than_devices": Case(
        lambda a: tf.square(a), [(3, 5)], [[("x", "y"), -1]], [("x", "y"), -1]
    ),
    "uneven_twice": Case(lambda a: a * a, [(15, 7)], [["x", "y"]], ["y", "x"]),
    "resharded": Case(lambda a: a * 2, [(15, 7)], [["x", -1]], [-1, "x"]),
    "broadcast": Case(lambda a, b: a + b, [(15, 7), (7,)], [["x", "y"], ["y"]], ["x", "y"]),
    # Reductions must not include the padding of the last shard.
    "sum_15": Case(lambda a: tf.reduce_sum(a), [(15,)], [["x"]]),
    "mean": Case(lambda a: tf.reduce_mean(a, axis=0), [(15, 4)], [["y", "x"]]),
    "max": Case(lambda a: tf.reduce_max(-a, axis=0), [(15, 4)], [["y", -1]]),
    "min": Case(lambda a: tf.reduce_min(a, axis=0), [(15, 4)], [["y", -1]]),
    "product": Case(lambda a: tf.reduce_prod(a / 10, axis=0), [(7, 4)], [["y", -1]]),
    "log_sum_exp": Case(lambda a: tf.reduce_logsumexp(a / 10, axis=0), [(15, 4)], [["y", "x"]]),
    "softmax": Case(lambda a: tf.nn.softmax(a / 10), [(4, 15)], [["x", "y"]], ["x", "y"]),
    "arg_max": Case(
        lambda a: a * tf.one_hot(tf.argmax(a, axis=-1), 15), [(4, 15)], [[-1, "y"]], [-1, "y"]
    ),
    "running_sum": Case(lambda a: tf.cumsum(a, exclusive=True), [(15, 3)], [["y", -1]], ["y", -1]),
    # Reverse, uneven: [0, 1], [2, padding] must become [2, 1], [0, padding].
    "reverse_3": Case(lambda a: tf.reverse(a, [0]), [(3,)], [["x"]], ["x"]),
    "reverse_15": Case(lambda a: tf.reverse(a, [0]), [(15, 3)], [["y", -1]], ["y", -1]),
    "reverse_both": Case(lambda a: tf.reverse(a, [0, 1]), [(5, 7)], [["x", "y"]], ["x", "y"]),
    # Slice and Pad move the boundaries between shards (Figure 5b).
    "slice_8": Case(lambda a: a[1:7], [(8,)], [["x"]], ["x"]),
    "slice_with_steps": Case(lambda a: a[1:14:3], [(15, 2)], [["y", -1]], ["y", -1]),
    "one_row": Case(lambda a: a[11], [(15, 4)], [["y", -1]]),
    "pad": Case(lambda a: tf.pad(a, [[2, 3], [0, 1]]), [(15, 3)], [["y", -1]], ["y", -1]),
    "pad_and_slice": Case(lambda a: tf.pad(a[2:13], [[4, 0]]), [(15,)], [["y"]], ["y"]),
    "shift": Case(lambda a: tf.pad(a[:-1], [[1, 0], [0, 0]]), [(8, 3)], [["y", -1]], ["y", -1]),
    "rotate": Case(lambda a: tf.concat([a[3:], a[:3]], 0), [(8, 3)], [["y", -1]], ["y", -1]),
    "concat": Case(
        lambda a, b: tf.concat([a, b], 0), [(5, 3), (9, 3)], [["y", -1], ["x", -1]], ["y", -1]
    ),
    "tile": Case(lambda a: tf.tile(a, [3, 1]), [(5, 4)], [["y", "x"]], ["y", "x"]),
    # Reshape across the boundaries (Figure 5c: [3, 2] in [2, 2] shards to [6] in [3] shards).
    "reshape_3_2_to_6": Case(lambda a: tf.reshape(a, [6]), [(3, 2)], [["x", -1]], ["x"]),
    "reshape_6_to_3_2": Case(lambda a: tf.reshape(a, [3, 2]), [(6,)], [["x"]], ["x", -1]),
    "reshape_uneven": Case(lambda a: tf.reshape(a, [8, 3]), [(6, 4)], [["y", -1]], ["y", -1]),
    "reshape_merges": Case(lambda a: tf.reshape(a, [35]), [(5, 7)], [["x", "y"]], [("x", "y")]),
    "reshape_splits": Case(lambda a: tf.reshape(a, [5, 7, 2]), [(70,)], [["y"]], [-1, "y", "x"]),
    "transpose": Case(lambda a: tf.transpose(a), [(15, 7)], [["x", "y"]], ["x", "y"]),
    "transpose_3": Case(
        lambda a: tf.transpose(a, [2, 0, 1]), [(5, 3, 7)], [["y", "x", -1]], ["y", -1, "x"]
    ),
    # Indices: the gradient of a gather is a scatter.
    "gather_rows": Case(
        lambda a, i: tf.gather(a, i), [(15, 4)], [["y", "x"]], ["x", -1, -1],
        [np.array([[0, 14, 7], [7, 3, 8], [1, 1, 13]])],
    ),
    "gather_in_batch": Case(
        lambda a, i: tf.gather(a, i, batch_dims=1), [(5, 7, 3)], [["x", "y", -1]], ["x", -1, -1],
        [np.arange(20).reshape(5, 4) * 5 % 7],
    ),
    "gather_elements": Case(
        lambda a, i: tf.gather_nd(a, i), [(15, 7)], [["x", "y"]], None,
        [np.array([[0, 0], [14, 6], [7, 3], [8, 4], [7, 3]])],
    ),
    "scatter_add": Case(
        lambda a, b, i: tf.tensor_scatter_nd_add(a, i, b), [(15, 4), (5, 4)],
        [["y", -1], [-1, "x"]], ["y", -1], [np.array([[0], [14], [7], [7], [8]])],
    ),
    "scatter_split_updates": Case(
        lambda a, b, i: tf.tensor_scatter_nd_add(a, i, b), [(15, 4), (6, 4)],
        [["x", -1], ["y", -1]], ["x", -1], [np.array([[0], [14], [7], [7], [8], [3]])],
    ),
    "segment_sum": Case(
        lambda a, i: tf.math.unsorted_segment_sum(a, i, 5), [(15, 4)], [["y", "x"]], None,
        [np.arange(15) * 3 % 5],
    ),
    "dynamic_slice": Case(
        lambda a, i: tf.slice(a, [i[0], 0], [6, 4]), [(15, 4)], [["y", -1]], ["y", -1],
        [np.array([8])],
    ),
    "sort": Case(lambda a: tf.sort(-a, axis=0), [(15, 3)], [["y", -1]], ["y", -1]),
}  # fmt: skip

RESULTS = table(CASES)


@pytest.mark.parametrize("name", CASES)
def test_partitioned_is_unpartitioned(name):
    assert_equal(name, *RESULTS("3x2"))
