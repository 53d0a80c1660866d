"""Endless training batches that resume exactly, and the batches of dev text.

Row r of a batch of B rows is packed from draws r, r + B, r + 2 B, ... of the mixture. The state of the
input is one cursor a row; it does not depend on the number of processes, and a process may make any
subset of the rows.
"""

import dataclasses
import queue
import threading
from collections.abc import Iterator, Mapping
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


class TrainBatches:
    """An iterator of (arrays, info); a background thread stays a few batches ahead."""

    def __init__(
        self,
        data: PreparedData,
        config: Data,
        rows: range | None = None,
        state: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Starts at `state`, or at the beginning; `rows` are those that this process makes."""
        self._data, self._config = data, config
        self._rows = range(config.rows) if rows is None else rows
        pairs = data.pairs(config)
        self._languages = [pair["language"] for pair in pairs]
        self._examples = [data.examples(pair, "train") for pair in pairs]
        sizes = tuple(len(examples) for examples in self._examples)
        self._mixture = Mixture(sizes, config.temperature, config.seed)
        start = np.zeros(config.rows, np.int64)
        self._delivered = start if state is None else np.array(state["cursors"], np.int64)
        self._buffers: dict[int, tuple[int, list[tuple[int, Example]]]] = {}
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
        arrays, info, self._delivered = item
        return arrays, info

    def state(self) -> dict[str, np.ndarray]:
        """`cursors` int64[B]: how many draws each row has used up to the last batch delivered."""
        return {"cursors": self._delivered.copy()}

    def close(self) -> None:
        """Stops the thread."""
        self._stopping.set()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)

    def _produce(self) -> None:
        cursors = self._delivered.copy()
        try:
            while not self._stopping.is_set():
                self._queue.put(self._make(cursors))
        except Exception as error:  # whatever goes wrong here is the consumer's to see
            self._queue.put(error)

    def _make(self, cursors: np.ndarray) -> tuple[dict[str, np.ndarray], BatchInfo, np.ndarray]:
        """One batch; moves `cursors` on."""
        config = self._config
        rows: list[list[Example]] = []
        tokens = dict.fromkeys(self._languages, 0)
        used = 0
        for r in self._rows:
            row = Row(config.source_length, config.target_length)
            while True:
                language, example = self._draw(r, int(cursors[r]))
                if not row.add(example):
                    break
                cursors[r] += 1
                count = len(example[0]) + len(example[1])
                tokens[self._languages[language]] += count
                used += count
            rows.append(row.examples)
        places = len(self._rows) * (config.source_length + config.target_length)
        arrays = to_arrays(rows, config.source_length, config.target_length)
        return arrays, BatchInfo(tokens, used / places), cursors.copy()

    def _draw(self, row: int, cursor: int) -> tuple[int, Example]:
        """Draw number `cursor` of a row, from a chunk that is read in one go."""
        begin, chunk = self._buffers.get(row, (-1, []))
        if not begin <= cursor < begin + len(chunk):
            numbers = np.arange(cursor, cursor + _CHUNK) * self._config.rows + row
            languages, examples = self._mixture.draw(numbers)
            chunk = [(int(one), None) for one in languages]
            for one in np.unique(languages):
                places = np.flatnonzero(languages == one)
                read = self._examples[one].read(examples[places])
                for place, example in zip(places, read, strict=True):
                    chunk[place] = (int(one), example)
            begin = cursor
            self._buffers[row] = (begin, chunk)
        return chunk[cursor - begin]


def dev_examples(data: PreparedData, config: Data, language: str, limit: int) -> list[Example]:
    """The first `limit` dev examples (0 = all) of a language, over all its pairs."""
    found: list[Example] = []
    for pair in data.pairs(config):
        if pair["language"] == language and pair["dev"]:
            examples = data.examples(pair, "dev")
            found += examples.read(range(min(len(examples), limit or len(examples))))
    return found


def dev_batches(
    data: PreparedData, config: Data, language: str, limit: int
) -> Iterator[dict[str, np.ndarray]]:
    """At most `limit` batches of a language's dev text, packed; the last is filled up with padding."""
    waiting = iter(dev_examples(data, config, language, 0))
    example = next(waiting, None)
    for _ in range(limit):
        rows: list[list[Example]] = []
        while example is not None and len(rows) < config.rows:
            row = Row(config.source_length, config.target_length)
            while example is not None and row.add(example):
                example = next(waiting, None)
            rows.append(row.examples)
        if not rows:
            return
        rows += [[]] * (config.rows - len(rows))
        yield to_arrays(rows, config.source_length, config.target_length)
