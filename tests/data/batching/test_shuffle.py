"""The order of an epoch: each example exactly once, from few shards at a time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.batching.shuffle import Shuffle, key_of, permute


@settings(deadline=None, max_examples=25)
@given(
    counts=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=3),
    seed=st.integers(0, 100),
    open_shards=st.integers(1, 9),
    order=st.randoms(),
)
def test_an_epoch_shows_each_example_of_each_component_exactly_once(
    counts, seed, open_shards, order
):
    shuffle = Shuffle(counts, seed, open_shards)
    numbers = np.split(np.arange(sum(map(len, counts))), np.cumsum([len(c) for c in counts])[:-1])
    for epoch in (0, 1, 10**7):
        draws = [
            (component, epoch * sum(sizes) + i)
            for component, sizes in enumerate(counts)
            for i in range(sum(sizes))
        ]
        order.shuffle(draws)
        components, within = np.array(draws).T
        shard, place = shuffle.locate(components, within)
        assert set(zip(components.tolist(), shard.tolist(), place.tolist(), strict=True)) == {
            (component, int(number), i)
            for component, sizes in enumerate(counts)
            for number, size in zip(numbers[component], sizes, strict=True)
            for i in range(size)
        }


def test_a_component_of_many_shards_reads_a_group_after_the_other():
    shuffle = Shuffle([[50] * 40], seed=1, open_shards=4)
    shard, _ = shuffle.locate(np.zeros(2 * 2000, np.int64), np.arange(2 * 2000))
    groups = shard.reshape(-1, 200)
    assert {len(np.unique(group)) for group in groups} == {4}
    first, second = (sorted(map(tuple, map(np.unique, g))) for g in np.split(groups, 2))
    assert first != second  # the next epoch has other groups
    # Within a group, the shards are mixed.
    assert all(len(np.unique(group[:20])) == 4 for group in groups)


def test_a_small_component_is_shuffled_as_a_whole_and_differently_in_each_epoch():
    shuffle = Shuffle([[30, 10, 60], [100]], seed=1)
    shard, place = shuffle.locate(np.repeat([0, 1], 200), np.tile(np.arange(200), 2))
    assert len(np.unique(shard[:40])) == 3
    positions = place + np.array([0, 30, 40, 0])[shard]
    assert len({tuple(order) for order in positions.reshape(4, 100).tolist()}) == 4


@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 3000), key=st.integers(0, 2**63))
def test_permute_is_a_permutation(size, key):
    permuted = permute(np.arange(size), np.full(size, size), np.full(size, key, np.uint64))
    np.testing.assert_array_equal(np.sort(permuted), np.arange(size))


def test_the_order_of_old_runs_stays():
    assert permute(range(11), 11, key_of(1, 2)).tolist() == [3, 1, 2, 4, 9, 5, 7, 0, 10, 8, 6]


def test_each_combination_of_numbers_has_a_key_of_its_own():
    keys = np.concatenate([key_of(seed, w, np.arange(50)) for seed in range(3) for w in range(4)])
    assert len(np.unique(keys)) == 3 * 4 * 50
    assert key_of(3, 5, 7) == key_of(3, np.array([1, 5]), 7)[1]
    orders = {tuple(permute(np.arange(6), 6, key)) for key in keys}
    assert len(orders) > 350  # of 600 keys and 720 orders
