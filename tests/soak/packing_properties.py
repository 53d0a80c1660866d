"""Properties of packing, for examples of any length (run by the campaign, not by `make test`)."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.packing import SIDES, Row, to_arrays
from gshard_nmt.data.shards import Example
from gshard_nmt.data.vocabulary import BOS

ids = st.lists(st.integers(4, 1000), min_size=1, max_size=12)


@st.composite
def batches(draw):
    """(rows of examples that fit, source length, target length)."""
    lengths = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        row = Row(*lengths)
        for source, target in draw(st.lists(st.tuples(ids, ids), max_size=8)):
            row.add(Example(np.array(source, np.int32), np.array(target, np.int32), 0))
        rows.append(row)
    return rows, *lengths


@settings(deadline=None, max_examples=100)
@given(batches())
def test_each_example_can_be_read_back_from_its_segment(batch):
    rows, source_length, target_length = batch
    arrays = to_arrays([row.examples for row in rows], source_length, target_length)
    for r, row in enumerate(rows):
        for segment, example in enumerate(row.examples, 1):
            source = arrays["source_segments"][r] == segment
            target = arrays["target_segments"][r] == segment
            np.testing.assert_array_equal(arrays["source_ids"][r][source], example.source)
            np.testing.assert_array_equal(arrays["target_labels"][r][target], example.target)
            shifted = [BOS, *example.target[:-1]]
            np.testing.assert_array_equal(arrays["target_inputs"][r][target], shifted)


@settings(deadline=None, max_examples=100)
@given(batches())
def test_positions_count_from_zero_and_the_rest_is_padding(batch):
    rows, source_length, target_length = batch
    arrays = to_arrays([row.examples for row in rows], source_length, target_length)
    for r, row in enumerate(rows):
        for side in SIDES:
            segments, positions = (
                arrays[f"{side}_{name}"][r] for name in ("segments", "positions")
            )
            lengths = [len(getattr(example, side)) for example in row.examples]
            expected = [segment for segment, n in enumerate(lengths, 1) for _ in range(n)]
            padding = len(segments) - len(expected)
            assert padding >= 0
            np.testing.assert_array_equal(segments, [*expected, *[0] * padding])
            counted = [place for n in lengths for place in range(n)]
            np.testing.assert_array_equal(positions, [*counted, *[0] * padding])
    assert not arrays["source_ids"][arrays["source_segments"] == 0].any()
    assert not arrays["target_labels"][arrays["target_segments"] == 0].any()


@settings(deadline=None, max_examples=100)
@given(batches(), ids, ids)
def test_an_example_is_refused_exactly_if_a_side_has_no_room(batch, source, target):
    rows, *lengths = batch
    example = Example(np.array(source, np.int32), np.array(target, np.int32), 0)
    for row in rows:
        before = list(row.examples)
        used = [sum(len(getattr(one, side)) for one in before) for side in SIDES]
        sizes = (len(source), len(target))
        fits = all(u + n <= limit for u, n, limit in zip(used, sizes, lengths, strict=True))
        assert row.add(example) == fits
        assert len(row.examples) == len(before) + fits
