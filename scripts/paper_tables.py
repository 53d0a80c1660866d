#!/usr/bin/env python3
"""Compiles the models of the GShard, GSPMD and Switch papers for the papers' own machines, and fills
docs/paper_tables.md, which compares the printed figures with the compiled ones.

    .venv/bin/python scripts/paper_tables.py               # compiles the rows without figures
    .venv/bin/python scripts/paper_tables.py --only 2048e  # rows whose name contains the word

It needs libtpu (make tpu), 8 GiB of memory, and one to three minutes a row, but no TPU. The figures of
a row are kept in runs/paper_tables/NAME.json, and a row with figures is not compiled again. The words of
the page, the papers' figures, and rows without figures stay. "operators" and "strategies" are names too.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts import paper_facts, paper_layers  # noqa: E402
from scripts.paper_rows import ROWS, Row  # noqa: E402

PAGE = ROOT / "docs" / "paper_tables.md"
LOWEST, HIGHEST = 0.8, 1.25
"""A predicted figure contradicts the printed one if their ratio is outside these bounds."""
KEY_CELLS = {"GSPMD table 4": 2, "GSPMD table 5": 4, "GSPMD table 8": 3}
"""The beginning of a section's title -> the number of cells that name a row there; elsewhere one."""
LAYERS = {"operators": paper_layers.operator_lines, "strategies": paper_layers.strategy_lines}


def compile_row(row: Row, file: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, *row.command, "--json", str(file)]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode:
        # A signal means that the machine ended it, often for its memory.
        print(f"{row.name}: exit code {process.returncode}, no figures\n{process.stderr[-1000:]}")
        return
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime
    figures = json.loads(file.read_text()) | {"cpu_seconds": round(seconds, 1)}
    file.write_text(json.dumps(figures, indent=1) + "\n")


def fill(page: str, section: str, key: str, cells: Mapping[int, str]) -> str:
    """Returns the page with new cells in the line of a section that begins with `key`."""
    start = page.find(f"\n## {section}")
    begin = page.find(f"\n| {key} |", start) + 1
    if start < 0 or not begin or "\n## " in page[start + 1 : begin]:
        raise SystemExit(
            f"docs/paper_tables.md: '{section}' has no row '{key}'; write its line there"
        )
    end = page.index("\n", begin)
    line = page[begin + 2 : end - 2].split(" | ")
    for column, text in cells.items():
        line[column] = text
    return f"{page[:begin]}| {' | '.join(line)} |{page[end:]}"


def compared(page: str, figure: str) -> Iterator[tuple[str, float, float]]:
    """Yields (row, printed, compiled) of every row of the page that has both."""
    for section in page.split("\n## ")[1:]:
        header, _, *lines = re.findall(r"^\| (.*) \|$|^\|---.*$", section, re.M) or ("", "")
        names = header.split(" | ")
        if f"{figure}, printed" not in names:
            continue
        column = names.index(f"{figure}, printed")
        title = next((title for title in KEY_CELLS if section.startswith(title)), "")
        for line in lines:
            cells = line.split(" | ")
            numbers = list(map(paper_facts.number, cells[column : column + 2]))
            if max(numbers) < float("inf"):
                name = f"{title}: {', '.join(cells[: KEY_CELLS[title]])}" if title else cells[0]
                yield name, *numbers


def with_contradictions(page: str) -> str:
    """Returns the page with the table of the rows that differ much from the printed ones."""
    start = page.index("\n## Contradictions")
    begin = page.index("\n", page.index("|---", start)) + 1
    end = page.index("\n\n", begin) + 1
    lines = [
        f"| {prefix}{name} | {printed:.4g} | {compiled:.4g} | {compiled / printed:.2f} |\n"
        for figure, prefix in (("step s", ""), ("TFLOP", "TFLOP of "))
        for name, printed, compiled in compared(page[:start], figure)
        # Table 8 says of itself how its TFLOP differ.
        if not LOWEST <= compiled / printed <= HIGHEST and not (prefix and "table 8" in name)
    ]
    return page[:begin] + "".join(lines) + page[end:]


def totals(page: str) -> Iterator[tuple[str, str]]:
    """Yields how many printed figures are predicted well, as `paper_facts.facts` does."""
    tables = page[: page.index("\n## Contradictions")]
    ours = ("_half", "_gpipe")  # half of a batch, a schedule of our choice
    rows = [row for row in compared(tables, "step s") if not row[0].endswith(ours)]
    steps = [compiled / printed for _, printed, compiled in rows]
    wrong = [ratio for ratio in steps if not LOWEST <= ratio <= HIGHEST]
    yield (
        "steps",
        f"{len(steps)} are printed; {len(steps) - len(wrong)} are predicted within {LOWEST} to "
        f"{HIGHEST} times, the others at {min(wrong):.2f} to {max(wrong):.2f} times",
    )
    memory = [gib * 2**30 / 1e9 / gb for _, gb, gib in compared(tables, "GB")]
    bounds = f"{min(memory):.2f} to {max(memory):.2f} times"
    yield "memory", f"{len(memory)} are printed; the compiled ones are {bounds}"


def rewrite(page: Path, lines: Iterable[paper_layers.Line]) -> None:
    text = page.read_text()
    for section, key, cells in lines:
        text = fill(text, section, key, cells)
    page.write_text(with_facts(with_contradictions(text)))


def with_facts(page: str) -> str:
    """Returns the page with its computed lines, such as "- growth of the step: 1.2 times."."""
    for name, text in (*paper_facts.facts(page), *totals(page)):
        page, lines = re.subn(rf"^- {re.escape(name)}: .*", f"- {name}: {text}.", page, flags=re.M)
        assert lines == 1, f"docs/paper_tables.md needs one line that begins with '- {name}: '"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--only", default="", help="compile only rows whose name contains this word")
    add("--folder", default=ROOT / "runs" / "paper_tables", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        file = arguments.folder / f"{row.name}.json"
        if arguments.only in row.name and not file.exists():
            print(f"{' '.join(row.command)} ...", flush=True)
            compile_row(row, file)
        if not file.exists():
            continue
        figures = json.loads(file.read_text())
        if figures.get("program_instructions", 1) is None:
            print(f"{row.name} does not fit, so there is no program. Its line stays as it is.")
            continue
        rewrite(PAGE, ((*place, of(figures)) for *place, of in row.fills))
    for name, lines in LAYERS.items():
        if arguments.only in name:
            rewrite(PAGE, lines())
    rewrite(PAGE, paper_layers.links_lines())


if __name__ == "__main__":
    main()
