"""Reads the memory of one device from the compiled program, by category (GShard Figure 7).

If a program does not fit, it estimates the memory, and suggests settings.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gshard_nmt.inspection.hlo import HloModule
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


def measured(
    executable: Any, module: HloModule, signature: Signature, mesh: Mesh, hbm: int | None
) -> Memory:
    """Returns the memory of a compiled program. Arguments count with a TPU's padding to tiles."""
    stats = executable.memory_analysis()
    argument, temp = stats.argument_size_in_bytes, stats.temp_size_in_bytes
    output, alias = stats.output_size_in_bytes, stats.alias_size_in_bytes
    # The CPU compiler gives no peak. The TPU compiler's peak may be less than the bytes alive at once.
    peak = max(stats.peak_memory_in_bytes, argument + temp + output - alias)
    named, sizes = signature.flat_inputs(), Counter[str]()
    for instruction in module.computations[module.entry]:
        if instruction.opcode == "parameter" and instruction.parameter_number < len(named):
            category = category_of(*named[instruction.parameter_number], mesh)
            sizes[category] += sum(array.allocated for array in instruction.arrays)
    code = stats.generated_code_size_in_bytes
    return Memory(argument, temp, output, alias, code, peak, hbm, _by_category(sizes, peak))


def estimated(signature: Signature, mesh: Mesh, needed: int, hbm: int, temporaries: bool) -> Memory:
    """Estimates the memory of a program that the compiler refused.

    Args:
      needed: bytes that it needs, by the compiler's message.
      hbm: memory of a device in bytes.
      temporaries: whether `needed` counts temporaries only, without arguments.
    """
    sizes = Counter[str]()
    for name, spec in signature.flat_inputs():
        sizes[category_of(name, spec, mesh)] += shard_bytes(name, spec, mesh)
    peak = needed + sizes.total() if temporaries else max(needed, sizes.total())
    by_category = _by_category(sizes, peak)
    return Memory(None, None, None, None, None, peak, hbm, by_category, is_estimate=True)


def _by_category(arguments: Counter[str], peak: int) -> dict[str, int]:
    sizes = {name: arguments[name] for name in CATEGORIES}
    return sizes | {"activations": peak - arguments.total()}


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


def suggestions(config: "Config", memory: Memory, decoding: bool = False) -> list[str]:
    """Returns changes that would lower the memory of a device, the most promising first."""
    lines = _for_decoding(config, memory) if decoding else _for_training(config, memory)
    replicated = memory.by_category["replicated_weights"]
    if replicated > GIB:
        lines.append(
            f"a rule in Mesh.rules that splits the replicated weights ({size_text(replicated)}): it may "
            "split the letter H, N or V over a second mesh axis"
        )
    return [*lines, "a topology with more devices, or chips with more memory"]


def _for_decoding(config: "Config", memory: Memory) -> list[str]:
    decode = config.decode
    lines = [_fewer_rows("Decode.rows", decode.rows, _row_shards(config), memory)]
    if decode.method == "beam" and decode.beam > 1:
        lines.append(
            f"Decode.beam below {decode.beam}: the search keeps this number of hypotheses of each row"
        )
    return lines


def _for_training(config: "Config", memory: Memory) -> list[str]:
    model, microbatches = config.model, config.train.microbatches
    sizes = memory.by_category
    activations = sizes["activations"]
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
    has_room = activations > 4 * (sizes["replicated_weights"] + sizes["sharded_weights"])
    if has_room and model.stack != "pipeline" and not any(problems(more, {})):
        lines.append(
            f"Train.microbatches = {more.train.microbatches} computes the same batch in parts, one after "
            "another, and nearly halves the activations"
        )
    fewest = _row_shards(config) * microbatches
    fewer = _fewer_rows("Data.rows", config.data.rows, fewest, memory)
    lines.append(fewer)
    if model.num_groups and fewer.startswith("Data.rows"):
        lines.append(
            "change Model.num_groups in proportion to Data.rows: the gates' one-hot tensors grow with "
            "the square of the number of tokens in a group"
        )
    return lines


def _row_shards(config: "Config") -> int:
    return config.mesh.axis_size(config.mesh.partition("B")[0])


def _fewer_rows(setting: str, rows: int, fewest: int, memory: Memory) -> str:
    """Suggests the largest multiple of `fewest` rows whose activations fit into the remaining memory."""
    activations = memory.by_category["activations"]
    room = (memory.hbm or 0) - (memory.peak - activations)
    fitting_rows = int(rows * room / max(activations, 1)) // fewest * fewest
    if room <= 0:
        return f"fewer rows are not enough: even without activations, {size_text(-room)} more are needed"
    if not fitting_rows:
        return (
            f"fewer rows are not enough: {size_text(room)} are left for activations, and {fewest} rows, "
            "the fewest that divide over devices and microbatches, need more"
        )
    return (
        f"{setting} = {fitting_rows} instead of {rows}: {size_text(room)} are left for activations, "
        "which grow at least in proportion to the rows"
    )
