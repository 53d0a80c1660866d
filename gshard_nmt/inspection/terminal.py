"""Writes the report of an inspection for a terminal."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console

from gshard_nmt.inspection import report as contents
from gshard_nmt.inspection.record import Inspection
from gshard_nmt.inspection.tables import Table
from gshard_nmt.quantities import size_text

_MOST_LINES = 12
_MOST_TEMPORARIES = 6
_LONGEST_SHAPE = 44


def report(inspection: Inspection, tokens: float) -> str:
    """Returns the whole report; the cost of a run is given for `tokens` training tokens."""
    lines = [
        *_head(inspection),
        *[f"note: {note}" for note in inspection.notes],
        "",
        *_memory(inspection),
    ]
    if inspection.has_program:
        lines += ["", *_communication(inspection), "", *_compute(inspection, tokens)]
    return "\n".join([*lines, "", _compilation(inspection)]) + "\n"


def _head(inspection: Inspection) -> list[str]:
    counts = inspection.counts
    return [
        f"{inspection.config}, one {inspection.step} step on {inspection.topology.name}: "
        f"{inspection.topology.num_devices:,} devices, mesh {contents.mesh_text(inspection)}",
        f"parameters: {counts.total:,}; {counts.active_per_token:,} active per token; "
        f"{counts.per_device:,} on each device",
    ]


def _memory(inspection: Inspection) -> list[str]:
    memory = contents.memory(inspection)
    lines = [_title(memory), table(memory.texts()), *_indented(contents.memory_lines(inspection))]
    if inspection.does_not_fit:
        lines += ["", *inspection.does_not_fit]
    temporaries = contents.temporaries(inspection)
    if temporaries.rows:
        lines.append(f"  {temporaries.title}:")
        lines.append(
            table(
                ("", size, shape[:_LONGEST_SHAPE], place)
                for shape, size, place in temporaries.texts()[:_MOST_TEMPORARIES]
            )
        )
    return lines


def _communication(inspection: Inspection) -> list[str]:
    kinds = contents.collective_kinds(inspection)
    if not kinds.rows:
        return [_title(kinds), "  none"]
    return [_title(kinds), _with_heads(kinds), *_expected(inspection), *_unexpected(inspection)]


def _expected(inspection: Inspection) -> list[str]:
    """Returns lines for the collectives that annotations, rules or arithmetic imply."""
    causes = contents.expected(inspection)
    lines = [f"  {causes.title}:"]
    for kind, count, shape, size, place, why in causes.texts()[:_MOST_LINES]:
        lines.append(f"    {_times(count)}{kind} {shape}, {size}, {place}: {why}")
    if rest := causes.select(["bytes"]).rows[_MOST_LINES:]:
        size = size_text(sum(int(row[0] or 0) for row in rest))
        lines.append(f"    and {len(rest)} more, {size} together (see --json)")
    return lines


def _unexpected(inspection: Inspection) -> list[str]:
    """Returns lines for all other collectives, with what may remove them; [] if there are none."""
    causes = contents.unexpected(inspection)
    if not causes.rows:
        return []
    lines = [f"  UNEXPECTED: {causes.about[0].lower()}{causes.about[1:-1]}:"]
    for kind, count, size, why, remedy in causes.texts()[:_MOST_LINES]:
        lines += [f"    {_times(count)}{kind}, {size}: {why}", f"      {remedy}"]
    if len(causes.rows) > _MOST_LINES:
        lines.append(f"    and {len(causes.rows) - _MOST_LINES} more (see --json)")
    return lines + _indented(contents.overrides_lines(inspection))


def _times(count: str) -> str:
    return "" if count == "1" else f"{count} x "


def _compute(inspection: Inspection, tokens: float) -> list[str]:
    work = contents.work(inspection)
    lines = [_title(work), f"  {contents.work_total(inspection)}"]
    if inspection.step_seconds is None:
        return [*lines, f"  {contents.prediction(inspection.topology)}"]
    sentences = [*contents.step_lines(inspection, tokens)]
    sentences.append(contents.prediction(inspection.topology))
    return [*lines, _with_heads(work), *_indented(sentences)]


def _compilation(inspection: Inspection) -> str:
    compilation = inspection.compilation
    text = f"COMPILATION: lowering {compilation.lower_seconds:.1f} s"
    if compilation.compile_seconds is not None:
        text += (
            f", compiling {compilation.compile_seconds:.1f} s "
            f"({compilation.compile_cpu_seconds:.1f} s of CPU time)"
        )
    if compilation.instructions is not None:
        text += f"; {compilation.instructions:,} instructions"
        if inspection.memory.code:
            text += f", {size_text(inspection.memory.code)} of code"
    return text


_GROWTH = (
    *("topology", "devices", "parameters", "instructions", "compile CPU", "peak", "all-to-all"),
    *("all-reduce", "step"),
)


def growth(inspections: Sequence[Inspection], tokens: float) -> str:
    """Returns a table of several topologies, and which figures stay constant from one to another."""
    figures = contents.summary(inspections, tokens).select(_GROWTH)
    lines = ["GROWTH with the number of devices", _with_heads(figures)]
    return "\n".join([*lines, *_indented(contents.verdicts(inspections))]) + "\n"


def _title(table: Table) -> str:
    """Returns the title with its first word in capitals."""
    first, _, rest = table.title.partition(" ")
    return f"{first.upper()} {rest}"


def _with_heads(contents: Table) -> str:
    return table([tuple(column.name for column in contents.columns), *contents.texts()])


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def table(rows: Iterable[Sequence[str]]) -> str:
    """Returns the rows as aligned columns; numbers and inner columns are aligned to the right."""
    cells_of_rows = [tuple(row) for row in rows]
    if not cells_of_rows:
        return ""
    widths = [max(map(len, column)) for column in zip(*cells_of_rows, strict=True)]
    lines = []
    for row in cells_of_rows:
        cells = [row[0].ljust(widths[0])]
        cells += [
            cell.ljust(width) if i == len(row) - 1 and not _numeric(cell) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row[1:], widths[1:], strict=True), start=1)
        ]
        lines.append(("    " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def _numeric(cell: str) -> bool:
    return cell[:1].isdigit() or cell in ("", "-")


@contextlib.contextmanager
def waiting(task: str) -> Iterator[None]:
    """Prints on stderr which task is running, and how long it took."""
    console = Console(stderr=True, highlight=False, markup=False)
    began = time.perf_counter()
    if console.is_terminal:
        with console.status(task + " ..."):
            yield
    else:
        yield
    console.print(f"{task}: {time.perf_counter() - began:.1f} s", markup=False, soft_wrap=True)
