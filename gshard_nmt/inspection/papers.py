"""The numbers that the papers report for models of our configs. The report prints them.

GShard: table 3 and section 4.2 (arXiv 2006.16668), TPU v3 cores. GSPMD: tables 2, 3, 6 and 7 (arXiv
2105.04663), TPU v3 cores of 16 GB.
"""

import dataclasses

_WEIGHTS_TOLERANCE = 1 / 8
"""The papers round their sizes, and GSPMD counts in units of 2**30."""


@dataclasses.dataclass(frozen=True)
class Reported:
    """One row of a paper's table."""

    table: str  # paper and table
    mesh: tuple[int, ...]  # shape of the mesh of TPU v3 cores, as our config has it
    batch_tokens: int  # tokens of one side in a batch
    weights: float  # number of weights, as the paper prints it
    step_seconds: float  # time of a training step
    # peak memory of a core in GB; None if the paper does not report it
    memory_gb: float | None = None
    # time of all cores for a trillion tokens, in years; None if not reported
    core_years: float | None = None
    all_to_all_share: float | None = None  # share of the step; None if not reported
    flops_utilization: float | None = None  # share of the peak; None if not reported


def _gshard(cores: int, weights: float, steps_per_second: float, core_years: float) -> Reported:
    """Returns a row of GShard table 3; a batch has 4M tokens on 2,048 cores and 1M on fewer."""
    tokens, seconds = 2**22 if cores == 2048 else 2**20, 1 / steps_per_second
    return Reported("GShard table 3", (cores,), tokens, weights, seconds, None, core_years)


def _t96l(*mesh: int) -> Reported:
    """Returns what GShard reports for T(96L): 300k steps in 42 days, which are 1.26e12 tokens."""
    return Reported("GShard section 4.2, table 3", mesh, 2**22, 2.3e9, 42 * 86400 / 300e3)


def _dense(table: int, mesh, rows: int, weights: float, *figures: float) -> Reported:
    """Returns a row of GSPMD table 2, 3 or 7. A batch has `rows` sequences of 1024 tokens."""
    seconds, gb, flops = figures
    of = f"GSPMD table {table}", mesh, rows * 1024, weights, seconds, gb
    return Reported(*of, flops_utilization=flops)


def _sparse(cores: int, weights: float, *figures: float) -> Reported:
    """Returns a row of GSPMD table 6. A batch has four sequences of 1024 tokens for each core."""
    seconds, gb, all_to_all, flops = figures
    of = "GSPMD table 6", (cores,), 4 * cores * 1024, weights, seconds, gb
    return Reported(*of, all_to_all_share=all_to_all, flops_utilization=flops)


REPORTED = {
    "moe_2048e_36l": (_gshard(2048, 600e9, 0.72, 22.4),),
    "moe_2048e_12l": (_gshard(2048, 200e9, 2.15, 7.5),),
    "moe_512e_36l": (_gshard(512, 150e9, 1.05, 15.5),),
    "moe_512e_12l": (_gshard(512, 50e9, 3.28, 4.9),),
    "moe_128e_36l": (_gshard(128, 37e9, 0.67, 6.1),),
    "moe_128e_12l": (_gshard(128, 12.5e9, 2.16, 1.9),),
    # The paper ran a pipeline on 2,048 cores. It prints neither its mesh nor its stages.
    "dense_96l": (_t96l(128, 16),),
    "dense_96l_gpipe": (_t96l(16, 128, 1),),
    "gspmd_dense_64b": (
        _dense(2, (8, 16), 64, 64e9, 5.74, 15.3, 0.627),
        _dense(2, (16, 32), 256, 64e9, 6.25, 13.3, 0.571),
        _dense(2, (32, 64), 1024, 64e9, 6.30, 15.56, 0.569),
    ),
    "gspmd_dense_128b": (_dense(2, (32, 64), 512, 128e9, 6.31, 14.0, 0.565),),
    "gspmd_dense_256b": (_dense(2, (32, 64), 256, 256e9, 6.71, 12.9, 0.541),),
    "gspmd_dense_512b": (_dense(2, (32, 64), 128, 512e9, 7.64, 13.6, 0.475),),
    "gspmd_dense_1t": (_dense(2, (32, 64), 128, 1e12, 12.66, 15.8, 0.556),),
    "gspmd_narrow_16b": (
        _dense(3, (4, 16), 48, 16e9, 3.56, 12.4, 0.394),
        _dense(3, (8, 16), 96, 16e9, 3.43, 14.6, 0.405),
        _dense(3, (8, 32), 192, 16e9, 5.71, 14.8, 0.271),
        _dense(3, (16, 4), 48, 16e9, 3.10, 13.8, 0.457),
        _dense(3, (16, 8), 96, 16e9, 3.37, 12.7, 0.417),
        _dense(3, (32, 8), 192, 16e9, 3.36, 14.1, 0.413),
    ),
    "gspmd_narrow_16b_pipeline": (Reported("GSPMD table 4", (2, 16, 8), 2**20, 16e9, 24.0, 14.9),),
    "gspmd_moe_10b": (_sparse(32, 10e9, 0.98, 10.8, 0.02, 0.582),),
    "gspmd_moe_37b": (_sparse(128, 37e9, 1.01, 11.2, 0.06, 0.498),),
    "gspmd_moe_145b": (_sparse(512, 145e9, 1.10, 11.2, 0.09, 0.498),),
    "gspmd_moe_577b": (_sparse(2048, 577e9, 1.51, 11.6, 0.11, 0.468),),
    "gspmd_hybrid_33b": (_dense(7, (8, 4), 32, 33e9, 2.12, 12.3, 0.553),),
    "gspmd_hybrid_57b": (_dense(7, (16, 8), 128, 57e9, 2.19, 12.9, 0.502),),
    "gspmd_hybrid_420b": (_dense(7, (32, 16), 128, 420e9, 2.08, 11.9, 0.508),),
    "gspmd_hybrid_804b": (_dense(7, (64, 32), 512, 804e9, 1.92, 8.5, 0.538),),
}
"""Name of our config -> the rows that the papers report for its model."""


def reported(
    config: str, mesh: tuple[int, ...], batch_tokens: int, weights: float
) -> Reported | None:
    """Returns the paper's row for a config on a mesh, or None if the papers report none.

    `batch_tokens` are those of one side. `weights` is the number of weights of the model, which settings
    may have changed.
    """
    for row in REPORTED.get(config, ()):
        is_same = (row.mesh, row.batch_tokens) == (mesh, batch_tokens)
        if is_same and abs(weights / row.weights - 1) < _WEIGHTS_TOLERANCE:
            return row
    return None
