"""The rows of docs/paper_tables.md: the papers' models on the papers' machines."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """One model on one machine.

    Attributes:
      name: name of the row, and of the file of its figures.
      config: name of a config in configs/experiments.
      topology: the machine; a TPU v3 chip has two cores.
      settings: settings that replace the config's.
      scaled: whether experts, groups and rows are proportional to the number of devices.
      paper_settings: settings of the paper's row to compare with; None means the same as
        `settings`.
    """

    name: str
    config: str
    topology: str
    settings: tuple[str, ...] = ()
    scaled: bool = False
    paper_settings: tuple[str, ...] | None = None


def _mesh(x: int, y: int, rows: int) -> tuple[str, ...]:
    return (f"X = {x}", f"Y = {y}", f"ROWS = {rows}")


POD = {32: "v3:4x4", 64: "v3:4x8", 128: "v3:8x8", 256: "v3:8x16", 512: "v3:16x16", 2048: "v3:32x32"}
"""Number of cores -> slice."""

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
# Half of the printed batch. With it, the printed steps are possible; see REASONS in paper_notes.py.
HALVED = [
    Row(f"{name}_half", name, POD[128], ("ROWS = 4096", "GROUPS = 512"), paper_settings=())
    for name in ("moe_128e_36l", "moe_128e_12l")
]
PIPELINES = [Row(name, name, POD[2048]) for name in ("dense_96l_gpipe", "dense_128l")]
TRANSLATION = [*GSHARD, *HALVED, *PIPELINES]
# From 8 to 2048 cores: each core has one expert, 16 rows and one group, as in the paper's model.
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
# Table 4: (stages, rows, width) and the microbatches.
GSPMD_PIPELINES = [
    Row(
        f"gspmd_pipeline_{x}x{y}x{z}_{number}",
        "gspmd_narrow_16b_pipeline",
        POD[256],
        (f"X = {x}", f"Y = {y}", f"Z = {z}", f"MICROBATCHES = {number}"),
    )
    for x, y, z, number in (
        (2, 16, 8, 16),
        (4, 16, 4, 16),
        (4, 16, 4, 32),
        (8, 16, 2, 32),
        (8, 8, 4, 32),
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
SWITCH = [
    Row(name, name, POD[cores])
    for name, cores in (
        ("t5_base", 128),
        ("t5_large", 128),
        ("t5_xxl", 2048),
        ("switch_base", 128),
        ("switch_large", 128),
        ("switch_xxl", 2048),
        ("switch_c", 2048),
    )
]
SWITCH_FLOPS = {
    "t5_base": ("0.2B", "124B"),
    "t5_large": ("0.7B", "425B"),
    "t5_xxl": ("11B", "6.3T"),
    "switch_base": ("7B", "124B"),
    "switch_large": ("26B", "425B"),
    "switch_xxl": ("395B", "6.3T"),
    "switch_c": ("1571B", "890B"),
}
"""Config -> the weights and the FLOPs of a sequence that Switch table 9 prints."""
ROWS = [
    *(GSHARD[:3] + GROWTH + GSHARD[3:] + HALVED + PIPELINES),
    *(GSPMD_MOE + GSPMD_DENSE + GSPMD_NARROW + GSPMD_PIPELINES + GSPMD_HYBRID + SWITCH),
]
SPLIT_SIZE, WHOLE_SIZE = 64, 256
"""The sizes of letters in GShard's table 4: the elements of a core if the letter is split, or all."""
