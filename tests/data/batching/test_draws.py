"""The draws of all streams: each example once in an epoch, the same in any company."""

import collections
import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.batching.streams import Draws, streams_of
from gshard_nmt.data.config import Data
from gshard_nmt.data.schedule import Component
from tests.data.fake_reader import FakeReader, pairs_of

CONFIG = Data(
    rows=32,
    packing_window=4,
    source_length=12,
    target_length=12,
    temperature=2.0,
    schedule=({"from_step": 3, "temperature": 1.0, "weights": {"back": 0.0}},),
)
shards = st.lists(st.integers(1, 60), min_size=1, max_size=5)


def draws_of(counts, config=CONFIG, reader=None) -> Draws:
    """Returns the draws of these shards: French with a subset, and German."""
    names = [("fr", ""), ("fr", "back"), ("de", "")]
    components = [
        Component(language, "en", language, subset, sum(sizes))
        for (language, subset), sizes in zip(names, counts, strict=True)
    ]
    return Draws(components, counts, config, reader or FakeReader())


def read(draws, stream, phase, before):
    counts = draws.counts_before(stream, np.array(before))
    (examples,) = draws.read([stream], [phase], np.array([before]), [counts])
    return examples, counts


@settings(deadline=None, max_examples=15)
@given(counts=st.tuples(shards, shards, shards), seed=st.integers(0, 99))
def test_every_epoch_shows_each_example_exactly_once(counts, seed):
    """Whatever the phases: in the draws that all streams have made, no example is ahead of another."""
    draws = draws_of(counts, dataclasses.replace(CONFIG, seed=seed))
    assert draws.streams == 4
    shown: collections.Counter = collections.Counter()
    per_stream = []
    for stream in range(4):
        for before in ([0, 0], [1, 0], [2, 0], [2, 1]):
            examples, after = read(draws, stream, int(before[0] == 2), before)
            assert len(examples) == draws.chunk == 32
            shown.update(pairs_of(examples))
        per_stream.append(after)
    firsts = np.cumsum([0, *map(len, counts)])
    for component, sizes in enumerate(counts):
        of_streams = [after[component] for after in per_stream]
        complete = min(m * 4 + s for s, m in enumerate(of_streams))
        begun = max((m - 1) * 4 + s + 1 for s, m in enumerate(of_streams))
        times = [
            shown[int(firsts[component]) + number, place]
            for number, size in enumerate(sizes)
            for place in range(size)
        ]
        assert sum(times) == sum(of_streams)
        assert min(times) >= complete // sum(sizes)
        assert max(times) <= -(-begun // sum(sizes))


def test_a_subset_of_weight_0_is_not_drawn():
    draws = draws_of(([30], [30], [30]))
    before = draws.counts_before(1, np.array([2, 0]))
    after = draws.counts_before(1, np.array([2, 5]))
    assert before[1] > 0
    assert (after - before)[1] == 0
    assert (after - before).sum() == 5 * draws.chunk


def test_streams_that_are_read_together_are_read_as_alone():
    draws = draws_of(([50, 20], [9], [70]))
    befores, phases = np.array([[4, 0], [2, 1], [0, 0]]), [0, 1, 0]
    counts = [draws.counts_before(s, before) for s, before in enumerate(befores)]
    for stream, examples in enumerate(draws.read([0, 1, 2], phases, befores, counts)):
        alone, after = read(draws, stream, phases[stream], befores[stream])
        assert pairs_of(alone) == pairs_of(examples)
        np.testing.assert_array_equal(alone.languages, examples.languages)
        np.testing.assert_array_equal(after, counts[stream])
    languages = {0: 0, 1: 0, 2: 0, 3: 1}
    for (shard, _), language in zip(pairs_of(alone), alone.languages, strict=True):
        assert languages[shard] == language


def test_the_number_of_streams_follows_from_the_batch_size():
    assert [streams_of(rows) for rows in (1, 4, 8, 16, 64, 72, 127, 32768)] == [
        *(1, 1, 1, 2, 8, 9, 1, 1024)
    ]
