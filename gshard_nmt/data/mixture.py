"""Which example is drawn next: temperature sampling of languages as pure arithmetic.

A draw is a function of its index alone, so there is no state to save, and any process can compute any
draw. Time is cut into periods of P draws. In a period language l is drawn exactly c_l times, c_l / P
being its sampling rate; a keyed permutation gives the order. The m-th draw of a language shows its
example permutation[m mod n_l], with a new permutation for each epoch m // n_l: every epoch of a
language shows each of its examples exactly once.

Example: sizes 4 and 2, temperature 1, period 6; draws 0..5 show each example of both languages once,
and so do draws 6..11, in another order.
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
      sizes: n_l, examples of each language, at least 1.
      temperature: T; a language is drawn in proportion to n_l ** (1 / T). Arivazhagan et al. 2019,
        "Massively Multilingual Neural Machine Translation in the Wild", section 4.
      seed: another seed gives another order.
      period: P, draws in which the languages have their exact shares; at least one per language.
    """

    sizes: tuple[int, ...]
    temperature: float
    seed: int
    period: int = PERIOD

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """c_l, int64[languages]: draws of each language in a period."""
        return apportion(sampling_rates(self.sizes, self.temperature), self.period)

    def draw(self, index: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """The language and the example of draws.

        Args:
          index: int64[n], from 0.

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
    """float64[languages], sum 1, in proportion to sizes ** (1 / temperature).

    Sizes 1000 and 100 give 0.909, 0.091 at T = 1; 0.613, 0.387 at T = 5; 0.506, 0.494 at T = 100.
    """
    logs = np.log(np.asarray(sizes, np.float64)) / temperature
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def apportion(rates: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers near rates * total that sum to total: largest remainders, at least 1 each.

    Args:
      rates: float64[n], sum 1.
      total: at least n.

    Returns:
      int64[n].
    """
    if len(rates) > total:
        raise ValueError(f"{total} draws cannot hold {len(rates)} languages.")
    quotas = rates * total
    counts = np.maximum(np.floor(quotas), 1).astype(np.int64)
    while (missing := total - counts.sum()) != 0:
        # One each to, or from, those that are furthest from their quota.
        surplus = np.where((counts > 1) | (missing > 0), counts - quotas, -np.inf)
        order = np.argsort(surplus if missing > 0 else -surplus, kind="stable")
        changed = order[: min(abs(missing), np.isfinite(surplus).sum())]
        counts[changed] += np.sign(missing)
    return counts


def permute(index: npt.ArrayLike, size: npt.ArrayLike, key: npt.ArrayLike) -> np.ndarray:
    """Where a keyed permutation of range(size) takes an index.

    A Feistel network over the next power of four, walked until it falls below size (Black and
    Rogaway 2002, "Ciphers with Arbitrary Finite Domains", cycle walking).

    Args:
      index: int64[n], 0 <= index < size.
      size: int64[n] or one for all, below 2**52.
      key: uint64[n] or one for all.

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
    """uint64[n]: an independent key for each (seed, stream, number)."""
    key: np.ndarray = np.full(number.shape, seed % (1 << 64), np.uint64)
    for word in (stream, number):
        key = _mix(key + _GOLDEN) ^ np.asarray(word, np.int64).astype(np.uint64)
    return _mix(key + _GOLDEN)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014): a bijection that scatters every bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
