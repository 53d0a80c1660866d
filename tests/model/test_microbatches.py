"""Tests of the division of a batch into microbatches."""

import numpy as np
import pytest

from gshard_nmt.model import microbatches
from gshard_nmt.model.lazy_tensorflow import tf


def test_microbatch_m_has_every_nth_row_from_m():
    # Lingvo and PRAXIS divide 6 rows into 3 microbatches as {0, 3}, {1, 4}, {2, 5}.
    rows = tf.reshape(tf.range(12), [6, 2])
    split = microbatches.split(rows, 3, "BL")
    np.testing.assert_array_equal(split[:, :, 0] // 2, [[0, 3], [1, 4], [2, 5]])


@pytest.mark.parametrize("number", [1, 2, 3, 6])
def test_joining_microbatches_gives_the_batch(number):
    batch = tf.random.stateless_uniform([6, 4, 2], [1, 2])
    again = microbatches.join(microbatches.split(batch, number, "BLM"), "BLM")
    np.testing.assert_array_equal(again, batch)
