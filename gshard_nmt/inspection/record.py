"""What an inspection found, as one record, and the same as JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gshard_nmt.inspection.communication import KINDS, Source
from gshard_nmt.inspection.compute import Work
from gshard_nmt.inspection.memory import Memory, Temporary
from gshard_nmt.inspection.origin import DIRECTIONS, Origin
from gshard_nmt.inspection.origin import KINDS as WORK_KINDS
from gshard_nmt.spmd.topology import Topology

SECONDS_PER_YEAR = 365 * 24 * 3600


@dataclasses.dataclass(frozen=True)
class Counts:
    """Numbers of weights.

    Attributes:
      total: all.
      active_per_token: that one token uses: of the experts those it visits, of the rest everything,
        embeddings included.
      per_device: on one device.
      bytes_per_device: of the weights alone.
    """

    total: int
    active_per_token: int
    per_device: int
    bytes_per_device: int


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What the compiler needed and made; None where it gave the program up.

    Attributes:
      lower_seconds: TensorFlow to StableHLO.
      compile_seconds: StableHLO to the partitioned program of one device.
      compile_cpu_seconds: of all the compiler's threads; what a busy machine does not change.
      instructions: of that program.
    """

    lower_seconds: float
    compile_seconds: float | None
    compile_cpu_seconds: float | None
    instructions: int | None


@dataclasses.dataclass(frozen=True)
class Inspection:
    """A config on a topology.

    Attributes:
      config: its name or path.
      step: "training" or "decoding".
      topology: the machine.
      mesh: axis -> size.
      counts, compilation, memory: see there.
      tokens_per_step: rows times the longer of source and target, as the papers count a batch.
      sources: the collectives.
      collective_instructions: of each kind, in the program's text.
      work: by what made it; empty where there is no program.
      temporaries: the largest.
      does_not_fit: what the compiler said, and what would help; () where the program fits.
      overrides: the config's Mesh.overrides.
      notes: what was changed or assumed, for the reader.
    """

    config: str
    step: str
    topology: Topology
    mesh: Mapping[str, int]
    counts: Counts
    compilation: Compilation
    memory: Memory
    tokens_per_step: int
    sources: Sequence[Source] = ()
    collective_instructions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    work: Mapping[Origin, Work] = dataclasses.field(default_factory=dict)
    temporaries: Sequence[Temporary] = ()
    does_not_fit: Sequence[str] = ()
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def has_program(self) -> bool:
        """Whether the compiler made a program."""
        return self.compilation.instructions is not None

    @property
    def total(self) -> Work:
        """All work together."""
        return sum(self.work.values(), Work())

    def by_kind(self, direction: str = "") -> dict[str, Work]:
        """The work by kind, as in GShard Figure 8, in the order of that list.

        Args:
          direction: "forward", "recomputed" or "backward" alone; "" is all of it.
        """
        found = {
            kind: [
                work
                for origin, work in self.work.items()
                if origin.kind == kind and direction in ("", origin.direction)
            ]
            for kind in WORK_KINDS
        }
        return {kind: sum(works, Work()) for kind, works in found.items() if works}

    @property
    def communication_seconds(self) -> float:
        """Of all collectives, one after another."""
        return sum(source.seconds or 0.0 for source in self.sources)

    @property
    def step_seconds(self) -> float | None:
        """The predicted time of a step: no computation overlaps with communication."""
        if self.topology.chip is None or not self.has_program:
            return None
        return self.total.seconds + self.communication_seconds

    @property
    def roofline_seconds(self) -> float | None:
        """The step with everything at its peak."""
        if self.topology.chip is None or not self.has_program:
            return None
        return self.total.roofline_seconds + self.communication_seconds

    @property
    def roofline_fraction(self) -> float | None:
        """Roofline over prediction (GShard section 5.2)."""
        if not self.step_seconds or self.roofline_seconds is None:
            return None
        return self.roofline_seconds / self.step_seconds

    @property
    def flops_utilization(self) -> float | None:
        """Arithmetic of matrix products over what the chip could do in the predicted time."""
        if self.topology.chip is None or not self.step_seconds:
            return None
        return self.total.flops / (self.topology.chip.peak_flops * self.step_seconds)

    def device_years(self, tokens: float) -> float | None:
        """Of all devices together, to see so many tokens; a v3 device is a core."""
        if self.step_seconds is None:
            return None
        seconds = tokens / self.tokens_per_step * self.step_seconds
        return seconds * self.topology.num_devices / SECONDS_PER_YEAR

    def kind_count(self, kind: str) -> int:
        """Collectives of a kind in a step; a combined one counts once for each of its tensors."""
        return sum(source.count for source in self.sources if source.kind == kind)


def as_json(found: Inspection) -> dict[str, Any]:
    """The record under the keys that users script against; null where only a program could tell."""
    memory, compilation = found.memory, found.compilation
    program = found.has_program
    return {
        "config": found.config,
        "step": found.step,
        "topology": found.topology.name,
        "devices": found.topology.num_devices,
        "mesh": dict(found.mesh),
        "parameters_total": found.counts.total,
        "parameters_active_per_token": found.counts.active_per_token,
        "parameters_per_device": found.counts.per_device,
        "lower_seconds": round(compilation.lower_seconds, 2),
        "compile_seconds": _rounded(compilation.compile_seconds, 2),
        "compile_cpu_seconds": _rounded(compilation.compile_cpu_seconds, 2),
        "program_instructions": compilation.instructions,
        "code_bytes": memory.code,
        "fits": memory.fits and not found.does_not_fit,
        "per_device": {
            "argument_bytes": memory.argument,
            "temp_bytes": memory.temp,
            "output_bytes": memory.output,
            "alias_bytes": memory.alias,
            "peak_bytes": memory.peak,
            "hbm_bytes": memory.hbm,
            "by_category": dict(memory.by_category),
            "is_estimate": memory.is_estimate,
        },
        "collectives": _collectives(found) if program else None,
        "flops_per_device": found.total.flops if program else None,
        "bytes_accessed_per_device": found.total.bytes_accessed if program else None,
        "work": _works(found.by_kind()) if program else None,
        "directions": {name: _works(found.by_kind(name)) for name in DIRECTIONS}
        if program
        else None,
        "communication_seconds": found.communication_seconds if found.step_seconds else None,
        "estimated_step_seconds": found.step_seconds,
        "roofline_seconds": found.roofline_seconds,
        "roofline_fraction": _rounded(found.roofline_fraction, 4),
        "tokens_per_step": found.tokens_per_step,
        "does_not_fit": list(found.does_not_fit) or None,
        "notes": list(found.notes),
    }


def _works(works: Mapping[str, Work]) -> dict[str, Any]:
    return {kind: dataclasses.asdict(work) for kind, work in works.items()}


def _collectives(found: Inspection) -> list[dict[str, Any]]:
    listed = []
    for kind in KINDS:
        sources = [source for source in found.sources if source.kind == kind]
        if not sources:
            continue
        listed.append(
            {
                "kind": kind,
                "count": found.kind_count(kind),
                "instructions": found.collective_instructions.get(kind, 0),
                "bytes_per_device": sum(source.bytes_per_step for source in sources),
                "sources": [
                    {
                        "layer": source.origin.layer,
                        "part": source.origin.part,
                        "direction": source.origin.direction,
                        "tensor": source.shape,
                        "count": source.count,
                        "bytes_per_device": source.bytes_per_step,
                        "group_size": source.group_size,
                        "mesh_axes": list(source.axes),
                        "seconds": source.seconds,
                        "why": source.why,
                        "asked_for": source.asked_for,
                        "remedy": source.remedy or None,
                        "overrides": dict(source.overrides) or None,
                    }
                    for source in sources
                ],
            }
        )
    return listed


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
