"""The streams that fill the rows of a batch, and their positions.

Stream s fills the rows s * w to s * w + w - 1 of each batch. It reads its draws of the mixture in chunks,
packs a chunk into as few rows as it can, and delivers these rows in random order, w in each batch. A
chunk belongs to the phase of the schedule that holds when its first row is due, or to a later one that
has begun.

So a few numbers are the whole position of a stream, whatever its chunks hold:

    steps done, rows delivered of the last chunk, chunks begun in phase 0, in phase 1, ...
"""

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from gshard_nmt.data.batching.mixture import Mixture
from gshard_nmt.data.batching.packing import pack
from gshard_nmt.data.batching.shuffle import Shuffle, key_of, permute
from gshard_nmt.data.config import Data
from gshard_nmt.data.schedule import Component, phase_at
from gshard_nmt.data.sets.examples import Examples
from gshard_nmt.data.sets.records import OpenShards, ShardReader
from gshard_nmt.data.sets.shards import PreparedData

Resample = Callable[[Examples, np.ndarray], Examples]
"""Changes the ids of examples. Its second argument is uint64[n], a key for each example: the number of
the draw. The key is the same on any number of processes and after any restart."""


class Draws:
    """The examples of the draws of all streams. `chunk` is D, the number of draws in a chunk."""

    def __init__(
        self,
        components: Sequence[Component],
        counts: Sequence[Sequence[int]],
        config: Data,
        reader: ShardReader,
    ) -> None:
        """`counts` has the examples in each shard of each component, numbered together."""
        self.streams = streams_of(config.rows)
        self._width = config.rows // self.streams
        self.chunk = config.packing_window * self._width
        self.resample: list[Resample] = []
        rates = [phase.rates(components) for phase in config.phases]
        self._mixture = Mixture(tuple(map(tuple, rates)), self.streams, config.seed)
        self._shuffle = Shuffle(counts, config.seed)
        self._reader = reader
        languages = list(dict.fromkeys(component.language for component in components))
        self._languages = np.array([languages.index(c.language) for c in components])
        self._components = len(components)

    @classmethod
    def open(cls, data: PreparedData, config: Data, shards: OpenShards) -> Self:
        pairs = data.pairs_of(config)
        counts = [[count for *_, count in pair.splits["train"].files] for pair in pairs]
        reader = data.reader_of_all(pairs, "train", shards)
        return cls(data.components(config), counts, config, reader)

    def owners(self, rows: np.ndarray) -> np.ndarray:
        """Returns the stream of each of some rows, int64[n]."""
        return rows // self._width

    def counts_before(self, stream: int, chunks: np.ndarray) -> np.ndarray:
        """Returns int64[components], the draws of a stream that has read int64[phases] `chunks`."""
        total = np.zeros(self._components, np.int64)
        for phase, number in enumerate(chunks.tolist()):
            if number:
                total += self._mixture.counts_until(stream, phase, number * self.chunk)[0]
        return total

    def read(
        self,
        streams: Sequence[int],
        phases: Sequence[int],
        chunks: np.ndarray,
        counts: Sequence[np.ndarray],
    ) -> list[Examples]:
        """Returns the examples of a chunk of each of some streams; `phases` has the phase of each chunk.

        Each has read int64[n, phases] `chunks` before. `counts`, see `counts_before`, get the draws
        added.
        """
        components, draws, numbers = [], [], []
        for stream, phase, before, count in zip(streams, phases, chunks, counts, strict=True):
            within = np.arange(self.chunk)
            drawn = self._mixture.components(stream, phase, before[phase] * self.chunk + within)
            earlier = count[drawn] + _earlier_in_chunk(drawn)
            count += np.bincount(drawn, minlength=self._components)
            components.append(drawn)
            draws.append(earlier * self.streams + stream)
            numbers.append((before.sum() * self.chunk + within) * self.streams + stream)
        drawn = np.concatenate(components)
        examples = self._reader.read_many(*self._shuffle.locate(drawn, np.concatenate(draws)))
        examples.languages[:] = self._languages[drawn]

        for resample in self.resample:
            examples = resample(examples, np.concatenate(numbers).astype(np.uint64))
        ends = np.arange(len(streams)) * self.chunk
        return [examples.part(end, end + self.chunk) for end in ends.tolist()]


def streams_of(rows: int) -> int:
    """Returns S: it depends on the batch size alone, is at most 1024, with 8 rows or more each."""
    most = max(1, min(1024, rows // 8))
    return max(number for number in range(1, most + 1) if rows % number == 0)


def _earlier_in_chunk(components: np.ndarray) -> np.ndarray:
    """Returns how many earlier entries have the same value, int64[n]. For 7 5 7 7 it is 0 0 1 2."""
    order = np.argsort(components, kind="stable")
    counts = np.bincount(components)
    earlier = np.empty_like(order)
    earlier[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return earlier


STEPS, ROWS, CHUNKS = 0, 1, 2
"""The columns of a position; the columns from CHUNKS on are the chunks begun in each phase."""

_ROW_ORDER = 4
"""A number that makes the keys of this module differ from other keys of the same seed."""


class Stream:
    """One stream at a position int64[2 + phases], see the module; all zeros are the beginning."""

    def __init__(self, number: int, position: np.ndarray) -> None:
        self.number = number
        self.position = np.array(position, np.int64)
        self.counts = np.zeros(0, np.int64)
        self.examples: Examples | None = None
        self.rows = np.zeros(0, np.int64)

    @property
    def rows_left(self) -> int:
        return int(self.rows[-1]) + 1 - int(self.position[ROWS]) if len(self.rows) else 0

    def take(self, most: int) -> tuple[Examples, np.ndarray]:
        """Delivers at most `most` rows of its chunk: the examples, and int64[n], the row of each."""
        assert self.examples is not None
        first = int(self.position[ROWS])
        last = first + min(most, self.rows_left)
        begin, end = np.searchsorted(self.rows, [first, last]).tolist()
        self.position[ROWS] = last
        return self.examples.part(begin, end), self.rows[begin:end] - first


class Streams:
    """The streams of the rows that a process makes."""

    def __init__(self, draws: Draws, config: Data, positions: dict[int, np.ndarray]) -> None:
        """Continues at the positions of the streams. Reads again what their last chunks still hold."""
        self._draws, self._config = draws, config
        self.width = config.rows // draws.streams
        self.streams = [Stream(number, position) for number, position in positions.items()]
        for stream in self.streams:
            stream.counts = draws.counts_before(stream.number, self._before(stream))
        self._read([stream for stream in self.streams if stream.position[CHUNKS:].any()])

    def next_rows(self) -> tuple[Examples, np.ndarray]:
        """Returns the examples of the next batch, and int64[n], the row of each among these rows."""
        taken: list[list[tuple[Examples, np.ndarray]]] = [[] for _ in self.streams]
        have = [0] * len(self.streams)
        while places := [i for i, number in enumerate(have) if number < self.width]:
            self._begin([self.streams[i] for i in places if not self.streams[i].rows_left])
            for i in places:
                stream = self.streams[i]
                before = stream.rows_left
                examples, rows = stream.take(self.width - have[i])
                taken[i].append((examples, rows + i * self.width + have[i]))
                have[i] += before - stream.rows_left
        for stream in self.streams:
            stream.position[STEPS] += 1
        parts = [part for parts in taken for part in parts]
        return Examples.joined([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def _begin(self, streams: list[Stream]) -> None:
        for stream in streams:
            phase = phase_at(self._config.phases, int(stream.position[STEPS]))
            if stream.position[CHUNKS:].any():
                # In a run that was made longer, a phase that has begun goes on.
                phase = max(phase, _last_phase(stream))
            stream.position[CHUNKS + phase] += 1
            stream.position[ROWS] = 0
        self._read(streams)

    def _before(self, stream: Stream) -> np.ndarray:
        """Returns the chunks read in each phase before the last one, int64[phases]."""
        chunks = stream.position[CHUNKS:].copy()
        if chunks.any():
            chunks[_last_phase(stream)] -= 1
        return chunks

    def _read(self, streams: list[Stream]) -> None:
        """Reads and packs the chunk that each of some streams has begun last."""
        if not streams:
            return
        chunks = self._draws.read(
            [stream.number for stream in streams],
            [_last_phase(stream) for stream in streams],
            np.stack([self._before(stream) for stream in streams]),
            [stream.counts for stream in streams],
        )
        config = self._config
        lengths = (config.source_length, config.target_length)
        packed = [pack(e.source_lengths, e.target_lengths, *lengths) for e in chunks]
        numbers = [stream.position[CHUNKS:].sum() for stream in streams]
        keys = key_of(config.seed, _ROW_ORDER, [stream.number for stream in streams], numbers)
        # One call for all streams, because a call costs more than its arithmetic.
        sizes = np.repeat([rows.max() + 1 for rows in packed], self._draws.chunk)
        permuted = permute(np.concatenate(packed), sizes, np.repeat(keys, self._draws.chunk))
        rows_of_streams = permuted.reshape(len(streams), self._draws.chunk)
        for stream, examples, rows in zip(streams, chunks, rows_of_streams, strict=True):
            order = np.argsort(rows, kind="stable")
            stream.examples, stream.rows = examples.take(order), rows[order]


def _last_phase(stream: Stream) -> int:
    return int(np.flatnonzero(stream.position[CHUNKS:])[-1])
