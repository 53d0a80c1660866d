#!/usr/bin/env python3
"""Compiles the models of the GShard and GSPMD papers for the papers' own machines, and writes
docs/paper_tables.md: what the papers print beside what the compiler says.

    .venv/bin/python scripts/paper_tables.py               # everything that has no result yet
    .venv/bin/python scripts/paper_tables.py --only 2048e  # rows whose name holds the word
    .venv/bin/python scripts/paper_tables.py --write       # only the page, from what is there

Needs libtpu (pip install -e '.[tpu]'), no TPU, 8 GiB of memory, and one to three minutes a row. Each
row is a process of gshard-inspect; its figures are kept in runs/paper_tables/, and a row that has
them is not compiled again. `--again` forgets them.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = "import sys; from gshard_nmt import cli; sys.exit(cli.inspect_program())"


@dataclasses.dataclass(frozen=True)
class Row:
    """One model on one machine.

    Attributes:
      name: of the row, and of the file of its figures.
      config: of configs/experiments.
      topology: TPU v3 cores, two a chip.
      settings: over the config's.
      scaled: whether experts, groups and rows follow the number of devices.
    """

    name: str
    config: str
    topology: str
    settings: tuple[str, ...] = ()
    scaled: bool = False


def _mesh(x: int, y: int, rows: int) -> tuple[str, ...]:
    return (f"X = {x}", f"Y = {y}", f"ROWS = {rows}")


POD = {32: "v3:4x4", 64: "v3:4x8", 128: "v3:8x8", 256: "v3:8x16", 512: "v3:16x16", 2048: "v3:32x32"}
"""Slices of so many cores."""

GSHARD = [
    Row(name, name, POD[cores])
    for name, cores in (
        ("moe_2048e_36l", 2048),
        ("moe_128e_36l", 128),
        ("moe_512e_36l", 512),
        ("moe_2048e_12l", 2048),
        ("moe_512e_12l", 512),
        ("moe_128e_12l", 128),
        ("moe_2048e_60l", 2048),
        ("dense_96l", 2048),
    )
]
# From 8 cores to 2048 with one expert a core, 16 rows and one group a core, as in the paper's model.
GROWTH = [
    Row(f"growth_{cores}", "moe_2048e_36l", topology, scaled=True)
    for cores, topology in ((8, "v3:2x2"), (128, "v3:8x8"), (512, "v3:16x16"), (32, "v3:4x4"))
]
GSPMD_DENSE = [
    Row("gspmd_dense_64b", "gspmd_dense_64b", POD[128]),
    Row("gspmd_dense_64b_512", "gspmd_dense_64b", POD[512], _mesh(16, 32, 256)),
    Row("gspmd_dense_64b_2048", "gspmd_dense_64b", POD[2048], _mesh(32, 64, 1024)),
    *(
        Row(f"gspmd_dense_{n}", f"gspmd_dense_{n}", POD[2048])
        for n in ("128b", "256b", "512b", "1t")
    ),
]
GSPMD_NARROW = [
    Row(f"gspmd_narrow_{x}x{y}", "gspmd_narrow_16b", POD[x * y], _mesh(x, y, rows))
    for x, y, rows in (
        (4, 16, 48),
        (8, 16, 96),
        (8, 32, 192),
        (16, 4, 48),
        (16, 8, 96),
        (32, 8, 192),
    )
]
GSPMD_MOE = [
    Row(f"gspmd_moe_{n}", f"gspmd_moe_{n}", POD[cores])
    for n, cores in (("10b", 32), ("37b", 128), ("145b", 512), ("577b", 2048))
]
GSPMD_HYBRID = [
    Row(f"gspmd_hybrid_{n}", f"gspmd_hybrid_{n}", POD[cores])
    for n, cores in (("33b", 32), ("57b", 128), ("420b", 512), ("804b", 2048))
]
ROWS = [*GSHARD[:3], *GROWTH, *GSHARD[3:], *GSPMD_MOE, *GSPMD_DENSE, *GSPMD_NARROW, *GSPMD_HYBRID]


def compile_row(row: Row, folder: pathlib.Path) -> None:
    """Runs gshard-inspect for one row and keeps its figures, or its message where it refuses."""
    found = folder / f"{row.name}.json"
    arguments = ["--config", row.config, "--topology", row.topology, "--json", str(found)]
    arguments += [word for setting in row.settings for word in ("--gin", setting)]
    arguments += ["--scale_with_devices"] * row.scaled
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=ROOT,
        stdout=(folder / f"{row.name}.txt").open("w"),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    message = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    figures = json.loads(found.read_text()) if status == 0 else {"refused": message.strip()}
    figures["total_seconds"] = round(time.perf_counter() - began, 1)
    figures["cpu_seconds"] = round(usage.ru_utime + usage.ru_stime, 1)
    figures["host_bytes"] = usage.ru_maxrss * 1024
    found.write_text(json.dumps(figures, indent=1) + "\n")


def main() -> None:
    """Compiles the rows that are asked for and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="rows whose name holds this word")
    parser.add_argument("--again", action="store_true", help="compile rows that have figures too")
    parser.add_argument("--write", action="store_true", help="compile nothing")
    parser.add_argument("--folder", default=ROOT / "runs" / "paper_tables", type=pathlib.Path)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for row in [] if chosen.write else ROWS:
        if chosen.only not in row.name:
            continue
        if (chosen.folder / f"{row.name}.json").exists() and not chosen.again:
            continue
        print(f"{row.name} on {row.topology} ...", flush=True)
        compile_row(row, chosen.folder)


if __name__ == "__main__":
    main()
