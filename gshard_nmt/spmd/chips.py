"""The generations of TPU chips and GPUs, with the figures that their documentation gives."""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One generation of TPU, or one GPU (see `Gpu`).

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


@dataclasses.dataclass(frozen=True)
class Gpu(Chip):
    """One model of GPU, eight of which are in a host.

    `link_bandwidth` is that of NVLink between a GPU and the others of its host, and `pod` is (hosts, GPUs
    of a host).
    """

    tf32_flops: float
    """Additions and multiplications per second of float32 products. XLA computes these in TF32."""
    network_bandwidth: float
    """Bytes per second between a GPU and those of other hosts, in one direction. We take one network
    adapter of 400 Gbit/s for each GPU, or 200 Gbit/s for each A100, as in NVIDIA's DGX systems."""
    compute_capability: tuple[int, int]
    """The version of the instruction set."""
    cores: int
    """Number of streaming multiprocessors."""
    float32_units: int
    """Units of each core that multiply float32."""
    shared_memory: int
    """Bytes of the memory inside a core."""
    cache: int
    """Bytes of the second-level cache."""

    @property
    def description(self) -> str:
        """What XLA's compiler must know of the GPU: a text message of its type GpuTargetConfigProto."""
        # A block of threads may use all of a core's shared memory but 1 KiB.
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: {2**16 - 1}
  block_dim_limit_z: {2**16 - 1}
  registers_per_core_limit: {2**16}
  registers_per_block_limit: {2**16}
  shared_memory_per_block: {48 * 2**10}
  shared_memory_per_block_optin: {self.shared_memory - 2**10}
  shared_memory_per_core: {self.shared_memory}
  core_count: {self.cores}
  fpus_per_core: {self.float32_units}
  memory_bandwidth: {int(self.hbm_bandwidth)}
  l2_cache_size: {self.cache}
  clock_rate_ghz: {self.clock / 1e9}
  device_memory_size: {self.hbm_bytes}
  cuda_compute_capability {{
    major: {self.compute_capability[0]}
    minor: {self.compute_capability[1]}
  }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{self.name}"
"""


def peak_of(chip: Chip, dtype: str) -> float:
    """Returns the additions and multiplications per second of a product of matrices.

    Args:
      chip: a TPU or a GPU. A TPU multiplies float32 as bfloat16.
      dtype: XLA's name of the dtype of the operands, such as "f32".
    """
    return chip.tf32_flops if isinstance(chip, Gpu) and dtype == "f32" else chip.peak_flops


_SPECS = "github.com/openxla/xla, xla/backends/gpu/target_config/specs"

# The documentation gives figures per chip; we divide them by the devices of a chip.
# A v3 chip has 4 links of 656 Gbit/s in each direction. For the other generations the documentation
# gives the total of a chip in both directions, which we divide by 2 and by 4 (2D) or 6 (3D) links.
CHIPS: dict[str, Chip] = {
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
        Gpu(
            "a100",
            devices_per_chip=1,
            peak_flops=312e12,
            tf32_flops=156e12,
            hbm_bytes=85_100_068_864,
            hbm_bandwidth=2039.04e9,
            link_bandwidth=600e9 / 2,
            network_bandwidth=200e9 / 8,
            clock=1.41e9,
            pod=(512, 8),
            compute_capability=(8, 0),
            cores=108,
            float32_units=64,
            shared_memory=164 * 2**10,
            cache=40 * 2**20,
            source=f"NVIDIA A100 80GB data sheet, 2021 (SXM); compiler: {_SPECS}",
        ),
        Gpu(
            "h100",
            devices_per_chip=1,
            peak_flops=989.4e12,
            tf32_flops=494.7e12,
            hbm_bytes=84_942_979_072,
            hbm_bandwidth=3352.32e9,
            link_bandwidth=900e9 / 2,
            network_bandwidth=400e9 / 8,
            clock=1.98e9,
            pod=(512, 8),
            compute_capability=(9, 0),
            cores=132,
            float32_units=128,
            shared_memory=228 * 2**10,
            cache=50 * 2**20,
            source=f"NVIDIA H100 architecture white paper, 2022 (SXM5, no sparsity); compiler: {_SPECS}",
        ),
        Gpu(
            "h200",
            devices_per_chip=1,
            peak_flops=989.4e12,
            tf32_flops=494.7e12,
            hbm_bytes=151_397_597_184,
            hbm_bandwidth=4800e9,
            link_bandwidth=900e9 / 2,
            network_bandwidth=400e9 / 8,
            clock=1.98e9,
            pod=(512, 8),
            compute_capability=(9, 0),
            cores=132,
            float32_units=128,
            shared_memory=228 * 2**10,
            cache=50 * 2**20,
            source=f"NVIDIA H200 data sheet, 2024 (SXM, no sparsity); compiler: {_SPECS}",
        ),
        Gpu(
            "b200",
            devices_per_chip=1,
            peak_flops=2250e12,
            tf32_flops=1125e12,
            hbm_bytes=191_514_411_008,
            hbm_bandwidth=7672.32e9,
            link_bandwidth=1800e9 / 2,
            network_bandwidth=400e9 / 8,
            clock=1.965e9,
            pod=(512, 8),
            compute_capability=(10, 0),
            cores=148,
            float32_units=128,
            shared_memory=228 * 2**10,
            cache=132_644_864,
            source=f"NVIDIA Blackwell data sheet, 2024 (HGX B200, no sparsity); compiler: {_SPECS}",
        ),
    )
}

# The data center network has 6.4 Tbit/s (v5e) and 25.6 Tbit/s (v6e) for each pod of 256 chips, and
# 50 Gbit/s for each chip of v5p: cloud.google.com/tpu/docs, the pages v5e, v6e and v5p. The pages of v3
# and v4 give no figure.
SLICE_BANDWIDTH = {"v5e": 25e9 / 8, "v5p": 50e9 / 8, "v6e": 100e9 / 8}
"""Bytes per second between a chip and those of other slices, in one direction, by generation."""
