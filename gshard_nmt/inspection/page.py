"""Writes the report of an inspection as one HTML page, with its figures and tables inside."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gshard_nmt import files, web_page
from gshard_nmt.inspection import figures, report
from gshard_nmt.inspection.record import Inspection
from gshard_nmt.inspection.tables import WORDS, Column, Table, Value, common_unit, side_by_side
from gshard_nmt.quantities import count_text, seconds_text, size_text

_LONG_TABLE = 12
"""A table with more rows is folded."""

_STYLE = """
nav a { margin-right: 1.2rem; }
h2 { border-bottom: 1px solid var(--line); }
tbody th { font-weight: 400; }
tfoot th, tfoot td { border-bottom: 0; }
tfoot tr:first-child > * { font-weight: 600; border-top: 2px solid var(--line); }
th.words { text-align: left; }
table.sortable td.words { min-width: 8rem; max-width: 30rem; white-space: normal; }
td.words { overflow-wrap: break-word; }
table.sortable td.words:last-child { min-width: 22rem; }
td.group { text-align: center; font-weight: 600; }
td.bar {
  background: linear-gradient(var(--interval), var(--interval)) no-repeat left / var(--share) 80%;
  print-color-adjust: exact;
}
.wide img { min-width: 40rem; box-sizing: border-box; }
"""


def write_page(inspections: Sequence[Inspection], tokens: float, file: Path) -> None:
    """Writes the page, which needs no network and no other file.

    Args:
      inspections: one config on one or more topologies.
      tokens: number of training tokens of the run whose cost the page gives.
    """
    # The name of a single topology stands in the title only.
    names = [inspection.topology.name for inspection in inspections]
    named = dict(zip(names if len(names) > 1 else [""], inspections, strict=True))
    compiled = {name: inspection for name, inspection in named.items() if inspection.has_program}
    sections = {
        "Summary": _summary(named, tokens),
        "Memory": _memory(named),
        "Communication": _communication(compiled),
        "Compute": _compute(compiled, tokens),
    }
    shown = {name.lower(): part for name, part in sections.items() if part}
    links = " ".join(f"<a href='#{name}'>{name.capitalize()}</a>" for name in shown)
    body = [
        f"<nav aria-label='Contents'>{links}</nav>",
        *(_alarm(name, inspection) for name, inspection in named.items()),
        *(f"<section id='{name}'>{part}</section>" for name, part in shown.items()),
        # The script and most of the style are those of evaluation reports.
        web_page.script(web_page.template("report.js")),
    ]
    style = web_page.template("report.css") + _STYLE
    title = f"{inspections[0].config} on {', '.join(names)}"
    files.write(file, web_page.page(title, _headline(inspections[-1]), "\n".join(body), style))


def _headline(inspection: Inspection) -> str:
    headline = (
        f"{count_text(inspection.counts.total)} parameters; one {inspection.step} step "
        f"{'fits' if inspection.fits else 'does not fit'}: {size_text(inspection.memory.peak)} on "
        f"each of {inspection.topology.num_devices:,} devices"
    )
    if inspection.step_seconds:
        headline += f", {seconds_text(inspection.step_seconds)} predicted"
    return headline


def _alarm(name: str, inspection: Inspection) -> str:
    """Returns a box if a program does not fit, or has unexpected collectives; "" otherwise."""
    lines = list(inspection.does_not_fit)
    if count := len(report.unexpected(inspection).rows):
        lines.append(f"unexpected collectives: {count:,}, see Communication")
    return f"<div class='alarms'>{_paragraphs(lines, name)}</div>" if lines else ""


def _summary(named: Mapping[str, Inspection], tokens: float) -> str:
    inspections = list(named.values())
    summary = report.summary(inspections, tokens)
    parts = [_heading(summary), _facts(summary)]
    for name, inspection in named.items():
        parts.append(_paragraphs([f"note: {note}" for note in inspection.notes], name))
    alt = "memory of a device by category, and time of a step by kind of work"
    parts.append(figures.image(figures.costs, inspections, alt))
    if len(inspections) > 1:
        parts.append("<h3>What grows with the number of devices</h3>")
        parts.append(figures.image(figures.growth, inspections, "growth with devices"))
        parts.append(_paragraphs(report.verdicts(inspections)))
    return "\n".join(parts)


def _memory(named: Mapping[str, Inspection]) -> str:
    parts = [_compared(report.memory, named)]
    for name, inspection in named.items():
        parts.append(_paragraphs(report.memory_lines(inspection), name))
        parts.append(_detail(report.temporaries(inspection), name, folded=True))
    return "\n".join(parts)


def _communication(compiled: Mapping[str, Inspection]) -> str:
    if not compiled:
        return ""
    parts = [_compared(report.collective_kinds, compiled)]
    for name, inspection in compiled.items():
        unexpected, causes = report.unexpected(inspection), report.expected(inspection)
        if unexpected.rows:
            lines = _paragraphs(report.overrides_lines(inspection))
            parts.append(f"<div class='unasked'>{_detail(unexpected, name)}{lines}</div>")
        parts.append(_detail(causes, name, folded=len(causes.rows) > _LONG_TABLE))
        parts.append(_detail(report.every_collective(inspection), name, folded=True))
    return "\n".join(parts)


def _compute(compiled: Mapping[str, Inspection], tokens: float) -> str:
    if not compiled:
        return ""
    timed = {name: inspection for name, inspection in compiled.items() if inspection.step_seconds}
    parts = [_compared(report.work, timed)] if timed else ["<h2>Compute</h2>"]
    for name, inspection in compiled.items():
        lines = [report.work_total(inspection), *report.step_lines(inspection, tokens)]
        parts.append(_paragraphs(lines, name))
    predictions = (report.prediction(i.topology) for i in (timed or compiled).values())
    parts.append(_paragraphs(dict.fromkeys(predictions)))
    return "\n".join(parts)


def _paragraphs(lines: Iterable[str], name: str = "") -> str:
    """Returns lines as paragraphs. The name of a topology comes first."""
    prefix = f"<b>{html.escape(name)}</b>: " if name else ""
    return "\n".join(f"<p>{prefix}{html.escape(line)}</p>" for line in lines)


def _heading(table: Table) -> str:
    return f"<h2>{html.escape(table.title)}</h2><p>{html.escape(table.about)}</p>"


def _compared(table_of: Callable[[Inspection], Table], named: Mapping[str, Inspection]) -> str:
    """Returns one table for all topologies, with its title."""
    table = side_by_side({name: table_of(inspection) for name, inspection in named.items()})
    return _heading(table) + _table(table)


def _detail(table: Table, name: str, folded: bool = False) -> str:
    """Returns a table of one topology that a click folds and unfolds; "" for an empty table."""
    if not table.rows:
        return ""
    title = f"{table.title[0].upper()}{table.title[1:]}" + f", {name}" * bool(name)
    return (
        f"<details{'' if folded else ' open'}><summary>{html.escape(title)} ({len(table.rows):,})"
        f"</summary><p>{html.escape(table.about)}</p>{_table(table)}</details>"
    )


def _facts(table: Table) -> str:
    """Returns a table with a row for each column of `table`, and a column for each of its rows."""
    rows = []
    for place, column in enumerate(table.columns[1:], start=1):
        values = [row[place] for row in table.rows]
        if any(value is not None for value in values):
            unit = common_unit(values, column.kind) if column.kind.units else ("", 1, "")
            cells = "".join(_cell(value, column, unit, with_bar=False) for value in values)
            rows.append(f"<tr><th scope='row'>{_head(column, unit)}</th>{cells}</tr>")
    heads = "".join(f"<th scope='col'>{html.escape(str(row[0]))}</th>" for row in table.rows)
    head = html.escape(table.columns[0].name)
    return (
        f"<div class='wide'><table class='summary'><thead><tr><th scope='col'>{head}</th>{heads}</tr>"
        "</thead><tbody>" + "\n".join(rows) + "</tbody></table></div>"
    )


def _table(table: Table) -> str:
    """Returns a table that a click on a headline sorts. Totals stay below the other rows."""
    units = _units(table)
    heads = "".join(
        f"<th scope='col' data-kind='{'number' if column.kind.units else 'text'}'"
        f"{' class=words' if column.kind is WORDS else ''}>{_head(column, unit)}</th>"
        for column, unit in zip(table.columns, units, strict=True)
    )
    body, foot = (
        "\n".join(_row(row, table.columns, units) for row in rows)
        for rows in (table.rows, table.totals)
    )
    return (
        f"<div class='wide'><table class='sortable'><thead>{_groups(table.columns)}<tr>{heads}</tr>"
        f"</thead><tbody>\n{body}\n</tbody>{foot and f'<tfoot>{foot}</tfoot>'}</table></div>"
    )


_Unit = tuple[str, float, str]
"""Name, size and format of a unit."""


def _units(table: Table) -> list[_Unit]:
    """Returns the unit of each column. Columns with equal names have equal units."""
    values: dict[str, list[Value]] = {}
    # The first total is the sum of the rows. Others, such as the memory of the device, may be far larger.
    for row in (*table.rows, *table.totals[:1]):
        for column, value in zip(table.columns, row, strict=True):
            values.setdefault(column.name, []).append(value)
    return [
        common_unit(values.get(column.name, ()), column.kind) if column.kind.units else ("", 1, "")
        for column in table.columns
    ]


def _groups(columns: Sequence[Column]) -> str:
    """Returns the row above the headlines that names the topologies; "" for one topology."""
    counts: dict[str, int] = {}
    for column in columns:
        counts[column.group] = counts.get(column.group, 0) + 1
    if len(counts) == 1:
        return ""
    # These are no <th>, because a <th> of the head sorts the table.
    cells = (f"<td class='group' colspan='{n}'>{html.escape(g)}</td>" for g, n in counts.items())
    return f"<tr>{''.join(cells)}</tr>"


def _head(column: Column, unit: _Unit) -> str:
    return html.escape(f"{column.name} ({unit[0]})" if unit[0] else column.name)


def _row(row: Sequence[Value], columns: Sequence[Column], units: Sequence[_Unit]) -> str:
    cells = (
        _cell(value, column, unit)
        for value, column, unit in zip(row[1:], columns[1:], units[1:], strict=True)
    )
    return f"<tr><th scope='row'>{html.escape(str(row[0]))}</th>{''.join(cells)}</tr>"


def _cell(value: Value, column: Column, unit: _Unit, with_bar: bool = True) -> str:
    """Returns a cell. A number is written in the unit of its column, and has its exact value too."""
    if value is None:
        return "<td>–</td>"
    if isinstance(value, str):
        kind = " class='words'" if column.kind is WORDS else ""
        return f"<td{kind}>{html.escape(value)}</td>"
    _, size, form = unit
    has_bar = with_bar and column.kind.is_share
    bar = f" class='bar' style='--share:{value:.1%}'" if has_bar else ""
    return f"<td{bar} data-value='{value}'>{_number(value / size, form)}</td>"


def _number(value: float, form: str) -> str:
    """Returns a number as text. A small one is not shown as zero."""
    words = format(value, form)
    least = format(0, form)[:-1] + "1"
    return f"&lt; {least}" if value > 0 and not words.strip("0.") else words
