"""Packing: several sentences share a row, so a batch has fewer padding tokens.

Attention sees only tokens of its own segment, so packing does not change the result. Segment 0 is
padding. `batches` decides which examples share a row. Here the languages of the two examples are 0 and 4:

    sources  [7 8 1] [9 1]        source_ids       7 8 1 9 1 0
                                  source_segments  1 1 1 2 2 0
                                  source_positions 0 1 2 0 1 0
                                  source_languages 1 1 1 5 5 0
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
    """A row that examples are added to.

    Attributes:
      source_length, target_length: the number of tokens that the row has room for.
      examples: the examples of the row, in order.
    """

    source_length: int
    target_length: int

    def __post_init__(self) -> None:
        self._used = [0, 0]
        self.examples: list[Example] = []

    def is_full(self) -> bool:
        """Returns whether one side has no room left. Every example needs at least EOS on both sides."""
        return self._used[0] >= self.source_length or self._used[1] >= self.target_length

    def add(self, example: Example) -> bool:
        """Adds an example if both sides have room for it. Returns whether it was added."""
        used = [self._used[0] + len(example.source), self._used[1] + len(example.target)]
        if used[0] > self.source_length or used[1] > self.target_length:
            return False
        self._used = used
        self.examples.append(example)
        return True


def to_arrays(
    rows: Sequence[Iterable[Example]], source_length: int, target_length: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch, each int32[B, L], from the examples of its rows.

    The names are source_ids, target_inputs, target_labels, and segments, positions and languages of both
    sides. The language of a token is 1 + `Example.language`, so that 0 is padding.
    """
    lengths = {"source": source_length, "target": target_length}
    arrays = {
        f"{side}_{what}": np.zeros((len(rows), lengths[side]), np.int32)
        for side in SIDES
        for what in ("ids", "segments", "positions", "languages")
    }
    inputs = np.zeros((len(rows), target_length), np.int32)
    for r, examples in enumerate(rows):
        ends = [0, 0]
        for segment, example in enumerate(examples, 1):
            for s, side in enumerate(SIDES):
                ids = (example.source, example.target)[s]
                place = slice(ends[s], ends[s] + len(ids))
                arrays[f"{side}_ids"][r, place] = ids
                arrays[f"{side}_segments"][r, place] = segment
                arrays[f"{side}_positions"][r, place] = np.arange(len(ids))
                arrays[f"{side}_languages"][r, place] = example.language + 1
                ends[s] += len(ids)
            begin = ends[1] - len(example.target)
            inputs[r, begin] = BOS
            inputs[r, begin + 1 : ends[1]] = example.target[:-1]
    arrays["target_labels"] = arrays.pop("target_ids")
    arrays["target_inputs"] = inputs
    return arrays
