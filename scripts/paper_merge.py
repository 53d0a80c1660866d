"""Keeps the rows of docs/paper_tables.md whose figures are not in the folder of the results.

The figures of all rows take hours to compile, and no machine keeps them forever. So a new page takes from
the old one every row that the folder lacks.
"""

import dataclasses
from collections.abc import Collection

KEY_CELLS = {
    "GSPMD table 4: narrow dense layers as pipelines": 2,
    "GSPMD table 5: Conformers": 4,
    "GSPMD table 8: 3D U-Net, split over space": 3,
}
"""Title of a section -> the number of first cells that identify a row. In other sections it is one."""

NOT_COMPILED = "not compiled"


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page, with at most one table.

    Attributes:
      title: its heading; the part before the first heading has the title "".
      before, after: the lines before and after the table.
      header: the header of the table and its ruler; empty if there is no table.
      rows: the rows of the table, by their first cells.
    """

    title: str
    before: tuple[str, ...]
    header: tuple[str, ...]
    rows: dict[tuple[str, ...], str]
    after: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join([*self.before, *self.header, *self.rows.values(), *self.after])


def sections(page: str) -> dict[str, Section]:
    blocks: list[list[str]] = [[]]
    for line in page.split("\n"):
        if line.startswith("## "):
            blocks.append([])
        blocks[-1].append(line)
    parsed = map(_section, blocks)
    return {section.title: section for section in parsed}


def _section(lines: list[str]) -> Section:
    title = lines[0].removeprefix("## ") if lines and lines[0].startswith("## ") else ""
    numbers = [i for i, line in enumerate(lines) if line.startswith("|")]
    if not numbers:
        return Section(title, tuple(lines), (), {}, ())
    first, end = numbers[0], numbers[-1] + 1
    rows = {key_of(line, title): line for line in lines[first + 2 : end]}
    header = tuple(lines[first : first + 2])
    return Section(title, tuple(lines[:first]), header, rows, tuple(lines[end:]))


def key_of(line: str, title: str) -> tuple[str, ...]:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return tuple(cells[: KEY_CELLS.get(title, 1)])


def merge(new: str, old: str, compiled: Collection[str], whole: Collection[str] = ()) -> str:
    """Returns the new page with the old page's rows that the new one has no figures for."""
    before = sections(old)
    merged = []
    for title, section in sections(new).items():
        known = before.get(title)
        if known is None:
            merged.append(section)
        elif title in whole:
            merged.append(known)
        else:
            merged.append(_with_rows(section, known, compiled))
    return "\n".join(section.text for section in merged)


def _with_rows(section: Section, known: Section, compiled: Collection[str]) -> Section:
    kept = {
        key: line
        for key, line in known.rows.items()
        if key[0] not in compiled and NOT_COMPILED in section.rows.get(key, NOT_COMPILED)
    }
    if not section.rows:
        return dataclasses.replace(section, header=known.header, rows=kept)
    if kept and section.header != known.header:
        raise ValueError(
            f"The table of '{section.title}' in docs/paper_tables.md has other columns than the script "
            f"writes, so {len(kept)} rows cannot be kept. Compile them again, or rename the columns on "
            "the page."
        )
    keys, order = list(section.rows), list(known.rows)
    for key in kept:
        if key not in keys:
            earlier = [keys.index(other) for other in order[: order.index(key)] if other in keys]
            keys.insert(max(earlier, default=-1) + 1, key)
    replaced = {
        key: line
        for key, line in kept.items()
        if NOT_COMPILED not in line or key not in section.rows
    }
    rows = {key: replaced.get(key) or section.rows[key] for key in keys}
    return dataclasses.replace(section, rows=rows)
