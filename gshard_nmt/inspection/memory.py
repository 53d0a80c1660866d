"""Reads the memory of one device from the compiled program, by category (GShard Figure 7).

If a program does not fit, it estimates the memory, and suggests settings.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gshard_nmt.inspection.hlo import HloModule
from gshard_nmt.quantities import size_text
from gshard_nmt.spmd.ahead_of_time import DoesNotFit
from gshard_nmt.spmd.lowering import ArraySpec, Signature, flatten
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
    named, sizes = flatten(signature.inputs), Counter[str]()
    for instruction in module.computations[module.entry]:
        if instruction.opcode == "parameter" and instruction.parameter_number < len(named):
            category = category_of(*named[instruction.parameter_number], mesh)
            sizes[category] += sum(array.allocated for array in instruction.arrays)
    code = stats.generated_code_size_in_bytes
    return Memory(argument, temp, output, alias, code, peak, hbm, _by_category(sizes, peak))


def estimated(signature: Signature, mesh: Mesh, error: DoesNotFit) -> Memory:
    """Estimates the memory of a program that the compiler refused."""
    sizes = Counter[str]()
    for name, spec in flatten(signature.inputs):
        sizes[category_of(name, spec, mesh)] += shard_bytes(name, spec, mesh)
    peak = max(error.needed_bytes, sizes.total())
    if "temporaries" in error.what:  # it counts them without the arguments
        peak = error.needed_bytes + sizes.total()
    by_category = _by_category(sizes, peak)
    hbm = error.available_bytes
    return Memory(None, None, None, None, None, peak, hbm, by_category, is_estimate=True)


def _by_category(arguments: Counter[str], peak: int) -> dict[str, int]:
    sizes = {name: arguments[name] for name in CATEGORIES}
    return sizes | {"activations": peak - arguments.total()}


def category_of(name: str, spec: ArraySpec, mesh: Mesh) -> str:
    kind, _, rest = name.partition("/")
    if kind in ("moments", "guard", "ema"):
        return "optimizer"
    if kind == "parameters" or "/" in name or "embedding" in name or name == "output_bias":
        weight = rest if kind == "parameters" else name
        split = any(mesh.axis_size(axes) > 1 for axes in mesh.partition(spec.letters, weight))
        return "sharded_weights" if split else "replicated_weights"
    return "batch"


def shard_bytes(name: str, spec: ArraySpec, mesh: Mesh) -> int:
    """Returns the bytes of an argument on one device, without a TPU's padding to tiles."""
    partition = mesh.partition(spec.letters, name)
    return spec.nbytes // math.prod(mesh.axis_size(axes) for axes in partition)


def what_would_help(config: "Config", memory: Memory, error: DoesNotFit) -> list[str]:
    """Returns lines for the report on a program that does not fit: the sizes, and settings to change."""
    needed, available = error.needed_bytes, error.available_bytes
    model, rows = config.model, config.data.rows
    activations = memory.by_category["activations"]
    lines = [
        f"DOES NOT FIT: {error.what} need {size_text(needed)}, but only {size_text(available)} are "
        f"available: {size_text(needed - available)} too much.",
        "The compiler gives only these two sizes and no program, so the breakdown is estimated.",
        "What would help:",
    ]
    if model.remat == "none" and model.stack == "unrolled":
        lines.append("  - Model.remat = 'layer' recomputes activations instead of keeping them")
    if model.activation_dtype == "float32":
        lines.append("  - Model.activation_dtype = 'bfloat16' halves the activations")
    # Activations grow at least in proportion to the rows.
    fewest = config.mesh.axis_size(config.mesh.partition("B")[0]) * config.train.microbatches
    room = available - (memory.peak - activations)
    fitting_rows = int(rows * room / max(activations, 1)) // fewest * fewest
    if fitting_rows > 0:
        groups = "; change Model.num_groups in proportion" if model.num_groups else ""
        lines.append(f"  - Data.rows = {fitting_rows} instead of {rows}{groups}")
    return [
        *lines,
        "  - a rule in Mesh.rules that splits the largest category over more mesh axes",
        "  - a topology with more devices, or chips with more memory",
    ]
