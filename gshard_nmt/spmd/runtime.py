"""Running a lowered program on a mesh of devices through PJRT.

XLA's SPMD partitioner makes one program for all devices. A lowered program is kept as a portable
artifact beside XLA's own compilation cache, so that the second start of the same run imports no
TensorFlow and compiles nothing.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.lowering import (
    ArraySpec,
    ArraySpecs,
    LoweredProgram,
    Signature,
    as_jax_function,
    unflatten,
)
from gshard_nmt.spmd.mesh import Mesh

COLLECTIVES = ("all-to-all", "all-gather", "all-reduce", "reduce-scatter", "collective-permute")

_EXPORT_PLATFORMS = ("cpu", "cuda", "tpu")


def start(mesh: Mesh, cache: Path | None = None) -> "Runtime":
    """Starts the devices of a mesh; on a CPU host as many virtual devices as the mesh has.

    Must come before anything else in the process uses jax.

    Args:
      mesh: the mesh to run on.
      cache: a folder for compiled programs; None keeps nothing.

    Raises:
      UserError: the host has fewer devices than the mesh.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("JAX_PLATFORMS", _platforms())
    import jax

    if jax.config.jax_num_cpu_devices < mesh.num_devices:
        with contextlib.suppress(RuntimeError):  # already started; their number is checked below
            jax.config.update("jax_num_cpu_devices", mesh.num_devices)
    devices = jax.devices()
    if len(devices) < mesh.num_devices:
        raise UserError(
            f"the mesh {dict(zip(mesh.axes, mesh.shape, strict=True))} needs {mesh.num_devices} "
            f"devices; this host has {len(devices)} ({devices[0].platform}). Choose a smaller "
            "Mesh.shape, or run on CPU devices with JAX_PLATFORMS=cpu."
        )
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str((cache / "xla").absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return Runtime(
        mesh, jax.sharding.Mesh(np.array(devices)[mesh.devices()], tuple(mesh.axes)), cache
    )


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

    def sharding(self, spec: ArraySpec, name: str = ""):
        """The jax sharding that the mesh's rules give an array; no letters: replicated."""
        import jax

        partition = self.mesh.partition(spec.letters, name)
        return jax.sharding.NamedSharding(self.devices, jax.sharding.PartitionSpec(*partition))

    def put(self, arrays: Mapping[str, np.ndarray], specs: ArraySpecs) -> dict:
        """Places host arrays on the devices, each split as its letters say."""
        import jax

        return {
            name: jax.device_put(array, self.sharding(specs[name], name))
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
        self, key: str, lowering: Callable[[], LoweredProgram], donate: Sequence[int] = ()
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

    def _lowered(self, key: str, lowering: Callable[[], LoweredProgram]):
        from jax import export

        stem = None
        if self.cache is not None:
            stem = self.cache / hashlib.sha256(self._full_key(key).encode()).hexdigest()[:32]
            if (signature_file := stem.with_suffix(".json")).exists():
                program = export.deserialize(bytearray(stem.with_suffix(".jaxexport").read_bytes()))
                return program, _signature_from_json(signature_file.read_text())
        program = lowering()
        exported = self._export(program)
        if stem is not None:
            _write_atomically(stem.with_suffix(".jaxexport"), bytes(exported.serialize()))
            # The signature is written last: where it exists, the program is whole.
            _write_atomically(
                stem.with_suffix(".json"), _signature_to_json(program.signature).encode()
            )
        return exported, program.signature

    def _export(self, program: LoweredProgram):
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
        return json.dumps([key, jax.__version__, jaxlib.__version__, mesh], default=list)


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


def _signature_to_json(signature: Signature) -> str:
    def groups(specs):
        return [
            {name: [list(s.shape), np.dtype(s.dtype).name, s.letters] for name, s in group.items()}
            for group in specs
        ]

    return json.dumps({"inputs": groups(signature.inputs), "outputs": groups(signature.outputs)})


def _signature_from_json(text: str) -> Signature:
    def groups(data):
        return tuple(
            {name: ArraySpec(tuple(s), np.dtype(d), letters) for name, (s, d, letters) in g.items()}
            for g in data
        )

    data = json.loads(text)
    return Signature(groups(data["inputs"]), groups(data["outputs"]))


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
