"""The memory of one device: what the compiler counted, by what it holds (GShard Figure 7)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from gshard_nmt.inspection.compute import Origins
from gshard_nmt.inspection.hlo import Instruction, Program
from gshard_nmt.inspection.origin import Origin
from gshard_nmt.spmd.lowering import ArraySpec, Signature
from gshard_nmt.spmd.mesh import Mesh

CATEGORIES = ("replicated_weights", "sharded_weights", "optimizer", "batch", "activations")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device.

    Attributes:
      argument, temp, output, alias, code: as the compiler counts them; None where it made no program.
        `alias` is the part of the output that takes over an argument's memory.
      peak: the most at any time.
      hbm: what the device has; None on a CPU.
      by_category: of the peak. Activations are all temporaries: gradients are among them.
      is_estimate: whether there is no program, so that the peak is a sum of estimates.
    """

    argument: int | None
    temp: int | None
    output: int | None
    alias: int | None
    code: int | None
    peak: int
    hbm: int | None
    by_category: Mapping[str, int]
    is_estimate: bool = False

    @property
    def fits(self) -> bool:
        """Whether the peak is within the device's memory."""
        return self.hbm is None or self.peak <= self.hbm


@dataclasses.dataclass(frozen=True)
class Temporary:
    """An array that is alive when the temporaries take the most memory."""

    bytes: int
    shape: str
    origin: Origin


def measured(executable: Any, program: Program, signature: Signature, mesh: Mesh, hbm: int | None):
    """The memory of a compiled program.

    Args:
      executable: jax's compiled object.
      program: its text, parsed.
      signature: names of its arguments.
      mesh: which of them are split.
      hbm: memory of a device.
    """
    stats = executable.memory_analysis()
    argument, temp = stats.argument_size_in_bytes, stats.temp_size_in_bytes
    output, alias = stats.output_size_in_bytes, stats.alias_size_in_bytes
    peak = stats.peak_memory_in_bytes
    # The CPU compiler counts none, and the TPU compiler may count less than it holds at once.
    peak = max(peak, argument + temp + output - alias)
    held = argument_bytes(program, signature, mesh)
    by_category = {name: held.get(name, 0) for name in CATEGORIES}
    by_category["activations"] = peak - sum(held.values())
    code = stats.generated_code_size_in_bytes
    return Memory(argument, temp, output, alias, code, peak, hbm, by_category)


def estimated(signature: Signature, mesh: Mesh, needed: int, hbm: int, temporaries: bool) -> Memory:
    """The memory of a program that the compiler gave up.

    Args:
      signature: its arguments.
      mesh: how they are split.
      needed: bytes that the compiler says it needs.
      hbm: bytes that a device has.
      temporaries: whether those are temporaries alone, arguments not counted.
    """
    held: dict[str, int] = {}
    for name, spec in signature.flat_inputs():
        category = category_of(name, spec, mesh)
        held[category] = held.get(category, 0) + shard_bytes(name, spec, mesh)
    arguments = sum(held.values())
    peak = needed + arguments if temporaries else max(needed, arguments)
    by_category = {name: held.get(name, 0) for name in CATEGORIES}
    by_category["activations"] = peak - arguments
    return Memory(None, None, None, None, None, peak, hbm, by_category, is_estimate=True)


def category_of(name: str, spec: ArraySpec, mesh: Mesh) -> str:
    """The category of an argument of a program, by its name."""
    kind, _, rest = name.partition("/")
    if kind == "moments":
        return "optimizer"
    if kind == "parameters" or "/" in name or "embedding" in name:
        weight = rest if kind == "parameters" else name
        split = any(mesh.axis_size(axes) > 1 for axes in mesh.partition(spec.letters, weight))
        return "sharded_weights" if split else "replicated_weights"
    return "batch"


def shard_bytes(name: str, spec: ArraySpec, mesh: Mesh) -> int:
    """Bytes of an argument on one device, without a TPU's padding to tiles."""
    partition = mesh.partition(spec.letters, name)
    return spec.nbytes // math.prod(mesh.axis_size(axes) for axes in partition)


def argument_bytes(program: Program, signature: Signature, mesh: Mesh) -> dict[str, int]:
    """Bytes of the program's arguments as laid out on the device, by category."""
    named = signature.flat_inputs()
    held: dict[str, int] = {}
    for one in program.computations[program.entry]:
        if one.opcode == "parameter" and one.parameter_number < len(named):
            category = category_of(*named[one.parameter_number], mesh)
            held[category] = held.get(category, 0) + sum(a.allocated for a in one.arrays)
    return held


def largest_temporaries(program: Program, count: int = 12) -> list[Temporary]:
    """The largest arrays that are alive at the moment of the schedule when most are.

    The compiler does not tell which arrays share memory; this follows the schedule, each result alive
    from the instruction that makes it to the last that reads it.
    """
    _, alive = _peak(program, program.entry)
    origins = Origins(program)
    found = [Temporary(size, _shape(one), origins.of(one)) for size, one in alive]
    return sorted(found, key=lambda each: -each.bytes)[:count]


def _shape(one: Instruction) -> str:
    return ", ".join(str(array) for array in one.arrays if array.space == 0)


_Buffers = frozenset[str]
_FORWARDING = ("tuple", "get-tuple-element", "bitcast", "while", "optimization-barrier", "call")


def _peak(program: Program, computation: str) -> tuple[int, list[tuple[int, Instruction]]]:
    """Most bytes alive at once within a computation, and the instructions that made them."""
    body = program.computations[computation]
    refers: dict[str, _Buffers] = {}
    made: dict[str, int] = {}
    last_use: dict[str, int] = {}
    for place, one in enumerate(body):
        refers[one.name] = _buffers(program, one, refers)
        for name in (one.name, *one.operands):
            for buffer in refers.get(name, ()):
                last_use[buffer] = place
        if one.name in refers[one.name] and one.opcode != "parameter":
            made[one.name] = sum(a.allocated for a in one.arrays if a.space == 0)
    # What leaves the computation is in the memory of its results; an argument is its caller's.
    leaving = refers.get(next((one.name for one in body if one.is_root), ""), frozenset())
    by_name = {one.name: one for one in body}
    alive: dict[str, int] = {}
    total, most = 0, 0
    best: list[tuple[int, Instruction]] = []
    ends: dict[int, list[str]] = {}
    for buffer, place in last_use.items():
        ends.setdefault(place, []).append(buffer)
    for place, one in enumerate(body):
        if one.name in made and one.name not in leaving:
            alive[one.name] = made[one.name]
            total += made[one.name]
        inner: list[tuple[int, Instruction]] = []
        extra = 0
        if one.opcode in ("while", "call", "conditional"):
            for called in one.calls:
                size, held = _peak(program, called)
                if size > extra:
                    extra, inner = size, held
        if total + extra > most:
            most = total + extra
            best = [*((size, by_name[name]) for name, size in alive.items()), *inner]
        for buffer in ends.get(place, ()):
            total -= alive.pop(buffer, 0)
    return most, best


def _buffers(program: Program, one: Instruction, refers: Mapping[str, _Buffers]) -> _Buffers:
    """The instructions in whose memory a result lies: its own, unless it only passes others on."""
    if one.opcode in _FORWARDING or _updates_in_place(program, one):
        return frozenset().union(*(refers.get(name, frozenset()) for name in one.operands))
    return frozenset((one.name,))


def _updates_in_place(program: Program, one: Instruction) -> bool:
    if one.opcode == "fusion":
        roots = [each for name in one.calls for each in program.computations[name] if each.is_root]
        return any(root.opcode == "dynamic-update-slice" for root in roots)
    return one.opcode == "dynamic-update-slice"
