"""What the verbs print: a console, narrow tables, and text of a corpus that is safe on a terminal."""

import unicodedata
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

_KEPT = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Format characters that Persian and Indian languages need inside words."""


class Terminal(Console):
    """Prints text without colors of its own."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(highlight=False, markup=False, stderr=stderr)


def narrow_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Returns a table without lines between its columns, so that nine columns fit into 80 characters.

    The first column has names at the left, the others have numbers at the right. A header of several
    words takes two lines. If the table is still too wide, a long name goes on in the next line, and no
    number is cut off.
    """
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column(header[0], overflow="fold")
    for name in header[1:]:
        lines = name.replace(" ", "\n", 1)
        table.add_column(lines, justify="right", vertical="bottom", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def shown(text: str, limit: int = 90) -> str:
    r"""Returns a text that is safe to print: nothing moves the cursor, hides text or turns its order.

    Control and format characters become escapes such as `\x1b` and `\u202e`. A text with letters that
    run from right to left is isolated, so the text beside it keeps its place. `limit` is the most
    characters to show; 0 shows all.
    """
    if limit and len(text) > limit:
        text = f"{text[: limit - 1]}…"
    start, end = isolates(text)
    return f"{start}{escaped(text)}{end}"


def escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _KEPT else c.encode("unicode_escape").decode() for c in text
    )


def isolates(text: str) -> tuple[str, str]:
    """Returns the marks before and after a text that keep its order apart from the text beside it.

    They are empty if no letter of the text runs from right to left.
    """
    runs_left = any(unicodedata.bidirectional(character) in ("R", "AL") for character in text)
    return ("\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}") if runs_left else ("", "")
