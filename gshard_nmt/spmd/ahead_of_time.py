"""Compiles lowered functions for a topology without having its devices.

The libtpu package contains the TPU compiler, which needs no TPU to compile for a slice. jax's CUDA
plugin contains the GPU compiler, which needs no GPU. The program cannot be run here, but its text, its
memory and its costs can be read.
"""

import dataclasses
import importlib.util
import os
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.lowering import LoweredFunction, as_jax_function, silenced_stderr
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.runtime import Runtime, arranged, request_cpu_devices
from gshard_nmt.spmd.topology import EXAMPLES, INSTALL_CUDA, INSTALL_LIBTPU, Gpu, Topology
from gshard_nmt.spmd.waiting import wait_for


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program that the compiler has partitioned and scheduled for a topology."""

    topology: Topology  # The topology that it was compiled for
    # jax's compiled object. It cannot be run unless the devices of the topology exist.
    executable: Any
    compile_seconds: float  # Seconds that partitioning and compiling took
    # CPU seconds of all threads, which do not depend on how busy the machine is
    compile_cpu_seconds: float

    @property
    def text(self) -> str:
        """The partitioned program of one device, as HLO text."""
        return self.executable.as_text()


@dataclasses.dataclass(eq=False)
class DoesNotFit(Exception):
    """The compiler refused a program because it needs more memory than a device has."""

    needed_bytes: int  # The memory that the compiler says the program needs
    available_bytes: int  # The memory that the compiler had
    what: str  # The part of the program that `needed_bytes` counts, such as "HLO temporaries"


def check_available(topologies: Sequence[Topology]) -> None:
    """Checks, before anything is compiled, that there is a compiler for every topology.

    Call it before anything else in the process uses jax: CPU devices can be started only once, and
    there must be enough for the largest CPU topology.
    """
    for topology in sorted(topologies, key=lambda topology: -topology.num_devices):
        _devices(topology)


def devices_of(topology: Topology, mesh: Mesh) -> Runtime:
    """Arranges the devices of a topology as a mesh to compile for. No device has to exist.

    Raises:
      UserError: libtpu is not installed or does not know the slice, or the mesh and the
        topology differ in the number of devices.
    """
    if mesh.num_devices != topology.num_devices:
        raise UserError(
            f"Mesh.shape {list(mesh.shape)} is {mesh.num_devices} devices; {topology.name} has "
            f"{topology.num_devices}. Choose sizes whose product is {topology.num_devices}."
        )
    return Runtime(mesh, arranged(_devices(topology), mesh), cache=None)


def coordinates_of(topology: Topology, devices: Runtime) -> np.ndarray | None:
    """Returns int[devices, axes of the torus], the coordinates of each device's chip on the torus.

    The devices are in the order of the mesh. The coordinates of a GPU are its host and its place there.
    CPU devices have none; the result is None for them.
    """
    if topology.chip is None:
        return None
    listed = devices.devices.devices.ravel()
    if isinstance(topology.chip, Gpu):
        return np.stack(np.divmod([d.id for d in listed], topology.shape[1]), axis=1)
    return np.array([d.coords[: len(topology.shape)] for d in listed])


def _devices(topology: Topology) -> list[Any]:
    # These must be set before jax is imported: without the first, plugins look for accelerators;
    # with the second, XLA logs only errors.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if topology.chip is not None:
        is_gpu = isinstance(topology.chip, Gpu)
        kind, package, install = (
            ("GPU", "jax_cuda13_plugin", INSTALL_CUDA)
            if is_gpu
            else ("TPU", "libtpu", INSTALL_LIBTPU)
        )
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"--topology {topology.name} needs the {kind} compiler, which is not installed: "
                f"{install}. No {kind} is needed."
            )
        with silenced_stderr():
            return _gpu_devices(topology) if is_gpu else _tpu_devices(topology)
    import jax

    request_cpu_devices(topology.num_devices)
    devices = jax.devices("cpu")
    if len(devices) < topology.num_devices:
        raise UserError(
            f"--topology {topology.name}: this process has started {len(devices)} CPU devices "
            "already. Inspect this topology in a process of its own."
        )
    return devices[: topology.num_devices]


def _tpu_devices(topology: Topology) -> list[Any]:
    # Without these variables, libtpu queries the metadata server of a TPU host for its workers.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        # A lock keeps two processes from using one TPU. Compiling uses no TPU, so we turn the lock off.
        # Several processes can then compile at the same time.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_LOG_DIR": "disabled",
    }
    options: dict[str, object] = {}
    if topology.chip and topology.chip.name == "v4":
        # On Cloud, both cores of a v4 chip are one device, which libtpu calls "megacore".
        options["chip_config_name"] = "megacore"
    if topology.num_chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    import jax
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=topology.name, **options
        )
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--topology {topology.name}: the TPU compiler does not know this slice "
            f"({_one_line(error)}). Try for instance {', '.join(EXAMPLES)}."
        ) from error
    return list(description.devices)


def _gpu_devices(topology: Topology) -> list[Any]:
    from jax.experimental import topologies

    assert isinstance(topology.chip, Gpu)
    hosts, gpus = topology.shape
    try:
        description = topologies.get_topology_desc(
            platform="cuda", target_config=topology.chip.description, topology=f"1x{hosts}x{gpus}"
        )
    except (NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"--topology {topology.name}: the GPU compiler cannot be used ({_one_line(error)}). Install "
            f"that of this jax: {INSTALL_CUDA}."
        ) from error
    return list(description.devices)


def compile_for(
    topology: Topology, devices: Runtime, lowered: LoweredFunction, donate: Sequence[int] = ()
) -> Compiled:
    """Partitions and compiles a lowered function for the devices of a topology.

    Args:
      lowered: a function that was lowered with the mesh of `devices`.
      donate: indices of the input groups whose memory the outputs may reuse.

    Raises:
      DoesNotFit: the compiler says that the program needs more memory than a device has.
      UserError: the compiler refuses the program for another reason.
    """
    import jax

    began, began_cpu = time.perf_counter(), time.process_time()
    jitted, arguments = devices.jit(as_jax_function(lowered), lowered.signature, donate)
    try:
        options = devices.compiler_options(independent_rows=False)
        if isinstance(topology.chip, Gpu):
            # Autotuning would time kernels on a GPU.
            options = {**(options or {}), "xla_gpu_autotune_level": "0"}
        traced = jitted.lower(*arguments)
        executable = wait_for(lambda: traced.compile(compiler_options=options))
    except jax.errors.JaxRuntimeError as error:
        raise _explained(topology, error) from error
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    return Compiled(topology, executable, seconds, cpu_seconds)


_SIZES = re.compile(
    r"memory required for (?P<what>[\w ]+?) \((?P<needed>[\d.]+)(?P<needed_unit>[KMGT]?)\) exceeds "
    r"available HBM \((?P<available>[\d.]+)(?P<available_unit>[KMGT]?)\)"
)
_USED_OF = re.compile(
    r"Used (?P<needed>[\d.]+)(?P<needed_unit>[KMGT]?) of "
    r"(?P<available>[\d.]+)(?P<available_unit>[KMGT]?) hbm"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _explained(topology: Topology, error: Exception) -> Exception:
    """Returns DoesNotFit if the compiler's error gives the two sizes of memory, else a UserError."""
    message = str(error)
    match = _SIZES.search(message) or _USED_OF.search(message)
    if match:
        sizes = match.groupdict()
        return DoesNotFit(
            int(float(sizes["needed"]) * _UNITS[sizes["needed_unit"]]),
            int(float(sizes["available"]) * _UNITS[sizes["available_unit"]]),
            sizes.get("what") or "the program's arrays",
        )
    return UserError(
        f"the compiler for {topology.name} refuses this program: {_one_line(error)}. Try another "
        "Mesh.shape or Mesh.rules; if the config is that of a paper, please report this as a bug."
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
