"""Reads the memory of one device from the compiled program, by category (GShard Figure 7).

If a program does not fit, it estimates the memory, and suggests settings.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gshard_nmt.inspection.compute import Origin, Origins
from gshard_nmt.inspection.hlo import HloModule, Instruction
from gshard_nmt.quantities import GIB, size_text
from gshard_nmt.settings.divides import problems
from gshard_nmt.spmd.lowering import ArraySpec, Signature
from gshard_nmt.spmd.mesh import Mesh

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config

CATEGORIES = ("replicated_weights", "sharded_weights", "optimizer", "batch", "activations")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device."""

    # the program's inputs. The compiler counts this and the next four; they are None if the
    # compiler made no program.
    argument: int | None
    temp: int | None  # temporaries
    output: int | None  # results
    alias: int | None  # the part of the results that takes over the memory of arguments
    code: int | None  # machine code
    peak: int  # the most at any time
    hbm: int | None  # memory of the device; None for a CPU
    # the peak by CATEGORIES. "optimizer" includes the moving average of the weights. "activations"
    # are all temporaries, so they include gradients.
    by_category: Mapping[str, int]
    is_estimate: bool = False  # whether the compiler made no program, so that the peak is estimated

    @property
    def fits(self) -> bool:
        return self.hbm is None or self.peak <= self.hbm


@dataclasses.dataclass(frozen=True)
class Temporary:
    """An array that is alive when the temporaries take the most memory."""

    bytes: int  # its size on one device
    shape: str  # its dtype and dimensions on one device
    origin: Origin  # the part of the model that made it


def measured(
    executable: Any, module: HloModule, signature: Signature, mesh: Mesh, hbm: int | None
) -> Memory:
    """Returns the memory of a compiled program."""
    stats = executable.memory_analysis()
    argument, temp = stats.argument_size_in_bytes, stats.temp_size_in_bytes
    output, alias = stats.output_size_in_bytes, stats.alias_size_in_bytes
    peak = stats.peak_memory_in_bytes
    # The CPU compiler gives no peak. The TPU compiler's peak may be less than the bytes alive at once.
    peak = max(peak, argument + temp + output - alias)
    argument_sizes = argument_bytes(module, signature, mesh)
    by_category = {name: argument_sizes.get(name, 0) for name in CATEGORIES}
    by_category["activations"] = peak - sum(argument_sizes.values())
    code = stats.generated_code_size_in_bytes
    return Memory(argument, temp, output, alias, code, peak, hbm, by_category)


def estimated(signature: Signature, mesh: Mesh, needed: int, hbm: int, temporaries: bool) -> Memory:
    """Estimates the memory of a program that the compiler refused.

    Args:
      needed: bytes that it needs, by the compiler's message.
      hbm: memory of a device in bytes.
      temporaries: whether `needed` counts temporaries only, without arguments.
    """
    argument_sizes: dict[str, int] = {}
    for name, spec in signature.flat_inputs():
        category = category_of(name, spec, mesh)
        argument_sizes[category] = argument_sizes.get(category, 0) + shard_bytes(name, spec, mesh)
    arguments = sum(argument_sizes.values())
    peak = needed + arguments if temporaries else max(needed, arguments)
    by_category = {name: argument_sizes.get(name, 0) for name in CATEGORIES}
    by_category["activations"] = peak - arguments
    return Memory(None, None, None, None, None, peak, hbm, by_category, is_estimate=True)


def category_of(name: str, spec: ArraySpec, mesh: Mesh) -> str:
    kind, _, rest = name.partition("/")
    if kind in ("moments", "guard", "ema"):
        return "optimizer"
    if kind == "parameters" or "/" in name or "embedding" in name:
        weight = rest if kind == "parameters" else name
        split = any(mesh.axis_size(axes) > 1 for axes in mesh.partition(spec.letters, weight))
        return "sharded_weights" if split else "replicated_weights"
    return "batch"


def shard_bytes(name: str, spec: ArraySpec, mesh: Mesh) -> int:
    """Returns the bytes of an argument on one device, without a TPU's padding to tiles."""
    partition = mesh.partition(spec.letters, name)
    return spec.nbytes // math.prod(mesh.axis_size(axes) for axes in partition)


def argument_bytes(module: HloModule, signature: Signature, mesh: Mesh) -> dict[str, int]:
    """Returns the bytes of a program's arguments on one device by category, with padding."""
    named = signature.flat_inputs()
    argument_sizes: dict[str, int] = {}
    for instruction in module.computations[module.entry]:
        if instruction.opcode == "parameter" and instruction.parameter_number < len(named):
            category = category_of(*named[instruction.parameter_number], mesh)
            allocated = sum(array.allocated for array in instruction.arrays)
            argument_sizes[category] = argument_sizes.get(category, 0) + allocated
    return argument_sizes


def largest_temporaries(module: HloModule, count: int = 12) -> list[Temporary]:
    """Returns the largest arrays that are alive when the temporaries take the most memory.

    The compiler does not tell which arrays share memory, so we follow the schedule: a result is
    alive from the instruction that makes it to the last instruction that reads it.
    """
    _, alive = _peak(module, module.entry)
    origins = Origins(module)
    temporaries = [Temporary(nbytes, _shape(maker), origins.of(maker)) for nbytes, maker in alive]
    return sorted(temporaries, key=lambda temporary: -temporary.bytes)[:count]


def _shape(instruction: Instruction) -> str:
    return ", ".join(str(array) for array in instruction.arrays if array.space == 0)


_Buffers = frozenset[str]
"""Names of the instructions that allocated the memory of a result."""

_FORWARDING = ("tuple", "get-tuple-element", "bitcast", "while", "optimization-barrier", "call")
"""Opcodes whose result is in the memory of their operands."""


def _peak(module: HloModule, computation: str) -> tuple[int, list[tuple[int, Instruction]]]:
    """Returns the most bytes alive at once in a computation, and the arrays that are alive then.

    Each array is given as (bytes, the instruction that makes it).
    """
    body = module.computations[computation]
    by_name = {instruction.name: instruction for instruction in body}
    sizes, last_use = _lifetimes(module, body)
    ends: dict[int, list[str]] = {}
    for buffer, position in last_use.items():
        ends.setdefault(position, []).append(buffer)
    alive: dict[str, int] = {}
    total, peak = 0, 0
    at_peak: list[tuple[int, Instruction]] = []
    for position, instruction in enumerate(body):
        if instruction.name in sizes:
            alive[instruction.name] = sizes[instruction.name]
            total += sizes[instruction.name]
        inner_peak, inner = _inner_peak(module, instruction)
        if total + inner_peak > peak:
            peak = total + inner_peak
            at_peak = [*((nbytes, by_name[name]) for name, nbytes in alive.items()), *inner]
        for buffer in ends.get(position, ()):
            total -= alive.pop(buffer, 0)
    return peak, at_peak


def _inner_peak(
    module: HloModule, instruction: Instruction
) -> tuple[int, list[tuple[int, Instruction]]]:
    """Returns the largest peak of the computations that a loop, call or conditional runs."""
    if instruction.opcode not in ("while", "call", "conditional"):
        return 0, []
    peaks = [_peak(module, name) for name in instruction.calls]
    return max(peaks, key=lambda peak: peak[0], default=(0, []))


def _lifetimes(
    module: HloModule, body: Sequence[Instruction]
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the bytes of each temporary of a computation, and the position of its last reader."""
    buffers: dict[str, _Buffers] = {}
    sizes: dict[str, int] = {}
    last_use: dict[str, int] = {}
    for position, instruction in enumerate(body):
        buffers[instruction.name] = _buffers(module, instruction, buffers)
        for name in (instruction.name, *instruction.operands):
            for buffer in buffers.get(name, ()):
                last_use[buffer] = position
        if instruction.name in buffers[instruction.name] and instruction.opcode != "parameter":
            in_memory = (array.allocated for array in instruction.arrays if array.space == 0)
            sizes[instruction.name] = sum(in_memory)
    # The result of the computation is counted by its caller, as the parameters are.
    root = next((instruction.name for instruction in body if instruction.is_root), "")
    for name in buffers.get(root, frozenset()):
        sizes.pop(name, None)
    return sizes, last_use


def _buffers(
    module: HloModule, instruction: Instruction, buffers: Mapping[str, _Buffers]
) -> _Buffers:
    """Returns the instructions that allocated a result's memory.

    Most instructions allocate the memory of their own result. If an instruction forwards its operands,
    its result is in memory that the makers of the operands allocated.
    """
    if instruction.opcode in _FORWARDING or _updates_in_place(module, instruction):
        return frozenset().union(*(buffers.get(name, frozenset()) for name in instruction.operands))
    return frozenset((instruction.name,))


def _updates_in_place(module: HloModule, instruction: Instruction) -> bool:
    """Returns whether an instruction, or the fusion's root, writes into its operand."""
    if instruction.opcode == "fusion":
        inside = [inner for name in instruction.calls for inner in module.computations[name]]
        return any(inner.is_root and inner.opcode == "dynamic-update-slice" for inner in inside)
    return instruction.opcode == "dynamic-update-slice"


def suggestions(config: "Config", memory: Memory, decoding: bool = False) -> list[str]:
    """Returns changes that would lower the memory of a device, the most promising first."""
    lines = _for_decoding(config, memory) if decoding else _for_training(config, memory)
    replicated = memory.by_category["replicated_weights"]
    if replicated > GIB:
        lines.append(
            f"a rule in Mesh.rules that splits the replicated weights ({size_text(replicated)}): it may "
            "split the letter H, N or V over a second mesh axis"
        )
    lines.append("a topology with more devices, or chips with more memory")
    return lines


def _for_decoding(config: "Config", memory: Memory) -> list[str]:
    decode = config.decode
    lines = _fewer_rows("Decode.rows", decode.rows, _row_shards(config), memory)
    if decode.method == "beam" and decode.beam > 1:
        lines.append(
            f"Decode.beam below {decode.beam}: the search keeps this number of hypotheses of each row"
        )
    return lines


def _for_training(config: "Config", memory: Memory) -> list[str]:
    model, microbatches = config.model, config.train.microbatches
    activations = memory.by_category["activations"]
    weights = memory.by_category["replicated_weights"] + memory.by_category["sharded_weights"]
    lines = []
    if model.remat == "none" and model.stack == "unrolled":
        lines.append("Model.remat = 'layer' recomputes activations instead of keeping them")
    if model.activation_dtype == "float32":
        lines.append(
            f"Model.activation_dtype = 'bfloat16' halves activations, about "
            f"{size_text(activations / 2)} less"
        )
    more = config.replace(train={"microbatches": 2 * microbatches})
    # The sums of the gradients take twice the memory of gradients in bfloat16 (docs/training.md).
    has_room = activations > 4 * weights
    if has_room and model.stack != "pipeline" and not any(problems(more, {})):
        lines.append(
            f"Train.microbatches = {more.train.microbatches} computes the same batch in parts, one after "
            "another, and nearly halves the activations"
        )
    fewest = _row_shards(config) * microbatches
    fewer = _fewer_rows("Data.rows", config.data.rows, fewest, memory)
    if model.num_groups and fewer[0].startswith("Data.rows"):
        fewer.append(
            "change Model.num_groups in proportion to Data.rows: the gates' one-hot tensors grow with "
            "the square of the number of tokens in a group"
        )
    return lines + fewer


def _row_shards(config: "Config") -> int:
    return config.mesh.axis_size(config.mesh.partition("B")[0])


def _fewer_rows(setting: str, rows: int, fewest: int, memory: Memory) -> list[str]:
    """Suggests the largest multiple of `fewest` rows whose activations fit into the remaining memory."""
    activations = memory.by_category["activations"]
    room = (memory.hbm or 0) - (memory.peak - activations)
    fitting_rows = int(rows * room / max(activations, 1)) // fewest * fewest
    if room <= 0:
        return [
            f"fewer rows are not enough: even without activations, {size_text(-room)} more are needed"
        ]
    if not fitting_rows:
        return [
            f"fewer rows are not enough: {size_text(room)} are left for activations, and {fewest} rows, "
            "the fewest that divide over devices and microbatches, need more"
        ]
    return [
        f"{setting} = {fitting_rows} instead of {rows}: {size_text(room)} are left for activations, "
        "which grow at least in proportion to the rows"
    ]
