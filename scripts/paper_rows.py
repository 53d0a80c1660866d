"""The rows of docs/paper_tables.md: the papers' models on the papers' machines, and the cells of each."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]
"""The JSON of gshard-inspect or of an example for one row, with `cpu_seconds`."""

Cells = dict[int, str]
"""Number of a column -> text. The other columns come from the papers, and stay as they are."""

GIB = 2**30
POD = {32: "v3:4x4", 64: "v3:4x8", 128: "v3:8x8", 256: "v3:8x16", 512: "v3:16x16", 2048: "v3:32x32"}
"""Number of cores -> slice; a TPU v3 chip has two cores."""

V3_CORE_PEAK = 123e12 / 2
"""The peak FLOPS of a TPU v3 core. The papers give utilization as a share of it."""

SWITCH_SEQUENCES = 2048
LAYER_WORK = ("attention", "feed-forward", "experts", "gate einsums", "gating")
SHOWN_WORK = (
    *(*LAYER_WORK, "dispatch and combine"),
    *("embedding and loss", "optimizer", "gradients and metrics", "other"),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One model on one machine.

    Attributes:
      name: the name of the file of its figures.
      command: compiles it, as the words after `python`.
      fills: (the beginning of a section's title, the first cells of a line there, what fills the line).
    """

    name: str
    command: Sequence[str]
    fills: Sequence[tuple[str, str, Callable[[Figures], Cells]]]


def billions(count: float) -> str:
    return f"{count / 1e9:,.1f}B"


def size_of(figures: Figures) -> str:
    memory = figures["per_device"]
    fits = figures["fits"] and not memory["is_estimate"]
    return f"{memory['peak_bytes'] / GIB:.1f}" + ("" if fits else " (does not fit)")


def recomputed(figures: Figures, what: str) -> float:
    """Returns the "flops" or the "seconds" of what is computed again."""
    return sum(work[what] for work in figures["directions"]["recomputed"].values())


def seconds_of(figures: Figures, kind: str, direction: str = "") -> float:
    return sum(
        source["seconds"] or 0.0
        for collective in figures["collectives"]
        if collective["kind"] == kind
        for source in collective["sources"]
        if direction in ("", source["direction"])
    )


def work_of(figures: Figures, kind: str) -> float:
    return (figures["work"].get(kind) or {"seconds": 0.0})["seconds"]


def model(figures: Figures) -> Cells:
    step = figures["estimated_step_seconds"]
    share = seconds_of(figures, "all-to-all") / step
    flops = figures["flops_per_device"] - recomputed(figures, "flops")
    return {
        3: billions(figures["parameters_total"]),
        5: size_of(figures),
        7: f"{step:.2f}",
        9: f"{flops / 1e12:.0f}",
        11: f"{share:.0%}" if share > 0.005 else "-",
    }


def memory(figures: Figures) -> Cells:
    sizes = figures["per_device"]["by_category"].values()
    return dict(enumerate((f"{size / GIB:.2f}" for size in sizes), 1))


def time(figures: Figures) -> Cells:
    seconds = [work_of(figures, kind) for kind in SHOWN_WORK]
    seconds += [seconds_of(figures, kind) for kind in ("all-to-all", "all-reduce")]
    shares = [
        x / figures["estimated_step_seconds"] for x in (*seconds, recomputed(figures, "seconds"))
    ]
    return dict(enumerate((f"{x:.0%}" for x in (*shares, figures["roofline_fraction"])), 1))


def growth(figures: Figures) -> Cells:
    gating, step = work_of(figures, "gating"), figures["estimated_step_seconds"]
    count = sum(c["count"] for c in figures["collectives"] if c["kind"] == "all-to-all")
    cells = (
        billions(figures["parameters_total"]),
        f"{figures['program_instructions']:,}",
        f"{figures['compile_seconds']:.0f}",
        f"{figures['cpu_seconds']:.0f}",
        f"{figures['per_device']['peak_bytes'] / GIB:.2f}",
        str(count),
        f"{seconds_of(figures, 'all-to-all') * 1e3:.1f}",
        f"{seconds_of(figures, 'all-reduce') * 1e3:.1f}",
        f"{gating * 1e3:.1f}",
        f"{gating / step:.1%}",
        f"{step:.3f}",
    )
    return dict(enumerate(cells, 1))


def forward(figures: Figures) -> Cells:
    work = figures["directions"]["forward"]
    seconds = [work.get(kind, {"seconds": 0.0})["seconds"] for kind in LAYER_WORK]
    # Figure 8 counts only the messages. Packing and unpacking are local work.
    seconds.append(seconds_of(figures, "all-to-all", "forward"))
    return dict(enumerate((f"{s * 1e3:.1f} ({s / sum(seconds):.0%})" for s in seconds), 1))


def pipeline(figures: Figures) -> Cells:
    step = figures["estimated_step_seconds"]
    return {
        4: size_of(figures),
        6: f"{step:.1f}",
        10: f"{recomputed(figures, 'seconds') / step:.1%}",
    }


def switch(figures: Figures) -> Cells:
    work, sequences = figures["directions"]["forward"], SWITCH_SEQUENCES / figures["devices"]
    flops = sum(kind["flops"] for kind in work.values())
    dispatch = work.get("gate einsums", {"flops": 0})["flops"]
    return {
        3: billions(figures["parameters_total"]),
        6: billions(flops / sequences),
        7: f"{dispatch / flops:.0%}" if dispatch else "-",
        10: size_of(figures),
        11: f"{figures['estimated_step_seconds']:.2f}",
    }


def example(figures: Figures) -> Cells:
    """Returns the cells of an example, numbered from the end of the line."""
    sent = figures["collectives"]
    kinds = ("collective-permute", "all-reduce", "all-gather")
    return {
        -8: f"{figures['peak_bytes'] / GIB:.1f}",
        -6: f"{figures['seconds']:.2f}",
        -4: f"{(figures['flops'] - figures['recomputed_flops']) / 1e12:.1f}",
        **{n: f"{sent[kind]['bytes'] / 2**20:,.0f}" for n, kind in enumerate(kinds, -3)},
    }


MEMORY, GROWTH, TIME = "Memory of a core", "From 8 cores to 2,048", "Time of the whole step"
FORWARD = "Time of the layers, forward"


def _row(
    section: str,
    name: str,
    cores: int,
    *settings: str,
    config: str = "",
    key: str = "",
    cells: Callable[[Figures], Cells] = model,
    more: Sequence[tuple[str, str, Callable[[Figures], Cells]]] = (),
) -> Row:
    command = ["-m", "gshard_nmt", "inspect", "--config", config or name, "--topology", POD[cores]]
    command += [f"--gin={setting}" for setting in settings]
    return Row(name, command, [(section, key or name, cells), *more])


def _translation(name: str, cores: int) -> Row:
    more = [(MEMORY, name, memory), (TIME, name, time)]
    if name == "moe_2048e_36l":
        more += [(GROWTH, "2,048", growth), (FORWARD, "2,048", forward)]
    return _row("GShard: tables", name, cores, more=more)


def _grown(cores: int, topology: str) -> Row:
    """Returns MoE(36L) with one expert, 16 rows and one group on each core."""
    command = (
        f"-m gshard_nmt inspect --config moe_2048e_36l --topology {topology} --scale_with_devices"
    )
    fills = [(GROWTH, str(cores), growth), (FORWARD, str(cores), forward)]
    return Row(f"growth_{cores}", command.split(), fills)


def _mesh(x: int, y: int, rows: int) -> list[str]:
    return [f"X = {x}", f"Y = {y}", f"ROWS = {rows}"]


def _pipeline(x: int, y: int, z: int, microbatches: int) -> Row:
    settings = [f"X = {x}", f"Y = {y}", f"Z = {z}", f"MICROBATCHES = {microbatches}"]
    return _row(
        "GSPMD table 4",
        f"gspmd_pipeline_{x}x{y}x{z}_{microbatches}",
        256,
        *settings,
        config="gspmd_narrow_16b_pipeline",
        key=f"{x} x {y} x {z} | {microbatches}",
        cells=pipeline,
    )


def _conformer(layers: int, rows: int, mesh: str, topology: str, *schedules: str) -> Row:
    command = (
        f"examples/conformer.py --layers {layers} --width 3072 --heads 16 --frames 600 --window 32 "
        f"--rows {rows} --dtype bfloat16 --mesh {mesh} --compile_for {topology}"
    )
    keys = [f"{layers} | {schedule} | {rows} | {mesh}" for schedule in schedules]
    fills = [("GSPMD table 5", key, example) for key in keys]
    return Row(f"conformer_{layers}_{rows}", command.split(), fills)


def _unet(mesh: str, topology: str, image: int, rows: int) -> Row:
    command = (
        f"examples/unet3d.py --image {image} --rows {rows} --levels 4 --filters 32 --dtype bfloat16 "
        f"--mesh {mesh} --compile_for {topology}"
    )
    return Row(
        f"unet3d_{mesh}",
        command.split(),
        [("GSPMD table 8", f"{mesh} | {image} | {rows}", example)],
    )


EXAMPLES = [
    _conformer(32, 64, "2x4", "v3:2x2", "GPipe"),
    _conformer(32, 16, "2x4", "v3:2x2", "GPipe", "circular"),
    _conformer(64, 128, "4x4", "v3:2x4", "GPipe"),
    _conformer(64, 32, "4x4", "v3:2x4", "GPipe", "circular"),
    _unet("1x2", "v3:1x1", 128, 4),
    _unet("1x8", "v3:2x2", 128, 4),
    _unet("1x16", "v3:2x4", 128, 4),
    _unet("4x16", "v3:4x8", 256, 8),
    _unet("2x32", "v3:4x8", 256, 8),
]
# fmt: off
GSHARD = [
    ("moe_2048e_36l", 2048), ("moe_128e_36l", 128), ("moe_512e_36l", 512), ("moe_2048e_12l", 2048),
    ("moe_512e_12l", 512), ("moe_128e_12l", 128), ("moe_2048e_60l", 2048), ("dense_96l", 2048),
]
DENSE = "gspmd_dense_64b"
NARROW = [(4, 16, 48), (8, 16, 96), (8, 32, 192), (16, 4, 48), (16, 8, 96), (32, 8, 192)]
PIPELINES = [(2, 16, 8, 16), (4, 16, 4, 16), (4, 16, 4, 32), (8, 16, 2, 32), (8, 8, 4, 32)]
SWITCH = [
    ("t5_base", 128), ("t5_large", 128), ("t5_xxl", 2048), ("switch_base", 128),
    ("switch_large", 128), ("switch_xxl", 2048), ("switch_c", 2048),
]
# fmt: on
ROWS = [
    *(_translation(name, cores) for name, cores in GSHARD),
    *(_grown(*row) for row in ((8, "v3:2x2"), (32, "v3:4x4"), (128, "v3:8x8"), (512, "v3:16x16"))),
    # Half of the printed batch. With it, the printed steps are possible.
    *(
        _row("GShard: tables", f"{name}_half", 128, "ROWS = 4096", "GROUPS = 512", config=name)
        for name in ("moe_128e_36l", "moe_128e_12l")
    ),
    *(_row("GShard: tables", name, 2048) for name in ("dense_96l_gpipe", "dense_128l")),
    _row("GSPMD table 2", DENSE, 128),
    *(
        _row(
            "GSPMD table 2",
            f"gspmd_dense_64b_{x * y}",
            x * y,
            *_mesh(x, y, n),
            config="gspmd_dense_64b",
        )
        for x, y, n in ((16, 32, 256), (32, 64, 1024))
    ),
    *(_row("GSPMD table 2", f"gspmd_dense_{n}", 2048) for n in ("128b", "256b", "512b", "1t")),
    *(
        _row(
            "GSPMD table 3",
            f"gspmd_narrow_{x}x{y}",
            x * y,
            *_mesh(x, y, n),
            config="gspmd_narrow_16b",
        )
        for x, y, n in NARROW
    ),
    *(_pipeline(*shape) for shape in PIPELINES),
    *(
        _row(f"GSPMD table {table}", f"gspmd_{kind}_{n}", cores)
        for table, kind, sizes in (
            (6, "moe", ("10b", "37b", "145b", "577b")),
            (7, "hybrid", ("33b", "57b", "420b", "804b")),
        )
        for n, cores in zip(sizes, (32, 128, 512, 2048), strict=True)
    ),
    *(_row("Switch table 9", name, cores, cells=switch) for name, cores in SWITCH),
    *EXAMPLES,
]


def words(row: Row, file: str) -> list[str]:
    """Returns the command line that compiles a row and writes its figures into a file."""
    return [sys.executable, *row.command, "--json", file]
