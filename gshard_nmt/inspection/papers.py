"""What the papers measured, by the name of our config, to stand beside what is compiled.

GShard: table 3 and section 4.3 (arXiv 2006.16668), TPU v3 cores. GSPMD: tables 2, 3, 6 and 7 (arXiv
2105.04663), TPU v3 cores of 16 GB.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Printed:
    """One row of a paper's table.

    Attributes:
      table: which.
      devices: TPU v3 cores.
      parameters: as printed.
      step_seconds: of one training step.
      memory_gb: peak of one core; None where the paper does not say.
      core_years: for a trillion tokens; None where the paper does not say.
      all_to_all_share: of the step; None where the paper does not say.
      flops_utilization: share of the peak; None where the paper does not say.
    """

    table: str
    devices: int
    parameters: str
    step_seconds: float
    memory_gb: float | None = None
    core_years: float | None = None
    all_to_all_share: float | None = None
    flops_utilization: float | None = None


def _gshard(devices: int, parameters: str, steps_per_second: float, core_years: float) -> Printed:
    return Printed(
        "GShard table 3", devices, parameters, 1 / steps_per_second, core_years=core_years
    )


PRINTED = {
    "moe_2048e_36l": (_gshard(2048, "600B", 0.72, 22.4),),
    "moe_2048e_12l": (_gshard(2048, "200B", 2.15, 7.5),),
    "moe_512e_36l": (_gshard(512, "150B", 1.05, 15.5),),
    "moe_512e_12l": (_gshard(512, "50B", 3.28, 4.9),),
    "moe_128e_36l": (_gshard(128, "37B", 0.67, 6.1),),
    "moe_128e_12l": (_gshard(128, "12.5B", 2.16, 1.9),),
    # 300k steps in 42 days (section 4.3).
    "dense_96l": (
        Printed("GShard section 4.3", 2048, "2.3B", 42 * 86400 / 300e3, core_years=235.5),
    ),
    "gspmd_dense_64b": (
        Printed("GSPMD table 2", 128, "64B", 5.74, 15.3, flops_utilization=0.627),
        Printed("GSPMD table 2", 512, "64B", 6.25, 13.3, flops_utilization=0.571),
        Printed("GSPMD table 2", 2048, "64B", 6.30, 15.56, flops_utilization=0.569),
    ),
    "gspmd_dense_128b": (
        Printed("GSPMD table 2", 2048, "128B", 6.31, 14.0, flops_utilization=0.565),
    ),
    "gspmd_dense_256b": (
        Printed("GSPMD table 2", 2048, "256B", 6.71, 12.9, flops_utilization=0.541),
    ),
    "gspmd_dense_512b": (
        Printed("GSPMD table 2", 2048, "512B", 7.64, 13.6, flops_utilization=0.475),
    ),
    "gspmd_dense_1t": (Printed("GSPMD table 2", 2048, "1T", 12.66, 15.8, flops_utilization=0.556),),
    "gspmd_narrow_16b": (
        Printed("GSPMD table 3", 64, "16B", 3.56, 12.4, flops_utilization=0.394),
        Printed("GSPMD table 3", 128, "16B", 3.43, 14.6, flops_utilization=0.405),
        Printed("GSPMD table 3", 256, "16B", 5.71, 14.8, flops_utilization=0.271),
    ),
    "gspmd_moe_10b": (Printed("GSPMD table 6", 32, "10B", 0.98, 10.8, None, 0.02, 0.582),),
    "gspmd_moe_37b": (Printed("GSPMD table 6", 128, "37B", 1.01, 11.2, None, 0.06, 0.498),),
    "gspmd_moe_145b": (Printed("GSPMD table 6", 512, "145B", 1.10, 11.2, None, 0.09, 0.498),),
    "gspmd_moe_577b": (Printed("GSPMD table 6", 2048, "577B", 1.51, 11.6, None, 0.11, 0.468),),
    "gspmd_hybrid_33b": (Printed("GSPMD table 7", 32, "33B", 2.12, 12.3, flops_utilization=0.553),),
    "gspmd_hybrid_57b": (
        Printed("GSPMD table 7", 128, "57B", 2.19, 12.9, flops_utilization=0.502),
    ),
    "gspmd_hybrid_420b": (
        Printed("GSPMD table 7", 512, "420B", 2.08, 11.9, flops_utilization=0.508),
    ),
    "gspmd_hybrid_804b": (
        Printed("GSPMD table 7", 2048, "804B", 1.92, 8.5, flops_utilization=0.538),
    ),
}


def printed(config: str, devices: int) -> Printed | None:
    """What the papers measured for a config on so many devices; None where they did not."""
    rows = PRINTED.get(config, ())
    return next((row for row in rows if row.devices == devices), None)
