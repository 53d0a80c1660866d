"""Divides a batch into microbatches, and joins them again (GSPMD section 3.3).

Microbatch m of n has the rows m, m + n, m + 2n, and so on. So if the rows are split over devices, each
device has its share of every microbatch, and dividing moves no data (if n divides the rows of a device).
"""

from collections.abc import Callable

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd.sharding import annotate

Annotate = Callable[["tf.Tensor", str], "tf.Tensor"]


def split(
    x: "tf.Tensor", microbatches: int, letters: str, annotate: Annotate = annotate
) -> "tf.Tensor":
    """Returns [n, B/n, ...], the microbatches of x[B, ...].

    Args:
      x: [B, ...]; n must divide B.
      microbatches: n.
      letters: the letters of x, such as "BLM". The new dimension, the first, is not split.
      annotate: annotates the result by its letters.
    """
    rows, *rest = x.shape.as_list()
    together = tf.reshape(x, [rows // microbatches, microbatches, *rest])
    permutation = [1, 0, *range(2, together.shape.rank)]
    return annotate(tf.transpose(together, permutation), "_" + letters)


def join(x: "tf.Tensor", letters: str, annotate: Annotate = annotate) -> "tf.Tensor":
    """Returns [B, ...], the batch of the microbatches x[n, B/n, ...]; the inverse of `split`."""
    microbatches, rows, *rest = x.shape.as_list()
    permutation = [1, 0, *range(2, x.shape.rank)]
    joined = tf.reshape(tf.transpose(x, permutation), [microbatches * rows, *rest])
    return annotate(joined, letters)
