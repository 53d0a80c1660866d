"""Several sentences share a row: fewer padding tokens, the same result.

Each row of a batch is filled from its own stream of examples, in order, until the next fits on either
side; that one begins the next row. The only state is how far each stream has come.

    sources  [7 8 1] [9 1]        source_ids       7 8 1 9 1 0
                                  source_segments  1 1 1 2 2 0
                                  source_positions 0 1 2 0 1 0
    targets  [5 1] [6 4 1]        target_inputs    3 5 3 6 4 0
                                  target_labels    5 1 6 4 1 0
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from gshard_nmt.data.shards import Example
from gshard_nmt.data.vocabulary import BOS

SIDES = ("source", "target")


@dataclasses.dataclass
class Row:
    """A row that is being filled.

    Attributes:
      source_length, target_length: its two sizes.
    """

    source_length: int
    target_length: int

    def __post_init__(self) -> None:
        self._used = [0, 0]
        self.examples: list[Example] = []

    def add(self, example: Example) -> bool:
        """Adds an example where both sides have room for it; says whether it did."""
        used = [n + len(ids) for n, ids in zip(self._used, example, strict=True)]
        if used[0] > self.source_length or used[1] > self.target_length:
            return False
        self._used = used
        self.examples.append(example)
        return True


def to_arrays(
    rows: Sequence[Iterable[Example]], source_length: int, target_length: int
) -> dict[str, np.ndarray]:
    """The arrays of a batch, int32[B, L] each, from the examples of its rows."""
    lengths = {"source": source_length, "target": target_length}
    arrays = {
        f"{side}_{what}": np.zeros((len(rows), lengths[side]), np.int32)
        for side in SIDES
        for what in ("ids", "segments", "positions")
    }
    inputs = np.zeros((len(rows), target_length), np.int32)
    for r, examples in enumerate(rows):
        at = [0, 0]
        for segment, example in enumerate(examples, 1):
            for s, side in enumerate(SIDES):
                ids = example[s]
                place = slice(at[s], at[s] + len(ids))
                arrays[f"{side}_ids"][r, place] = ids
                arrays[f"{side}_segments"][r, place] = segment
                arrays[f"{side}_positions"][r, place] = np.arange(len(ids))
                at[s] += len(ids)
            begin = at[1] - len(example[1])
            inputs[r, begin] = BOS
            inputs[r, begin + 1 : at[1]] = example[1][:-1]
    arrays["target_labels"] = arrays.pop("target_ids")
    arrays["target_inputs"] = inputs
    return arrays
