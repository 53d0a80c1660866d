#!/usr/bin/env python3
"""Compiles the models of the GShard and GSPMD papers for the papers' own machines, and writes
docs/paper_tables.md: what the papers print beside what the compiler says.

    .venv/bin/python scripts/paper_tables.py               # everything that has no result yet
    .venv/bin/python scripts/paper_tables.py --only 2048e  # rows whose name holds the word
    .venv/bin/python scripts/paper_tables.py --write       # only the page, from what is there

Needs libtpu (make tpu), no TPU, 8 GiB of memory, and one to three minutes a row. Each
row is a process of gshard-inspect; its figures are kept in runs/paper_tables/, and a row that has
them is not compiled again. `--again` forgets them.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

from paper_page import ROOT, write
from paper_rows import ROWS, Row


def compile_row(row: Row, folder: pathlib.Path) -> None:
    """Runs gshard-inspect for one row and keeps its figures, or its message where it refuses."""
    found = folder / f"{row.name}.json"
    arguments = ["--config", row.config, "--topology", row.topology, "--json", str(found)]
    arguments += [word for setting in row.settings for word in ("--gin", setting)]
    arguments += ["--scale_with_devices"] * row.scaled
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "gshard_nmt", "inspect", *arguments],
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


def compile_operators(folder: pathlib.Path) -> None:
    """GShard table 4: each operator on 8, 32 and 128 cores; per core its products and its messages."""
    import numpy as np

    from gshard_nmt.inspection import communication, compute, hlo
    from gshard_nmt.spmd import ahead_of_time
    from gshard_nmt.spmd.lowering import ArraySpec, lower
    from gshard_nmt.spmd.mesh import Mesh
    from gshard_nmt.spmd.topology import Topology

    lines = []
    for name, equation, split, printed in OPERATORS:
        for topology in map(Topology.parse, ("v3:2x2", "v3:4x4", "v3:8x8")):
            d = topology.num_devices
            mesh = Mesh(("x",), (d,), rules=dict.fromkeys(split, "x"))
            of_d = dict.fromkeys(split, 64 * d)
            if "G" in split:
                of_d |= {"G": d, "E": d, "C": 512 // d}  # groups, experts, and C = O(1 / D)
            if "Y" in equation:
                of_d |= {"B": 8, "I": 64, "O": 64, "x": 3, "y": 3}
            inputs, output = equation.split("->")
            specs = {
                f"operand{i}": ArraySpec(
                    tuple(of_d.get(letter, 256) for letter in letters),
                    np.dtype(np.float32),
                    letters,
                )
                for i, letters in enumerate(inputs.split(","))
            }
            program = lower(
                lambda arrays, how=equation: [{"out": _operator(how, arrays)}],
                [specs],
                [{"out": output}],
                mesh,
            )
            devices = ahead_of_time.devices_of(topology, mesh)
            text = ahead_of_time.compile_for(topology, devices, program).text
            parsed = hlo.parse(text)
            around = communication.Surroundings(
                topology, mesh, {}, ahead_of_time.coordinates_of(topology, devices)
            )
            found = communication.collectives(parsed, around)
            work = sum(compute.work_by_origin(parsed, topology.chip).values(), compute.Work())
            messages = ", ".join(
                f"{source.kind} {source.bytes_per_step / 2**20:.2f} MiB" for source in found
            )
            lines.append([name, printed, f"{d:,}", f"{work.flops / 1e6:,.1f}", messages or "none"])
    (folder / "operators.json").write_text(json.dumps(lines, indent=1) + "\n")


# Name, equation, letters of size O(D) that are split, and what the paper says of compute and messages.
OPERATORS = (
    ("Add(A,A->A)", "A,A->A", "A", "O(1), none"),
    ("Matmul(AB,BC->AC), B split", "AB,BC->AC", "B", "O(1), O(1) all-reduce"),
    ("Matmul(AB,BC->AC), A split", "AB,BC->AC", "A", "O(1), none"),
    ("Matmul(AB,BC->AC), A and B split", "AB,BC->AC", "AB", "O(D), O(D) all-gather"),
    ("Matmul(AB,BC->AC), A and C split", "AB,BC->AC", "AC", "O(D), O(D) all-gather"),
    ("Reduce(AB->A), A split", "AB->A", "A", "O(1), none"),
    ("Reduce(AB->B), A split", "AB->B", "A", "O(1), O(1) all-reduce"),
    ("Einsum(GSEC,GSM->EGCM)", "GSEC,GSM->EGCM", "GE", "O(1), O(sqrt D) all-to-all"),
    ("Convolution(BIXY,xyIO->BOXY), X split", "BXYI,xyIO->BXYO", "X", "O(1), O(1) permute"),
)


def _operator(equation: str, arrays):
    """An operator of table 4 on annotated operands, its result annotated too."""
    import tensorflow as tf

    from gshard_nmt.spmd.sharding import annotate

    inputs, output = equation.split("->")
    operands = [
        annotate(arrays[f"operand{i}"], letters) for i, letters in enumerate(inputs.split(","))
    ]
    if equation.startswith("A,A"):
        made = operands[0] + operands[1]
    elif "x" in equation:
        made = tf.nn.conv2d(*operands, 1, "SAME")
    else:
        made = tf.einsum(equation, *operands)
    return annotate(made, output)


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
    if chosen.only in "operators" and not chosen.write:
        compile_operators(chosen.folder)
    write(chosen.folder)


if __name__ == "__main__":
    main()
