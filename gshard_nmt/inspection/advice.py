"""Suggests settings for a program that does not fit a device's memory."""

from typing import TYPE_CHECKING

from gshard_nmt.inspection.memory import Memory
from gshard_nmt.quantities import GIB, size_text
from gshard_nmt.settings.divides import problems

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config


def suggestions(config: "Config", memory: Memory, decoding: bool = False) -> list[str]:
    """Returns changes that would lower the memory of a device, the most promising first.

    Args:
      memory: what the program needs on one device, and what the device has.
      decoding: whether the program is the search of a decoder instead of a training step.
    """
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
