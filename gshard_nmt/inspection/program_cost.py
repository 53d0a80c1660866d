"""The cost of a compiled program on one device, and the record of a config's step with its JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gshard_nmt.inspection import causes, communication, compute, hlo, memory
from gshard_nmt.inspection.communication import Source
from gshard_nmt.inspection.compute import DIRECTIONS, WORK_KINDS, Origin, Work
from gshard_nmt.inspection.memory import Memory
from gshard_nmt.quantities import DAY, YEAR_DAYS
from gshard_nmt.spmd import ahead_of_time
from gshard_nmt.spmd.ahead_of_time import Compiled
from gshard_nmt.spmd.lowering import ArraySpec, LoweredFunction
from gshard_nmt.spmd.program import COLLECTIVE_KINDS
from gshard_nmt.spmd.runtime import Runtime
from gshard_nmt.spmd.topology import Topology


@dataclasses.dataclass(frozen=True)
class Compilation:
    """Time and result of a compilation; all but `lower_seconds` are None if the program was refused."""

    lower_seconds: float  # time from TensorFlow to StableHLO
    # time from StableHLO to the partitioned program of one device
    compile_seconds: float | None = None
    # CPU time of all the compiler's threads; a busy machine hardly changes it
    compile_cpu_seconds: float | None = None
    instructions: int | None = None  # number of instructions of the program


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramCost:
    """The cost of one execution of a program on one device."""

    topology: Topology  # the machine that it was compiled for
    compilation: Compilation
    memory: Memory
    sources: Sequence[Source] = ()  # tensors of the collectives, most bytes first
    work: Mapping[Origin, Work] = dataclasses.field(default_factory=dict)  # {} without a program

    @property
    def has_program(self) -> bool:
        return self.compilation.instructions is not None

    @property
    def total(self) -> Work:
        return sum(self.work.values(), Work())

    def by_kind(self, direction: str = "") -> dict[str, Work]:
        """Returns the work by kind, in the order of WORK_KINDS (GShard Figure 8).

        `direction` is "forward", "recomputed" or "backward"; "" is all three.
        """
        by_kind: dict[str, Work] = {}
        for origin, work in self.work.items():
            if direction in ("", origin.direction):
                by_kind[origin.kind] = by_kind.get(origin.kind, Work()) + work
        return {kind: by_kind[kind] for kind in WORK_KINDS if kind in by_kind}

    @property
    def recomputed(self) -> Work:
        return sum(self.by_kind("recomputed").values(), Work())

    @property
    def communication_seconds(self) -> float:
        """Time of all collectives in a step, one after another."""
        return sum(source.seconds or 0.0 for source in self.sources)

    @property
    def step_seconds(self) -> float | None:
        """The predicted time, without overlap of computation and communication; None on a CPU."""
        if self.topology.chip is None or not self.has_program:
            return None
        return self.total.seconds + self.communication_seconds

    def sources_by_kind(self) -> dict[str, list[Source]]:
        """Returns the tensors of the collectives by kind, in the order of COLLECTIVE_KINDS."""
        sources = {kind: [s for s in self.sources if s.kind == kind] for kind in COLLECTIVE_KINDS}
        return {kind: of_kind for kind, of_kind in sources.items() if of_kind}

    def count(self, kind: str) -> int:
        return sum(source.count for source in self.sources if source.kind == kind)

    def bytes_of(self, kind: str) -> int:
        """Returns the bytes of one device in the collectives of a kind in a step; see `Source.shape`."""
        return sum(source.bytes_per_step for source in self.sources if source.kind == kind)


def cost_of(
    compiled: Compiled,
    devices: Runtime,
    lowered: LoweredFunction,
    weights: Mapping[str, ArraySpec] | None = None,
    lower_seconds: float = 0.0,
    is_circular: bool = False,
) -> ProgramCost:
    """Reads the cost of a program from its text."""
    topology, mesh = compiled.topology, devices.mesh
    module = hlo.parse(compiled.text)
    coordinates = ahead_of_time.coordinates_of(topology, devices)
    annotated = lowered.annotated
    context = causes.Context(topology, mesh, weights or {}, coordinates, annotated, is_circular)
    hbm = topology.chip.hbm_bytes if topology.chip else None
    seconds = lower_seconds, compiled.compile_seconds, compiled.compile_cpu_seconds
    return ProgramCost(
        topology=topology,
        compilation=Compilation(*seconds, module.num_instructions),
        memory=memory.measured(compiled.executable, module, lowered.signature, mesh, hbm),
        sources=communication.collectives(module, context),
        work=compute.work_by_origin(module, topology.chip),
    )


@dataclasses.dataclass(frozen=True)
class Counts:
    """Numbers of weights."""

    total: int  # all weights
    # weights that one token uses: those of the experts that it visits, and all weights outside the
    # experts, including the embeddings
    active_per_token: int
    per_device: int  # weights on one device


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection(ProgramCost):
    """The results of compiling a config for a topology."""

    config: str  # name of the config
    mesh: Mapping[str, int]  # axis -> size
    counts: Counts  # numbers of weights
    # tokens of one side in a batch: rows times the longer of source and target length, as the
    # papers count
    tokens_per_step: int
    # the compiler's message and what would help; () if the compiler made a program
    does_not_fit: Sequence[str] = ()
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # Mesh.overrides
    notes: Sequence[str] = ()  # changes and assumptions that the reader must know

    @property
    def fits(self) -> bool:
        return self.memory.fits and not self.does_not_fit

    @property
    def roofline_seconds(self) -> float | None:
        if self.step_seconds is None:
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
        return seconds * self.topology.num_devices / (YEAR_DAYS * DAY)


def as_json(inspection: Inspection) -> dict[str, Any]:
    """Returns the record as a dict for JSON; unknown values are None.

    Scripts of users read these keys, so they must not change.
    """
    memory, compilation = inspection.memory, inspection.compilation
    total, has_program = inspection.total, inspection.has_program
    directions = {direction: _works(inspection.by_kind(direction)) for direction in DIRECTIONS}
    return {
        "config": inspection.config,
        "step": "training",
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
        "flops_per_device": total.flops if has_program else None,
        "bytes_accessed_per_device": total.bytes_accessed if has_program else None,
        "work": _works(inspection.by_kind()) if has_program else None,
        "directions": directions if has_program else None,
        "parts": _parts(inspection) if has_program else None,
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


def _works(works: Mapping[str, Work]) -> dict[str, Any]:
    return {kind: dataclasses.asdict(work) for kind, work in works.items()}


def _parts(inspection: Inspection) -> list[dict[str, Any]]:
    """Returns the work by kind, part and direction, added up over the layers."""
    parts: dict[tuple[str, str, str], Work] = {}
    for origin, work in inspection.work.items():
        key = (origin.kind, origin.part, origin.direction)
        parts[key] = parts.get(key, Work()) + work
    names = ("kind", "part", "direction")
    return [dict(zip(names, key, strict=True)) | dataclasses.asdict(w) for key, w in parts.items()]


def _collectives(inspection: Inspection) -> list[dict[str, Any]]:
    return [
        {
            "kind": kind,
            "count": inspection.count(kind),
            "bytes_per_device": inspection.bytes_of(kind),
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
                    "why": source.reason.why,
                    "asked_for": source.reason.asked_for,
                    "remedy": source.reason.remedy or None,
                    "overrides": dict(source.reason.overrides) or None,
                }
                for source in sources
            ],
        }
        for kind, sources in inspection.sources_by_kind().items()
    ]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
