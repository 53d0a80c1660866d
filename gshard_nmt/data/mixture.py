"""Temperature sampling: computes which example training draws next.

A draw depends on its index only. So there is no state to save, and any process can compute any draw.

The draws are divided into periods of P draws. In each period, language l is drawn exactly c_l
times, and c_l / P is its sampling rate. A keyed permutation decides the order. Draw number m of a
language shows its example permutation[m mod n_l]. Each epoch m // n_l has a new permutation, so an
epoch of a language shows each of its n_l examples exactly once.

Example: the sizes are 4 and 2, the temperature is 1, the period is 6. Draws 0 to 5 show each example
of both languages once. Draws 6 to 11 do so too, in another order.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

PERIOD = 1 << 14
ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class Mixture:
    """An endless, reproducible sequence of draws from several languages.

    Attributes:
      sizes: n_l, the number of examples of each language; at least 1.
      temperature: a language is drawn in proportion to n_l ** (1 / temperature). See Arivazhagan et
        al. 2019, "Massively Multilingual Neural Machine Translation in the Wild", section 4.
      seed: decides the order.
      period: P, the number of draws in a period; at least the number of languages.
    """

    sizes: tuple[int, ...]
    temperature: float
    seed: int
    period: int = PERIOD

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """c_l, int64[languages]: the number of draws of each language in a period."""
        return apportion(sampling_rates(self.sizes, self.temperature), self.period)

    def draw(self, index: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Returns the language and the example of each draw.

        Args:
          index: int64[n], the numbers of the draws, from 0.

        Returns:
          language int64[n] and example int64[n], with 0 <= example < sizes[language].
        """
        index = np.atleast_1d(np.asarray(index, np.int64))
        ends = np.cumsum(self.counts)
        sizes = np.asarray(self.sizes, np.int64)
        block, within = index // self.period, index % self.period
        place = permute(within, self.period, _key(self.seed, 0, block))
        language = np.searchsorted(ends, place, side="right")
        rank = place - (ends - self.counts)[language]
        epoch, ordinal = np.divmod(block * self.counts[language] + rank, sizes[language])
        key = _key(self.seed, language + 1, epoch)
        return language, permute(ordinal, sizes[language], key)


def sampling_rates(sizes: Sequence[int], temperature: float) -> np.ndarray:
    """Returns float64[languages] in proportion to sizes ** (1 / temperature); the sum is 1.

    For the sizes 1000 and 100, the rates are 0.909 and 0.091 at temperature 1, 0.613 and 0.387 at
    temperature 5, 0.506 and 0.494 at temperature 100.
    """
    logs = np.log(np.asarray(sizes, np.float64)) / temperature
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def apportion(rates: np.ndarray, total: int) -> np.ndarray:
    """Rounds rates * total to whole numbers that are at least 1 and sum to total.

    It is the method of the largest remainders.

    Args:
      rates: float64[n]; the sum is 1.
      total: the sum of the result; at least n.

    Returns:
      int64[n].
    """
    if len(rates) > total:
        raise ValueError(
            f"{len(rates)} languages need a period of {len(rates)} draws, not {total}."
        )
    quotas = rates * total
    counts = np.maximum(np.floor(quotas), 1).astype(np.int64)
    while (missing := total - counts.sum()) != 0:
        # Add 1 to, or take 1 from, the counts that are furthest from their quotas.
        surplus = np.where((counts > 1) | (missing > 0), counts - quotas, -np.inf)
        order = np.argsort(surplus if missing > 0 else -surplus, kind="stable")
        changed = order[: min(abs(missing), np.isfinite(surplus).sum())]
        counts[changed] += np.sign(missing)
    return counts


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
        left, right = right, left ^ (_mix(right ^ _mix(key + np.uint64(number))) & mask)
    return (left << half) | right


def _key(seed: int, stream: npt.ArrayLike, number: np.ndarray) -> np.ndarray:
    """Returns uint64[n]: an independent key for each (seed, stream, number)."""
    key: np.ndarray = np.full(number.shape, seed % (1 << 64), np.uint64)
    for word in (stream, number):
        key = _mix(key + _GOLDEN) ^ np.asarray(word, np.int64).astype(np.uint64)
    return _mix(key + _GOLDEN)


def _mix(x: np.ndarray) -> np.ndarray:
    """Applies the finalizer of SplitMix64 (Steele et al. 2014), a bijection that mixes all bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
