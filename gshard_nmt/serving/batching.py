"""Batches of lines from the requests that wait at the same time.

One worker thread calls the translator. While it translates a batch, further requests arrive and wait; the
next batch takes lines from all of them. A translation does not depend on the other lines of its batch, so
batching changes no answer.
"""

import asyncio
import collections
import concurrent.futures
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from starlette.exceptions import HTTPException


class LineTranslator(Protocol):
    """The part of `TextTranslator` that a server needs. Only one thread at a time calls it."""

    @property
    def keeps_tags(self) -> bool:
        """Whether tags in a line stay as they are."""

    def translate(self, lines: Sequence[str], source: str, target: str) -> Iterator[Sequence[Any]]:
        """Yields the translations of each line, best first, with `text`, `lost` and `confidence`."""


_Direction = tuple[str, str]
_Line = tuple[str, asyncio.Future[Sequence[Any]]]
"""A line and its translations, best first."""


class Batcher:
    """Translates the lines of many requests together. One event loop calls all methods but `is_idle`."""

    def __init__(self, translator: LineTranslator, rows: int, queue: int) -> None:
        """Takes the most lines of a batch, and the most requests that wait or are being translated."""
        self._translator, self._rows, self._queue = translator, rows, queue
        self._worker = concurrent.futures.ThreadPoolExecutor(1, "translator")
        self._task: asyncio.Task[None] | None = None
        self.unfinished: list[list[_Line]] = []
        """The requests that wait or are being translated."""
        self._waiting: list[tuple[_Direction, collections.deque[_Line]]] = []
        self._closed = False
        self.keeps_tags = translator.keeps_tags

    async def translate(self, direction: _Direction, lines: Sequence[str]) -> list[Sequence[Any]]:
        """Returns the translations of lines, best first. Whoever cancels it takes the lines back.

        It refuses a request if the queue is full, the translator failed, or the batcher is closed.
        """
        if self._closed:
            raise _stopping()
        if (number := len(self.unfinished)) >= self._queue:
            problem = f"the server is busy: {number} requests wait. Try again later."
            raise HTTPException(429, problem, {"Retry-After": "1"})
        loop = asyncio.get_running_loop()
        request = [(line, loop.create_future()) for line in lines]
        waiting = collections.deque(request)
        self.unfinished.append(request)
        self._waiting.append((direction, waiting))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        try:
            return await asyncio.gather(*(future for _, future in request))
        finally:
            waiting.clear()
            self.unfinished.remove(request)
            for _, future in request:
                future.cancel()  # if another line has failed

    def close(self) -> None:
        """Refuses all requests that are not answered yet, and those that still come."""
        self._closed = True
        for _, future in [line for request in self.unfinished for line in request]:
            if not future.done():
                future.set_exception(_stopping())

    def is_idle(self, seconds: float) -> bool:
        """Waits for the last batch; returns whether the translator is at rest."""
        rest = self._worker.submit(bool)
        return bool(concurrent.futures.wait([rest], seconds).done)

    async def _work(self) -> None:
        """Translates all lines that wait, a batch of one direction at a time.

        Directions take turns. The requests of a direction give a line each in turn, so a short one never
        waits for all lines of a long one.
        """
        while waiting := [entry for entry in self._waiting if entry[1]]:
            direction = waiting[0][0]
            requests = collections.deque(lines for other, lines in waiting if other == direction)
            batch: list[_Line] = []
            while requests and len(batch) < self._rows:
                lines = requests.popleft()
                batch.append(lines.popleft())
                if lines:
                    requests.append(lines)
            self._waiting = [entry for entry in waiting if entry[0] != direction]
            self._waiting += [(direction, lines) for lines in requests]
            await self._translate(direction, batch)

    async def _translate(self, direction: _Direction, batch: Sequence[_Line]) -> None:
        def translated() -> list[Sequence[Any]]:
            return list(self._translator.translate([line for line, _ in batch], *direction))

        failure = None
        nbests: list[Sequence[Any]] = [[] for _ in batch]
        try:
            nbests = await asyncio.get_running_loop().run_in_executor(self._worker, translated)
        except Exception as error:
            # The message of the error is left out: it may quote the text of a user.
            sys.stderr.write(f"the translator failed: {type(error).__name__}\n")
            sys.stderr.writelines(traceback.format_tb(error.__traceback__))
            failure = HTTPException(500, "the model failed to translate this text. Try again.")
        for (_, future), nbest in zip(batch, nbests, strict=True):
            if not future.done():
                future.set_exception(failure) if failure else future.set_result(nbest)


def _stopping() -> HTTPException:
    return HTTPException(503, "the server is stopping. Try again later.", {"Retry-After": "10"})
