"""Batches of lines from the requests that wait at the same time.

One thread owns the translator. While it translates a batch, further requests arrive and wait; the next
batch takes lines from all of them. A translation does not depend on the other lines of its batch, so
batching changes no answer.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

Lines = list[list[str]]
"""The translations of each line of a request, best first."""


class Refusal(Exception):
    """A request that gets an error. Its message is sent to the client.

    Attributes:
      status: the HTTP status, from 400 to 599.
      message: what is wrong and what to do. It has no text that another client sent.
      retry_after: seconds after which the client may try again; 0 if trying again is of no use.
    """

    def __init__(self, status: int, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


class LineTranslator(Protocol):
    """The part of `TextTranslator` that a server needs. Only one thread at a time calls it."""

    def translate(self, lines: Sequence[str], source: str, target: str) -> Iterator[Sequence[Any]]:
        """Yields the translations of each line, best first, in the order of the lines; see `text`."""


@dataclasses.dataclass(eq=False)
class _Job:
    """The lines of a request.

    Attributes:
      taken: number of lines that have been put into a batch.
      translations: the translations that are ready, by the index of their line.
    """

    direction: tuple[str, str]
    lines: Sequence[str]
    future: concurrent.futures.Future[Lines]
    taken: int = 0
    translations: dict[int, list[str]] = dataclasses.field(default_factory=dict)


_Batch = list[tuple[_Job, int]]
"""The lines of a batch, all of one direction: the job of each line, and the line's index in it."""


class Batcher:
    """Translates the lines of many requests together, in a thread of its own."""

    def __init__(self, translator: LineTranslator, rows: int, queue: int) -> None:
        """Starts the thread, which alone calls the translator, with at most `rows` lines at a time."""
        self._translator, self._rows, self._queue = translator, rows, queue
        self._change = threading.Condition()
        # All that follows is read and changed only with the lock of `_change`. The direction of the first
        # job is the next to be served.
        self._waiting: collections.deque[_Job] = collections.deque()
        self._unfinished: set[_Job] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="translator", daemon=True)
        self._thread.start()

    def submit(
        self, source: str, target: str, lines: Sequence[str]
    ) -> concurrent.futures.Future[Lines]:
        """Returns the future translations of some lines. Whoever cancels it takes the lines back.

        The future's exception is a `Refusal` if the translator fails or the batcher is closed.

        Raises:
          Refusal: the queue is full, or the batcher is closed.
        """
        job = _Job((source, target), lines, concurrent.futures.Future())
        if not lines:
            job.future.set_result([])
            return job.future
        with self._change:
            if self._closed:
                raise _stopping()
            if len(self._unfinished) >= self._queue:
                raise Refusal(
                    429,
                    f"the server is busy: {len(self._unfinished)} requests wait. Try again later.",
                    1,
                )
            self._unfinished.add(job)
            self._waiting.append(job)
            self._change.notify()
        job.future.add_done_callback(lambda _: self._forget(job))
        return job.future

    @property
    def unfinished(self) -> int:
        """The number of requests that wait or are being translated."""
        with self._change:
            return len(self._unfinished)

    def close(self) -> None:
        """Refuses all requests that are not answered yet, and those that still come."""
        with self._change:
            self._closed = True
            jobs = list(self._unfinished)
            self._change.notify()
        for job in jobs:
            _fail(job, _stopping())

    def join(self, seconds: float) -> bool:
        """Waits for the last batch of a closed batcher; returns whether the thread has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while batch := self._next_batch():
            self._translate(batch)

    def _next_batch(self) -> _Batch:
        """Waits for lines and returns some of one direction; none if the batcher is closed.

        Directions take turns. Jobs of a direction give a line each in turn, so a short request never
        waits for all lines of a long one.
        """
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            direction = self._waiting[0].direction
            jobs = collections.deque(job for job in self._waiting if job.direction == direction)
            others = [job for job in self._waiting if job.direction != direction]
            batch: _Batch = []
            while jobs and len(batch) < self._rows:
                job = jobs.popleft()
                batch.append((job, job.taken))
                job.taken += 1
                if job.taken < len(job.lines):
                    jobs.append(job)
            self._waiting = collections.deque([*others, *jobs])
            return batch

    def _translate(self, batch: _Batch) -> None:
        """Translates a batch, and finishes the jobs that have all their translations.

        If the translator fails, each job is tried alone: its lines cannot make others fail.
        """
        jobs = list(dict.fromkeys(job for job, _ in batch))
        try:
            lines = [job.lines[index] for job, index in batch]
            translations = [
                [translation.text for translation in nbest]
                for nbest in self._translator.translate(lines, *jobs[0].direction)
            ]
            translated = list(zip(batch, translations, strict=True))
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    if not job.future.done():
                        self._translate([entry for entry in batch if entry[0] is job])
                return
            # The message of the error is left out: it may quote the text of a user.
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"the translator failed: {type(error).__name__}\n")
                sys.stderr.writelines(traceback.format_tb(error.__traceback__))
            _fail(jobs[0], Refusal(500, "the model failed to translate this text. Try another."))
            return
        for (job, index), nbest in translated:
            job.translations[index] = nbest
            if len(job.translations) == len(job.lines):
                with contextlib.suppress(concurrent.futures.InvalidStateError):
                    job.future.set_result([job.translations[i] for i in range(len(job.lines))])

    def _forget(self, job: _Job) -> None:
        """Removes a job that is finished, failed or canceled."""
        with self._change:
            self._unfinished.discard(job)
            with contextlib.suppress(ValueError):
                self._waiting.remove(job)


def _fail(job: _Job, refusal: Refusal) -> None:
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        job.future.set_exception(refusal)


def _stopping() -> Refusal:
    return Refusal(503, "the server is stopping. Try again later.", 10)
