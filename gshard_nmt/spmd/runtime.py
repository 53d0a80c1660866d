"""Compiles lowered functions for a mesh of devices and runs them, through jax's PJRT runtime.

XLA's SPMD partitioner makes one program for all devices. A lowered function is stored as a portable
file beside XLA's own compilation cache. The next start of the same run then imports no TensorFlow and
compiles nothing.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import paths
from gshard_nmt.errors import UserError
from gshard_nmt.spmd import machine, program_cache
from gshard_nmt.spmd.annotation import rules
from gshard_nmt.spmd.lowering import (
    ArraySpec,
    ArraySpecs,
    LoweredFunction,
    Signature,
    as_jax_function,
    flatten,
)
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.processes import ALONE, Processes
from gshard_nmt.spmd.program import TRAINING, Program, Work, check_fits
from gshard_nmt.spmd.waiting import wait_for

_INDEPENDENT_ROWS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""XLA options for CPUs. By default XLA:CPU has another kernel for large sums than for small ones, with
another order, so that a sum depends on the number of rows. With this option, only products have them."""

_CPU_OPTIONS = {"xla_cpu_prefer_vector_width": "512"}
"""XLA options for all programs on CPUs. By default XLA:CPU uses vectors of 256 bits, also if the CPU has
longer ones. With these, a training step of the demo takes 0.96 times as long."""


def start(mesh: Mesh, cache: Path | None = None, processes: Processes = ALONE) -> "Runtime":
    """Starts the devices of a mesh. On a CPU host it starts one virtual device per device of the mesh.

    Call it before anything else in the process uses jax.

    Args:
      cache: a folder for compiled programs; None stores nothing.
      processes: the processes that run the mesh together. Each has an equal share of the devices.

    Raises:
      UserError: there are fewer devices than the mesh has; several processes have more devices than
        the mesh; or the number of processes does not divide the number of devices.
    """
    machine.choose_platform()
    import jax

    local = processes.local_devices(mesh.num_devices)
    # Asynchronous dispatch on the CPU can deadlock. If several executions wait for the same input, one
    # thread runs them one after the other. The first of them may wait in a collective for the second,
    # which then never starts.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    request_cpu_devices(local, exactly=processes.count > 1)
    devices = machine.devices(processes)
    sizes, platform = mesh.sizes, devices[0].platform
    if len(devices) < mesh.num_devices:
        raise UserError(
            f"the mesh {sizes} needs {mesh.num_devices} devices; there are {len(devices)} ({platform}). "
            "Choose a smaller Mesh.shape, or run on CPU devices with JAX_PLATFORMS=cpu."
        )
    if processes.count > 1 and len(devices) > mesh.num_devices:
        # jax numbers the devices process by process. A part of them would leave out whole processes.
        raise UserError(
            f"the mesh {sizes} has {mesh.num_devices} devices, but the {processes.count} processes have "
            f"{len(devices)} ({platform}); several processes must use all of their devices. Set "
            f"Mesh.shape to {len(devices)} devices, or start fewer processes."
        )
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        xla_folder = paths.absolute(cache / "xla")
        jax.config.update("jax_compilation_cache_dir", str(xla_folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if platform == "cpu":
        machine.keep_freed_memory()
    return Runtime(mesh, arranged(devices, mesh), cache, processes)


def request_cpu_devices(count: int, exactly: bool = False) -> None:
    """Asks jax for at least `count` CPU devices, or exactly `count`.

    If jax has started its devices already, their number stays; check it after this call.
    """
    machine.choose_platform()
    import jax

    if exactly or jax.config.jax_num_cpu_devices < count:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)


def arranged(devices: Sequence[Any], mesh: Mesh) -> Any:
    """Returns jax's mesh: the devices in the grid and the order that `mesh` gives them.

    If the mesh has an order, it counts TPU devices by their coordinates. jax lists them process by
    process, and that list is not the same on every machine.
    """
    import jax

    if mesh.device_order:
        devices = by_coordinates(devices)
    return jax.sharding.Mesh(np.array(devices)[mesh.devices()], tuple(mesh.axes))


def by_coordinates(devices: Sequence[Any]) -> Sequence[Any]:
    """Returns TPU devices along the first axis of the torus first; the cores of a chip are neighbors.

    Other devices have no coordinates and stay in jax's order.
    """
    if any(device.platform != "tpu" for device in devices):
        return devices
    return sorted(
        devices, key=lambda d: (getattr(d, "slice_index", 0), *reversed(d.coords), d.core_on_chip)
    )


def rows_of(indices: Iterable[tuple[slice, ...]], size: int) -> np.ndarray:
    """Returns the first-dimension numbers of some parts of an array, int64[n], sorted, each once."""
    return np.unique(np.concatenate([np.arange(size)[index[0]] for index in indices]))


def part_of(
    array: np.ndarray, index: tuple[slice, ...], rows: np.ndarray | None = None
) -> np.ndarray:
    """Returns the part of a whole array at `index`, from an array that holds only some of its rows.

    Args:
      rows: int64[n], the numbers of the rows of `array`, in increasing order. They must contain all
        rows of the part. None means all rows.
    """
    if rows is None or not index:
        return array[index]
    first, last = index[0].start or 0, index[0].stop
    start = int(np.searchsorted(rows, first))
    stop = len(rows) if last is None else int(np.searchsorted(rows, last))
    return array[(slice(start, stop), *index[1:])]


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A mesh of devices, and the cache of the programs that were compiled for it."""

    mesh: Mesh
    devices: Any  # The jax.sharding.Mesh of the devices
    # The folder of the lowered functions and of XLA's cache; None if nothing is stored
    cache: Path | None
    processes: Processes = ALONE

    @property
    def is_cpu(self) -> bool:
        return bool(self.devices.devices.flat[0].platform == "cpu")

    def sharding(self, spec: ArraySpec, name: str = ""):
        """Returns the jax sharding of an array by the mesh's rules. Without letters it is replicated."""
        import jax

        partition = self.mesh.partition(spec.letters, name)
        return jax.sharding.NamedSharding(self.devices, jax.sharding.PartitionSpec(*partition))

    def put(
        self, arrays: Mapping[str, np.ndarray], specs: ArraySpecs, rows: Sequence[int] | None = None
    ) -> dict:
        """Places host arrays on the devices, each split as its letters say.

        Args:
          specs: shapes, dtypes and letters of the whole arrays.
          rows: the rows of the whole arrays that `arrays` hold, in increasing order. They must contain
            the rows that `local_rows` returns. None means that the arrays are whole.
        """
        import jax

        numbers = None if rows is None else np.asarray(rows)
        placed = {}
        for name, array in arrays.items():
            sharding = self.sharding(specs[name], name)
            if self.processes.count == 1:
                placed[name] = jax.device_put(array, sharding)
            else:
                part = functools.partial(part_of, array, rows=numbers)
                placed[name] = jax.make_array_from_callback(specs[name].shape, sharding, part)
        return placed

    def check_fits(
        self, program: Program, work: Work = TRAINING, held: Mapping[str, Any] | None = None
    ) -> None:
        """Checks as `program.check_fits` does; `held` are arrays on the devices that are no inputs."""
        local = list(self.devices.local_devices)
        shards = [shard for array in (held or {}).values() for shard in array.addressable_shards]
        beside = sum(shard.data.nbytes for shard in shards) // len(local)
        check_fits(program.memory(), local[0], len(local), work, beside)

    def local_rows(self, spec: ArraySpec) -> np.ndarray:
        """Returns the rows of a whole array that the devices of this process hold, int64[n], sorted."""
        indices = self.sharding(spec).addressable_devices_indices_map(spec.shape)
        return rows_of(indices.values(), spec.shape[0])

    def fetch(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Copies whole arrays to the host; with several processes, to every host."""
        if self.processes.count == 1:
            return {name: np.asarray(array) for name, array in arrays.items()}
        from jax.experimental import multihost_utils

        return {
            name: np.asarray(array)
            if array.is_fully_replicated
            else multihost_utils.process_allgather(array, tiled=True)
            for name, array in arrays.items()
        }

    def abstract(self, specs: ArraySpecs) -> dict:
        """Returns the shapes, dtypes and shardings of arrays that are to be restored."""
        return {name: self._abstract(name, spec) for name, spec in specs.items()}

    def _abstract(self, name: str, spec: ArraySpec):
        import jax

        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=self.sharding(spec, name))

    def compile(
        self,
        key: str,
        lower: Callable[[], LoweredFunction],
        donate: Sequence[int] = (),
        independent_rows: bool = False,
        meanwhile: Callable[[], object] | None = None,
    ) -> Program:
        """Compiles a function. Lowers it first, unless the cache has its lowered form under this key.

        Args:
          key: text that contains everything that the lowered function depends on, except the mesh,
            whether the devices are CPUs, the versions of jax and the code of this package.
          lower: lowers the function; called only if the cache does not have it.
          donate: indices of the input groups whose memory the outputs may reuse.
          independent_rows: whether sums must have the same order for any number of rows. Then a row has
            the same bits beside any other rows.
          meanwhile: called while XLA compiles, which keeps one core busy, or few. It may compile another
            function.
        """
        began = time.perf_counter()
        exported, signature = self._exported(key, lower)
        lower_seconds = time.perf_counter() - began
        jitted, arguments = self.jit(exported.call, signature, donate)
        lowered = jitted.lower(*arguments)
        options = self.compiler_options(independent_rows)

        def compile_it() -> tuple[Any, float]:
            return lowered.compile(compiler_options=options), time.perf_counter()

        executable, ended = wait_for(compile_it, meanwhile)
        compile_seconds = ended - began - lower_seconds
        # One process may compile much longer than the others. See Processes.barrier.
        self.processes.barrier("compiled")
        return Program(signature, executable, lower_seconds, compile_seconds)

    def compiler_options(self, independent_rows: bool) -> dict[str, str] | None:
        """Returns XLA's options for a program; `compile` explains `independent_rows`."""
        if not self.is_cpu:
            return None
        return _CPU_OPTIONS | (_INDEPENDENT_ROWS if independent_rows else {})

    def jit(
        self, function: Callable[..., Any], signature: Signature, donate: Sequence[int] = ()
    ) -> tuple[Any, list]:
        """Jits a function for the shardings that its arguments and results have by the mesh's rules.

        Args:
          function: a JAX function of the flat arguments of the signature, which returns its flat
            results.
          donate: indices of the input groups whose memory the outputs may reuse.

        Returns:
          The jitted function, and its arguments as shapes, dtypes and shardings, to lower it with.
        """
        import jax

        arguments = [self._abstract(name, spec) for name, spec in flatten(signature.inputs)]
        groups = [i for i, group in enumerate(signature.inputs) for _ in group]
        jitted = jax.jit(
            function,
            in_shardings=tuple(argument.sharding for argument in arguments),
            out_shardings=[self.sharding(spec, name) for name, spec in flatten(signature.outputs)],
            donate_argnums=tuple(i for i, group in enumerate(groups) if group in donate),
        )
        return jitted, arguments

    def _exported(self, key: str, lower: Callable[[], LoweredFunction]) -> tuple[Any, Signature]:
        """Returns jax's exported function and its signature.

        Process 0 reads it from the cache, or lowers it and stores it there, and sends it to the others.
        """
        packed = b""
        if self.processes.is_first:
            artifact = self._artifact(key) if self.cache else None
            function = program_cache.load(artifact) if artifact else None
            if function is None:
                with rules(self.mesh, self.is_cpu):
                    lowered = lower()
                function = self.export(lowered), lowered.signature
                if artifact:
                    with contextlib.suppress(OSError):  # the cache only saves time
                        program_cache.store(artifact, *function)
            if self.processes.count == 1:
                return function
            packed = program_cache.pack(*function)
        return program_cache.unpack(self.processes.broadcast(packed))

    def _artifact(self, key: str) -> Path:
        """Returns the path of the files of a lowered function, without their endings."""
        import jax
        import jaxlib

        assert self.cache is not None
        facts = [jax.__version__, jaxlib.__version__, source_fingerprint(), self.is_cpu]
        full_key = json.dumps([key, facts, dataclasses.asdict(self.mesh)], default=list)
        return self.cache / hashlib.sha256(full_key.encode()).hexdigest()[:32]

    def export(self, lowered: LoweredFunction) -> Any:
        """Returns a lowered function as jax exports it, for CPU, CUDA and TPU."""
        from jax import export

        jitted, arguments = self.jit(as_jax_function(lowered), lowered.signature)
        return export.export(jitted, platforms=("cpu", "cuda", "tpu"))(*arguments)


@functools.cache
def source_fingerprint() -> str:
    """Returns a hash of this package's code: other code may lower the same function differently."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
