"""Machines that a program can be compiled for without having them: TPU slices, and CPU devices.

The libtpu package brings the TPU compiler; it needs no TPU to compile for a slice. A topology is
named by its generation and its chips along each axis of the torus, `v3:32x32`, or `cpu:8`.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.lowering import LoweredFunction, as_jax_function, silenced_stderr
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.runtime import Runtime

GIB = 2**30

INSTALL_LIBTPU = "pip install 'libtpu==0.0.42.*'"
"""The one command that makes TPU topologies work; libtpu and jax share a release."""


@dataclasses.dataclass(frozen=True)
class Chip:
    """One generation of TPU, as its documentation has it. All figures are of one device.

    Attributes:
      name: what topologies call it.
      devices_per_chip: 2 where each core of a chip is a device of its own; else 1.
      peak_flops: bfloat16 multiplications and additions a second.
      hbm_bytes: memory.
      hbm_bandwidth: bytes a second.
      link_bandwidth: bytes a second of one link of the chip, in one direction.
      clock: cycles a second: peak_flops over the multiply-adds of the matrix units in a cycle.
      pod: chips along each axis of the largest slice.
      source: where the figures are from.
    """

    name: str
    devices_per_chip: int
    peak_flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    clock: float
    pod: tuple[int, ...]
    source: str


# Per chip, divided by the devices of a chip. Links: v3 has 4 of 656 Gbit/s in each direction; of the
# others the documentation gives the chip's total in both directions, over 4 (2D) or 6 (3D) links.
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

EXAMPLES = ("v3:32x32", "v4:4x4x4", "v5e:16x16", "v5p:8x8x8", "v6e:16x16", "cpu:8")

MAX_CPU_DEVICES = 512


@dataclasses.dataclass(frozen=True)
class Topology:
    """A machine, by name.

    Attributes:
      name: as given.
      chip: its generation; None for CPU devices.
      shape: chips along each axis of the torus; CPU devices as (n,).
    """

    name: str
    chip: Chip | None
    shape: tuple[int, ...]

    @property
    def num_chips(self) -> int:
        """Chips in the slice."""
        return math.prod(self.shape)

    @property
    def num_devices(self) -> int:
        """What a mesh counts: cores of a v3 chip, chips of later ones."""
        return self.num_chips * (self.chip.devices_per_chip if self.chip else 1)

    @classmethod
    def parse(cls, name: str) -> "Topology":
        """The topology of a name.

        Raises:
          UserError: there is none of that name; the message lists what there is.
        """
        kind, _, size = name.partition(":")
        dims = re.fullmatch(r"\d+(x\d+)*", size)
        if kind == "cpu" and dims and "x" not in size and 1 <= int(size) <= MAX_CPU_DEVICES:
            return cls(name, None, (int(size),))
        known = (
            f"known are {', '.join(_ranges())} and cpu:1 to cpu:{MAX_CPU_DEVICES}; for instance "
            f"{', '.join(EXAMPLES)}."
        )
        if kind == "cpu":
            raise UserError(
                f"--topology {name}: CPU devices are one number, from 1 to {MAX_CPU_DEVICES}, as "
                "in cpu:8."
            )
        if kind not in CHIPS or not dims:
            raise UserError(f"--topology {name}: there is no such topology; {known}")
        chip, shape = CHIPS[kind], tuple(int(n) for n in size.split("x"))
        if len(shape) != len(chip.pod):
            example = next(e for e in EXAMPLES if e.startswith(f"{kind}:"))
            raise UserError(
                f"--topology {name}: {kind} chips form a torus of {len(chip.pod)} axes; give "
                f"{len(chip.pod)} sizes, for instance {example}."
            )
        if any(n < 1 or n > most for n, most in zip(sorted(shape), sorted(chip.pod), strict=True)):
            pod = "x".join(map(str, chip.pod))
            raise UserError(
                f"--topology {name}: the largest slice of {kind} has {pod} chips, in any order; "
                "every size is at least 1 and at most its axis."
            )
        if math.prod(shape) > 1 and any(n % 2 for n in shape[:2]):
            raise UserError(
                f"--topology {name}: a host has 2x2 chips, so the first two sizes are even."
            )
        return cls(name, chip, shape)

    def wraps(self) -> tuple[bool, ...]:
        """Whether each axis closes to a ring: of 2D slices the axes of a pod, of 3D ones whole cubes."""
        if self.chip is None:
            return (False,) * len(self.shape)
        if len(self.shape) == 3:
            # Rings close through optical switches, to which whole cubes of 4 x 4 x 4 are wired.
            return (all(n % 4 == 0 for n in self.shape),) * 3
        return tuple(n == most for n, most in zip(self.shape, self.chip.pod, strict=True))


def _ranges() -> list[str]:
    return [
        f"{chip.name}:{'x'.join(['2'] * 2 + ['1'] * (len(chip.pod) - 2))} to "
        f"{chip.name}:{'x'.join(map(str, chip.pod))}"
        for chip in CHIPS.values()
    ]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program that the compiler has partitioned and scheduled for a topology.

    Attributes:
      topology: for which.
      executable: jax's compiled object; it cannot be run on a topology that is not there.
      compile_seconds: partitioning and compiling.
      compile_cpu_seconds: of all threads; what a busy machine does not change.
    """

    topology: Topology
    executable: Any
    compile_seconds: float
    compile_cpu_seconds: float

    @property
    def text(self) -> str:
        """The partitioned program of one device, as HLO text."""
        return self.executable.as_text()


class DoesNotFit(Exception):
    """The compiler gave up a program that needs more memory than a device has.

    Attributes:
      needed_bytes: what the compiler says the program needs (`what` of it).
      available_bytes: what it had.
      what: of what it counted, for instance "HLO temporaries".
    """

    def __init__(self, needed_bytes: int, available_bytes: int, what: str) -> None:
        super().__init__(needed_bytes, available_bytes, what)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.what = what


def check_available(wanted: Sequence[Topology]) -> None:
    """Finds out, before anything is compiled, whether there is a compiler for every topology.

    Must come before anything else in the process uses jax: CPU devices are started once, as many as
    the largest CPU topology has.

    Raises:
      UserError: libtpu is not installed, or knows no such slice; too many CPU devices.
    """
    for topology in sorted(wanted, key=lambda each: -each.num_devices):
        _devices(topology)


def _devices(topology: Topology) -> list[Any]:
    # Before jax is first imported: no plugin looks for devices, and XLA logs errors alone.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return _cpu_devices(topology) if topology.chip is None else _tpu_devices(topology)


def devices_of(topology: Topology, mesh: Mesh) -> Runtime:
    """The devices of a topology laid out as a mesh, to compile for; none of them has to exist.

    Raises:
      UserError: libtpu is not installed, or knows no such slice; the mesh has another size.
    """
    if mesh.num_devices != topology.num_devices:
        raise UserError(
            f"Mesh.shape {list(mesh.shape)} is {mesh.num_devices} devices; {topology.name} has "
            f"{topology.num_devices}."
        )
    devices = _devices(topology)
    import jax

    grid = np.array(devices)[mesh.devices()]
    return Runtime(mesh, jax.sharding.Mesh(grid, tuple(mesh.axes)), None)


def coordinates_of(topology: Topology, devices: Runtime) -> np.ndarray | None:
    """int[devices, axes]: the chip of each device, in the order of the mesh; None of CPU devices."""
    if topology.chip is None:
        return None
    axes = len(topology.shape)
    return np.array([device.coords[:axes] for device in devices.devices.devices.ravel()])


def _cpu_devices(topology: Topology) -> list[Any]:
    import jax

    if jax.config.jax_num_cpu_devices < topology.num_devices:
        with contextlib.suppress(RuntimeError):  # already started; their number is checked below
            jax.config.update("jax_num_cpu_devices", topology.num_devices)
    devices = jax.devices("cpu")
    if len(devices) < topology.num_devices:
        raise UserError(
            f"--topology {topology.name}: this process has started {len(devices)} CPU devices "
            "already; inspect it in a process of its own."
        )
    return devices[: topology.num_devices]


def _tpu_devices(topology: Topology) -> list[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"--topology {topology.name} needs the TPU compiler, which is not installed: "
            f"{INSTALL_LIBTPU}. No TPU is needed."
        )
    # libtpu looks for a TPU's metadata server and worker list unless told that there is none.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        # A lock keeps two processes from one TPU; none is touched here, and many may compile at once.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_LOG_DIR": "disabled",
    }
    options: dict[str, object] = {}
    if topology.chip and topology.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # both cores of a chip as one device, as on Cloud
    if topology.num_chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    with silenced_stderr():
        import jax
        from jax.experimental import topologies

        try:
            description = topologies.get_topology_desc(
                platform="tpu", topology_name=topology.name, **options
            )
        except jax.errors.JaxRuntimeError as error:
            raise UserError(
                f"--topology {topology.name}: the TPU compiler knows no such slice "
                f"({_one_line(error)}); for instance {', '.join(EXAMPLES)}."
            ) from error
    return list(description.devices)


def compile_for(
    topology: Topology, devices: Runtime, program: LoweredFunction, donate: Sequence[int] = ()
) -> Compiled:
    """Partitions and compiles a lowered program for the devices of a topology.

    Args:
      topology: for which.
      devices: as `devices_of` gave them.
      program: lowered with the same mesh.
      donate: the groups of inputs whose memory the outputs may take over.

    Raises:
      DoesNotFit: the compiler says that the program needs more memory than a device has.
      UserError: the compiler refuses it for another reason.
    """
    import jax

    signature = program.signature
    shardings = [devices.sharding(spec, name) for name, spec in signature.flat_inputs()]
    results = [devices.sharding(spec, name) for name, spec in signature.flat_outputs()]
    groups = [i for i, group in enumerate(signature.inputs) for _ in group]
    arguments = [
        jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
        for (_, spec), sharding in zip(signature.flat_inputs(), shardings, strict=True)
    ]
    began, began_cpu = time.perf_counter(), time.process_time()
    jitted = jax.jit(
        as_jax_function(program),
        in_shardings=tuple(shardings),
        out_shardings=results,
        donate_argnums=tuple(i for i, group in enumerate(groups) if group in donate),
    )
    try:
        executable = jitted.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        raise _explained(topology, error) from error
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    return Compiled(topology, executable, seconds, cpu_seconds)


_SIZES = re.compile(
    r"memory required for (?P<what>[\w ]+?) \((?P<needed>[\d.]+)(?P<needed_unit>[KMGT]?)\) exceeds "
    r"available HBM \((?P<had>[\d.]+)(?P<had_unit>[KMGT]?)\)"
)
_USED_OF = re.compile(
    r"Used (?P<needed>[\d.]+)(?P<needed_unit>[KMGT]?) of (?P<had>[\d.]+)(?P<had_unit>[KMGT]?) hbm"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _explained(topology: Topology, error: Exception) -> Exception:
    message = str(error)
    found = _SIZES.search(message) or _USED_OF.search(message)
    if found:
        sizes = found.groupdict()
        return DoesNotFit(
            int(float(sizes["needed"]) * _UNITS[sizes["needed_unit"]]),
            int(float(sizes["had"]) * _UNITS[sizes["had_unit"]]),
            sizes.get("what") or "the program",
        )
    return UserError(
        f"the compiler for {topology.name} refuses this program: {_one_line(error)}. The nearest "
        "way out is another Mesh.shape or Mesh.rules; where the config is one of the papers', "
        "this is a bug worth reporting."
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
