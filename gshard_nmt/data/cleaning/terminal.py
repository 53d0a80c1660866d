"""The console that the verbs print to, and their tables."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


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
    for number, name in enumerate(header):
        if number == 0:
            table.add_column(name, overflow="fold")
        else:
            lines = name.replace(" ", "\n", 1)
            table.add_column(lines, justify="right", vertical="bottom", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
