"""Writes docs/paper_tables.md from the figures in a folder, and keeps the rows that the folder lacks."""

import pathlib
from collections.abc import Mapping, Sequence

import paper_examples
import paper_merge
import paper_notes as notes
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
    paper_row,
    paper_section,
    recomputed_seconds,
    table,
    table4_section,
    time_section,
    usable,
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


def contradictions(figures: Mapping[str, Figures], kept: Mapping[str, list[str]]) -> str:
    """Returns a table of the rows whose predicted step differs much from the printed one, and why.

    Args:
      figures: the figures of the rows in the folder.
      kept: name -> cells of the rows that an earlier page had and the folder lacks.
    """
    lines, reasons = [], []
    for rows, reason in notes.REASONS:
        shown = []
        for row in rows:
            if row.name in kept:
                lines.append(kept[row.name])
                shown.append(row.name)
                continue
            row_figures = figures.get(row.name)
            paper = paper_row(row) if usable(row_figures) else None
            if paper is None:
                continue
            step = row_figures["estimated_step_seconds"]
            if 0.8 <= step / paper.step_seconds <= 1.25:
                continue
            without_recomputation = step - recomputed_seconds(row_figures)
            seconds = (
                paper.step_seconds,
                step,
                without_recomputation,
                flops_without_recomputation(row_figures) / V3_CORE_PEAK,
            )
            ratio = f"{step / paper.step_seconds:.2f}"
            lines.append([row.name, *(f"{value:.2f}" for value in seconds), ratio])
            shown.append(row.name)
        if shown:
            reasons.append(f"- {', '.join(shown)}: {reason}")
    header = ["step, s", "printed", "predicted", "without recomputation", "products at the peak"]
    return table([*header, "predicted / printed"], lines) + "\n" + "\n".join(reasons)


def write(folder: pathlib.Path, others: Sequence[str], page: pathlib.Path) -> None:
    """Writes the page from the figures in a folder, and the sections in `others`.

    A row without figures in the folder keeps those that the page already has.
    """
    figures, old = load(folder), page.read_text()
    grown = all(name in figures for _, name in GROWN)
    earlier = paper_merge.sections(old)["Contradictions"].rows
    kept = {
        name: [cell.strip() for cell in line.strip("|").split("|")]
        for (name,), line in earlier.items()
        if name not in figures
    }
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
    parts.append("## Contradictions\n\n" + notes.CONTRADICTS + "\n" + contradictions(figures, kept))
    parts.append(
        "Other differences from the papers:\n\n" + "\n".join(f"- {note}" for note in notes.KNOWN)
    )
    text = "\n".join(part.rstrip("\n") + "\n" for part in parts)
    text = paper_merge.merge(text, old, figures, () if grown else GROWTH_TITLES)
    rows = len(ROWS) + len(paper_examples.CONFORMERS) + len(paper_examples.UNETS)
    done = rows - text.count(f"| {paper_merge.NOT_COMPILED} |")
    page.write_text(text.replace("{done}", str(done)).replace("{rows}", str(rows)))
