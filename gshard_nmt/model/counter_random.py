"""Counter-based random numbers, which can be partitioned freely and are the same on any mesh.

TensorFlow's stateless generators lower to RngBitGenerator. The partitioner replicates it, so every
device would draw the whole global array. Here each element is computed from its own index by
Threefry-2x32 (Salmon et al. 2011, section 4.2). The index has two words of 32 bits. All operations are
elementwise on integers, so the partitioner can split them.
"""

import dataclasses
import math
import zlib
from collections.abc import Sequence

from gshard_nmt.model.lazy_tensorflow import tf

# The smallest number of rounds that passes BigCrush for Threefry-2x32 (Salmon et al., Table 2).
_ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


@dataclasses.dataclass(frozen=True)
class Key:
    """Two words, known at run time, that select a stream of random numbers."""

    word0: "tf.Tensor"  # uint32[], or an array for several keys
    word1: "tf.Tensor"  # the same shape

    @classmethod
    def from_seed(cls, seed: "tf.Tensor") -> "Key":
        """Returns the key whose two words are `seed`, uint32[2]."""
        return cls(seed[0], seed[1])

    @property
    def words(self) -> tuple["tf.Tensor", "tf.Tensor"]:
        return self.word0, self.word1

    def spread(self, rank: int) -> "Key":
        """Returns these keys, of words uint32[n], so that a function draws n arrays of that rank at once.

        Its result has n as leading dimension. Each array has the numbers that its own key gives alone.
        """
        count = self.word0.shape[0]
        return Key(*(tf.reshape(word, [count] + [1] * rank) for word in self.words))

    def fold(self, name: str, index: "int | tf.Tensor" = 0) -> "Key":
        """Returns an independent key for the random stream `name` in repeat `index` of a block.

        The index is an int or int32[].
        """
        tag = tf.constant(zlib.crc32(name.encode()), tf.uint32)
        return Key(*threefry(self, tag, tf.cast(index, tf.uint32)))

    def fold_each(self, names: Sequence[str], count: int = 1) -> "Key":
        """Returns the keys that `fold` gives for every name and index 0 to count - 1, in one call.

        Their words are uint32[count, names]. A call has about a hundred operations, for any number of
        keys.
        """
        tags = tf.constant([zlib.crc32(name.encode()) for name in names], tf.uint32)
        indices = tf.cast(tf.range(count), tf.uint32)[:, tf.newaxis]
        return Key(*threefry(self, tags, indices))

    def at(self, index: "int | tf.Tensor", names: Sequence[str]) -> dict[str, "Key"]:
        """Returns the keys of `fold_each` for one index, an int or int32[], by their names."""
        row0, row1 = tf.unstack(self.word0[index]), tf.unstack(self.word1[index])
        return {name: Key(row0[i], row1[i]) for i, name in enumerate(names)}


def threefry(key: Key, counter0: "tf.Tensor", counter1: "tf.Tensor") -> tuple:
    """Returns two random uint32 words from the two words of a key and of a counter (Threefry-2x32).

    The two words of the counter are arrays of uint32, which are broadcast against each other.
    """
    words = (key.word0, key.word1, key.word0 ^ key.word1 ^ tf.constant(_PARITY, tf.uint32))
    x0, x1 = counter0 + words[0], counter1 + words[1]
    for r in range(_ROUNDS):
        x0 = x0 + x1
        left, n = tf.bitwise.left_shift, _ROTATIONS[r % 8]
        x1 = (left(x1, tf.constant(n, tf.uint32)) | _shift_right(x1, 32 - n)) ^ x0
        if r % 4 == 3:
            block = r // 4 + 1
            x0 = x0 + words[block % 3]
            x1 = x1 + words[(block + 1) % 3] + tf.constant(block, tf.uint32)
    return x0, x1


def bits(key: Key, shape: Sequence[int]) -> tuple:
    """Returns two arrays uint32[shape] of independent random words.

    The index of an element has two words: one for the leading dimensions and one for the others. All
    indices differ if each of these two parts has at most 2**32 elements.
    """
    cut = _cut(shape)
    # We start from a run-time zero. TF2XLA would compute a sum of constants on the host, as an array of
    # the global size.
    zero = key.word0 & tf.constant(0, tf.uint32)
    leading, others = range(cut), range(cut, len(shape))
    return threefry(key, _indices(shape, leading, zero), _indices(shape, others, zero))


def uniform(key: Key, shape: Sequence[int]) -> "tf.Tensor":
    """Returns float32[shape], uniform in [0, 1), in multiples of 2**-24."""
    word, _ = bits(key, shape)
    return _to_unit(word)


def normal(key: Key, shape: Sequence[int]) -> "tf.Tensor":
    """Returns float32[shape], normal with mean 0 and variance 1 (Box and Muller 1958)."""
    word0, word1 = bits(key, shape)
    radius = tf.sqrt(-2.0 * tf.math.log(1.0 - _to_unit(word0)))
    return radius * tf.cos(2.0 * math.pi * _to_unit(word1))


def keep_mask(key: Key, shape: Sequence[int], rate: float) -> "tf.Tensor":
    """Returns a dropout mask bool[shape], False with probability `rate`, rounded to 2**-32.

    For each element the generator gives 64 bits, of which we use 32. A CPU runs this as one vectorized
    loop. Four elements could share the 64 bits, with 16 bits each, but their bits would have to be
    interleaved. When we tried this, it was eight times slower.
    """
    word, _ = bits(key, shape)
    return word >= tf.constant(round(rate * 2**32), tf.uint32)


def _cut(shape: Sequence[int]) -> int:
    """Returns the number of leading dimensions whose index the first word holds.

    The second word holds the index in the other dimensions. The larger of the two index ranges is made
    as small as possible, so that both fit in 32 bits.
    """
    sizes = [max(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(len(shape) + 1)]
    return sizes.index(min(sizes))


def _indices(shape: Sequence[int], dims: range, zero: "tf.Tensor") -> "tf.Tensor":
    """Returns the row-major index over `dims`, uint32, broadcastable to `shape`.

    We add one small range for each dimension. TF2XLA would compute a single range over all elements on
    the host, at its global size. `zero` is a run-time 0, uint32[], or one for each array of `Key.spread`.
    """
    index, stride = zero, 1
    for dim in reversed(dims):
        along = [1] * len(shape)
        along[dim] = shape[dim]
        offsets = tf.cast(tf.range(shape[dim], dtype=tf.int64) * stride, tf.uint32)
        index = index + tf.reshape(offsets, along)
        stride *= shape[dim]
    return index


def _shift_right(x: "tf.Tensor", n: int) -> "tf.Tensor":
    return tf.bitwise.right_shift(x, tf.constant(n, tf.uint32))


def _to_unit(word: "tf.Tensor") -> "tf.Tensor":
    # We convert through int32, because a CPU converts uint32 to float slowly. 24 bits fit in an
    # int32, and a float32 holds them exactly.
    high = tf.cast(_shift_right(word, 8), tf.int32)
    return tf.cast(high, tf.float32) * 2.0**-24
