"""The progress of gshard-decode on stderr: a bar on a terminal, otherwise a line now and then."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Self

from gshard_nmt.quantities import duration_text

SECONDS_BETWEEN_LINES = 30.0


class DecodingProgress:
    """Shows how many lines are done, how fast, and how long the rest will take.

    An input that is translated at once shows nothing.
    """

    def __init__(
        self,
        total: int | None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Shows nothing yet, and if `quiet` never. `total` is None if the input is a stream."""
        self._total, self._quiet, self._clock = total, quiet, clock
        self._last = (0, clock())
        self._until = contextlib.ExitStack()
        self._advance: Callable[[int], None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._until.close()

    def begin(self, done: int) -> None:
        """Starts to measure the speed. `done` lines were finished before."""
        self._last = (done, self._clock())

    def show(self, done: int) -> None:
        """Shows that this number of lines is done."""
        if self._quiet or (self._total is not None and done >= self._total and not self._advance):
            return
        if sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
            self._advance = self._advance or self._bar()
            self._advance(done)
            return
        before, then = self._last
        seconds = self._clock() - then
        if seconds < SECONDS_BETWEEN_LINES:
            return
        self._last = (done, then + seconds)
        speed = (done - before) / seconds
        of_all = "" if self._total is None else f" of {self._total:,}"
        left = ""
        if self._total is not None and speed > 0:
            left = f", {duration_text((self._total - done) / speed)} left"
        sys.stderr.write(f"{done:,}{of_all} lines, {speed:.1f} lines/s{left}\n")

    def _bar(self) -> Callable[[int], None]:
        """Starts a bar, and returns the function that moves it."""
        from rich import progress
        from rich.console import Console
        from rich.text import Text

        class Speed(progress.ProgressColumn):
            """Lines a second."""

            def render(self, task: progress.Task) -> Text:
                return Text("" if task.speed is None else f"{task.speed:,.1f} lines/s")

        bar = progress.Progress(
            *(progress.TextColumn("translating"), progress.BarColumn()),
            *(progress.MofNCompleteColumn(), Speed(), progress.TimeRemainingColumn()),
            console=Console(stderr=True, highlight=False, markup=False),
            transient=True,
            redirect_stdout=False,  # translations may go there
        )
        self._until.enter_context(bar)
        task = bar.add_task("", total=self._total, completed=self._last[0])
        return lambda done: bar.update(task, completed=done, refresh=True)
