"""Keyed permutations: random orders that are computed, so nobody stores or sends them."""

import numpy as np
import numpy.typing as npt

ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permute(index: npt.ArrayLike, size: npt.ArrayLike, key: npt.ArrayLike) -> np.ndarray:
    """Applies a keyed permutation of range(size) to an index.

    The permutation is a Feistel network over the next power of four. It is applied again until the
    result is below size (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains": cycle
    walking).

    Args:
      index: int64[n], 0 <= index < size.
      size: int64[n] or a scalar, below 2**52.
      key: uint64[n] or a scalar.

    Returns:
      int64[n].
    """
    index, size, key = np.broadcast_arrays(
        np.atleast_1d(np.asarray(index, np.uint64)),
        np.asarray(size, np.uint64),
        np.asarray(key, np.uint64),
    )
    bits = np.frexp((size - np.uint64(1)).astype(np.float64))[1]
    half = np.maximum((bits + 1) // 2, 1).astype(np.uint64)
    result = _feistel(index, half, key)
    outside = np.flatnonzero(result >= size)
    while outside.size:
        result[outside] = _feistel(result[outside], half[outside], key[outside])
        outside = outside[result[outside] >= size[outside]]
    return result.astype(np.int64)


def _feistel(value: np.ndarray, half: np.ndarray, key: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & mask
    for number in range(ROUNDS):
        key = key + _GOLDEN
        left, right = right, left ^ (mix(right ^ mix(key + np.uint64(number))) & mask)
    return (left << half) | right


def key_of(seed: int, *words: npt.ArrayLike) -> np.ndarray:
    """Returns an independent key for each combination of a seed and some numbers.

    Args:
      seed: the seed.
      *words: int64 arrays or scalars of shapes that broadcast, such as a component and its epochs.

    Returns:
      uint64 of the shape to which the words broadcast.
    """
    arrays = np.broadcast_arrays(*(np.asarray(word, np.int64) for word in words))
    key: np.ndarray = np.full(arrays[0].shape, seed % (1 << 64), np.uint64)
    with np.errstate(over="ignore"):
        for word in arrays:
            key = mix(key + _GOLDEN) ^ word.astype(np.uint64)
        return mix(key + _GOLDEN)


def mix(x: np.ndarray) -> np.ndarray:
    """Applies the finalizer of SplitMix64 (Steele et al. 2014), a bijection that mixes all bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
