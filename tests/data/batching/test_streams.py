"""Streams: whole chunks in rows, positions that suffice, and bounded work at the scale of the paper."""

import collections
import dataclasses

import numpy as np
import pytest

from gshard_nmt.data.batching.batches import new_position
from gshard_nmt.data.batching.streams import CHUNKS, STEPS, Draws, Streams
from gshard_nmt.data.config import Data
from gshard_nmt.data.schedule import Component
from gshard_nmt.data.sets.records import MOST_OPEN
from tests.data.batching.test_draws import CONFIG, draws_of
from tests.data.fake_reader import FakeReader, pairs_of

COUNTS = ([50, 20], [9, 3], [70])


def streams_at(positions, draws=None, config=CONFIG) -> Streams:
    return Streams(draws or draws_of(COUNTS), config, positions)


def positions_of(streams: Streams) -> dict[int, np.ndarray]:
    return {stream.number: stream.position.copy() for stream in streams.streams}


def test_every_draw_of_a_chunk_is_delivered_once():
    streams = streams_at({number: new_position(CONFIG)[0] for number in range(4)})
    delivered: dict[int, collections.Counter] = collections.defaultdict(collections.Counter)
    for _ in range(12):
        examples, rows = streams.next_rows()
        assert sorted(set(rows.tolist())) == list(range(32))
        assert (np.diff(rows) >= 0).all()
        for pair, row in zip(pairs_of(examples), rows.tolist(), strict=True):
            delivered[row // 8][pair] += 1
    draws = draws_of(COUNTS)
    for stream in streams.streams:
        chunks = stream.position[CHUNKS:]
        assert chunks[0] >= 1
        assert chunks[1] >= 1
        read: collections.Counter = collections.Counter()
        befores = [[i, 0] for i in range(chunks[0])] + [[chunks[0], i] for i in range(chunks[1])]
        for before in befores:
            counts = draws.counts_before(stream.number, np.array(before))
            phase = int(before[0] == chunks[0])
            (examples,) = draws.read([stream.number], [phase], np.array([before]), [counts])
            read.update(pairs_of(examples))
        rest = sum(read.values()) - sum(delivered[stream.number].values())
        assert not delivered[stream.number] - read
        assert rest < draws.chunk
        assert (rest > 0) == (stream.rows_left > 0)


@pytest.mark.parametrize("steps", range(0, 9, 2))
def test_a_position_is_all_that_a_stream_needs(steps):
    whole = streams_at({number: new_position(CONFIG)[0] for number in range(4)})
    for _ in range(steps):
        whole.next_rows()
    positions = positions_of(whole)
    resumed = streams_at({number: positions[number] for number in (1, 3)})
    for _ in range(3):
        examples, rows = whole.next_rows()
        part, part_rows = resumed.next_rows()
        mine = np.flatnonzero(rows // 8 % 2 == 1)
        assert pairs_of(part) == [pairs_of(examples)[i] for i in mine]
        assert part_rows.tolist() == [row % 8 + 8 * (row // 16) for row in rows[mine].tolist()]
    after = positions_of(resumed)
    for number in (1, 3):
        np.testing.assert_array_equal(after[number], positions_of(whole)[number])
        assert after[number][STEPS] == steps + 3


def test_a_phase_that_has_begun_goes_on_in_a_run_that_was_made_longer():
    streams = streams_at({number: new_position(CONFIG)[0] for number in range(4)})
    for _ in range(6):
        streams.next_rows()
    (phase,) = CONFIG.schedule
    longer = dataclasses.replace(CONFIG, schedule=(phase | {"from_step": 99},))
    again = streams_at(positions_of(streams), config=longer)
    for _ in range(9):
        assert pairs_of(again.next_rows()[0]) == pairs_of(streams.next_rows()[0])


def paper_scale() -> tuple[Data, list[Component], list[list[int]]]:
    """25 billion pairs of 100 languages in 24,000 shards; the smallest language has 10,000 pairs."""
    config = Data(rows=32768, source_length=128, target_length=128)
    sizes = np.geomspace(10_000, 1, 100) ** -1
    sizes = (sizes / sizes.sum() * 25e9).astype(int).clip(10_000)
    components = [Component(f"x{i}", "en", f"x{i}", "", int(n)) for i, n in enumerate(sizes)]
    counts = [[1 << 20] * (n >> 20) + ([n % (1 << 20)] if n % (1 << 20) else []) for n in sizes]
    return config, components, [[int(count) for count in shards] for shards in counts]


@pytest.mark.parametrize("chunks", [0, 2_000_000])
def test_a_host_of_a_run_of_the_paper_reads_few_shards_and_keeps_few_numbers(chunks):
    config, components, counts = paper_scale()
    assert sum(map(len, counts)) > 23_000
    reader = FakeReader(longest=60)
    draws = Draws(components, counts, config, reader)
    assert draws.streams == 1024
    position = new_position(config)[0]
    position[CHUNKS] = chunks
    # Host 77 of 256 makes 128 rows of each batch: 4 streams.
    streams = Streams(draws, config, dict.fromkeys(range(308, 312), position))
    for _ in range(15):
        assert streams.next_rows()[1][-1] == 127
    assert len(reader.shards) <= MOST_OPEN
    # All hosts read from the same shards, because all streams are at about the same draws.
    first = set(reader.shards)
    Streams(draws, config, {0: position}).next_rows()
    Streams(draws, config, {1023: position}).next_rows()
    assert len(reader.shards) <= MOST_OPEN
    assert len(reader.shards - first) < len(first)
    assert new_position(config).nbytes == 32768 * 24
