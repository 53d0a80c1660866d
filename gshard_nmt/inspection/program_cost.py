"""The cost of any compiled function: memory, FLOPs, collectives and predicted time on one device.

`gshard-inspect` reports the cost of a config, by the parts of the translation model. This module
reports the cost of a program of which it knows nothing but its text.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from gshard_nmt.inspection import causes, communication, compute, hlo, memory
from gshard_nmt.inspection.communication import Source
from gshard_nmt.inspection.compute import Work
from gshard_nmt.quantities import flops_text, seconds_text, size_text
from gshard_nmt.spmd import ahead_of_time
from gshard_nmt.spmd.ahead_of_time import Compiled
from gshard_nmt.spmd.lowering import LoweredFunction
from gshard_nmt.spmd.program import COLLECTIVE_KINDS
from gshard_nmt.spmd.runtime import Runtime
from gshard_nmt.spmd.topology import Topology


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """The cost of one execution of a program on one device."""

    topology: Topology
    """The machine that it was compiled for."""
    argument_bytes: int
    """Size of its inputs."""
    peak_bytes: int
    """The most memory that it needs at any time."""
    work: Work
    """The work without communication."""
    recomputed: Work
    """The part of the work that computes the forward pass again."""
    collectives: Sequence[Source]
    """The tensors of its collectives, most bytes first."""
    compile_seconds: float
    """The time to compile it."""
    instructions: int
    """The number of its instructions."""

    @property
    def seconds(self) -> float | None:
        """The predicted time, without overlap of computation and communication; None on a CPU."""
        if self.topology.chip is None:
            return None
        return self.work.seconds + sum(source.seconds or 0.0 for source in self.collectives)

    def count(self, kind: str) -> int:
        """Returns the number of tensors that the collectives of a kind send."""
        return sum(source.count for source in self.collectives if source.kind == kind)

    def bytes_of(self, kind: str) -> int:
        """Returns the bytes that one device sends in the collectives of a kind."""
        return sum(source.bytes_per_step for source in self.collectives if source.kind == kind)

    def lines(self) -> list[str]:
        """Returns the cost as lines for a terminal."""
        arguments, peak = size_text(self.argument_bytes), size_text(self.peak_bytes)
        return [
            f"memory of a device: {peak} at the peak, {arguments} of it are inputs",
            f"work of a device: {flops_text(self.work.flops)}",
            *(
                f"{kind}: {self.count(kind)} tensors, {size_text(self.bytes_of(kind))} of a device"
                for kind in COLLECTIVE_KINDS
                if self.count(kind)
            ),
            *([] if self.seconds is None else [f"predicted time: {seconds_text(self.seconds)}"]),
            f"compiled in {self.compile_seconds:.0f} s, {self.instructions:,} instructions",
        ]

    def as_json(self) -> dict[str, Any]:
        """Returns the cost as a dict for JSON."""
        return {
            "topology": self.topology.name,
            "devices": self.topology.num_devices,
            "argument_bytes": self.argument_bytes,
            "peak_bytes": self.peak_bytes,
            "flops": self.work.flops,
            "recomputed_flops": self.recomputed.flops,
            "seconds": self.seconds,
            "recomputed_seconds": self.recomputed.seconds,
            "compile_seconds": round(self.compile_seconds, 2),
            "instructions": self.instructions,
            "collectives": {
                kind: {"tensors": self.count(kind), "bytes": self.bytes_of(kind)}
                for kind in COLLECTIVE_KINDS
            },
        }


def cost_of(compiled: Compiled, devices: Runtime, lowered: LoweredFunction) -> ProgramCost:
    """Returns the cost of a program.

    Args:
      devices: the devices that it was compiled for, as `ahead_of_time.devices_of` returned them.
    """
    topology = compiled.topology
    module = hlo.parse(compiled.text)
    coordinates = ahead_of_time.coordinates_of(topology, devices)
    context = causes.Context(topology, devices.mesh, {}, coordinates, lowered.annotated)
    hbm = topology.chip.hbm_bytes if topology.chip else None
    used = memory.measured(compiled.executable, module, lowered.signature, devices.mesh, hbm)
    work = compute.work_by_origin(module, topology.chip)
    recomputed = [part for origin, part in work.items() if origin.direction == "recomputed"]
    return ProgramCost(
        topology,
        used.argument or 0,
        used.peak,
        sum(work.values(), Work()),
        sum(recomputed, Work()),
        communication.collectives(module, context),
        compiled.compile_seconds,
        module.num_instructions,
    )
