"""Programs that do one thing alone, to measure it on real devices: a collective, products, or memory."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

MEASURED_KINDS = ("all-to-all", "all-reduce", "all-gather", "collective-permute")
"""The kinds of collectives that can be measured, as in GShard Figure 9."""


@dataclasses.dataclass(frozen=True)
class CollectiveProgram:
    """A compiled program that runs the same collective several times, each after the one before.

    Attributes:
      kind: one of MEASURED_KINDS.
      devices: D, the number of devices. They all form one group.
      nbytes: bytes on one device: the output of an all-gather, the input of other kinds.
      times: the number of collectives in the program.
      executable: jax's compiled object.
      argument: the array on the devices that it takes.
    """

    kind: str
    devices: int
    nbytes: int
    times: int
    executable: Any
    argument: Any

    def __call__(self) -> None:
        """Runs the program and waits for its end."""
        self.executable(self.argument).block_until_ready()


def collective_program(
    kind: str, devices: Sequence[Any], nbytes: int, times: int = 8
) -> CollectiveProgram:
    """Compiles a program of collectives of float32 arrays.

    Several collectives in one program hide the time that it takes to start a program.

    Args:
      kind: one of MEASURED_KINDS.
      devices: jax's devices, two or more.
      nbytes: the wanted bytes on one device; rounded up, so that each device has a whole number of values
        for every other.
      times: the number of collectives.
    """
    import jax

    number = len(devices)
    width = -(-nbytes // (4 * number))
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    # On one device: [1, width] to be gathered, [D, width] otherwise.
    rows = number if kind == "all-gather" else number * number
    argument = jax.device_put(
        np.ones((rows, width), np.float32), jax.sharding.NamedSharding(mesh, spec)
    )

    def repeated(x):
        for _ in range(times):
            # Without a barrier, XLA could merge or remove collectives.
            x = jax.lax.optimization_barrier(_collective(kind, x, number))
            x = x[:1] if kind == "all-gather" else x
        return x

    program = jax.jit(
        jax.shard_map(repeated, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )
    executable = program.lower(argument).compile()
    return CollectiveProgram(kind, number, 4 * number * width, times, executable, argument)


def _collective(kind: str, x: Any, number: int) -> Any:
    """Applies one collective to the shard of a device; `number` is the number of devices."""
    import jax

    if kind == "all-to-all":
        return jax.lax.all_to_all(x, "x", 0, 0, tiled=True)
    if kind == "all-reduce":
        return jax.lax.psum(x, "x") / number
    if kind == "all-gather":
        return jax.lax.all_gather(x, "x", axis=0, tiled=True)
    return jax.lax.ppermute(x, "x", [(i, (i + 1) % number) for i in range(number)])


@dataclasses.dataclass(frozen=True)
class PeakProgram:
    """A compiled program that every device runs at the same time, without communication.

    Attributes:
      amount: the FLOPs of one device, or the bytes that it reads and writes.
      executable: jax's compiled object.
      argument: the array on the devices that it takes.
    """

    amount: float
    executable: Any
    argument: Any

    def __call__(self) -> None:
        """Runs the program and waits for its end."""
        self.executable(self.argument).block_until_ready()


def peak_program(kind: str, devices: Sequence[Any], times: int = 4) -> PeakProgram:
    """Compiles a program that shows the peak of a device while all devices work.

    Args:
      kind: "products", float32 products of 512 x 512 matrices, or "memory", reading and writing 16 MiB.
      devices: jax's devices.
      times: the number of products, or of passes over the memory, in the program.
    """
    import jax

    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    shape = (512, 512) if kind == "products" else (2048, 2048)
    argument = jax.device_put(
        np.full((len(devices) * shape[0], shape[1]), 1 / shape[0], np.float32),
        jax.sharding.NamedSharding(mesh, spec),
    )

    def repeated(x):
        for _ in range(times):
            y = x @ x if kind == "products" else x + 1.0
            x = jax.lax.optimization_barrier(y)
        return x

    program = jax.jit(jax.shard_map(repeated, mesh=mesh, in_specs=spec, out_specs=spec))
    amount = 2.0 * shape[0] ** 3 if kind == "products" else 2.0 * 4 * shape[0] * shape[1]
    return PeakProgram(times * amount, program.lower(argument).compile(), argument)
