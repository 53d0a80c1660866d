"""The order of the examples in each epoch of a component, in two levels.

An epoch puts the shards of a component in a random order and divides them into groups. The examples of
a group are permuted together. So at any time training reads the shards of one group of each component,
or of two groups at the change from one to the next, and the number of open files does not grow with
the corpus. A component whose shards fit into one group is permuted as a whole.

Nothing is stored or sent: the order follows from the seed, the component and the epoch, by a permutation
that is computed (`permute`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

OPEN_SHARDS = 256
"""The number of shards of all components together that may be in the groups of one moment."""

_ORDERS, _EXAMPLES = 2, 3
"""Numbers that make the keys of this module differ from other keys of the same seed."""
_ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Shuffle:
    """The order of the examples of all components. The shards of all components have one numbering.

    All groups together may have `open_shards` shards, but each component has a group of at least 1.
    """

    def __init__(
        self, counts: Sequence[Sequence[int]], seed: int, open_shards: int = OPEN_SHARDS
    ) -> None:
        self._seed = seed
        self.group = max(1, open_shards // len(counts))
        lengths = np.array([len(shards) for shards in counts])
        self._firsts = np.cumsum(lengths) - lengths
        self._counts = np.array([count for shards in counts for count in shards], np.int64)
        self._ends = np.cumsum(self._counts)
        self.examples = np.array([sum(shards) for shards in counts], np.int64)
        self._before = np.cumsum(self.examples) - self.examples
        self._in_groups = lengths > self.group
        self._orders: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._shards = lengths

    def locate(self, components: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shard and the place, int64[n], of draws with these numbers of components."""
        sizes = self.examples[components]
        epochs, ordinals = np.divmod(draws, sizes)
        groups, begins = np.zeros_like(draws), np.zeros_like(draws)
        in_groups = self._by_epoch(components, epochs)
        for _, ends, chosen in in_groups:
            lasts = np.append(ends[self.group - 1 : -1 : self.group], ends[-1])
            group = np.searchsorted(lasts, ordinals[chosen], side="right")
            groups[chosen], begins[chosen] = group, np.append(0, lasts)[group]
            sizes[chosen] = lasts[group] - begins[chosen]
        keys = key_of(self._seed, _EXAMPLES, components, epochs, groups)
        positions = begins + permute(ordinals - begins, sizes, keys)
        together = positions + self._before[components]
        shards = np.searchsorted(self._ends, together, "right")
        places = together - self._ends[shards] + self._counts[shards]
        for order, ends, chosen in in_groups:
            ranks = np.searchsorted(ends, positions[chosen], side="right")
            shards[chosen] = order[ranks]
            places[chosen] = positions[chosen] - ends[ranks] + self._counts[order[ranks]]
        return shards, places

    def _by_epoch(
        self, components: np.ndarray, epochs: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        chosen = np.flatnonzero(self._in_groups[components])
        if not len(chosen):
            return []
        pairs = np.stack([components[chosen], epochs[chosen]], axis=1)
        pairs, of = np.unique(pairs, axis=0, return_inverse=True)
        by_pair = np.argsort(of.reshape(-1), kind="stable")
        parts = np.split(chosen[by_pair], np.cumsum(np.bincount(of.reshape(-1)))[:-1])
        return [
            (*self._order(component, epoch), part)
            for (component, epoch), part in zip(pairs.tolist(), parts, strict=True)
        ]

    def _order(self, component: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        if (component, epoch) not in self._orders:
            if len(self._orders) >= 2 * len(self.examples):
                self._orders.clear()
            numbers = np.arange(self._shards[component])
            keys = key_of(self._seed, _ORDERS, component, epoch, numbers)
            order = self._firsts[component] + np.argsort(keys, kind="stable")
            self._orders[component, epoch] = order, np.cumsum(self._counts[order])
        return self._orders[component, epoch]


def permute(index: npt.ArrayLike, size: npt.ArrayLike, key: npt.ArrayLike) -> np.ndarray:
    """Applies a keyed permutation of range(size) to int64[n] `index`, 0 <= index < size < 2**52.

    The permutation is a Feistel network over the next power of four. It is applied again until the
    result is below size (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains": cycle
    walking). The size, and the key of type uint64, may differ for each index.
    """
    index, size, key = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(each, np.uint64)) for each in (index, size, key))
    )
    bits = np.frexp((size - np.uint64(1)).astype(np.float64))[1]
    half = np.maximum((bits + 1) // 2, 1).astype(np.uint64)
    numbers = np.arange(_ROUNDS, dtype=np.uint64)[:, None]
    keys = mixed(key + (numbers + np.uint64(1)) * _GOLDEN + numbers)
    result = _feistel(index, half, keys)
    outside = np.flatnonzero(result >= size)
    while outside.size:
        result[outside] = _feistel(result[outside], half[outside], keys[:, outside])
        outside = outside[result[outside] >= size[outside]]
    return result.astype(np.int64)


def _feistel(value: np.ndarray, half: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Applies the network to uint64[n]. `keys` is uint64[rounds, n]."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & mask
    for key in keys:
        left, right = right, left ^ (mixed(right ^ key) & mask)
    return (left << half) | right


def key_of(seed: int, *words: npt.ArrayLike) -> np.ndarray:
    """Returns an independent uint64 key for each combination of a seed and numbers that broadcast."""
    arrays = np.broadcast_arrays(*(np.asarray(word, np.int64) for word in words))
    key: np.ndarray = np.full(arrays[0].shape, seed % (1 << 64), np.uint64)
    with np.errstate(over="ignore"):
        for word in arrays:
            key = mixed(key + _GOLDEN) ^ word.astype(np.uint64)
        return mixed(key + _GOLDEN)


def mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns numbers in which each bit depends on all bits of a value (SplitMix64, Steele 2014)."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
