"""Names and shapes of the machines that a program can be compiled for: TPU slices, GPUs and CPU devices.

A TPU slice is named by its generation and its number of chips along each axis of the torus, such as
`v3:32x32`. Several equal slices, which only the data center network joins, are named by their number:
`v5e:16x16*4` is four slices. GPUs and CPU devices are named by their number, such as `h100:8` and
`cpu:8`. This module is arithmetic only: it imports neither jax nor a compiler. `ahead_of_time.py`
compiles for a topology.
"""

import dataclasses
import math
import re

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.chips import CHIPS, SLICE_BANDWIDTH, Chip, Gpu

EXAMPLES = ("v3:32x32", "v4:4x4x4", "v5e:16x16", "v5p:8x8x8", "v6e:16x16", "h100:8", "cpu:8")

MAX_CPU_DEVICES = 512

MAX_SLICES = 256

INSTALL_CUDA = "pip install 'jax-cuda13-plugin[with-cuda]==0.10.2'"
"""The command that makes GPU topologies work. Each release of jax needs its own compiler."""

INSTALL_LIBTPU = "pip install 'libtpu==0.0.42.*'"
"""The command that makes TPU topologies work. Each release of jax needs its own release of libtpu."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """A TPU slice or several, a number of GPUs, or a number of CPU devices."""

    name: str  # The name that `parse` read
    chip: Chip | None  # The generation of the chips or the model of the GPUs; None for CPU devices
    # Number of chips along each axis of the torus; (hosts, GPUs of a host) for GPUs, (n,) for n CPU
    # devices.
    shape: tuple[int, ...]
    slices: int = 1  # Number of equal TPU slices, each of this shape
    # Bytes per second between a chip and those of other slices, in one direction; 0 for one slice
    slice_bandwidth: float = 0.0

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of chips along each axis of the torus, and then the number of slices if it is above 1.

        The coordinates of a chip count these axes.
        """
        return (*self.shape, self.slices) if self.slices > 1 else self.shape

    @property
    def num_chips(self) -> int:
        return math.prod(self.grid)

    @property
    def num_devices(self) -> int:
        """Number of devices: cores on v3, chips on later generations, GPUs or CPU devices."""
        return self.num_chips * (self.chip.devices_per_chip if self.chip else 1)

    @classmethod
    def parse(cls, name: str, slice_link: float | None = None) -> "Topology":
        """Returns the topology of a name.

        Args:
          name: for instance "v4:4x4x4", or "v4:4x4x4*4" for four slices.
          slice_link: bytes per second between a chip and those of other slices; None takes the figure
            of the chip's documentation.

        Raises:
          UserError: no topology has this name; the message lists those that exist. Or nothing is known
            about the network between the slices.
        """
        kind, _, size = name.partition(":")
        if kind == "cpu" and re.fullmatch(r"\d+", size) and 1 <= int(size) <= MAX_CPU_DEVICES:
            return cls(name, None, (int(size),))
        if kind == "cpu":
            raise UserError(
                f"--topology {name}: the number of CPU devices must be from 1 to "
                f"{MAX_CPU_DEVICES}. Write for instance cpu:8."
            )
        size, _, slices = size.partition("*")
        if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+)*", size) or name.endswith("*"):
            raise UserError(
                f"--topology {name}: there is no such topology; known are {', '.join(_ranges())} and "
                f"cpu:1 to cpu:{MAX_CPU_DEVICES}, for instance {', '.join(EXAMPLES)}."
            )
        chip = CHIPS[kind]
        if isinstance(chip, Gpu):
            if slices:
                raise UserError(
                    f"--topology {name}: only TPUs form slices. Give the number of all GPUs, for "
                    f"instance {chip.name}:64; the network between their hosts is counted."
                )
            return cls(name, chip, _hosts(name, chip, size))
        shape = tuple(int(n) for n in size.split("x"))
        _check_shape(name, chip, shape)
        if not slices:
            return cls(name, chip, shape)
        number, bandwidth = _slices(name, chip, slices, slice_link)
        return cls(name, chip, shape, number, bandwidth)

    @property
    def one_slice(self) -> str:
        return self.name.partition("*")[0]

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


def _slices(name: str, chip: Chip, slices: str, slice_link: float | None) -> tuple[int, float]:
    """Returns the number of slices, and the bandwidth between them."""
    if not slices.isdigit() or not 2 <= int(slices) <= MAX_SLICES:
        raise UserError(
            f"--topology {name}: the number of slices after * must be from 2 to {MAX_SLICES}. Write for "
            f"instance {name.partition('*')[0]}*2, or leave it out for one slice."
        )
    bandwidth = slice_link or SLICE_BANDWIDTH.get(chip.name)
    if bandwidth is None:
        raise UserError(
            f"--topology {name}: the documentation of {chip.name} has no bandwidth between slices. Give "
            "it with --slice_link, in GB/s for each chip, for instance --slice_link 3."
        )
    return int(slices), bandwidth


def _hosts(name: str, gpu: Gpu, size: str) -> tuple[int, int]:
    """Returns the number of hosts, and of GPUs in each."""
    most, gpus_of_host = math.prod(gpu.pod), gpu.pod[1]
    number = int(size) if size.isdigit() else 0
    if not 1 <= number <= most or (number > gpus_of_host and number % gpus_of_host):
        raise UserError(
            f"--topology {name}: a host has {gpus_of_host} GPUs. Give their number, from 1 to "
            f"{gpus_of_host} or a multiple of {gpus_of_host} up to {most}, for instance {gpu.name}:8."
        )
    hosts = max(1, number // gpus_of_host)
    return hosts, number // hosts


def _check_shape(name: str, chip: Chip, shape: tuple[int, ...]) -> None:
    axes, pod = len(chip.pod), "x".join(map(str, chip.pod))
    example = next(e for e in EXAMPLES if e.startswith(f"{chip.name}:"))
    problem = ""
    if len(shape) != axes:
        problem = (
            f"{chip.name} chips form a torus of {axes} axes. Give {axes} sizes, for instance "
            f"{example}."
        )
    elif not all(1 <= n <= most for n, most in zip(sorted(shape), sorted(chip.pod), strict=True)):
        problem = (
            f"the largest slice of {chip.name} has {pod} chips. Give sizes from 1 up to these numbers, "
            "in any order."
        )
    elif math.prod(shape) > 1 and any(n % 2 for n in shape[:2]):
        problem = "each host has 2x2 chips, so the first two sizes must be even."
    if problem:
        raise UserError(f"--topology {name}: {problem}")


def _ranges() -> list[str]:
    tori = [chip for chip in CHIPS.values() if not isinstance(chip, Gpu)]
    gpus = [chip for chip in CHIPS.values() if isinstance(chip, Gpu)]
    return [
        f"{chip.name}:{'x'.join(['2'] * 2 + ['1'] * (len(chip.pod) - 2))} to "
        f"{chip.name}:{'x'.join(map(str, chip.pod))}"
        for chip in tori
    ] + [f"{gpu.name}:1 to {gpu.name}:{math.prod(gpu.pod)}" for gpu in gpus]
