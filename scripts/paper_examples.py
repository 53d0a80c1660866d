#!/usr/bin/env python3
"""Compiles the examples at the sizes of GSPMD tables 5 and 8, for the sections of docs/paper_tables.md.

    .venv/bin/python scripts/paper_examples.py              # compiles the rows without figures
    .venv/bin/python scripts/paper_examples.py --only unet  # rows whose name contains the word
    .venv/bin/python scripts/paper_examples.py --sections   # prints the two sections, compiles nothing

It needs libtpu (make tpu), 8 GiB of memory and some minutes a row. The figures are kept beside those of
scripts/paper_tables.py, which writes the page with these sections in it.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
GIB = 2**30
V3_CORE_PEAK = 123e12 / 2
WIDTH, FRAMES = 3072, 600
"""The width of the Conformers, and the frames of a row."""


@dataclasses.dataclass(frozen=True)
class Row:
    """An example at the paper's size, and what the paper prints for it.

    Attributes:
      name: the name of the file of its figures.
      label: the first cells of its line in the table.
      command: the flags of the example.
      gigabytes: the printed memory of a core.
      seconds: the printed step.
      utilization: the printed share of the peak, without bubbles and recomputation.
    """

    name: str
    label: tuple[str, ...]
    command: str
    gigabytes: float
    seconds: float
    utilization: float

    def file(self, folder: pathlib.Path) -> pathlib.Path:
        return folder / f"example_{self.name}.json"


@dataclasses.dataclass(frozen=True)
class Printed:
    """A column of table 5.

    Attributes:
      schedule: the schedule of its pipeline.
      rows: its batch size.
      figures: memory in GB, seconds a step, and the shares of FLOPS, of bubbles and of recomputation.
    """

    schedule: str
    rows: int
    figures: tuple[float, float, float, float, float]


TABLE5 = {
    (32, "v3:2x2", "2x4"): (
        Printed("GPipe", 64, (13.8, 8.40, 0.594, 0.096, 0.229)),
        Printed("GPipe", 16, (12.2, 2.80, 0.579, 0.299, 0.223)),
        Printed("circular", 16, (14.1, 2.30, 0.539, 0.090, 0.213)),
    ),
    (64, "v3:2x4", "4x4"): (
        Printed("GPipe", 128, (15.4, 18.37, 0.605, 0.104, 0.299)),
        Printed("GPipe", 32, (12.8, 5.58, 0.590, 0.310, 0.228)),
        Printed("circular", 32, (14.8, 4.42, 0.506, 0.100, 0.224)),
    ),
}


def _conformer(layers: int, topology: str, mesh: str, printed: Printed) -> Row:
    gigabytes, seconds, share, bubbles, recomputed = printed.figures
    return Row(
        f"conformer_{layers}_{printed.rows}",
        (str(layers), printed.schedule, str(printed.rows), mesh),
        f"conformer.py --layers {layers} --width {WIDTH} --heads 16 --frames {FRAMES} --window 32 "
        f"--rows {printed.rows} --dtype bfloat16 --mesh {mesh} --compile_for {topology}",
        gigabytes,
        seconds,
        share * (1 - bubbles - recomputed),
    )


CONFORMERS = [
    _conformer(*machine, printed) for machine, columns in TABLE5.items() for printed in columns
]


def _unet(mesh: str, topology: str, image: int, rows: int, *printed: float) -> Row:
    return Row(
        f"unet3d_{mesh}",
        (mesh, str(image), str(rows)),
        f"unet3d.py --image {image} --rows {rows} --levels 4 --filters 32 --dtype bfloat16 "
        f"--mesh {mesh} --compile_for {topology}",
        *printed,
    )


UNETS = [
    _unet("1x2", "v3:1x1", 128, 4, 14.8, 1.56, 0.437),
    _unet("1x8", "v3:2x2", 128, 4, 4.5, 0.39, 0.435),
    _unet("1x16", "v3:2x4", 128, 4, 2.7, 0.19, 0.438),
    _unet("4x16", "v3:4x8", 256, 8, 14.9, 1.66, 0.205),
    _unet("2x32", "v3:4x8", 256, 8, 8.52, 0.76, 0.412),
]

CONFORMER_ABOUT = """`scripts/paper_examples.py` compiles the rows of this section and the next. The
name of a row has the layers and the batch, or the mesh: `--only conformer_32_64`, `--only
unet3d_1x8`.

The model is `examples/conformer.py` at the width of 3,072. The paper pipelines the
layers over 8 or 16 cores. The example has no pipeline. It splits the same layers over rows and
width, on as many cores (GSPMD Table 1, 2D finalized), so the steps differ by design. The paper
prints no length. We take 600 frames, because the printed FLOPS are those of about as
many; so the TFLOP agree by choice. The printed TFLOP leaves out bubbles and recomputation. The
compiled TFLOP leaves out recomputation.
"""

UNET_ABOUT = """The model is `examples/unet3d.py`. The paper prints neither the channels nor the
dtype. We take four levels with 32 channels first (Çiçek et al. 2016), batch norm and bfloat16. The
first size of the mesh splits the batch, and the second splits the depth of the images. No slice of
v3 has as many cores as the meshes 1x1 and 1x4, which are left out. The compiled TFLOP are
some 55 to 60 % of the printed ones. So the paper's network has more channels, or its count is
another one. The collective-permutes are the halos. An image that is gathered would show in the
column of the all-gathers.
"""

COLUMNS = (
    *("GB, printed", "GiB, compiled", "step s, printed", "predicted"),
    *("TFLOP, printed", "compiled", "permutes, MiB", "all-reduces, MiB", "all-gathers, MiB"),
)


def compile_row(row: Row, folder: pathlib.Path) -> None:
    program, *flags = row.command.split()
    words = [sys.executable, str(ROOT / "examples" / program), *flags]
    file = row.file(folder)
    process = subprocess.run(
        [*words, "--json", str(file)], stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT
    )
    if process.returncode:
        refused = process.stderr.strip().splitlines()[-1:]
        file.write_text(json.dumps({"refused": " ".join(refused)}) + "\n")


def cells_of(row: Row, folder: pathlib.Path) -> list[str]:
    figures: Mapping[str, Any] = {}
    if row.file(folder).exists():
        figures = json.loads(row.file(folder).read_text())
    printed = (
        f"{row.gigabytes:.1f}",
        f"{row.seconds:.2f}",
        f"{row.utilization * row.seconds * V3_CORE_PEAK / 1e12:.1f}",
    )
    if "seconds" not in figures:
        why = figures.get("refused", "not compiled")
        return [printed[0], why, printed[1], "", printed[2], *[""] * 4]
    sent = figures["collectives"]
    return [
        printed[0],
        f"{figures['peak_bytes'] / GIB:.1f}",
        printed[1],
        f"{figures['seconds']:.2f}",
        printed[2],
        f"{(figures['flops'] - figures['recomputed_flops']) / 1e12:.1f}",
        *(
            f"{sent[kind]['bytes'] / 2**20:,.0f}"
            for kind in ("collective-permute", "all-reduce", "all-gather")
        ),
    ]


def sections(folder: pathlib.Path) -> str:
    parts = [
        *("## GSPMD table 5: Conformers\n", CONFORMER_ABOUT),
        _table(("layers", "printed schedule", "batch", "our mesh"), CONFORMERS, folder),
        *("## GSPMD table 8: 3D U-Net, split over space\n", UNET_ABOUT),
        _table(("mesh", "image", "batch"), UNETS, folder),
    ]
    return "\n".join(parts)


def _table(label: Sequence[str], rows: Sequence[Row], folder: pathlib.Path) -> str:
    columns = [*label, *COLUMNS]
    lines = [[*row.label, *cells_of(row, folder)] for row in rows]
    ruler = "|---|" + "---:|" * (len(columns) - 1)
    text = ["| " + " | ".join(cells) + " |" for cells in (columns, *lines)]
    return "\n".join([text[0], ruler, *text[1:]]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="compile only rows whose name has this word")
    parser.add_argument("--sections", action="store_true", help="print the sections only")
    parser.add_argument("--folder", default=ROOT / "runs" / "paper_tables", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.sections:
        print(sections(arguments.folder))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for row in [*CONFORMERS, *UNETS]:
        if arguments.only in row.name and not row.file(arguments.folder).exists():
            print(f"{row.name} ...", flush=True)
            compile_row(row, arguments.folder)


if __name__ == "__main__":
    main()
