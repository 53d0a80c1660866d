"""The generations of TPU chips, with the figures that their documentation gives."""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One generation of TPU.

    FLOPS, memory and memory bandwidth are per device, which on v3 is one of the two cores of a chip.
    """

    name: str
    """The name of the generation, which is the first part of a topology's name."""
    devices_per_chip: int
    """2 if each core of a chip is a device of its own, else 1."""
    peak_flops: float
    """bfloat16 additions and multiplications per second."""
    hbm_bytes: int
    """Size of the memory."""
    hbm_bandwidth: float
    """Bytes per second between memory and cores."""
    link_bandwidth: float
    """Bytes per second over one link of the chip, in one direction."""
    clock: float
    """Cycles per second: `peak_flops` divided by the FLOPs that the matrix units do in one cycle."""
    pod: tuple[int, ...]
    """Number of chips along each axis of the largest slice."""
    source: str
    """Where the figures are from."""


# The documentation gives figures per chip; we divide them by the devices of a chip.
# A v3 chip has 4 links of 656 Gbit/s in each direction. For the other generations the documentation
# gives the total of a chip in both directions, which we divide by 2 and by 4 (2D) or 6 (3D) links.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            "v3",
            devices_per_chip=2,
            peak_flops=123e12 / 2,
            hbm_bytes=16 * GIB,
            hbm_bandwidth=900e9 / 2,
            link_bandwidth=656e9 / 8,
            clock=0.94e9,
            pod=(32, 32),
            source="cloud.google.com/tpu/docs/v3; links: Jouppi et al., CACM 63(7), 2020, table 3",
        ),
        Chip(
            "v4",
            devices_per_chip=1,
            peak_flops=275e12,
            hbm_bytes=32 * GIB,
            hbm_bandwidth=1200e9,
            link_bandwidth=50e9,
            clock=1.05e9,
            pod=(12, 16, 16),
            source="cloud.google.com/tpu/docs/v4; links: Jouppi et al., ISCA 2023, table 4",
        ),
        Chip(
            "v5e",
            devices_per_chip=1,
            peak_flops=197e12,
            hbm_bytes=16 * GIB,
            hbm_bandwidth=819e9,
            link_bandwidth=400e9 / 2 / 4,
            clock=1.5e9,
            pod=(16, 16),
            source="cloud.google.com/tpu/docs/v5e",
        ),
        Chip(
            "v5p",
            devices_per_chip=1,
            peak_flops=459e12,
            hbm_bytes=95 * GIB,
            hbm_bandwidth=2765e9,
            link_bandwidth=1200e9 / 2 / 6,
            clock=1.75e9,
            pod=(16, 20, 28),
            source="cloud.google.com/tpu/docs/v5p",
        ),
        Chip(
            "v6e",
            devices_per_chip=1,
            peak_flops=918e12,
            hbm_bytes=32 * GIB,
            hbm_bandwidth=1640e9,
            link_bandwidth=800e9 / 2 / 4,
            clock=1.75e9,
            pod=(16, 16),
            source="cloud.google.com/tpu/docs/v6e",
        ),
    )
}
