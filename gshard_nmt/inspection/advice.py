"""Suggests settings for a program that does not fit a device's memory."""

from typing import TYPE_CHECKING

from gshard_nmt.inspection.memory import Memory
from gshard_nmt.quantities import GIB, size_text
from gshard_nmt.settings.divides import problems

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config


def suggestions(config: "Config", memory: Memory) -> list[str]:
    """Returns changes that would lower the memory of a device, the most promising first.

    Args:
      config: the run.
      memory: what the run needs on one device, and what the device has.
    """
    model = config.model
    activations = memory.by_category["activations"]
    lines = []
    if model.remat == "none" and model.stack == "unrolled":
        lines.append("Model.remat = 'layer' recomputes activations instead of keeping them")
    if model.activation_dtype == "float32":
        lines.append(
            f"Model.activation_dtype = 'bfloat16' halves activations, about "
            f"{size_text(activations / 2)} less"
        )
    replicated = memory.by_category["replicated_weights"]
    # The sums of the gradients take twice the memory of gradients in bfloat16 (docs/training.md).
    has_room = activations > 4 * (replicated + memory.by_category["sharded_weights"])
    more = config.replace(train={"microbatches": 2 * config.train.microbatches})
    if has_room and model.stack != "pipeline" and not any(problems(more, {})):
        lines.append(
            f"Train.microbatches = {more.train.microbatches} computes the same batch in parts, one after "
            "another, and nearly halves the activations"
        )
    lines += _fewer_rows(config, memory)
    if replicated > GIB:
        lines.append(
            f"a rule in Mesh.rules that splits the replicated weights ({size_text(replicated)}): it may "
            "split the letter H, N or V over a second mesh axis"
        )
    lines.append("a topology with more devices, or chips with more memory")
    return lines


def _fewer_rows(config: "Config", memory: Memory) -> list[str]:
    """Suggests the largest number of rows whose activations fit into the memory that is left."""
    rows, mesh = config.data.rows, config.mesh
    fewest = mesh.axis_size(mesh.partition("B")[0]) * config.train.microbatches
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
    lines = [
        f"Data.rows = {fitting_rows} instead of {rows}: {size_text(room)} are left for activations, "
        "which grow at least in proportion to the rows"
    ]
    if config.model.num_groups:
        lines.append(
            "change Model.num_groups in proportion to Data.rows: the gates' one-hot tensors grow with "
            "the square of the number of tokens in a group"
        )
    return lines
