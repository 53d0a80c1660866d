"""Tables of a report, with typed columns: a terminal and a web page write them in their own ways."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from gshard_nmt.quantities import flops_text, size_text

Value = str | float | None
"""A cell: text, a number in the base unit of its column, or None if it is unknown."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """How the values of a column are written."""

    text: Callable[[float], str]  # writes a number with its unit
    # (name, size, format) of the units for a whole column, the largest first; () for text
    units: Sequence[tuple[str, float, str]]
    is_share: bool = False  # whether the numbers are shares, which a page also shows as bars


WORDS = Kind(str, ())
LABEL = Kind(str, ())
"""Short text, aligned as numbers are."""
COUNT = Kind("{:,}".format, (("", 1, ",.0f"),))
BYTES = Kind(
    size_text,
    [
        *(("GiB", 2**30, ",.2f"), ("MiB", 2**20, ",.2f"), ("KiB", 2**10, ",.2f")),
        ("B", 1, ",.0f"),
    ],
)
FLOPS = Kind(
    flops_text,
    [
        *(("TFLOP", 1e12, ",.2f"), ("GFLOP", 1e9, ",.2f"), ("MFLOP", 1e6, ",.2f")),
        ("FLOP", 1, ",.0f"),
    ],
)
MILLISECONDS = Kind(lambda value: f"{value * 1e3:,.2f} ms", (("ms", 1e-3, ",.2f"),))
MICROSECONDS = Kind(lambda value: f"{value * 1e6:,.1f} us", (("us", 1e-6, ",.1f"),))
RATE = Kind(lambda value: f"{value / 1e9:,.2f} GB/s", (("GB/s", 1e9, ",.2f"),))
RATIO = Kind("{:.2f}".format, (("", 1, ",.2f"),))
STEP_SECONDS = Kind("{:.3f} s".format, (("s", 1, ",.3f"), ("ms", 1e-3, ",.2f")))
LONG_SECONDS = Kind("{:.0f} s".format, (("s", 1, ",.1f"),))
SHARE = Kind("{:.1%}".format, (("%", 0.01, ",.1f"),), is_share=True)
YEARS = Kind("{:,.1f}".format, (("", 1, ",.2f"),))


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str  # its headline, without a unit
    kind: Kind = WORDS  # how its values are written
    group: str = ""  # the topology that it belongs to, in a table that compares topologies


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report."""

    title: str  # what it is called
    about: str  # one or two sentences that say what it shows; a page prints them above the table
    columns: Sequence[Column]  # its columns. The first one names the row.
    rows: Sequence[Sequence[Value]]  # the cells of each row
    # rows below these. They keep their places when a reader sorts the table. The first of them is
    # the sum of the rows.
    totals: Sequence[Sequence[Value]] = ()

    def select(self, names: Sequence[str]) -> "Table":
        """Returns the table with some of its columns, in the order of their names."""
        places = [[column.name for column in self.columns].index(name) for name in names]

        def chosen(row: Sequence) -> list:
            return [row[place] for place in places]

        rows, totals = ([chosen(row) for row in part] for part in (self.rows, self.totals))
        return dataclasses.replace(self, columns=chosen(self.columns), rows=rows, totals=totals)

    def texts(self) -> list[tuple[str, ...]]:
        """Returns the cells of all rows as text, each with its own unit."""
        return [
            tuple(text(value, column.kind) for value, column in zip(row, self.columns, strict=True))
            for row in (*self.rows, *self.totals)
        ]


def text(value: Value, kind: Kind) -> str:
    """Returns a value as text with its unit; "-" if it is unknown."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else kind.text(value)


def share(part: float, whole: float) -> float | None:
    """Returns part / whole; None if the whole is 0."""
    return part / whole if whole else None


def common_unit(values: Iterable[Value], kind: Kind) -> tuple[str, float, str]:
    """Returns the unit that suits all values of a column: the largest value is 1 or more."""
    largest = max((abs(value) for value in values if isinstance(value, int | float)), default=0)
    return next((unit for unit in kind.units if largest >= unit[1]), kind.units[-1])


def side_by_side(tables: Mapping[str, Table]) -> Table:
    """Returns one table for all topologies. A row has the cells of all rows with its name.

    Args:
      tables: the same table of each topology, by the name of the topology.
    """
    first = next(iter(tables.values()))
    columns = [first.columns[0]]
    for name, table in tables.items():
        columns += [dataclasses.replace(column, group=name) for column in table.columns[1:]]
    rows = _joined([table.rows for table in tables.values()], len(first.columns) - 1)
    totals = _joined([table.totals for table in tables.values()], len(first.columns) - 1)
    return dataclasses.replace(first, columns=columns, rows=rows, totals=totals)


def _joined(parts: Sequence[Sequence[Sequence[Value]]], width: int) -> list[list[Value]]:
    """Returns one row for each name. A part without that name gets `width` empty cells."""
    by_name = [{row[0]: row[1:] for row in part} for part in parts]
    names = dict.fromkeys(row[0] for part in parts for row in part)
    return [
        [name, *(cell for rows in by_name for cell in rows.get(name, [""] * width))]
        for name in names
    ]
