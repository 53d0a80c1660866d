"""What the programs print: a console, tables, and text of a corpus that is safe on a terminal."""

import contextlib
import functools
import io
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

_WIDEST = 10_000
"""Columns of a file or a pipe, in which no line is cut."""

_KEPT = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Format characters that Persian and Indian languages need inside words."""


class Terminal(Console):
    """Prints text without colors of its own. What goes to a file or a pipe has lines of any length."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, soft_wrap=True, stderr=stderr)
        if not self.is_terminal:
            self.width = _WIDEST


@contextlib.contextmanager
def counting(description: str, total: int) -> Iterator[Callable[..., None]]:
    """Shows a progress bar on stderr, if that is a terminal.

    Yields the function that moves it by one, or by the number that it gets.
    """
    console = Terminal(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        yield functools.partial(progress.advance, progress.add_task(description, total=total))


def table(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)
) -> Table:
    """Returns a table without lines between its columns, so that nine columns fit into 80 characters.

    The columns `left`, counted from 0, have names at the left. The others have numbers at the right, and
    their headers of several words take two lines. If the table is still too wide, a long name goes on in
    the next line, and no number is cut off.
    """
    result = Table(
        title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left"
    )
    heads = [name if n in left else name.replace(" ", "\n", 1) for n, name in enumerate(header)]
    most = max(head.count("\n") for head in heads)
    for n, head in enumerate(heads):
        lowered = "\n" * (most - head.count("\n")) + head
        if n in left:
            result.add_column(lowered, overflow="fold")
        else:
            result.add_column(lowered, justify="right", no_wrap=True)
    for row in rows:
        result.add_row(*map(Text, row))
    return result


def aligned(rows: Iterable[Sequence[str | Text]]) -> str:
    """Returns rows as the lines of a table without a header. A `Text` says how its cell aligns."""
    grid, text = Table.grid(padding=(0, 2, 0, 0)), io.StringIO()
    for row in rows:
        grid.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console(file=text, width=_WIDEST, markup=False).print(grid)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def shown(text: str, limit: int = 90) -> str:
    r"""Returns a text that is safe to print: nothing moves the cursor, hides text or turns its order.

    Control and format characters become escapes such as `\x1b` and `\u202e`. A text with letters that
    run from right to left is isolated, so the text beside it keeps its place. `limit` is the most
    characters to show; 0 shows all.
    """
    if limit and len(text) > limit:
        text = f"{text[: limit - 1]}…"
    if any(unicodedata.bidirectional(character) in ("R", "AL") for character in text):
        start, end = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
    else:
        start = end = ""
    return start + "".join(map(_escaped, text)) + end


def _escaped(character: str) -> str:
    is_safe = character.isprintable() or character in _KEPT
    return character if is_safe else character.encode("unicode_escape").decode()
