"""Counter-based random numbers that partition freely and are the same on any mesh.

TensorFlow's stateless generators lower to RngBitGenerator, which the partitioner replicates: every
device would make the whole global tensor. Here each element is Threefry-2x32 (Salmon et al. 2011) of
its own two-word index, in elementwise integer operations.
"""

import dataclasses
import math
import zlib
from collections.abc import Sequence

from gshard_nmt.model.lazy_tensorflow import tf

# The fewest rounds that the authors found to pass BigCrush, for Threefry-2x32 (their Table 2).
_ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


@dataclasses.dataclass(frozen=True)
class Key:
    """Two run-time words that select one stream of random numbers."""

    word0: "tf.Tensor"  # uint32[]
    word1: "tf.Tensor"  # uint32[]

    @classmethod
    def from_seed(cls, seed: "tf.Tensor") -> "Key":
        """The key of uint32[2], for instance (the run's seed, the step)."""
        return cls(seed[0], seed[1])

    def fold(self, name: str, index: "int | tf.Tensor" = 0) -> "Key":
        """An independent key for a named use, and for one repeat of it (an int or int32[])."""
        tag = tf.constant(zlib.crc32(name.encode()), tf.uint32)
        return Key(*threefry(self, tag, tf.cast(index, tf.uint32)))

    def fold_each(self, names: Sequence[str], count: int = 1) -> "KeyTable":
        """The same as `fold` of every name with index 0, 1, ... count - 1, in one call."""
        tags = tf.constant([zlib.crc32(name.encode()) for name in names], tf.uint32)
        indices = tf.cast(tf.range(count), tf.uint32)[:, tf.newaxis]
        return KeyTable(tuple(names), *threefry(self, tags, indices))


@dataclasses.dataclass(frozen=True)
class KeyTable:
    """The keys of several uses, each with several repeats."""

    names: tuple[str, ...]
    word0: "tf.Tensor"  # uint32[repeats, uses]
    word1: "tf.Tensor"  # uint32[repeats, uses]

    def at(self, index: "int | tf.Tensor") -> dict[str, Key]:
        """The key of each use, of one repeat (an int or int32[])."""
        row0, row1 = tf.unstack(self.word0[index]), tf.unstack(self.word1[index])
        return {name: Key(row0[i], row1[i]) for i, name in enumerate(self.names)}


def threefry(key: Key, counter0: "tf.Tensor", counter1: "tf.Tensor") -> tuple:
    """Threefry-2x32: two uint32 words of the key and two of the counter give two random words.

    The counters broadcast against each other.
    """
    words = (key.word0, key.word1, key.word0 ^ key.word1 ^ tf.constant(_PARITY, tf.uint32))
    x0, x1 = counter0 + words[0], counter1 + words[1]
    for r in range(_ROUNDS):
        x0 = x0 + x1
        x1 = _rotate_left(x1, _ROTATIONS[r % 8]) ^ x0
        if r % 4 == 3:
            block = r // 4 + 1
            x0 = x0 + words[block % 3]
            x1 = x1 + words[(block + 1) % 3] + tf.constant(block, tf.uint32)
    return x0, x1


def bits(key: Key, shape: Sequence[int]) -> tuple:
    """Two independent uint32 words for each element of an array of `shape`.

    The index of an element is two words, one of its leading dimensions and one of the others, so that
    no index repeats below 2**32 elements of either.
    """
    cut = _cut(shape)
    # The indices start from a run-time zero: TF2XLA would add them up on the host, at the global size.
    zero = key.word0 & tf.constant(0, tf.uint32)
    leading, others = range(cut), range(cut, len(shape))
    return threefry(key, _indices(shape, leading, zero), _indices(shape, others, zero))


def uniform(key: Key, shape: Sequence[int]) -> "tf.Tensor":
    """float32[shape] in [0, 1), multiples of 2**-24."""
    word, _ = bits(key, shape)
    return _to_unit(word)


def normal(key: Key, shape: Sequence[int]) -> "tf.Tensor":
    """float32[shape] of mean 0 and variance 1 (Box and Muller 1958)."""
    word0, word1 = bits(key, shape)
    radius = tf.sqrt(-2.0 * tf.math.log(1.0 - _to_unit(word0)))
    return radius * tf.cos(2.0 * math.pi * _to_unit(word1))


def keep_mask(key: Key, shape: Sequence[int], rate: float) -> "tf.Tensor":
    """A dropout mask: bool[shape], False with probability `rate` (a multiple of 2**-32).

    One call of the generator an element, though a call makes 64 bits: on a CPU this is one vectorised
    loop, where sharing a call among four elements ran eight times slower for its interleaving.
    """
    word, _ = bits(key, shape)
    return word >= tf.constant(round(rate * 2**32), tf.uint32)


def _cut(shape: Sequence[int]) -> int:
    """How many leading dimensions the first index word counts: as even a cut as there is."""
    sizes = [max(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(len(shape) + 1)]
    return sizes.index(min(sizes))


def _indices(shape: Sequence[int], dims: range, zero: "tf.Tensor") -> "tf.Tensor":
    """uint32 row-major index over `dims`, broadcastable to `shape`; `zero` is a uint32[] 0.

    Made dimension by dimension: one range over all elements would be folded on the host at its full,
    unpartitioned size.
    """
    index = tf.reshape(zero, [1] * len(shape))
    stride = 1
    for dim in reversed(dims):
        along = [1] * len(shape)
        along[dim] = shape[dim]
        steps = tf.cast(tf.range(shape[dim], dtype=tf.int64) * stride, tf.uint32)
        index = index + tf.reshape(steps, along)
        stride *= shape[dim]
    return index


def _rotate_left(x: "tf.Tensor", n: int) -> "tf.Tensor":
    left = tf.bitwise.left_shift(x, tf.constant(n, tf.uint32))
    return left | _shift_right(x, 32 - n)


def _shift_right(x: "tf.Tensor", n: int) -> "tf.Tensor":
    return tf.bitwise.right_shift(x, tf.constant(n, tf.uint32))


def _to_unit(word: "tf.Tensor") -> "tf.Tensor":
    # Through int32: a uint32 to float conversion is slow on a CPU, and 24 bits fit either way.
    high = tf.cast(_shift_right(word, 8), tf.int32)
    return tf.cast(high, tf.float32) * 2.0**-24
