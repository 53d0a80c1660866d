#!/usr/bin/env python3
"""Compiles the models of the GShard, GSPMD and Switch papers for the papers' own machines, and writes
docs/paper_tables.md, which compares the printed figures with the compiled ones.

    .venv/bin/python scripts/paper_tables.py               # compiles the rows without figures
    .venv/bin/python scripts/paper_tables.py --only 2048e  # rows whose name contains the word
    .venv/bin/python scripts/paper_tables.py --write       # writes the page, compiles nothing

It needs libtpu (make tpu), 8 GiB of memory, and one to three minutes a row, but no TPU. Each row is a
process of gshard-inspect. Its figures are kept in runs/paper_tables/, and a row with figures is not
compiled again; `--again` compiles it again. A row without figures there stays on the page as it was.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import paper_pipelines
from paper_page import ROOT, load
from paper_rows import ROWS, SPLIT_SIZE, WHOLE_SIZE, Row
from paper_switch import compile_strategies, sections
from paper_write import write


def compile_row(row: Row, folder: pathlib.Path) -> None:
    file = folder / f"{row.name}.json"
    arguments = ["--config", row.config, "--topology", row.topology, "--json", str(file)]
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
    if os.WIFSIGNALED(status):
        # The machine ended it, often for its memory. That says nothing about the model.
        print(
            f"{row.name}: ended by signal {os.WTERMSIG(status)} with "
            f"{usage.ru_maxrss / 2**20:.1f} GiB of memory; no figures are kept"
        )
        return
    figures = json.loads(file.read_text()) if status == 0 else {"refused": message.strip()}
    figures["total_seconds"] = round(time.perf_counter() - began, 1)
    figures["cpu_seconds"] = round(usage.ru_utime + usage.ru_stime, 1)
    figures["host_bytes"] = usage.ru_maxrss * 1024
    file.write_text(json.dumps(figures, indent=1) + "\n")


def compile_operators(folder: pathlib.Path) -> None:
    """Compiles the operators of GShard table 4 for 8, 32 and 128 cores.

    Keeps for each operator the FLOPs and the messages of one core.
    """
    import numpy as np

    from gshard_nmt.inspection.program_cost import cost_of
    from gshard_nmt.spmd import ahead_of_time
    from gshard_nmt.spmd.lowering import ArraySpec, lower
    from gshard_nmt.spmd.mesh import Mesh
    from gshard_nmt.spmd.topology import Topology

    lines = []
    for name, equation, split, printed in OPERATORS:
        for topology in map(Topology.parse, ("v3:2x2", "v3:4x4", "v3:8x8")):
            d = topology.num_devices
            mesh = Mesh(("x",), (d,), rules=dict.fromkeys(split, "x"))
            sizes = dict.fromkeys(split, SPLIT_SIZE * d)
            if "G" in split:
                sizes |= {"G": d, "E": d, "C": 512 // d}  # G, E = O(D) and C = O(1 / D)
            if "Y" in equation:
                sizes |= {"B": 8, "I": 64, "O": 64, "x": 3, "y": 3}
            inputs, output = equation.split("->")
            specs = {
                f"operand{i}": ArraySpec(
                    tuple(sizes.get(letter, WHOLE_SIZE) for letter in letters),
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
            compiled = ahead_of_time.compile_for(topology, devices, program)
            cost = cost_of(compiled, devices, program)
            messages = ", ".join(
                f"{source.kind} {source.bytes_per_step / 2**20:.2f} MiB" for source in cost.sources
            )
            lines.append(
                [name, printed, f"{d:,}", f"{cost.total.flops / 1e6:,.1f}", messages or "none"]
            )
    (folder / "operators.json").write_text(json.dumps(lines, indent=1) + "\n")


# Name, equation, the split letters of size O(D), and the compute and messages that the paper gives.
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
    import tensorflow as tf

    from gshard_nmt.spmd.sharding import annotate

    inputs, output = equation.split("->")
    operands = [
        annotate(arrays[f"operand{i}"], letters) for i, letters in enumerate(inputs.split(","))
    ]
    if equation.startswith("A,A"):
        result = operands[0] + operands[1]
    elif "x" in equation:
        result = tf.nn.conv2d(*operands, 1, "SAME")
    else:
        result = tf.einsum(equation, *operands)
    return annotate(result, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only", default="", help="compile only rows whose name contains this word"
    )
    parser.add_argument("--again", action="store_true", help="also compile rows that have figures")
    parser.add_argument("--write", action="store_true", help="only write the page; compile nothing")
    parser.add_argument("--folder", default=ROOT / "runs" / "paper_tables", type=pathlib.Path)
    parser.add_argument("--page", default=ROOT / "docs" / "paper_tables.md", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for row in [] if arguments.write else ROWS:
        if arguments.only not in row.name:
            continue
        if (arguments.folder / f"{row.name}.json").exists() and not arguments.again:
            continue
        print(f"{row.name} on {row.topology} ...", flush=True)
        compile_row(row, arguments.folder)
    if arguments.only in "operators" and not arguments.write:
        compile_operators(arguments.folder)
    if arguments.only in "strategies" and not arguments.write:
        compile_strategies(arguments.folder)
    figures = load(arguments.folder)
    others = [paper_pipelines.section(figures), *sections(arguments.folder, figures)]
    write(arguments.folder, others, arguments.page)


if __name__ == "__main__":
    main()
