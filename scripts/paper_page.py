"""Makes the sections of docs/paper_tables.md: the papers' figures beside the compiled ones."""

import itertools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from paper_rows import GSHARD, POD, ROWS, Row

from gshard_nmt.inspection import links
from gshard_nmt.inspection.papers import Reported, reported
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.topology import Topology

ROOT = pathlib.Path(__file__).resolve().parents[1]
GIB = 2**30

Figures = Mapping[str, Any]
"""The JSON of gshard-inspect for one row, with the time and the memory of the inspection."""


def load(folder: pathlib.Path) -> dict[str, Figures]:
    figures = {}
    for row in ROWS:
        file = folder / f"{row.name}.json"
        if file.exists():
            figures[row.name] = json.loads(file.read_text())
    return figures


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def cells_of(figures: Figures | None, paper: Reported | None) -> list[str]:
    """Returns the cells of a row: printed and compiled figures in turn.

    The figures are weights, memory, step, FLOPs and the share of all-to-all.
    """
    dash = "-"
    from_paper = [dash] * 5
    if paper is not None:
        utilization = paper.flops_utilization
        share = paper.all_to_all_share
        from_paper = [
            paper.parameters,
            f"{paper.memory_gb:.1f}" if paper.memory_gb else dash,
            f"{paper.step_seconds:.2f}",
            f"{utilization * paper.step_seconds * V3_CORE_PEAK / 1e12:.0f}"
            if utilization
            else dash,
            f"{share:.0%}" if share else dash,
        ]
    if figures is None or "refused" in figures:
        why = "not compiled" if figures is None else f"refused: {figures['refused'][:120]}"
        return interleaved(from_paper, [why, "", "", "", ""])
    step = figures["estimated_step_seconds"]
    share = seconds_of(figures, "all-to-all") / step if step else 0.0
    flops = flops_without_recomputation(figures)
    compiled = [
        billions(figures["parameters_total"]),
        size_of(figures),
        f"{step:.2f}" if step else dash,
        f"{flops / 1e12:.0f}" if flops else dash,
        f"{share:.0%}" if share > 0.005 else dash,
    ]
    return interleaved(from_paper, compiled)


def size_of(figures: Figures) -> str:
    memory = figures["per_device"]
    fits = figures["fits"] and not memory["is_estimate"]
    return f"{memory['peak_bytes'] / GIB:.1f}" + ("" if fits else " (does not fit)")


V3_CORE_PEAK = 123e12 / 2
"""The peak FLOPS of a TPU v3 core. The papers give utilization as a share of it."""

FIGURE_COLUMNS = [
    *("weights, printed", "compiled", "GB, printed", "GiB, compiled", "step s, printed"),
    *("predicted", "TFLOP, printed", "compiled", "all-to-all, printed", "predicted"),
]


def interleaved(printed: list[str], compiled: list[str]) -> list[str]:
    return [cell for pair in zip(printed, compiled, strict=True) for cell in pair]


def flops_without_recomputation(figures: Figures) -> float:
    if not figures["flops_per_device"]:
        return 0.0
    recomputed = sum(work["flops"] for work in figures["directions"]["recomputed"].values())
    return figures["flops_per_device"] - recomputed


def billions(count: float) -> str:
    return f"{count / 1e9:,.1f}B"


def seconds_of(figures: Figures, kind: str, direction: str = "") -> float:
    return sum(
        source["seconds"] or 0.0
        for collective in figures["collectives"] or ()
        if collective["kind"] == kind
        for source in collective["sources"]
        if direction in ("", source["direction"])
    )


def count_of(figures: Figures, kind: str) -> int:
    collectives = figures["collectives"] or ()
    return sum(collective["count"] for collective in collectives if collective["kind"] == kind)


def paper_section(title: str, rows: list[Row], figures: Mapping[str, Figures], about: str) -> str:
    lines = []
    for row in rows:
        cores = next(n for n, topology in POD.items() if topology == row.topology)
        lines.append([row.name, f"{cores:,}", *cells_of(figures.get(row.name), paper_row(row))])
    return f"## {title}\n\n{about}\n\n" + table(["model", "cores", *FIGURE_COLUMNS], lines)


def paper_row(row: Row) -> Reported | None:
    settings = row.settings if row.paper_settings is None else row.paper_settings
    config = load_config(row.config, settings)
    tokens = config.data.rows * max(config.data.source_length, config.data.target_length)
    return reported(row.config, tuple(config.mesh.shape), tokens)


def growth_section(figures: Mapping[str, Figures]) -> str:
    grown = [figures[name] for _, name in GROWN if usable(figures.get(name))]
    lines = []
    for row_figures in grown:
        lines.append(
            [
                f"{row_figures['devices']:,}",
                billions(row_figures["parameters_total"]),
                f"{row_figures['program_instructions']:,}",
                f"{row_figures['compile_seconds']:.0f}",
                f"{row_figures['cpu_seconds']:.0f}",
                f"{row_figures['per_device']['peak_bytes'] / GIB:.2f}",
                f"{count_of(row_figures, 'all-to-all')}",
                f"{seconds_of(row_figures, 'all-to-all') * 1e3:.1f}",
                f"{seconds_of(row_figures, 'all-reduce') * 1e3:.1f}",
                f"{work_of(row_figures, 'gating') * 1e3:.1f}",
                f"{work_of(row_figures, 'gating') / row_figures['estimated_step_seconds']:.1%}",
                f"{row_figures['estimated_step_seconds']:.3f}",
            ]
        )
    header = ["cores = experts", "weights", "instructions", "compile s", "CPU s", "GiB a core"]
    header += ["all-to-alls", "all-to-all ms", "all-reduce ms", "gating ms", "gating", "step s"]
    text = table(header, lines)
    if len(grown) > 1:
        text += "\n" + "\n".join(f"- {line}" for line in growth_verdicts(grown[0], grown[-1]))
    return text + "\n"


def growth_verdicts(first: Figures, last: Figures) -> list[str]:
    instructions = (first["program_instructions"], last["program_instructions"])
    lines = [verdict("instructions of the compiled program", *instructions, 0.01, first, last)]
    peaks = (first["per_device"]["peak_bytes"], last["per_device"]["peak_bytes"])
    lines.append(verdict("memory of a core", *peaks, 0.05, first, last))
    ratio = seconds_of(last, "all-to-all") / max(seconds_of(first, "all-to-all"), 1e-12)
    root = (last["devices"] / first["devices"]) ** 0.5
    lines.append(
        f"all-to-all time: {ratio:.1f} times; the square root of the number of devices grew "
        f"{root:.1f} times"
    )
    return lines


def verdict(
    name: str, before: float, after: float, bound: float, first: Figures, last: Figures
) -> str:
    change = after / before - 1
    word = "not more than" if change <= bound else "MORE than"
    return (
        f"{name}: {change:+.1%} from {first['devices']:,} to {last['devices']:,} cores, "
        f"{word} {bound:+.0%}"
    )


def usable(figures: Figures | None) -> bool:
    return (
        bool(figures) and "refused" not in figures and figures["program_instructions"] is not None
    )


def recomputed_seconds(figures: Figures) -> float:
    return sum(work["seconds"] for work in figures["directions"]["recomputed"].values())


def work_of(figures: Figures, kind: str) -> float:
    return ((figures["work"] or {}).get(kind) or {"seconds": 0.0})["seconds"]


def memory_section(figures: Mapping[str, Figures]) -> str:
    names = [row.name for row in GSHARD if usable(figures.get(row.name))]
    lines = []
    for name in names:
        sizes = figures[name]["per_device"]["by_category"].values()
        lines.append([name, *(f"{size / GIB:.2f}" for size in sizes)])
    categories = list(figures[names[0]]["per_device"]["by_category"]) if names else []
    return table(["GiB of a core", *(c.replace("_", " ") for c in categories)], lines)


def time_section(figures: Mapping[str, Figures]) -> str:
    lines = []
    for name in [row.name for row in GSHARD if usable(figures.get(row.name))]:
        row_figures = figures[name]
        step = row_figures["estimated_step_seconds"]
        shares = [f"{work_of(row_figures, kind) / step:.0%}" for kind in SHOWN_WORK]
        collectives = [
            f"{seconds_of(row_figures, kind) / step:.0%}" for kind in ("all-to-all", "all-reduce")
        ]
        recomputed = f"{recomputed_seconds(row_figures) / step:.0%}"
        lines.append(
            [name, *shares, *collectives, recomputed, f"{row_figures['roofline_fraction']:.0%}"]
        )
    header = ["share of the step", *SHOWN_WORK, "all-to-all", "all-reduce"]
    return table([*header, "computed again", "of roofline"], lines)


SHOWN_WORK = (
    *("attention", "feed-forward", "experts", "gate einsums", "gating", "dispatch and combine"),
    *("embedding and loss", "optimizer", "gradients and metrics", "other"),
)
LAYER_WORK = ("attention", "feed-forward", "experts", "gate einsums", "gating")


def forward_section(figures: Mapping[str, Figures]) -> str:
    grown = [(cores, figures[name]) for cores, name in GROWN if usable(figures.get(name))]
    lines, by_cores = [], {}
    for cores, row_figures in grown:
        forward = row_figures["directions"]["forward"]
        seconds = {kind: forward.get(kind, {"seconds": 0.0})["seconds"] for kind in LAYER_WORK}
        # Figure 8 counts only the messages. Packing and unpacking are local work.
        seconds["dispatch and combine (all-to-all)"] = seconds_of(
            row_figures, "all-to-all", "forward"
        )
        by_cores[cores] = seconds
        layers = sum(seconds.values())
        lines.append(
            [f"{cores:,}", *(f"{s * 1e3:.1f} ({s / layers:.0%})" for s in seconds.values())]
        )
    kinds = list(next(iter(by_cores.values()))) if by_cores else []
    text = table(["cores = experts", *(f"{kind}, ms" for kind in kinds)], lines)
    if {128, 2048} <= by_cores.keys():
        few, many = by_cores[128], by_cores[2048]
        growth = {kind: many[kind] / few[kind] for kind in kinds}
        whole = sum(many.values())
        text += (
            "\nGrowth from 128 to 2,048 cores, in the paper and compiled: all-to-all 3.75 times and "
            f"{growth[kinds[-1]]:.2f} times, gate einsums about 2 times and "
            f"{growth['gate einsums']:.2f} times. Share at 2,048 cores, in the paper and compiled: "
            f"gating less than 10 % and {many['gating'] / whole:.1%}, all-to-all 36 % and "
            f"{many[kinds[-1]] / whole:.1%}.\n"
        )
    return text


GROWN = (
    (8, "growth_8"),
    (32, "growth_32"),
    (128, "growth_128"),
    (512, "growth_512"),
    (2048, "moe_2048e_36l"),
)
"""(cores, name of the row with one expert and the same work on each core)."""


def collectives_section() -> str:
    lines = []
    for name in ("v3:2x4", "v3:4x4", "v3:8x8", "v3:8x16", "v3:16x16", "v3:16x32", "v3:32x32"):
        topology = Topology.parse(name)
        chips = np.array(list(itertools.product(*map(range, topology.shape))))
        members = np.repeat(np.arange(topology.num_chips), topology.chip.devices_per_chip)
        placement, cells = links.place(members, chips, topology), []
        for kind in ("all-to-all", "all-reduce"):
            for size in (8, 32):
                seconds = links.seconds(kind, size * 2**20, placement, topology.chip)
                cells.append(f"{seconds * 1e3:.2f}")
        lines.append([f"{topology.num_devices:,}", name, *cells])
    header = ["cores", "slice", "all-to-all 8 MB, ms", "32 MB", "all-reduce 8 MB, ms", "32 MB"]
    return table(header, lines)


def table4_section(folder: pathlib.Path) -> str:
    """Returns the table of operators; a cell has the figures of 8, 32 and 128 cores, or one for all."""
    file = folder / "operators.json"
    by_name: dict[str, list[list[str]]] = {}
    for line in json.loads(file.read_text()) if file.exists() else []:
        by_name.setdefault(line[0], []).append(line)
    rows = [
        [name, lines[0][1], *(same_or_each([line[column] for line in lines]) for column in (3, 4))]
        for name, lines in by_name.items()
    ]
    header = ["operator", "paper: a core's compute, messages", "MFLOP of a core", "messages"]
    return table(header, rows)


def same_or_each(cells: list[str]) -> str:
    return cells[0] if len(set(cells)) == 1 else " / ".join(cells)
