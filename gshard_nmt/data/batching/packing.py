"""Packing: several sentences share a row, so a batch has fewer padding tokens.

Attention sees only tokens of its own segment, so packing does not change the result. Segment 0 is
padding. Here the languages of the two examples are 0 and 4:

    sources  [7 8 1] [9 1]        source_ids       7 8 1 9 1 0
                                  source_segments  1 1 1 2 2 0
                                  source_positions 0 1 2 0 1 0
                                  source_languages 1 1 1 5 5 0
    targets  [5 1] [6 4 1]        target_inputs    3 5 3 6 4 0
                                  target_labels    5 1 6 4 1 0
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from gshard_nmt.data.sets.examples import SIDES, Example, Examples
from gshard_nmt.data.text.vocabulary import BOS


def filled_rows(
    examples: Iterable[Example], source_length: int, target_length: int
) -> Iterator[list[Example]]:
    """Yields rows of examples in order, each of which fits; one without room begins the next row."""
    row: list[Example] = []
    room = source_length, target_length
    for example in examples:
        left = room[0] - len(example.source), room[1] - len(example.target)
        if row and min(left) < 0:
            yield row
            row = []
            left = source_length - len(example.source), target_length - len(example.target)
        row.append(example)
        room = left
    if row:
        yield row


def pack(
    source_lengths: np.ndarray, target_lengths: np.ndarray, source_length: int, target_length: int
) -> np.ndarray:
    """Returns int64[n], the row of each example, by best fit in the order of falling length.

    The longest example comes first. Each goes into the row that has the least room left after it, or into
    a new row if no row has room for it. See Garey, Graham, Johnson and Yao 1976, "Resource constrained
    scheduling as generalized bin packing", for packing with two lengths.
    """
    # A length is counted in parts of both limits, so that the two sides count alike.
    sizes = source_lengths * target_length + target_lengths * source_length
    longest = np.maximum(source_lengths * target_length, target_lengths * source_length)
    order = np.argsort(-longest, kind="stable")
    examples = zip(
        *(x[order].tolist() for x in (source_lengths, target_lengths, sizes)), strict=True
    )
    least = source_lengths.min(initial=source_length), target_lengths.min(initial=target_length)
    rooms: list[tuple[int, int]] = []
    n = len(order)
    # The rows that may still get an example, fullest first: the room left in each, times n, plus the row.
    open_rows: list[int] = []
    rows = np.empty(n, np.int64)
    for example, (s, t, size) in zip(order.tolist(), examples, strict=True):
        # A row before `place` has less room in sum than the example needs.
        for place in range(bisect_left(open_rows, size * n), len(open_rows)):
            left, row = divmod(open_rows[place], n)
            room = rooms[row]
            if room[0] >= s and room[1] >= t:
                del open_rows[place]
                break
        else:
            left, row = 2 * source_length * target_length, len(rooms)
            room = source_length, target_length
            rooms.append(room)
        rooms[row] = room = room[0] - s, room[1] - t
        if room[0] >= least[0] and room[1] >= least[1]:
            insort(open_rows, (left - size) * n + row)
        rows[example] = row
    return rows


def to_arrays(
    rows: Sequence[Sequence[Example]], source_length: int, target_length: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch, as `batch_arrays` does, from the examples of its rows."""
    numbers = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    examples = Examples.of(example for row in rows for example in row)
    return batch_arrays(examples, numbers, len(rows), source_length, target_length)


def batch_arrays(
    examples: Examples, rows: np.ndarray, size: int, source_length: int, target_length: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch, each int32[B, L].

    The names are source_ids, target_inputs, target_labels, and segments, positions and languages of both
    sides. The language of a token is 1 + the language of its example, so that 0 is padding.

    Args:
      examples: the examples of the batch, row by row.
      rows: int64[n], the row of each example; it never falls.
      size: B, the number of rows.
      source_length, target_length: L of both sides.
    """
    arrays: dict[str, np.ndarray] = {}
    first = np.searchsorted(rows, rows)  # the first example of the same row
    segments = np.arange(len(rows)) - first + 1
    for name, length in zip(SIDES, (source_length, target_length), strict=True):
        ids, lengths = examples.side(name)
        begins = np.cumsum(lengths) - lengths
        shift = rows * length - begins[first]
        place = np.arange(len(ids)) + np.repeat(shift, lengths)
        columns = {"ids": ids, "segments": np.repeat(segments, lengths)}
        columns["positions"] = np.arange(len(ids)) - np.repeat(begins, lengths)
        columns["languages"] = np.repeat(examples.languages + 1, lengths)
        if name == "target":
            # The decoder reads BOS, and then the labels of the same segment one position later.
            columns["inputs"] = np.concatenate([[BOS], ids[:-1]])[: len(ids)]
            columns["inputs"][begins] = BOS
        for what, values in columns.items():
            array = np.zeros(size * length, np.int32)
            array[place] = values
            arrays[f"{name}_{what}"] = array.reshape(size, length)
    arrays["target_labels"] = arrays.pop("target_ids")
    return arrays
