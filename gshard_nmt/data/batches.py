"""Endless training batches that resume exactly, and the batches of dev text.

Row r of a batch of B rows is packed from draws r, r + B, r + 2 B, ... of the mixture. The state of the
input is a cursor and a few waiting draws for each row; it does not depend on the number of processes,
and a process may make any subset of the rows.
"""

import dataclasses
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from gshard_nmt.data.config import Data
from gshard_nmt.data.mixture import Mixture
from gshard_nmt.data.packing import Row, to_arrays
from gshard_nmt.data.shards import Example, PreparedData

_PREFETCHED = 4
_CHUNK = 32


@dataclasses.dataclass(frozen=True)
class BatchInfo:
    """What a batch holds.

    Attributes:
      tokens: real tokens of each language, source and target.
      fill: share of the batch's places that are no padding.
    """

    tokens: Mapping[str, int]
    fill: float


Batch = tuple[dict[str, np.ndarray], BatchInfo]


State = dict[str, np.ndarray]


class TrainBatches:
    """An iterator of (arrays, info); a background thread stays a few batches ahead."""

    def __init__(
        self,
        data: PreparedData,
        config: Data,
        rows: range | None = None,
        state: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Starts at `state`, or at the beginning; `rows` are those that this process makes.

        The state of other rows stays what it was at the start.
        """
        self._config = config
        self.rows = range(config.rows) if rows is None else rows
        pairs = data.pairs_of(config)
        self._languages = [pair.language for pair in pairs]
        self._readers = [data.reader(pair, "train") for pair in pairs]
        sizes = tuple(len(reader) for reader in self._readers)
        self._mixture = Mixture(sizes, config.temperature, config.seed)
        start = state or {
            "cursors": np.zeros(config.rows, np.int64),
            "waiting": np.full((config.rows, config.packing_window), -1, np.int64),
        }
        self._delivered = {name: np.array(array, np.int64) for name, array in start.items()}
        self._streams = {r: _Stream(self, r) for r in self.rows}
        self._queue: queue.Queue = queue.Queue(_PREFETCHED)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True, name="batches")
        self._thread.start()

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> Batch:
        """The next batch."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        arrays, info, self._delivered = item
        return arrays, info

    def state(self) -> State:
        """The input as it stood after the last batch delivered.

        Returns:
          `cursors` int64[B], draws that each row has taken; `waiting` int64[B, window], numbers of
          draws that were taken and are in no row yet, -1 where there are fewer.
        """
        return {name: array.copy() for name, array in self._delivered.items()}

    def close(self) -> None:
        """Stops the thread."""
        self._stopping.set()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)

    def read(self, draws: np.ndarray) -> list[Example]:
        """The examples of draws of the mixture, in their order."""
        languages, places = self._mixture.draw(draws)
        found: list[Example | None] = [None] * len(draws)
        for language in np.unique(languages).tolist():
            chosen = np.flatnonzero(languages == language)
            examples = self._readers[language].read(places[chosen], language)
            for place, example in zip(chosen.tolist(), examples, strict=True):
                found[place] = example
        return [example for example in found if example is not None]

    def draw_number(self, row: int, cursor: np.ndarray) -> np.ndarray:
        """The numbers in the mixture of a row's draws."""
        return cursor * self._config.rows + row

    def _produce(self) -> None:
        try:
            state = self.state()
            for row, stream in self._streams.items():
                stream.restore(int(state["cursors"][row]), state["waiting"][row])
            while not self._stopping.is_set():
                self._queue.put(self._make(state))
                state = {name: array.copy() for name, array in state.items()}
        except Exception as error:  # whatever goes wrong here is the consumer's to see
            self._queue.put(error)

    def _make(self, state: State) -> tuple[dict[str, np.ndarray], BatchInfo, State]:
        """One batch; brings `state` to what comes after it."""
        config = self._config
        rows = []
        tokens = dict.fromkeys(self._languages, 0)
        for r, stream in self._streams.items():
            examples = stream.fill(Row(config.source_length, config.target_length))
            for example in examples:
                count = len(example.source) + len(example.target)
                tokens[self._languages[example.language]] += count
            rows.append(examples)
            state["cursors"][r] = stream.cursor
            state["waiting"][r] = -1
            state["waiting"][r, : len(stream.waiting)] = [number for number, _ in stream.waiting]
        places = len(rows) * (config.source_length + config.target_length)
        arrays = to_arrays(rows, config.source_length, config.target_length)
        return arrays, BatchInfo(tokens, sum(tokens.values()) / places), state


class _Stream:
    """The draws of one row of the batch."""

    def __init__(self, batches: TrainBatches, row: int) -> None:
        self._batches, self._row = batches, row
        self._window = batches._config.packing_window
        self.restore(0, np.empty(0, np.int64))

    def restore(self, cursor: int, waiting: np.ndarray) -> None:
        """Goes to a state that was saved."""
        self.cursor = cursor
        numbers = waiting[waiting >= 0]
        examples = self._batches.read(numbers) if len(numbers) else []
        self.waiting = list(zip(numbers.tolist(), examples, strict=True))
        self._ahead: list[tuple[int, Example]] = []

    def fill(self, row: Row) -> list[Example]:
        """The examples of the next row."""
        self.waiting = [item for item in self.waiting if not row.add(item[1])]
        while len(self.waiting) < self._window and not row.is_full():
            number, example = self._next()
            if not row.add(example):
                self.waiting.append((number, example))
        return row.examples

    def _next(self) -> tuple[int, Example]:
        if not self._ahead:
            cursors = np.arange(self.cursor, self.cursor + _CHUNK)
            numbers = self._batches.draw_number(self._row, cursors)
            examples = self._batches.read(numbers)
            self._ahead = list(zip(numbers.tolist(), examples, strict=True))[::-1]
        self.cursor += 1
        return self._ahead.pop()


def dev_examples(data: PreparedData, config: Data, language: str, limit: int) -> list[Example]:
    """The first `limit` dev examples (0 = all) of a language, over all its pairs."""
    found: list[Example] = []
    for pair in data.pairs_of(config):
        count = pair.splits["dev"].examples
        if pair.language == language and count:
            places = np.arange(min(count, limit or count))
            found += data.reader(pair, "dev").read(places)
    return found


def dev_batches(
    data: PreparedData, config: Data, language: str, limit: int
) -> Iterator[dict[str, np.ndarray]]:
    """At most `limit` batches of a language's dev text, packed; the last is filled up with padding."""
    waiting = iter(dev_examples(data, config, language, 0))
    example = next(waiting, None)
    for _ in range(limit):
        rows: list[Sequence[Example]] = []
        while example is not None and len(rows) < config.rows:
            row = Row(config.source_length, config.target_length)
            while example is not None and row.add(example):
                example = next(waiting, None)
            rows.append(row.examples)
        if not rows:
            return
        rows += [()] * (config.rows - len(rows))
        yield to_arrays(rows, config.source_length, config.target_length)
