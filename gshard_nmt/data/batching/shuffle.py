"""The order of the examples in each epoch of a component, in two levels.

An epoch puts the shards of a component in a random order and divides them into groups. The examples of
a group are permuted together. So at any time training reads the shards of one group of each component,
or of two groups at the change from one to the next, and the number of open files does not grow with
the corpus. A component whose shards fit into one group is permuted as a whole.

Nothing is stored: the order follows from the seed, the component and the epoch.
"""

from collections.abc import Sequence

import numpy as np

from gshard_nmt.data.batching.permutation import key_of, permute

OPEN_SHARDS = 256
"""The number of shards of all components together that may be in the groups of one moment."""

_ORDERS, _EXAMPLES = 2, 3
"""Numbers that make the keys of this module differ from other keys of the same seed."""


class Shuffle:
    """The order of the examples of all components. The shards of all components have one numbering."""

    def __init__(
        self, counts: Sequence[Sequence[int]], seed: int, open_shards: int = OPEN_SHARDS
    ) -> None:
        """Reads no shard.

        Args:
          counts: the number of examples in each shard of each component.
          seed: decides the order.
          open_shards: the number of shards that all groups together may have, but each component has a
            group of at least 1 shard.
        """
        self._seed = seed
        self.group = max(1, open_shards // len(counts))
        lengths = np.array([len(shards) for shards in counts])
        self._firsts = np.cumsum(lengths) - lengths
        self._counts = np.array([count for shards in counts for count in shards], np.int64)
        self._ends = np.cumsum(self._counts)
        self.examples = np.array([sum(shards) for shards in counts], np.int64)
        self._in_groups = lengths > self.group
        self._orders: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._shards = lengths

    def locate(self, components: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shard and the place in the shard of each draw.

        Args:
          components: int64[n], the component of each draw.
          draws: int64[n], its number among the draws of its component, from 0.

        Returns:
          shard int64[n], in the numbering of all shards, and place int64[n] from 0.
        """
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
        shards = np.searchsorted(
            self._ends, positions + (np.cumsum(self.examples) - self.examples)[components], "right"
        )
        places = positions - self._ends[shards] + self._counts[shards]
        places += (np.cumsum(self.examples) - self.examples)[components]
        for order, ends, chosen in in_groups:
            ranks = np.searchsorted(ends, positions[chosen], side="right")
            shards[chosen] = order[ranks]
            places[chosen] = positions[chosen] - ends[ranks] + self._counts[order[ranks]]
        return shards, places

    def _by_epoch(
        self, components: np.ndarray, epochs: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Returns the order of shards, their ends, and the draws of each epoch that has groups."""
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
        """Returns the shards in the order of an epoch, and the examples up to the end of each."""
        if (component, epoch) not in self._orders:
            if len(self._orders) >= 2 * len(self.examples):
                self._orders.clear()
            numbers = np.arange(self._shards[component])
            keys = key_of(self._seed, _ORDERS, component, epoch, numbers)
            order = self._firsts[component] + np.argsort(keys, kind="stable")
            self._orders[component, epoch] = order, np.cumsum(self._counts[order])
        return self._orders[component, epoch]
