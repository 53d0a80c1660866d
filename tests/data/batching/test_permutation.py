"""Keyed permutations as index arithmetic."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.batching.shuffle import key_of, permute


@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 3000), key=st.integers(0, 2**63))
def test_permute_is_a_permutation(size, key):
    permuted = permute(np.arange(size), np.full(size, size), np.full(size, key, np.uint64))
    np.testing.assert_array_equal(np.sort(permuted), np.arange(size))


def test_each_combination_of_numbers_has_a_key_of_its_own():
    keys = np.concatenate(
        [key_of(seed, word, np.arange(50)) for seed in range(3) for word in range(4)]
    )
    assert len(np.unique(keys)) == 3 * 4 * 50
    assert key_of(3, 5, 7) == key_of(3, np.array([1, 5]), 7)[1]
    orders = {tuple(permute(np.arange(6), 6, key)) for key in keys}
    assert len(orders) > 350  # of 600 keys and 720 orders
