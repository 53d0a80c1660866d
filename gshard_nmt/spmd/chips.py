"""The generations of TPU chips and GPUs, with the figures that their documentation gives."""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One generation of TPU, or one GPU (see `Gpu`).

    FLOPS, memory and memory bandwidth are per device, which on v3 is one of the two cores of a chip.
    """

    name: str  # The name of the generation, which is the first part of a topology's name
    devices_per_chip: int  # 2 if each core of a chip is a device of its own, else 1
    peak_flops: float  # bfloat16 additions and multiplications per second
    hbm_bytes: int  # Size of the memory
    hbm_bandwidth: float  # Bytes per second between memory and cores
    link_bandwidth: float  # Bytes per second over one link of the chip, in one direction
    # Cycles per second: `peak_flops` divided by the FLOPs that the matrix units do in one cycle
    clock: float
    pod: tuple[int, ...]  # Number of chips along each axis of the largest slice


@dataclasses.dataclass(frozen=True)
class Gpu(Chip):
    """One model of GPU, eight of which are in a host.

    `link_bandwidth` is that of NVLink between a GPU and the others of its host, and `pod` is (hosts, GPUs
    of a host).
    """

    # Additions and multiplications per second of float32 products. XLA computes these in TF32.
    tf32_flops: float
    # Bytes per second between a GPU and those of other hosts, in one direction. We take one network
    # adapter of 400 Gbit/s for each GPU, or 200 Gbit/s for each A100, as in NVIDIA's DGX systems.
    network_bandwidth: float
    compute_capability: tuple[int, int]  # The version of the instruction set
    cores: int  # Number of streaming multiprocessors
    float32_units: int  # Units of each core that multiply float32
    shared_memory: int  # Bytes of the memory inside a core
    cache: int  # Bytes of the second-level cache

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


# The documentation gives figures per chip; we divide them by the devices of a chip.
# A v3 chip has 4 links of 656 Gbit/s in each direction. For the other generations the documentation
# gives the total of a chip in both directions, which we divide by 2 and by 4 (2D) or 6 (3D) links.
# Sources: cloud.google.com/tpu/docs, the pages v3 to v6e. Links of v3: Jouppi et al., CACM 63(7), 2020,
# table 3; of v4: Jouppi et al., ISCA 2023, table 4.
# fmt: off
_TPUS = (
    #    name   devices  FLOPS          memory    its bandwidth  link          clock   pod
    Chip("v3",  2,       123e12 / 2,    16 * GIB, 900e9 / 2,     656e9 / 8,      0.94e9, (32, 32)),
    Chip("v4",  1,       275e12,        32 * GIB, 1200e9,        50e9,           1.05e9, (12, 16, 16)),
    Chip("v5e", 1,       197e12,        16 * GIB, 819e9,         400e9 / 2 / 4,  1.5e9,  (16, 16)),
    Chip("v5p", 1,       459e12,        95 * GIB, 2765e9,        1200e9 / 2 / 6, 1.75e9, (16, 20, 28)),
    Chip("v6e", 1,       918e12,        32 * GIB, 1640e9,        800e9 / 2 / 4,  1.75e9, (16, 16)),
)
# Sources: NVIDIA A100 80GB data sheet, 2021 (SXM); H100 architecture white paper, 2022 (SXM5, no
# sparsity); H200 data sheet, 2024 (SXM, no sparsity); Blackwell data sheet, 2024 (HGX B200, no sparsity).
# Figures for the compiler: github.com/openxla/xla, xla/backends/gpu/target_config/specs.
_GPUS = (
    #   name       FLOPS     memory           bandwidth  NVLink      clock             TF32 FLOPS
    Gpu("a100", 1, 312e12,   85_100_068_864,  2039.04e9, 600e9 / 2,  1.41e9,  (512, 8), 156e12,
        network_bandwidth=200e9 / 8, compute_capability=(8, 0), cores=108, float32_units=64,
        shared_memory=164 * 2**10, cache=40 * 2**20),
    Gpu("h100", 1, 989.4e12, 84_942_979_072,  3352.32e9, 900e9 / 2,  1.98e9,  (512, 8), 494.7e12,
        network_bandwidth=400e9 / 8, compute_capability=(9, 0), cores=132, float32_units=128,
        shared_memory=228 * 2**10, cache=50 * 2**20),
    Gpu("h200", 1, 989.4e12, 151_397_597_184, 4800e9,    900e9 / 2,  1.98e9,  (512, 8), 494.7e12,
        network_bandwidth=400e9 / 8, compute_capability=(9, 0), cores=132, float32_units=128,
        shared_memory=228 * 2**10, cache=50 * 2**20),
    Gpu("b200", 1, 2250e12,  191_514_411_008, 7672.32e9, 1800e9 / 2, 1.965e9, (512, 8), 1125e12,
        network_bandwidth=400e9 / 8, compute_capability=(10, 0), cores=148, float32_units=128,
        shared_memory=228 * 2**10, cache=132_644_864),
)
# fmt: on
CHIPS: dict[str, Chip] = {chip.name: chip for chip in (*_TPUS, *_GPUS)}

# The data center network has 6.4 Tbit/s (v5e) and 25.6 Tbit/s (v6e) for each pod of 256 chips, and
# 50 Gbit/s for each chip of v5p: cloud.google.com/tpu/docs, the pages v5e, v6e and v5p. The pages of v3
# and v4 give no figure.
SLICE_BANDWIDTH = {"v5e": 25e9 / 8, "v5p": 50e9 / 8, "v6e": 100e9 / 8}
"""Bytes per second between a chip and those of other slices, in one direction, by generation."""
