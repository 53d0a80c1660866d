"""The progress of gshard-decode on stderr: a bar on a terminal, otherwise a line now and then."""

import contextlib
import os
import sys
import time
from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gshard_nmt.quantities import duration_text
from gshard_nmt.terminal import Terminal

SECONDS_BETWEEN_LINES = 30.0


class DecodingProgress(contextlib.ExitStack):
    """Shows how many lines are done, how fast, and how long the rest will take.

    An input that is translated at once shows nothing.
    """

    def __init__(
        self, total: int | None, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Shows nothing yet, and if `quiet` never. `total` is None if the input is a stream."""
        super().__init__()
        self._total, self._quiet, self._clock = total, quiet, clock
        self._bar: Progress | None = None

    def begin(self, done: int) -> None:
        """Starts to measure the speed. `done` lines were finished before."""
        self._first = self._last = (done, self._clock())

    def show(self, done: int) -> None:
        """Shows that this number of lines is done."""
        if self._quiet or (self._total is not None and done >= self._total and not self._bar):
            return
        now = self._clock()
        if sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
            before, then = self._first
            if self._bar is None:
                self._bar = self.enter_context(_new_bar())
                self._bar.add_task("", total=self._total, completed=before, speed=0.0)
            (task,) = self._bar.task_ids
            speed = (done - before) / max(now - then, 1e-9)
            self._bar.update(task, completed=done, speed=speed, refresh=True)
            return
        before, then = self._last
        if now - then < SECONDS_BETWEEN_LINES:
            return
        self._last = (done, now)
        speed = (done - before) / (now - then)
        of_all = "" if self._total is None else f" of {self._total:,}"
        left = ""
        if self._total is not None and speed > 0:
            left = f", {duration_text((self._total - done) / speed)} left"
        sys.stderr.write(f"{done:,}{of_all} lines, {speed:.1f} lines/s{left}\n")


def _new_bar() -> Progress:
    return Progress(
        TextColumn("translating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:,.1f} lines/s"),
        TimeRemainingColumn(),
        console=Terminal(stderr=True),
        transient=True,
        redirect_stdout=False,  # translations may go there
    )
