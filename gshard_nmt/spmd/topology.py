"""The machines that a program can be compiled for: TPU slices, GPUs and CPU devices.

A TPU slice is named by its generation and its number of chips along each axis of the torus, such as
`v3:32x32`. GPUs and CPU devices are named by their number, such as `h100:8` and `cpu:8`. This module is
arithmetic only: it imports neither jax nor a compiler. `ahead_of_time.py` compiles for a topology.
"""

import dataclasses
import math
import re

from gshard_nmt.errors import UserError
from gshard_nmt.quantities import GIB

EXAMPLES = ("v3:32x32", "v4:4x4x4", "v5e:16x16", "v5p:8x8x8", "v6e:16x16", "h100:8", "cpu:8")

MAX_CPU_DEVICES = 512

INSTALL_CUDA = "pip install 'jax-cuda13-plugin[with-cuda]==0.10.2'"
"""The command that makes GPU topologies work. Each release of jax needs its own compiler."""

INSTALL_LIBTPU = "pip install 'libtpu==0.0.42.*'"
"""The command that makes TPU topologies work. Each release of jax needs its own release of libtpu."""


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
_TPUS = (
    #    name   devices  FLOPS          memory    its bandwidth  link          clock   pod
    Chip("v3",  2,       123e12 / 2,    16 * GIB, 900e9 / 2,     656e9 / 8,      0.94e9, (32, 32)),
    Chip("v4",  1,       275e12,        32 * GIB, 1200e9,        50e9,           1.05e9, (12, 16, 16)),
    Chip("v5e", 1,       197e12,        16 * GIB, 819e9,         400e9 / 2 / 4,  1.5e9,  (16, 16)),
    Chip("v5p", 1,       459e12,        95 * GIB, 2765e9,        1200e9 / 2 / 6, 1.75e9, (16, 20, 28)),
    Chip("v6e", 1,       918e12,        32 * GIB, 1640e9,        800e9 / 2 / 4,  1.75e9, (16, 16)),
)  # fmt: skip
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
)  # fmt: skip
CHIPS: dict[str, Chip] = {chip.name: chip for chip in (*_TPUS, *_GPUS)}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A TPU slice, a number of GPUs, or a number of CPU devices."""

    name: str  # The name that `parse` read
    chip: Chip | None  # The generation of the chips or the model of the GPUs; None for CPU devices
    # Number of chips along each axis of the torus; (hosts, GPUs of a host) for GPUs, (n,) for n CPU
    # devices.
    shape: tuple[int, ...]

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape)

    @property
    def num_devices(self) -> int:
        """Number of devices: cores on v3, chips on later generations, GPUs or CPU devices."""
        return self.num_chips * (self.chip.devices_per_chip if self.chip else 1)

    @classmethod
    def parse(cls, name: str) -> "Topology":
        """Returns the topology of a name such as "v4:4x4x4".

        Raises:
          UserError: no topology has this name; the message lists those that exist.
        """
        kind, _, size = name.partition(":")
        if kind == "cpu":
            if not size.isdecimal() or not 1 <= int(size) <= MAX_CPU_DEVICES:
                raise UserError(
                    f"--topology {name}: the number of CPU devices must be from 1 to "
                    f"{MAX_CPU_DEVICES}. Write for instance cpu:8."
                )
            return cls(name, None, (int(size),))
        if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+)*", size):
            raise UserError(
                f"--topology {name}: there is no such topology; known are {', '.join(_ranges())} and "
                f"cpu:1 to cpu:{MAX_CPU_DEVICES}, for instance {', '.join(EXAMPLES)}."
            )
        chip, sizes = CHIPS[kind], tuple(map(int, size.split("x")))
        shape, problem = _hosts(chip, sizes) if isinstance(chip, Gpu) else _torus(chip, sizes)
        if problem:
            raise UserError(f"--topology {name}: {problem}")
        return cls(name, chip, shape)

    def wraps(self) -> tuple[bool, ...]:
        """Returns for each axis whether its chips form a ring.

        An axis of a 2D slice is a ring if the slice has the full length of the pod along this axis.
        The axes of a 3D slice are rings if all its sizes are multiples of 4.
        """
        if self.chip is None or isinstance(self.chip, Gpu):
            return (False,) * len(self.shape)
        if len(self.shape) == 3:
            # Optical switches close the rings, and they are wired to whole cubes of 4 x 4 x 4 chips.
            return (all(n % 4 == 0 for n in self.shape),) * 3
        return tuple(n == largest for n, largest in zip(self.shape, self.chip.pod, strict=True))


def _hosts(gpu: Gpu, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Returns (hosts, GPUs of a host), and what is wrong with the number of GPUs; "" if nothing is."""
    most, of_host = math.prod(gpu.pod), gpu.pod[1]
    number = math.prod(sizes)
    if len(sizes) != 1 or not 1 <= number <= most or (number > of_host and number % of_host):
        return (), (
            f"a host has {of_host} GPUs. Give their number, from 1 to {of_host} or a multiple of "
            f"{of_host} up to {most}, for instance {gpu.name}:8."
        )
    hosts = max(1, number // of_host)
    return (hosts, number // hosts), ""


def _torus(chip: Chip, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Returns the shape of a slice, and what is wrong with it; "" if nothing is."""
    axes, pod = len(chip.pod), "x".join(map(str, chip.pod))
    if len(shape) != axes:
        example = next(e for e in EXAMPLES if e.startswith(f"{chip.name}:"))
        return shape, (
            f"{chip.name} chips form a torus of {axes} axes. Give {axes} sizes, for instance "
            f"{example}."
        )
    if not all(1 <= n <= most for n, most in zip(sorted(shape), sorted(chip.pod), strict=True)):
        return shape, (
            f"the largest slice of {chip.name} has {pod} chips. Give sizes from 1 up to these numbers, "
            "in any order."
        )
    if math.prod(shape) > 1 and any(n % 2 for n in shape[:2]):
        return shape, "each host has 2x2 chips, so the first two sizes must be even."
    return shape, ""


def _ranges() -> list[str]:
    ranges = []
    for chip in CHIPS.values():
        least, most = "x".join(["2", "2", "1"][: len(chip.pod)]), "x".join(map(str, chip.pod))
        if isinstance(chip, Gpu):
            least, most = "1", str(math.prod(chip.pod))
        ranges.append(f"{chip.name}:{least} to {chip.name}:{most}")
    return ranges
