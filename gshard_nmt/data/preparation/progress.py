"""How far `gshard-data prepare` is, on stderr: a bar in a terminal, otherwise a line now and then."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from gshard_nmt.quantities import duration_text

LINE_SECONDS = 30.0
"""The seconds between two lines if stderr is no terminal."""


@contextlib.contextmanager
def stage(
    console: Console,
    about: str,
    total: int,
    done: int,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int], None]]:
    """Shows the progress of a stage, and gives a function that advances it.

    `about` is "what it does, what is counted", such as "cleaning, pairs", and `done` was done before.
    """
    what, _, unit = about.partition(", ")
    began = said = clock()
    here = 0
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
    )
    is_shown = console.is_terminal and done < total
    bar = Progress(*columns, console=console, transient=True, disable=not is_shown)
    task = bar.add_task(what, total=total, completed=done, text="")

    def advance(rows: int) -> None:
        nonlocal here, said
        here += rows
        speed = here / max(clock() - began, 1e-6)
        left = duration_text((total - done - here) / speed) if speed else "unknown time"
        number = _count(done + here, unit).removesuffix(f" {unit}")
        text = f"{number} of {_count(total, unit)}, {_count(speed, unit)}/s, {left} left"
        bar.update(task, completed=done + here, text=text)
        if not is_shown and clock() - said >= LINE_SECONDS:
            said = clock()
            console.print(f"{what}: {text}", soft_wrap=True)

    with bar:
        yield advance
    seconds = clock() - began
    if here and seconds >= LINE_SECONDS:
        speed = f"{_count(here / seconds, unit)}/s"
        console.print(f"{what}: done in {duration_text(seconds)}, {speed}", soft_wrap=True)


def _count(number: float, unit: str) -> str:
    if unit == "bytes":
        return f"{number / 1e6:,.1f} MB"
    return f"{number:,.0f} {unit}"
