"""The record of an inspection, and its JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gshard_nmt.inspection.communication import Source
from gshard_nmt.inspection.compute import Work
from gshard_nmt.inspection.memory import Memory, Temporary
from gshard_nmt.inspection.origin import DIRECTIONS, WORK_KINDS, Origin
from gshard_nmt.spmd.program import COLLECTIVE_KINDS
from gshard_nmt.spmd.topology import Topology

SECONDS_PER_YEAR = 365 * 24 * 3600


@dataclasses.dataclass(frozen=True)
class Counts:
    """Numbers of weights."""

    total: int  # all weights
    # weights that one token uses: those of the experts that it visits, and all weights outside the
    # experts, including the embeddings
    active_per_token: int
    per_device: int  # weights on one device
    bytes_per_device: int  # bytes of these


@dataclasses.dataclass(frozen=True)
class Compilation:
    """Time and result of a compilation; all but `lower_seconds` are None if the program was refused."""

    lower_seconds: float  # time from TensorFlow to StableHLO
    compile_seconds: float | None  # time from StableHLO to the partitioned program of one device
    # CPU time of all the compiler's threads; a busy machine hardly changes it
    compile_cpu_seconds: float | None
    instructions: int | None  # number of instructions of the program


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The results of compiling a config for a topology."""

    config: str  # name or path of the config
    step: str  # "training" or "decoding"
    topology: Topology  # the machine
    mesh: Mapping[str, int]  # axis -> size
    counts: Counts  # numbers of weights
    compilation: Compilation  # time and size of the compilation
    memory: Memory  # memory of one device
    # tokens of one side in a batch: rows times the longer of source and target length, as the
    # papers count
    tokens_per_step: int
    sources: Sequence[Source] = ()  # tensors of the collectives, most bytes first
    # collective instructions in the program's text, by kind
    collective_instructions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # work of one device by origin; empty without a program
    work: Mapping[Origin, Work] = dataclasses.field(default_factory=dict)
    temporaries: Sequence[Temporary] = ()  # the largest temporaries at the peak
    # the compiler's message and what would help; () if the compiler made a program
    does_not_fit: Sequence[str] = ()
    # Mesh.overrides of the config
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()  # changes and assumptions that the reader must know

    @property
    def has_program(self) -> bool:
        """Whether the compiler made a program."""
        return self.compilation.instructions is not None

    @property
    def fits(self) -> bool:
        """Whether the compiler made a program that fits the memory of a device."""
        return self.memory.fits and not self.does_not_fit

    @property
    def total(self) -> Work:
        """Work of all origins together."""
        return sum(self.work.values(), Work())

    def by_kind(self, direction: str = "") -> dict[str, Work]:
        """Returns the work by kind, in the order of WORK_KINDS (GShard Figure 8).

        Args:
          direction: "forward", "recomputed" or "backward"; "" is all three.
        """
        by_kind = {
            kind: [
                work
                for origin, work in self.work.items()
                if origin.kind == kind and direction in ("", origin.direction)
            ]
            for kind in WORK_KINDS
        }
        return {kind: sum(works, Work()) for kind, works in by_kind.items() if works}

    @property
    def communication_seconds(self) -> float:
        """Time of all collectives in a step, one after another."""
        return sum(source.seconds or 0.0 for source in self.sources)

    @property
    def step_seconds(self) -> float | None:
        """Predicted time of a step without overlap of computation and communication."""
        if self.topology.chip is None or not self.has_program:
            return None
        return self.total.seconds + self.communication_seconds

    @property
    def roofline_seconds(self) -> float | None:
        """Time of a step with everything at its peak."""
        if self.topology.chip is None or not self.has_program:
            return None
        return self.total.roofline_seconds + self.communication_seconds

    @property
    def roofline_fraction(self) -> float | None:
        """Roofline time divided by predicted time (GShard section 5.2)."""
        if not self.step_seconds or self.roofline_seconds is None:
            return None
        return self.roofline_seconds / self.step_seconds

    @property
    def flops_utilization(self) -> float | None:
        """FLOPs divided by the FLOPs that the chip could do in the predicted time."""
        if self.topology.chip is None or not self.step_seconds:
            return None
        return self.total.flops / (self.topology.chip.peak_flops * self.step_seconds)

    def device_years(self, tokens: float) -> float | None:
        """Returns the time of all devices together, in years, for a number of training tokens."""
        if self.step_seconds is None:
            return None
        seconds = tokens / self.tokens_per_step * self.step_seconds
        return seconds * self.topology.num_devices / SECONDS_PER_YEAR

    def collective_seconds(self, kind: str) -> float:
        """Returns the time of all collectives of a kind in a step; 0 for a CPU."""
        return sum(source.seconds or 0.0 for source in self.sources if source.kind == kind)

    def collective_bytes(self, kind: str) -> int:
        """Returns the bytes that one device sends in all collectives of a kind in a step."""
        return sum(source.bytes_per_step for source in self.sources if source.kind == kind)

    def kind_count(self, kind: str) -> int:
        """Returns the number of tensors that the collectives of a kind send in a step."""
        return sum(source.count for source in self.sources if source.kind == kind)


def as_json(inspection: Inspection) -> dict[str, Any]:
    """Returns the record as a dict for JSON; unknown values are None.

    Scripts of users read these keys, so they must not change.
    """
    memory, compilation = inspection.memory, inspection.compilation
    has_program = inspection.has_program
    return {
        "config": inspection.config,
        "step": inspection.step,
        "topology": inspection.topology.name,
        "devices": inspection.topology.num_devices,
        "mesh": dict(inspection.mesh),
        "parameters_total": inspection.counts.total,
        "parameters_active_per_token": inspection.counts.active_per_token,
        "parameters_per_device": inspection.counts.per_device,
        "lower_seconds": round(compilation.lower_seconds, 2),
        "compile_seconds": _rounded(compilation.compile_seconds, 2),
        "compile_cpu_seconds": _rounded(compilation.compile_cpu_seconds, 2),
        "program_instructions": compilation.instructions,
        "code_bytes": memory.code,
        "fits": inspection.fits,
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
        "collectives": _collectives(inspection) if has_program else None,
        "flops_per_device": inspection.total.flops if has_program else None,
        "bytes_accessed_per_device": inspection.total.bytes_accessed if has_program else None,
        "work": _works(inspection.by_kind()) if has_program else None,
        "directions": _directions(inspection) if has_program else None,
        "communication_seconds": inspection.communication_seconds
        if inspection.step_seconds
        else None,
        "estimated_step_seconds": inspection.step_seconds,
        "roofline_seconds": inspection.roofline_seconds,
        "roofline_fraction": _rounded(inspection.roofline_fraction, 4),
        "tokens_per_step": inspection.tokens_per_step,
        "does_not_fit": list(inspection.does_not_fit) or None,
        "notes": list(inspection.notes),
    }


def _directions(inspection: Inspection) -> dict[str, Any]:
    return {direction: _works(inspection.by_kind(direction)) for direction in DIRECTIONS}


def _works(works: Mapping[str, Work]) -> dict[str, Any]:
    return {kind: dataclasses.asdict(work) for kind, work in works.items()}


def _collectives(inspection: Inspection) -> list[dict[str, Any]]:
    collectives = []
    for kind in COLLECTIVE_KINDS:
        sources = [source for source in inspection.sources if source.kind == kind]
        if not sources:
            continue
        collectives.append(
            {
                "kind": kind,
                "count": inspection.kind_count(kind),
                "instructions": inspection.collective_instructions.get(kind, 0),
                "bytes_per_device": inspection.collective_bytes(kind),
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
                        "slices": source.slices,
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
    return collectives


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
