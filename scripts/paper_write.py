"""Writes docs/paper_tables.md from the figures in a folder, and keeps the rows that the folder lacks."""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

import paper_examples
import paper_merge
import paper_notes as notes
from paper_merge import KEY_CELLS, Section
from paper_page import (
    GROWN,
    V3_CORE_PEAK,
    Figures,
    collectives_section,
    flops_without_recomputation,
    forward_section,
    growth_section,
    load,
    memory_section,
    paper_section,
    recomputed_seconds,
    table,
    table4_section,
    time_section,
)
from paper_rows import (
    GSPMD_DENSE,
    GSPMD_HYBRID,
    GSPMD_MOE,
    GSPMD_NARROW,
    ROWS,
    TRANSLATION,
)

GROWTH_TITLES = (
    "From 8 cores to 2,048 (Figure 2, and the growth of Figures 7 and 9)",
    "Time of the layers, forward (Figure 8)",
)
"""Sections whose words compare rows: they change when the folder has all rows of them."""


LOWEST, HIGHEST = 0.8, 1.25
"""A predicted figure contradicts the printed one if their ratio is outside these bounds."""


def _cells(section: Section) -> dict[tuple[str, ...], dict[str, str]]:
    """Returns the rows of a section's table: column -> cell, by the first cells.

    A column "predicted" or "compiled" has the name of the printed column before it.
    """
    names: list[str] = []
    for name in map(str.strip, section.header[0].strip("|").split("|") if section.header else ()):
        after = names[-1] if names else ""
        is_pair = name in ("predicted", "compiled") and after.endswith(", printed")
        names.append(after.removesuffix(", printed").split(",")[0] if is_pair else name)
    rows = {}
    for key, line in section.rows.items():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[key] = dict(zip(names, cells, strict=True))
    return rows


def _number(cell: str) -> float | None:
    match = re.match(r"[\d,]*\.?\d+", cell)
    return float(match[0].replace(",", "")) if match else None


def ratios(sections: Mapping[str, Section], figure: str) -> Iterator[tuple[str, float, float]]:
    """Yields (row, printed, compiled) of every row of the page that has both."""
    for title, section in sections.items():
        for key, cells in _cells(section).items():
            printed = _number(cells.get(f"{figure}, printed", ""))
            compiled = _number(cells.get(figure, ""))
            if printed and compiled:
                name = key[0]
                if title in KEY_CELLS:
                    name = f"{title.partition(':')[0]}: {', '.join(key)}"
                yield name, printed, compiled


def contradictions(
    sections: Mapping[str, Section], figures: Mapping[str, Figures], old: Section
) -> str:
    """Returns the tables of the rows of a page that differ much from the printed ones, and why."""
    known = {
        key[0]: [cell.strip() for cell in line.split("|")[4:6]] for key, line in old.rows.items()
    }
    lines, reasons = [], {}
    for figure in ("step s", "TFLOP"):
        for name, printed, compiled in ratios(sections, figure):
            if LOWEST <= compiled / printed <= HIGHEST:
                continue
            more = known.get(name, ["-", "-"]) if figure == "step s" else ["-", "-"]
            row_figures = figures.get(name)
            if figure == "step s" and row_figures is not None:
                step = row_figures["estimated_step_seconds"] - recomputed_seconds(row_figures)
                products = flops_without_recomputation(row_figures) / V3_CORE_PEAK
                more = [f"{step:.2f}", f"{products:.2f}"]
            what = name if figure == "step s" else f"{figure} of {name}"
            ratio = f"{compiled / printed:.2f}"
            lines.append([what, f"{printed:.4g}", f"{compiled:.4g}", *more, ratio])
            pattern = next(pattern for pattern in notes.REASONS if re.fullmatch(pattern, name))
            reasons.setdefault(notes.REASONS[pattern], {})[name] = None
    header = ["step in s, or TFLOP", "printed", "predicted", "without recomputation"]
    header += ["products at the peak", "predicted / printed"]
    words = [f"- {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return table(header, lines) + "\n" + "\n".join(words)


def write(folder: pathlib.Path, others: Sequence[str], page: pathlib.Path) -> None:
    """Writes the page from the figures in a folder, and the sections in `others`.

    A row without figures in the folder keeps those that the page already has.
    """
    figures, old = load(folder), page.read_text()
    grown = all(name in figures for _, name in GROWN)
    parts = [notes.HEAD]
    parts.append(
        paper_section(
            "GShard: tables 1 and 3, T(96L) and T(128L)",
            TRANSLATION,
            figures,
            notes.GSHARD_ABOUT,
        )
    )
    parts.append("## Memory of a core (Figure 7)\n\n" + notes.FIGURE7)
    parts.append(memory_section(figures))
    parts.append(
        "## From 8 cores to 2,048 (Figure 2, and the growth of Figures 7 and 9)\n\n" + notes.GROWS
    )
    parts.append(growth_section(figures))
    parts.append("## Time of the layers, forward (Figure 8)\n\n" + notes.FIGURE8)
    parts.append(forward_section(figures))
    parts.append("## Time of the whole step\n\n" + notes.STEP)
    parts.append(time_section(figures))
    parts.append("## Collectives against the number of cores (Figure 9)\n\n" + notes.LINKS)
    parts.append(collectives_section())
    parts.append("## The operators of table 4\n\n" + notes.TABLE4)
    parts.append(table4_section(folder))
    for title, rows in (
        ("GSPMD table 2: wide dense layers", GSPMD_DENSE),
        ("GSPMD table 3: narrow dense layers", GSPMD_NARROW),
        ("GSPMD table 6: sparse experts", GSPMD_MOE),
        ("GSPMD table 7: hybrid", GSPMD_HYBRID),
    ):
        parts.append(paper_section(title, rows, figures, notes.GSPMD))
    parts += others
    parts.append(paper_examples.sections(folder))
    text = "\n".join(part.rstrip("\n") + "\n" for part in parts)
    text = paper_merge.merge(text, old, figures, () if grown else GROWTH_TITLES)
    sections = paper_merge.sections(text)
    listed = contradictions(sections, figures, paper_merge.sections(old)["Contradictions"])
    text += "\n".join(["", "## Contradictions\n", notes.CONTRADICTS, f"{listed}\n"])
    text += "\nOther differences from the papers:\n\n"
    text += "\n".join(f"- {note}" for note in notes.KNOWN) + "\n"
    rows = len(ROWS) + len(paper_examples.CONFORMERS) + len(paper_examples.UNETS)
    done = rows - text.count(f"| {paper_merge.NOT_COMPILED} |")
    page.write_text(text.replace("{done}", str(done)).replace("{rows}", str(rows)))
