"""Running a lowered program on a mesh of devices through PJRT.

XLA's SPMD partitioner makes one program for all devices. A lowered program is kept as a portable
artifact beside XLA's own compilation cache, so that the second start of the same run imports no
TensorFlow and compiles nothing.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files
from gshard_nmt.errors import UserError
from gshard_nmt.spmd.lowering import (
    ArraySpec,
    ArraySpecs,
    LoweredFunction,
    Signature,
    as_jax_function,
    unflatten,
)
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.processes import ALONE, Processes

COLLECTIVES = ("all-to-all", "all-gather", "all-reduce", "reduce-scatter", "collective-permute")

_EXPORT_PLATFORMS = ("cpu", "cuda", "tpu")


def start(mesh: Mesh, cache: Path | None = None, processes: Processes = ALONE) -> "Runtime":
    """Starts the devices of a mesh; on CPU hosts as many virtual devices as the mesh has.

    Must come before anything else in the process uses jax.

    Args:
      mesh: the mesh to run on.
      cache: a folder for compiled programs, which all processes see; None keeps nothing.
      processes: those that run the mesh together, each on its share of the devices.

    Raises:
      UserError: there are fewer devices than the mesh has, or the processes do not divide them.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("JAX_PLATFORMS", _platforms())
    import jax

    local = processes.local_devices(mesh.num_devices)
    # Executions that wait for the same input are otherwise started one after the other by the thread
    # that made it ready; where the first then waits in a collective for the second, both wait for good.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.config.jax_num_cpu_devices < local or processes.count > 1:
        with contextlib.suppress(RuntimeError):  # already started; their number is checked below
            jax.config.update("jax_num_cpu_devices", local)
    processes.join()
    devices = jax.devices()
    if len(devices) < mesh.num_devices:
        raise UserError(
            f"the mesh {dict(zip(mesh.axes, mesh.shape, strict=True))} needs {mesh.num_devices} "
            f"devices; there are {len(devices)} ({devices[0].platform}). Choose a smaller "
            "Mesh.shape, or run on CPU devices with JAX_PLATFORMS=cpu."
        )
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str((cache / "xla").absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    arranged = jax.sharding.Mesh(np.array(devices)[mesh.devices()], tuple(mesh.axes))
    return Runtime(mesh, arranged, cache, processes)


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program: call it with one dict of arrays for each group of inputs."""

    signature: Signature
    executable: Any
    lower_seconds: float
    compile_seconds: float

    def __call__(self, *groups: Mapping[str, object]) -> list[dict]:
        """Runs the program; returns one dict of sharded arrays for each group of outputs."""
        arguments = [group[name] for group in groups for name in sorted(group)]
        return unflatten(self.signature.outputs, self.executable(*arguments))

    def collectives(self) -> dict[str, int]:
        """How often each kind of collective stands in the compiled program."""
        return count_collectives(self.executable.as_text())


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A mesh of real devices, and the cache of the programs that were compiled for it."""

    mesh: Mesh
    devices: Any
    cache: Path | None
    processes: Processes = ALONE

    def sharding(self, spec: ArraySpec, name: str = ""):
        """The jax sharding that the mesh's rules give an array; no letters: replicated."""
        import jax

        partition = self.mesh.partition(spec.letters, name)
        return jax.sharding.NamedSharding(self.devices, jax.sharding.PartitionSpec(*partition))

    def put(self, arrays: Mapping[str, np.ndarray], specs: ArraySpecs, first_row: int = 0) -> dict:
        """Places host arrays on the devices, each split as its letters say.

        Args:
          arrays: by name; with several processes the rows that `local_rows` names, from `first_row`,
            or all rows.
          specs: of the whole arrays.
          first_row: the row of the whole array that is the first of these.
        """
        return {
            name: self._place(array, specs[name], self.sharding(specs[name], name), first_row)
            for name, array in arrays.items()
        }

    def _place(self, array: np.ndarray, spec: ArraySpec, sharding: Any, first_row: int):
        import jax

        if self.processes.count == 1:
            return jax.device_put(array, sharding)

        def part(index: tuple[slice, ...]) -> np.ndarray:
            if not index:
                return array
            rows = index[0]
            start = (rows.start or 0) - first_row
            stop = (spec.shape[0] if rows.stop is None else rows.stop) - first_row
            return array[(slice(start, stop), *index[1:])]

        return jax.make_array_from_callback(spec.shape, sharding, part)

    def local_rows(self, spec: ArraySpec) -> range:
        """The rows of a whole array that this process's devices hold some of."""
        indices = self.sharding(spec).addressable_devices_indices_map(spec.shape)
        rows = [index[0].indices(spec.shape[0]) for index in indices.values()]
        return range(min(start for start, _, _ in rows), max(stop for _, stop, _ in rows))

    def fetch(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Whole arrays on the host; with several processes on every host."""
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
        """Shapes, dtypes and shardings of arrays that are to be restored."""
        import jax

        return {
            name: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=self.sharding(s, name))
            for name, s in specs.items()
        }

    def compile(
        self, key: str, lowering: Callable[[], LoweredFunction], donate: Sequence[int] = ()
    ) -> Program:
        """Compiles a program, or loads what an earlier process lowered under the same key.

        Args:
          key: text that says all that the program depends on.
          lowering: makes the program where the cache does not have it.
          donate: the groups of inputs whose memory the outputs may take over.
        """
        import jax

        began = time.perf_counter()
        exported, signature = self._lowered(key, lowering)
        lowered_after = time.perf_counter() - began
        shardings = [self.sharding(spec, name) for name, spec in signature.flat_inputs()]
        results = [self.sharding(spec, name) for name, spec in signature.flat_outputs()]
        groups = [i for i, group in enumerate(signature.inputs) for _ in group]
        jitted = jax.jit(
            exported.call,
            in_shardings=tuple(shardings),
            out_shardings=results,
            donate_argnums=tuple(i for i, group in enumerate(groups) if group in donate),
        )
        executable = jitted.lower(*_abstract(signature, shardings)).compile()
        compiled_after = time.perf_counter() - began - lowered_after
        return Program(signature, executable, lowered_after, compiled_after)

    def _lowered(self, key: str, lowering: Callable[[], LoweredFunction]):
        from jax import export

        if self.cache is None:
            program = lowering()
            return self._export(program), program.signature
        artifact = self.cache / hashlib.sha256(self._full_key(key).encode()).hexdigest()[:32]
        description = artifact.with_suffix(".json")
        # One process lowers, and the others read what it wrote.
        if self.processes.is_first and not _is_current(description):
            program = lowering()
            exported = self._export(program).serialize()
            files.write(artifact.with_suffix(".jaxexport"), bytes(exported))
            # The description is written last: where it exists, the program is whole.
            text = json.dumps(_describe(program.signature), indent=1)
            files.write(description, text)
        self.processes.barrier(f"lowered {artifact.name}")
        exported = export.deserialize(bytearray(artifact.with_suffix(".jaxexport").read_bytes()))
        return exported, _signature_of(json.loads(description.read_text()))

    def _export(self, program: LoweredFunction):
        import jax
        from jax import export

        shardings = [self.sharding(s, name) for name, s in program.signature.flat_inputs()]
        results = [self.sharding(s, name) for name, s in program.signature.flat_outputs()]
        function = jax.jit(
            as_jax_function(program), in_shardings=tuple(shardings), out_shardings=results
        )
        return export.export(function, platforms=_EXPORT_PLATFORMS)(
            *_abstract(program.signature, shardings)
        )

    def _full_key(self, key: str) -> str:
        import jax
        import jaxlib

        mesh = dataclasses.asdict(self.mesh)
        versions = [jax.__version__, jaxlib.__version__, _source_fingerprint()]
        return json.dumps([key, versions, mesh], default=list)


def count_collectives(hlo: str) -> dict[str, int]:
    """Counts the collectives of a compiled program's text, asynchronous ones once."""
    return {kind: len(re.findall(rf"= [^=\n]*\b{kind}(?:-start)?\(", hlo)) for kind in COLLECTIVES}


def _abstract(signature: Signature, shardings: Sequence) -> list:
    import jax

    return [
        jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
        for (_, spec), sharding in zip(signature.flat_inputs(), shardings, strict=True)
    ]


def _platforms() -> str:
    """CPU where no accelerator is in sight: a plugin that finds none is slow and loud about it."""
    accelerators = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/accel0", "/dev/vfio/0")
    return "" if any(os.path.exists(path) for path in accelerators) else "cpu"


@functools.cache
def _source_fingerprint() -> str:
    """Of this package's code: a program that other code lowered is not the program of this code."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _tensorflow_version() -> str | None:
    """Of the TensorFlow that is installed, without importing it."""
    try:
        return importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_current(description: Path) -> bool:
    """Whether there is a program and this host's TensorFlow, if it has any, is the one that made it."""
    if not description.exists() or not description.with_suffix(".jaxexport").exists():
        return False
    return _tensorflow_version() in (None, json.loads(description.read_text())["tensorflow"])


def _describe(signature: Signature) -> dict[str, Any]:
    def groups(specs):
        return [
            {name: [list(s.shape), np.dtype(s.dtype).name, s.letters] for name, s in group.items()}
            for group in specs
        ]

    return {
        "tensorflow": _tensorflow_version(),
        "inputs": groups(signature.inputs),
        "outputs": groups(signature.outputs),
    }


def _signature_of(description: Mapping[str, Any]) -> Signature:
    def groups(data):
        return tuple(
            {name: ArraySpec(tuple(s), np.dtype(d), letters) for name, (s, d, letters) in g.items()}
            for g in data
        )

    return Signature(groups(description["inputs"]), groups(description["outputs"]))
