"""Exact selection in arrays of one row each: the largest values, and entries by their index.

Both operations partition over rows, and neither depends on the order in which a device adds numbers.
"""

from gshard_nmt.model import last_dimension
from gshard_nmt.model.lazy_tensorflow import tf

_CHUNK = 32
"""The size of the chunks of a vocabulary in `top`."""


def top(values: "tf.Tensor", count: int) -> tuple["tf.Tensor", "tf.Tensor"]:
    """Returns the `count` largest of finite values [..., V], descending, and their indices int32.

    If two values are equal, the lower index comes first. This function ranks chunks by their best
    value. The `count` best values are in the `count` best chunks or in the rest, which does not fill a
    chunk. With C chunks, chunk c has the values c, c + C, c + 2 C and so on. The best value of each chunk
    is then the maximum of vectors of C values, which a CPU computes fast. `tf.math.top_k` may lower to a
    sort of the whole vocabulary, and `count` passes over the vocabulary are slow too.
    """
    *batch, size = values.shape.as_list()
    chunks = size // _CHUNK
    if chunks <= count:
        return _passes(values, tf.range(size), count)
    whole = chunks * _CHUNK
    # Shape: [..., whole] -> [..., _CHUNK, chunks]
    chunked = tf.reshape(values[..., :whole], [*batch, _CHUNK, chunks])
    places = tf.reshape(tf.range(whole), [_CHUNK, chunks])
    largest = tf.reduce_max(chunked, axis=-2, keepdims=True)
    # If two chunks have the same largest value, the one with the lower index of this value is better.
    first = tf.reduce_min(tf.where(chunked == largest, places, whole), axis=-2)
    _, best = _passes(largest[..., 0, :], first, count)
    best = best % chunks
    # Shape: [..., _CHUNK, chunks] -> [..., _CHUNK, count]
    best_values = tf.gather(chunked, best, axis=-1, batch_dims=len(batch))
    places = best[..., tf.newaxis, :] + tf.range(0, whole, chunks)[:, tf.newaxis]
    rest = tf.broadcast_to(tf.range(whole, size), [*batch, size - whole])
    candidates = tf.concat([tf.reshape(best_values, [*batch, -1]), values[..., whole:]], axis=-1)
    places = tf.concat([tf.reshape(places, [*batch, -1]), rest], axis=-1)
    return _passes(candidates, places, count)


def _passes(
    values: "tf.Tensor", places: "tf.Tensor", count: int
) -> tuple["tf.Tensor", "tf.Tensor"]:
    """Returns the `count` largest values and their places, with one pass for each value.

    `places` holds the index of each value. If two values are equal, the lower index comes first. A pass
    takes the maximum, then the lowest place that holds it. These two reductions are faster than one
    arg-max.
    """
    largest_values, largest_places = [], []
    for _ in range(count):
        value = last_dimension.maximum(values)
        place = last_dimension.minimum(tf.where(values == value, places, tf.int32.max))
        values = tf.where(places == place, -float("inf"), values)
        largest_values.append(value)
        largest_places.append(place)
    return tf.concat(largest_values, axis=-1), tf.concat(largest_places, axis=-1)


def lowest_of_best(totals: "tf.Tensor", log_probs: "tf.Tensor", count: int) -> "tf.Tensor":
    """Returns the `count`-th largest sum of a total and a log-probability of each row.

    Shapes: float32[B, K], float32[B, K, V] -> float32[B, 1].
    """
    rows, beams, vocabulary = log_probs.shape.as_list()
    best, _ = top(log_probs, min(count, vocabulary))
    sums = tf.reshape(totals[:, :, tf.newaxis] + best, [rows, beams * best.shape[-1]])
    return top(sums, count)[0][:, -1:]


def take(values: "tf.Tensor", places: "tf.Tensor") -> "tf.Tensor":
    """Returns values[b, places[b, j]]: [B, n], int32[B, m] -> [B, m].

    The result is exact, and unlike a gather it partitions over rows.
    """
    picked = tf.range(values.shape[1]) == places[..., tf.newaxis]
    return tf.reduce_sum(tf.where(picked, values[:, tf.newaxis], 0), axis=-1)
