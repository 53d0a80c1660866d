"""The text of the draws: reads the examples that the streams of the mixture draw."""

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from gshard_nmt.data.batching.mixture import Mixture
from gshard_nmt.data.batching.shuffle import Shuffle
from gshard_nmt.data.config import Data
from gshard_nmt.data.schedule import Component
from gshard_nmt.data.sets.examples import Examples
from gshard_nmt.data.sets.records import OpenShards, ShardReader
from gshard_nmt.data.sets.shards import PreparedData

Resample = Callable[[Examples, np.ndarray], Examples]
"""Changes the ids of examples. Its second argument is uint64[n], a key for each example: the number of
the draw, which is the same on any number of processes and after any restart."""


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
        self.chunk = config.packing_window * (config.rows // self.streams)
        self.resample: Resample | None = None
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
        if self.resample is not None:
            examples = self.resample(examples, np.concatenate(numbers).astype(np.uint64))
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
