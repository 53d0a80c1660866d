"""The largest values of an array, whose vocabulary has several chunks, one or none."""

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.decoding.ranking import take, top


@pytest.mark.parametrize(("size", "count"), [(7, 7), (64, 3), (200, 3), (513, 5)])
def test_the_largest_values_come_in_descending_order_and_equal_ones_by_index(size, count):
    values = np.random.default_rng(size).integers(0, 40, (2, 3, size)).astype("f")
    largest, places = top(tf.constant(values), count)
    expected = np.argsort(-values, axis=-1, kind="stable")[..., :count]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(largest, np.take_along_axis(values, expected, -1))


def test_entries_are_taken_exactly_by_their_index():
    values = np.array([[0.1, -1e9, np.float32(1e-30)], [5, 6, 7]], "f")
    places = np.array([[2, 0], [1, 1]], np.int32)
    taken = take(tf.constant(values), tf.constant(places))
    np.testing.assert_array_equal(taken, np.take_along_axis(values, places, 1))
