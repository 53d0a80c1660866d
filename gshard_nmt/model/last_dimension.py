"""Reductions over the last dimension, and running totals, that are fast on CPUs.

XLA:CPU reduces a long last dimension one number after another. A reduction over the dimension before it
uses vectors, and can be eight times as fast. So these functions cut the last dimension into parts of
equal size and combine the parts. The order of a sum depends on the size of the dimension only, so a row
has the same bits in any company.
"""

import math
from collections.abc import Callable

from gshard_nmt.model.lazy_tensorflow import tf

PARTS = 32
"""The most parts. XLA:CPU rewrites longer reductions into slower ones."""


def maximum(x: "tf.Tensor") -> "tf.Tensor":
    return _reduced(tf.reduce_max, tf.maximum, x)


def minimum(x: "tf.Tensor") -> "tf.Tensor":
    return _reduced(tf.reduce_min, tf.minimum, x)


def total(x: "tf.Tensor") -> "tf.Tensor":
    return _reduced(tf.reduce_sum, tf.add, x)


def softmax(logits: "tf.Tensor") -> "tf.Tensor":
    """Returns the probabilities over the last dimension, in the shape of the logits."""
    powers = tf.exp(logits - maximum(logits))
    return powers / total(powers)


def log_softmax(logits: "tf.Tensor") -> "tf.Tensor":
    """Returns the log-probabilities over the last dimension, in the shape of the logits."""
    shifted = logits - maximum(logits)
    return shifted - tf.math.log(total(tf.exp(shifted)))


def running_total(x: "tf.Tensor", axis: int, exclusive: bool = False) -> "tf.Tensor":
    """Returns the sum of all elements up to each one along an axis: its own with them, or `exclusive`.

    XLA:CPU adds up each of n sums from its beginning. So the axis is cut into about sqrt(n) parts: a
    running total inside each, and one over the parts.
    """
    sizes = x.shape.as_list()
    size = sizes[axis]
    width = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
    if width == 1:
        return tf.cumsum(x, axis, exclusive)
    parts = tf.reshape(x, [*sizes[:axis], size // width, width, *sizes[axis + 1 :]])
    before = tf.cumsum(tf.reduce_sum(parts, axis + 1, keepdims=True), axis, exclusive=True)
    return tf.reshape(tf.cumsum(parts, axis + 1, exclusive) + before, sizes)


def _reduced(
    reduce: Callable[..., "tf.Tensor"], combine: Callable[..., "tf.Tensor"], x: "tf.Tensor"
) -> "tf.Tensor":
    """Reduces [..., n] to [..., 1]; `combine` does for two tensors what `reduce` does for a dimension."""
    x = tf.convert_to_tensor(x)
    *others, size = x.shape.as_list()
    if size >= 2 * PARTS:
        width = size // PARTS
        whole = PARTS * width
        # Shape: [..., PARTS width] -> [..., PARTS, width] -> [..., width]
        narrow = reduce(tf.reshape(x[..., :whole], [*others, PARTS, width]), axis=-2)
        x = tf.concat([narrow, x[..., whole:]], axis=-1) if whole < size else narrow
        size = x.shape[-1]
    # XLA would merge a second reduction with the first one into a long and slow one.
    while size > PARTS:
        half = size // 2
        halves = combine(x[..., :half], x[..., half : 2 * half])
        x = tf.concat([halves, x[..., 2 * half :]], axis=-1) if size % 2 else halves
        size = x.shape[-1]
    return reduce(x, axis=-1, keepdims=True)
