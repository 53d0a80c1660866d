"""How far `gshard-data prepare` is, on stderr: a bar in a terminal, otherwise a line now and then."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from gshard_nmt.quantities import duration_text

LINE_SECONDS = 30.0
"""The seconds between two lines if stderr is no terminal."""


class StageProgress:
    """Shows the progress of one stage after the other."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._about, self._unit = "", ""
        self._total = self._done = self._here = 0
        self._began = self._said = 0.0
        self._bar: Progress | None = None

    def begin(self, about: str, total: int, done: int) -> None:
        """Starts a stage; `about` is "what it does, what is counted", such as "cleaning, pairs"."""
        self._about, _, self._unit = about.partition(", ")
        self._total, self._done, self._here = total, done, 0
        self._began = self._said = self._clock()
        if self._console.is_terminal and done < total:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(about.partition(",")[0], total=total, completed=done, text="")
            self._bar.start()

    def advance(self, rows: int) -> None:
        self._done += rows
        self._here += rows
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, text=self._numbers())
        elif self._clock() - self._said >= LINE_SECONDS:
            self._said = self._clock()
            self._console.print(f"{self._about}: {self._numbers()}", soft_wrap=True)

    def end(self) -> None:
        self.stop()
        seconds = self._clock() - self._began
        if self._here and seconds >= LINE_SECONDS:
            speed = f"{_count(self._here / seconds, self._unit)}/s"
            self._console.print(
                f"{self._about}: done in {duration_text(seconds)}, {speed}", soft_wrap=True
            )

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _numbers(self) -> str:
        """Returns "1,000 of 4,000 pairs, 500 pairs/s, 6 s left"."""
        seconds = max(self._clock() - self._began, 1e-6)
        speed = self._here / seconds
        left = duration_text((self._total - self._done) / speed) if speed else "unknown time"
        done = _count(self._done, self._unit).removesuffix(f" {self._unit}")
        total = _count(self._total, self._unit)
        return f"{done} of {total}, {_count(speed, self._unit)}/s, {left} left"


def _count(number: float, unit: str) -> str:
    if unit == "bytes":
        return f"{number / 1e6:,.1f} MB"
    return f"{number:,.0f} {unit}"
