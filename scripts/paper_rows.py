"""The rows of docs/paper_tables.md: the papers' models on the papers' machines, and the cells of each."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]
"""The JSON of gshard-inspect or of an example for one row, with `cpu_seconds`."""

Cells = dict[int, str]
"""Number of a column -> text. The other columns come from the papers, and stay as they are."""

Fill = tuple[str, str, Callable[[Figures], Cells]]
"""The beginning of a section's title, the first cells of a line there, and what fills the line."""

GIB = 2**30
SLICES = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (32, 32))
POD = {2 * x * y: f"v3:{x}x{y}" for x, y in SLICES}
"""Number of cores -> slice; a TPU v3 chip has two cores."""

V3_CORE_PEAK = 123e12 / 2
"""The peak FLOPS of a TPU v3 core. The papers give utilization as a share of it."""

SWITCH_SEQUENCES = 2048
ATTENTION_WEIGHTS = ("query", "key", "value", "output")
ATTENTION_KINDS = ("attention: weights", "attention: activations")
PEAK_KINDS = ("feed-forward", "experts", *ATTENTION_KINDS, "gate einsums")
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
      fills: the lines of the page that they fill.
    """

    name: str
    command: Sequence[str]
    fills: Sequence[Fill]


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
    """Returns the cells of a row of GSPMD, whose own step recomputed nothing (section 5.2)."""
    step = figures["estimated_step_seconds"]
    flops = figures["flops_per_device"] - recomputed(figures, "flops")
    return {
        3: billions(figures["parameters_total"]),
        5: size_of(figures),
        7: f"{step:.2f}",
        9: f"{flops / 1e12:.0f}",
        11: f"{flops / step / V3_CORE_PEAK:.1%}",
        12: f"{step - recomputed(figures, 'seconds'):.2f}",
    }


def sparse(figures: Figures) -> Cells:
    share = seconds_of(figures, "all-to-all") / figures["estimated_step_seconds"]
    return model(figures) | {14: f"{share:.0%}"}


def translation(figures: Figures) -> Cells:
    cells = model(figures)
    share = seconds_of(figures, "all-to-all") / figures["estimated_step_seconds"]
    days = 1e12 / figures["tokens_per_step"] * figures["estimated_step_seconds"] / 86400
    same = {column: cells[of_model] for column, of_model in ((3, 3), (4, 5), (6, 7), (7, 9))}
    years = f"{days * figures['devices'] / 365:.1f}"
    return same | {8: f"{share:.0%}" if share > 0.005 else "-", 10: years, 12: f"{days:.1f}"}


def peak_share(figures: Figures, kind: str) -> str:
    """Returns the share of the peak that products of a kind reach in the forward pass.

    Those of attention have weights, or queries, keys and values alone.
    """
    kind, _, operands = kind.partition(": ")
    parts = [
        part
        for part in figures["parts"]
        if part["flops"] and (part["kind"], part["direction"]) == (kind, "forward")
        if not operands or (part["part"] in ATTENTION_WEIGHTS) == (operands == "weights")
    ]
    flops, seconds = (sum(part[what] for part in parts) for what in ("flops", "seconds"))
    return f"{flops / seconds / V3_CORE_PEAK:.0%}" if parts else "-"


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


def pipeline(figures: Figures, useful: int) -> Cells:
    """Returns the cells of a pipeline, whose stages work on a microbatch in `useful` iterations."""
    step = figures["estimated_step_seconds"]
    # Each iteration of the loops, forward and backward, moves the state on by one stage.
    iterations = max(
        source["count"]
        for collective in figures["collectives"]
        if collective["kind"] == "collective-permute"
        for source in collective["sources"]
        if source["mesh_axes"] == ["stage"]
    )
    return {
        3: size_of(figures),
        5: f"{step:.1f}",
        7: f"{1 - useful / iterations:.1%}",
        9: f"{recomputed(figures, 'seconds') / step:.1%}",
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


GSHARD_TABLES, PEAK = "GShard: tables", "Share of the peak"
MEMORY, GROWTH, TIME = "GShard Figure 7", "From 8 cores to 2,048", "Time of the whole step"
FORWARD = "Time of the layers, forward"


def _row(
    section: str,
    name: str,
    cores: int,
    *settings: str,
    config: str = "",
    key: str = "",
    cells: Callable[[Figures], Cells] = model,
    more: Sequence[Fill] = (),
) -> Row:
    command = ["-m", "gshard_nmt", "inspect", "--config", config or name, "--topology", POD[cores]]
    command += [f"--gin={setting}" for setting in settings]
    return Row(name, command, [(section, key or name, cells), *more])


def _translation(name: str, cores: int) -> Row:
    more = [(MEMORY, name, memory), (TIME, name, time)]
    if name == "moe_2048e_36l":
        more += [(GROWTH, "2,048", growth), (FORWARD, "2,048", forward)]
    return _row(GSHARD_TABLES, name, cores, cells=translation, more=more)


def _peaks(column: int) -> list[Fill]:
    return [(PEAK, kind, lambda f, k=kind: {column: peak_share(f, k)}) for kind in PEAK_KINDS]


def _scaled(name: str, cores: int, fills: Sequence[Fill], *settings: str) -> Row:
    """Returns MoE(36L) with one expert, 16 rows and one group on each core."""
    row = _row("", name, cores, *settings, config="moe_2048e_36l")
    return dataclasses.replace(row, command=[*row.command, "--scale_with_devices"], fills=fills)


def _pipeline(x: int, y: int, z: int, microbatches: int, rows: int, schedule: str = "gpipe") -> Row:
    sizes = {"X": x, "Y": y, "Z": z, "MICROBATCHES": microbatches, "ROWS": microbatches * rows}
    after = "" if schedule == "gpipe" else f"_{schedule}"
    return _row(
        "GSPMD table 4",
        f"gspmd_pipeline_{x}x{y}x{z}_{microbatches}x{rows}{after}",
        256,
        *(f"{name} = {size}" for name, size in sizes.items()),
        f"Model.schedule = '{schedule}'",
        config="gspmd_narrow_16b_pipeline",
        key=f"{x} x {y} x {z} | {microbatches} x {rows}{after.replace('_', ' ')}",
        cells=functools.partial(pipeline, useful=microbatches * (64 // x if after else 1)),
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
    key = f"{mesh} | {image} | {rows}"
    return Row(f"unet3d_{mesh}", command.split(), [("GSPMD table 8", key, example)])


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
BLOCK = ("Model.encoder_layers = 0", "Model.decoder_layers = 2")
HALF = ("ROWS = 4096", "GROUPS = 512")
GSHARD = [
    ("moe_2048e_36l", 2048), ("moe_128e_36l", 128), ("moe_512e_36l", 512), ("moe_2048e_12l", 2048),
    ("moe_512e_12l", 512), ("moe_128e_12l", 128), ("moe_2048e_60l", 2048), ("dense_96l", 2048),
]
# Table -> the row and its config without "gspmd_", X, Y, rows of the batch.
MESHES = {
    2: [
        ("dense_64b", "dense_64b", 8, 16, 64), ("dense_64b_512", "dense_64b", 16, 32, 256),
        ("dense_64b_2048", "dense_64b", 32, 64, 1024), ("dense_128b", "dense_128b", 32, 64, 512),
        ("dense_256b", "dense_256b", 32, 64, 256), ("dense_512b", "dense_512b", 32, 64, 128),
        ("dense_1t", "dense_1t", 32, 64, 128),
    ],
    3: [
        (f"narrow_{x}x{y}", "narrow_16b", x, y, rows)
        for x, y, rows in
        [(4, 16, 48), (8, 16, 96), (8, 32, 192), (16, 4, 48), (16, 8, 96), (32, 8, 192)]
    ],
}
PIPELINES = [
    (2, 16, 8, 16, 64), (4, 16, 4, 16, 64), (4, 16, 4, 32, 32), (8, 16, 2, 32, 32), (8, 8, 4, 32, 32),
    # Not in the paper: a batch that fits, and the circular schedule.
    (4, 16, 4, 24, 32), (8, 8, 4, 32, 32, "circular"),
]
SWITCH = [
    ("t5_base", 128), ("t5_large", 128), ("t5_xxl", 2048), ("switch_base", 128),
    ("switch_large", 128), ("switch_xxl", 2048), ("switch_c", 2048),
]
# fmt: on
ROWS = [
    *(_translation(name, cores) for name, cores in GSHARD),
    *(
        _scaled(f"growth_{n}", n, [(GROWTH, str(n), growth), (FORWARD, str(n), forward)])
        for n in (8, 32, 128, 512)
    ),
    _scaled("block_128", 128, _peaks(2), *BLOCK),
    # Half of the printed batch. With it, the printed steps are possible.
    *(
        _row(GSHARD_TABLES, f"{name}_half", 128, *HALF, config=name, cells=translation)
        for name in ("moe_128e_36l", "moe_128e_12l")
    ),
    *(_row(GSHARD_TABLES, f"dense_{n}", 2048, cells=translation) for n in ("96l_gpipe", "128l")),
    *(
        _row(
            f"GSPMD table {table}",
            f"gspmd_{name}",
            x * y,
            *(f"X = {x}", f"Y = {y}", f"ROWS = {rows}"),
            config=f"gspmd_{config}",
            more=_peaks(3) if name == "narrow_32x8" else (),
        )
        for table, shapes in MESHES.items()
        for name, config, x, y, rows in shapes
    ),
    *(_pipeline(*shape) for shape in PIPELINES),
    *(
        _row(f"GSPMD table {table}", f"gspmd_{kind}_{n}", cores, cells=cells)
        for table, kind, sizes, cells in (
            (6, "moe", ("10b", "37b", "145b", "577b"), sparse),
            (7, "hybrid", ("33b", "57b", "420b", "804b"), model),
        )
        for n, cores in zip(sizes, (32, 128, 512, 2048), strict=True)
    ),
    *(_row("Switch table 9", name, cores, cells=switch) for name, cores in SWITCH),
    *EXAMPLES,
]
