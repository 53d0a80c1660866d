"""A reader of shards that exist only as numbers, for tests of draws and streams."""

import numpy as np

from gshard_nmt.data.sets.examples import Examples
from gshard_nmt.data.text.vocabulary import EOS


class FakeReader:
    """Returns for each place an example that holds the shard and the place as ids."""

    def __init__(self, longest: int = 5) -> None:
        """Makes examples of 3 to `longest` tokens on both sides."""
        self.shards: set[int] = set()
        self._longest = longest

    def read_many(self, shards: np.ndarray, places: np.ndarray) -> Examples:
        """Returns the examples at these places of these shards, in that order."""
        self.shards |= set(shards.tolist())
        lengths = [3 + (shards + places * factor) % (self._longest - 2) for factor in (7, 11)]
        sides = []
        for side in lengths:
            ids = np.full(side.sum(), EOS)
            begins = np.cumsum(side) - side
            ids[begins], ids[begins + 1] = shards, places
            sides.append(ids)
        return Examples(*sides, *lengths, np.zeros(len(shards), np.int64))


def pairs_of(examples: Examples) -> list[tuple[int, int]]:
    """Returns the shard and the place of each example."""
    begins = np.cumsum(examples.source_lengths) - examples.source_lengths
    shards, places = examples.source[begins], examples.source[begins + 1]
    return list(zip(shards.tolist(), places.tolist(), strict=True))
