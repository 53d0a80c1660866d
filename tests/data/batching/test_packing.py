"""Packing: every token once, in order, with the right segments and positions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.batching.packing import filled_rows, pack, to_arrays
from gshard_nmt.data.sets.examples import Example
from gshard_nmt.data.text.vocabulary import BOS, EOS

SOURCE_LENGTH, TARGET_LENGTH = 9, 7
sentences = st.lists(st.integers(4, 99), max_size=8).map(lambda ids: np.array([*ids, EOS]))
targets = sentences.filter(lambda ids: len(ids) <= TARGET_LENGTH)
examples = st.builds(Example, sentences, targets, st.just(0))


def example(source: list[int], target: list[int], language: int = 0) -> Example:
    return Example(np.array(source), np.array(target), language)


def test_the_example_of_the_module():
    arrays = to_arrays([[example([7, 8, 1], [5, 1]), example([9, 1], [6, 4, 1], 4)]], 6, 6)
    assert {name: array[0].tolist() for name, array in arrays.items()} == {
        "source_ids": [7, 8, 1, 9, 1, 0],
        "source_segments": [1, 1, 1, 2, 2, 0],
        "source_positions": [0, 1, 2, 0, 1, 0],
        "source_languages": [1, 1, 1, 5, 5, 0],
        "target_inputs": [3, 5, 3, 6, 4, 0],
        "target_labels": [5, 1, 6, 4, 1, 0],
        "target_segments": [1, 1, 2, 2, 2, 0],
        "target_positions": [0, 1, 0, 1, 2, 0],
        "target_languages": [1, 1, 5, 5, 5, 0],
    }
    assert all(array.dtype == np.int32 for array in arrays.values())


@settings(deadline=None, max_examples=40)
@given(st.lists(examples, max_size=6))
def test_a_row_takes_the_examples_in_order_that_fit(candidates):
    rows = [*filled_rows(candidates, SOURCE_LENGTH, TARGET_LENGTH)]
    assert [example for row in rows for example in row] == candidates
    for row, following in zip(rows, [*rows[1:], []], strict=False):
        totals = [sum(len(getattr(e, side)) for e in row) for side in ("source", "target")]
        assert totals[0] <= SOURCE_LENGTH
        assert totals[1] <= TARGET_LENGTH
        for e in following[:1]:
            assert (
                totals[0] + len(e.source) > SOURCE_LENGTH
                or totals[1] + len(e.target) > TARGET_LENGTH
            )


@settings(deadline=None, max_examples=40)
@given(st.lists(examples, max_size=20))
def test_every_token_is_kept_once_with_its_segment_and_position(candidates):
    rows = [*filled_rows(candidates, SOURCE_LENGTH, TARGET_LENGTH), []]
    arrays = to_arrays(rows, SOURCE_LENGTH, TARGET_LENGTH)
    for r, row_examples in enumerate(rows):
        for side, ids, length in (
            ("source", "source_ids", SOURCE_LENGTH),
            ("target", "target_labels", TARGET_LENGTH),
        ):
            sides = [getattr(e, side).tolist() for e in row_examples]
            tokens = [token for sentence in sides for token in sentence]
            padding = [0] * (length - len(tokens))
            segments = [s for s, sentence in enumerate(sides, 1) for _ in sentence]
            positions = [p for sentence in sides for p in range(len(sentence))]
            assert arrays[ids][r].tolist() == tokens + padding
            assert arrays[f"{side}_segments"][r].tolist() == segments + padding
            assert arrays[f"{side}_positions"][r].tolist() == positions + padding
        # The decoder reads BOS and then the labels of the same segment, one position later.
        for e, sentence in enumerate(row_examples, 1):
            inputs = arrays["target_inputs"][r][arrays["target_segments"][r] == e]
            assert inputs.tolist() == [BOS, *sentence.target[:-1].tolist()]
        assert not arrays["target_inputs"][r][arrays["target_segments"][r] == 0].any()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=30))
def test_each_example_goes_into_the_fullest_row_that_has_room_for_it(lengths):
    sides = np.array(lengths).T
    rows = pack(*sides, SOURCE_LENGTH, TARGET_LENGTH)
    longest = np.maximum(sides[0] * TARGET_LENGTH, sides[1] * SOURCE_LENGTH)
    rooms: list[np.ndarray] = []
    for e in np.argsort(-longest, kind="stable"):
        fits = [row for row, room in enumerate(rooms) if (sides[:, e] <= room).all()]
        best = min(fits, key=lambda row: rooms[row] @ [TARGET_LENGTH, SOURCE_LENGTH], default=None)
        if best is None:
            best = len(rooms)
            rooms.append(np.array([SOURCE_LENGTH, TARGET_LENGTH]))
        assert rows[e] == best
        rooms[best] = rooms[best] - sides[:, e]
