"""Endless training batches, which resume exactly where a run stopped, and batches of dev text."""

import itertools
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import numpy as np

from gshard_nmt.data.batching.augmentation import Augmentation, Record
from gshard_nmt.data.batching.packing import batch_arrays, filled_rows, to_arrays
from gshard_nmt.data.batching.streams import CHUNKS, Draws, Streams
from gshard_nmt.data.batching.subword_sampling import SubwordSampling
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.examples import Example
from gshard_nmt.data.sets.manifest import PreparedPair
from gshard_nmt.data.sets.records import OpenShards
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.worker_pool import Generated, usable_cpus

_PREFETCHED = 4
"""The number of batches that are made in advance."""
_MOST_PROCESSES = 4
"""The number of processes that make batches apart from training at most."""


Batch = dict[str, np.ndarray]


class TrainBatches:
    """An endless iterator of the arrays of batches, of which a thread prepares a few in advance."""

    def __init__(
        self,
        data: PreparedData,
        config: Data,
        rows: Sequence[int] | None = None,
        position: np.ndarray | None = None,
        record: Record | None = None,
        apart: bool = False,
    ) -> None:
        """Starts the thread, from a checkpoint's `position`. `rows` are those of this process.

        With `apart`, other processes make the batches and the thread only receives them, because a GPU
        may need them sooner than Python makes them beside the training loop. Otherwise `record` gets what
        augmentation does.
        """
        self.rows: Sequence[int] = range(config.rows) if rows is None else rows
        position = new_position(config) if position is None else np.array(position, np.int64)
        self._delivered, numbers = position.copy(), np.asarray(self.rows)
        self._apart: list[Generated] = []
        self._shards = OpenShards()
        self._draws = _draws(data, config, self._shards, record)
        self._made = _made(self._draws, config, numbers, position)
        if apart:
            # A process that has some rows of a stream makes the whole stream.
            owners = self._draws.owners(numbers)
            streams = np.unique(owners)
            count = max(1, min(_MOST_PROCESSES, usable_cpus() // 2, len(streams)))
            for part in np.array_split(streams, count):
                rows_of_part = numbers[np.isin(owners, part)]
                self._apart.append(Generated(_opened, data, config, rows_of_part, position))
            self._made = _joined(self._apart)
        self._queue: queue.Queue = queue.Queue(_PREFETCHED)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True, name="batches")
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        arrays, ends = item
        self._delivered[np.asarray(self.rows)] = ends
        return arrays

    def wait(self) -> None:
        """Waits until a batch is ready, or an error."""
        while self._queue.empty():
            time.sleep(0.01)

    def position(self) -> np.ndarray:
        """Returns int64[B, 2 + phases], the position after the last batch that was taken, see `streams`.

        The rows that other processes make are as they were at the start.
        """
        return self._delivered.copy()

    def close(self, seconds: float = 5.0) -> None:
        """Stops thread and processes, unless a dead file server holds them, and closes the shards."""
        self._stopping.set()
        for process in self._apart:
            process.close()
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)
        if not self._thread.is_alive():
            self._shards.close()

    def _produce(self) -> None:
        try:
            for item in self._made:
                self._queue.put(item)
                if self._stopping.is_set():
                    break
        except Exception as error:  # `__next__` raises it in the consumer's thread
            self._queue.put(error)


def _draws(data: PreparedData, config: Data, shards: OpenShards, record: Record | None) -> Draws:
    draws = Draws.open(data, config, shards)
    if any(config.augmentation.values()):
        draws.resample.append(Augmentation(data, config, record).change_all)
    if sampling := SubwordSampling.of(data.folder, config):
        draws.resample.append(sampling.resample_all)
    return draws


def _opened(
    data: PreparedData, config: Data, rows: np.ndarray, position: np.ndarray
) -> Iterator[tuple[Batch, np.ndarray]]:
    return _made(_draws(data, config, OpenShards(), None), config, rows, position)


def _made(
    draws: Draws, config: Data, rows: np.ndarray, position: np.ndarray
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Yields the rows int64[n] of each batch, and the position int64[n, 2 + phases] of each after it."""
    # If the rows of a stream belong to several processes, each of them makes the whole stream.
    owners = draws.owners(rows)
    numbers, firsts = np.unique(owners, return_index=True)
    begun = dict(zip(numbers.tolist(), position[rows[firsts]], strict=True))
    streams = Streams(draws, config, begun)
    rows_of_streams = np.add.outer(numbers * streams.width, np.arange(streams.width)).ravel()
    chosen = np.searchsorted(rows_of_streams, rows)
    lengths = (config.source_length, config.target_length)
    while True:
        examples, row_numbers = streams.next_rows()
        arrays = batch_arrays(examples, row_numbers, len(rows_of_streams), *lengths)
        if len(chosen) < len(rows_of_streams):
            arrays = {name: array[chosen] for name, array in arrays.items()}
        ends = np.stack([stream.position for stream in streams.streams])
        yield arrays, ends[np.searchsorted(numbers, owners)]


def _joined(apart: Sequence[Generated]) -> Iterator[tuple[Batch, np.ndarray]]:
    # All processes begin before the first one has answered.
    for parts in zip(*apart, strict=True):
        arrays, ends = zip(*parts, strict=True)
        batch = {name: np.concatenate([part[name] for part in arrays]) for name in arrays[0]}
        yield batch, np.concatenate(ends)


def new_position(config: Data) -> np.ndarray:
    return np.zeros((config.rows, CHUNKS + len(config.phases)), np.int64)


def dev_pairs(data: PreparedData, config: Data, language: str) -> list[PreparedPair]:
    pairs = data.pairs_of(config)
    return [p for p in pairs if p.language == language and p.splits["dev"].examples]


def dev_examples(data: PreparedData, pair: PreparedPair, limit: int) -> list[Example]:
    count = pair.splits["dev"].examples
    return data.reader(pair, "dev").read(np.arange(min(count, limit or count)))


def dev_batches(
    data: PreparedData, config: Data, language: str, limit: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields at most `limit` packed batches of a language's dev text.

    The directions of the language take turns, so that few batches have text of all of them.
    """
    directions = [dev_examples(data, pair, 0) for pair in dev_pairs(data, config, language)]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*directions))
    examples = (example for example in turns if example is not None)
    yield from itertools.islice(packed_batches(examples, config), limit)


def packed_batches(examples: Iterable[Example], config: Data) -> Iterator[dict[str, np.ndarray]]:
    """Yields packed batches of the examples in their order. The last is padded to B rows."""
    lengths = config.source_length, config.target_length
    rows = filled_rows(examples, *lengths)
    while batch := list(itertools.islice(rows, config.rows)):
        yield to_arrays([*batch, *[[]] * (config.rows - len(batch))], *lengths)
