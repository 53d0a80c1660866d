"""The lines of docs/paper_tables.md that compare rows of its tables with what the papers say of them."""

import math
import re
from collections.abc import Iterator

Rows = dict[str, list[str]]

MEASURED_ROOFLINE = {"moe_2048e_36l": 0.48, "moe_128e_36l": 0.7}
"""GShard section 5.2: the measured share of the roofline; "more than" for 128 experts."""


def rows_of(page: str, section: str, key_cells: int = 1) -> Rows:
    """Returns the cells of each line of a section's table by its first cells."""
    text = page.split(f"\n## {section}")[1].split("\n## ")[0]
    lines = [line[2:-2].split(" | ") for line in text.split("\n") if line.startswith("| ")]
    return {" | ".join(cells[:key_cells]): cells for cells in lines[1:]}


def number(cell: str) -> float:
    """Returns the number that a cell begins with, or infinity for "-"."""
    found = re.match(r"[\d.,]*\d", cell)
    return float(found[0].replace(",", "")) if found else float("inf")


def facts(page: str) -> Iterator[tuple[str, str]]:
    """Yields the beginning of a line of the page, and the rest of it."""
    yield from _costs(rows_of(page, "GShard: tables"), rows_of(page, "Time of the whole step"))
    yield from _pipelines(rows_of(page, "GSPMD table 4", 2), rows_of(page, "GSPMD table 3"))
    rows = rows_of(page, "From 8 cores to 2,048")
    instructions, memory, seconds = (
        number(rows["2,048"][i]) / number(rows["8"][i]) for i in (2, 5, 7)
    )
    yield "instructions of the compiled program", f"{instructions - 1:+.1%} from 8 to 2,048 cores"
    yield "memory of a core", f"{memory - 1:+.1%} from 8 to 2,048 cores"
    yield "all-to-all time", f"{seconds:.1f} times; the root of the number of devices 16 times"
    first, last = (rows_of(page, "GSPMD table 6")[f"gspmd_moe_{n}"] for n in ("10b", "577b"))
    ratios = [number(last[i]) / number(first[i]) for i in (6, 7, 12)]
    text = "printed {:.2f} times, predicted {:.2f} times, without recomputation {:.2f} times"
    yield "growth of the step from 10B to 577B", text.format(*ratios)


def _costs(models: Rows, times: Rows) -> Iterator[tuple[str, str]]:
    """Compares the cost of the largest and of the smallest model of 36 layers (Figure 1)."""
    large, small = MEASURED_ROOFLINE
    printed, predicted = (number(models[large][i]) / number(models[small][i]) for i in (9, 10))
    slower = {
        name: number(times[name][-1]) / 100 / share for name, share in MEASURED_ROOFLINE.items()
    }
    days, shares = number(models[large][12]), predicted * slower[large] / slower[small]
    halved = shares * number(models[small][6]) / number(models[f"{small}_half"][6])
    yield (
        "600B in 4 days",
        f"predicted {days:.1f} days, or {days * slower[large]:.1f} at 48% of the roofline, which "
        f"section 5.2 measured, in place of {times[large][-1]}",
    )
    yield (
        "cost of 16 times the weights (Table 3; Figure 1 prints 3.6)",
        f"printed {printed:.1f} times, predicted {predicted:.2f} times; {shares:.1f} times at 48% "
        f"and 70% of the roofline (section 5.2), and {halved:.1f} times if moreover 128 experts had "
        "half of the printed batch",
    )


def _pipelines(rows: Rows, flat: Rows) -> Iterator[tuple[str, str]]:
    """Compares pipelines with each other and with the mesh 32 x 8 without a pipeline (section 5.2)."""
    measured = [cells for cells in rows.values() if number(cells[4]) < float("inf")]
    printed, predicted = ([number(cells[i]) for cells in measured] for i in (4, 5))
    orders = [sorted(range(1, 6), key=lambda i, x=x: x[i - 1]) for x in (printed, predicted)]
    yield "the paper's rows, fastest first", "printed {}, predicted {}".format(*orders)
    best = min(
        (number(cells[5]) / math.prod(map(int, re.findall(r"\d+", cells[1]))), key)
        for key, cells in rows.items()
        if "not" not in cells[3] and "circular" not in key
    )
    cells = flat["gspmd_narrow_32x8"]
    pairs = ((min(printed) / 1024, 6), (best[0], 12), (best[0], 7))
    text = "printed {:.2f}, predicted {:.2f}, and {:.2f} if the other recomputes too; fastest is {}"
    ratios = [seconds / (number(cells[i]) / 192) for seconds, i in pairs]
    yield (
        "time of a sequence in the fastest GPipe that fits, divided by that of gspmd_narrow_32x8",
        text.format(*ratios, best[1].replace(" |", ",")),
    )
