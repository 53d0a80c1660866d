"""Explains the collectives of a compiled program: why each is there, and what would remove it."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gshard_nmt.inspection.compute import Origin
from gshard_nmt.inspection.hlo import Array
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh, Partition
from gshard_nmt.spmd.topology import Topology

_SUMS = ("all-reduce", "reduce-scatter")
_SMALL = 4096
"""An all-reduce of at most this many bytes may be the sum of a statistic, such as the loss."""

_CHEAP_COPY = 1 / 256
"""A weight of at most this share of a device's memory need not be split: every device can hold a copy."""


@dataclasses.dataclass(frozen=True)
class Context:
    """Facts about a compiled program that its text does not hold."""

    topology: Topology  # the machine that it was compiled for
    mesh: Mesh  # its mesh of devices
    weights: Mapping[str, ArraySpec]  # the model's parameters by name
    # int[devices, axes], coordinates of each device's chip on the torus, in the order of the mesh;
    # None for a CPU
    coordinates: np.ndarray | None = None
    # (letters, shape) of the activations that the model annotates
    annotated: Collection[tuple[str, tuple[int, ...]]] = ()
    is_circular: bool = False  # whether the program is a pipeline with a circular schedule


@dataclasses.dataclass(frozen=True)
class Reason:
    """The cause and the remedy of a collective."""

    why: str  # the cause, in one line
    asked_for: bool = True  # whether an annotation, a rule of the mesh or the arithmetic implies it
    # for a collective that is not asked for, a change that may remove it; "" if none is known
    remedy: str = ""
    # entries for Mesh.overrides that keep small weights whole on every device: the name of a weight
    # -> its letters that are not to be split
    overrides: Mapping[str, Mapping[str, Sequence[str] | None]] = dataclasses.field(
        default_factory=dict
    )


def explain(
    kind: str, array: Array, origin: Origin, axes: tuple[str, ...], context: Context
) -> Reason:
    over = f"; the collective runs over mesh axes {list(axes)}" if axes else ""
    why = _in_moe_layer(kind, origin, axes, context)
    if kind == "all-gather" and not why:
        weights = _weights_of(array, origin, axes, context, gathered=True)
        if weights:
            return _gathered_weight(weights, axes, context)
    why = why or (_summed if kind in _SUMS else _moved)(kind, array, origin, axes, context)
    if why:
        return Reason(why + over)
    verb = {"all-gather": "gathers", "collective-permute": "moves"}.get(kind, "reshards")
    return Reason(
        f"{verb} {array} of {origin.layer or origin.kind}: the operation that makes it and the "
        f"operation that reads it split it in different ways{over}",
        asked_for=False,
        remedy="change Mesh.rules so that both operations split it over the same mesh axis"
        * bool(origin.layer),
    )


def _in_moe_layer(kind: str, origin: Origin, axes: tuple[str, ...], context: Context) -> str:
    """Returns why the devices of an MoE layer communicate; "" if the layer does not explain it."""
    if "moe" not in origin.layer:
        return ""
    if kind == "all-to-all":
        # GShard section 3.3.2: an all-to-all moves the split from one dimension to another.
        if (origin.part != "combine") != origin.backward:
            return "sends tokens to their experts: GECM -> EGCM, each split on its first letter"
        return (
            "sends the experts' results back to their tokens: EGCM -> GECM, each split on its first "
            "letter"
        )
    if set(axes) & set(context.mesh.partition("GS")[1]):  # a group of tokens is spread over devices
        if kind == "all-gather" and origin.kind == "gating":
            return "gathers how many tokens of a group ask for each expert on each of its devices"
        if origin.part in ("dispatch", "combine"):
            what = "inputs" if origin.part == "dispatch" else "outputs"
            what = f"{'gradients of the ' if origin.backward else ''}{what} of a group's slots"
            if kind in _SUMS:
                return f"adds up the {what} over the devices that share the group"
            return f"gathers the {what} for the devices that share the group"
    return ""


def _moved(kind: str, array: Array, origin: Origin, axes: tuple[str, ...], context: Context) -> str:
    """Returns why an activation or an updated part is moved or gathered; "" if nothing asks for it."""
    along_stages = _along_stages(axes, context)
    if along_stages and kind == "collective-permute":
        return "moves each microbatch to the next stage of the pipeline"
    may_be_weight = context.is_circular and kind in ("all-to-all", "collective-permute")
    fitting = _fitting(array, axes, context, False) if may_be_weight and not origin.layer else []
    if any(context.weights[name].letters[0] == "R" for name in fitting):
        return "moves weights to the stages of the circular schedule, or their gradients back"
    if kind != "all-gather":
        return ""
    if along_stages:
        return "gathers what every stage of the pipeline reads"
    if activation := _whole_activation(array, axes, context):
        return (
            f"gathers an activation annotated {activation[0]} along {activation[1]}, for a product "
            "whose weight is split over the same mesh axis"
        )
    if context.mesh.shared_update and origin.kind == "optimizer":
        what = "the new weights" if origin.part == "guard" else "second moments"
        return f"gathers {what}: each device has made a part of them (Mesh.shared_update)"
    return ""


def _along_stages(axes: tuple[str, ...], context: Context) -> bool:
    return bool(axes) and set(axes) <= set(context.mesh.partition("P")[0])


def _summed(
    kind: str, array: Array, origin: Origin, axes: tuple[str, ...], context: Context
) -> str:
    """Returns what an all-reduce or a reduce-scatter adds up, in words."""
    small = kind == "all-reduce" and array.nbytes <= _SMALL
    is_figure = origin.part in ("token_counts", "figures")
    if is_figure or (small and origin.kind in ("embedding and loss", "gating", "other")):
        return "adds up a statistic of the batch"
    summed = origin.backward or origin.kind in ("gradients and metrics", "other")
    if summed and (origin.layer or not small):
        if whole := _joined(_weights_of(array, origin, axes, context, gathered=False)):
            return f"adds up the gradient of {whole}, because each device has a copy of this weight"
        if shard := _joined(_weights_of(array, origin, axes, context, gathered=True)):
            return f"adds up the gradient of {shard}; each device keeps its shard of the sum"
    if summed and not origin.layer and not small and _along_stages(axes, context):
        return (
            "hands on what one stage of the pipeline has, as a sum in which the others have zeros"
        )
    if origin.kind in ("optimizer", "gradients and metrics"):
        return "adds up a mean square over the shards of a weight"
    terms = "partial gradients" if origin.backward else "partial products"
    if activation := _whole_activation(array, axes, context):
        letters, split = activation
        return (
            f"adds up {terms} of an activation annotated {letters}; each device keeps its shard of "
            f"{split}"
        )
    return f"adds up {terms} over a contracted dimension that is split"


def _whole_activation(
    array: Array, axes: tuple[str, ...], context: Context
) -> tuple[str, str] | None:
    """Finds the annotated activation whose shard, gathered along `axes`, has the size of `array`.

    An activation matches only if a product with a weight needs it whole along `axes`. This is so if the
    weight has the letter that splits the activation, but splits another letter over the same axes. For
    example, the activation BLM has M over y, and the weight MH has H over y (GSPMD Table 1, 2D
    finalized). Returns the letters of the activation, and those that the annotation splits over `axes`.
    """
    mesh = context.mesh

    def needs_whole(letter: str) -> bool:
        return any(
            letter in spec.letters
            and {*_split_letters(spec.letters, mesh.partition(spec.letters, name), axes)} - {letter}
            for name, spec in context.weights.items()
        )

    for letters, shape in sorted(context.annotated):
        partition = mesh.partition(letters)
        split = _split_letters(letters, partition, axes)
        # The compiler may have reshaped it, so only the number of elements counts.
        is_size = math.prod(_local_shape(mesh, shape, partition, axes)) == array.size
        if split and is_size and all(map(needs_whole, split)):
            return letters, ", ".join(split)
    return None


def _split_letters(letters: str, partition: Partition, axes: Sequence[str]) -> list[str]:
    """Returns the letters of a tensor that are split over one of `axes`."""
    pairs = zip(letters, partition, strict=True)
    return [letter for letter, split_over in pairs if set(split_over) & set(axes)]


def _local_shape(
    mesh: Mesh, shape: Sequence[int], partition: Partition, whole_along: Sequence[str] = ()
) -> list[int]:
    """Returns the shape of a tensor on one device, which has it whole along some mesh axes."""
    return [
        -(-size // mesh.axis_size([axis for axis in axes if axis not in whole_along]))
        for size, axes in zip(shape, partition, strict=True)
    ]


def _weights_of(
    array: Array, origin: Origin, axes: tuple[str, ...], context: Context, gathered: bool
) -> list[str]:
    """Returns the names of the weights that fit an array, which may be the weight or its gradient.

    A weight fits if its shard on one device has the dimensions of the array. Their order does not
    matter, because the compiler transposes. With `gathered`, the shard is first made whole along
    `axes`. The origin then narrows the choice: first to the weights that its scopes name, then to the
    weights of its layer. A step that would leave no weight is skipped. If both steps are skipped, the
    result is []; but if only one weight fits and the origin has no layer, the result is that weight.
    """
    candidates = _fitting(array, axes, context, gathered)
    stack, _, sublayer = origin.layer.partition(" ")
    sublayer = sublayer.split(" ")[-1]
    named = [name for name in candidates if name.rpartition("/")[2] in origin.scopes]
    near = [n for n in named or candidates if sublayer and f"{stack}/" in n and sublayer in n]
    only = candidates if len(candidates) == 1 and not origin.layer else []
    return near or named or only


def _fitting(array: Array, axes: tuple[str, ...], context: Context, gathered: bool) -> list[str]:
    mesh, fitting = context.mesh, []
    wanted = sorted(n for n in array.dims if n > 1)
    for name, spec in context.weights.items() if wanted else ():
        partition = mesh.partition(spec.letters, name)
        if gathered and not _split_letters(spec.letters, partition, axes):
            continue
        local = _local_shape(mesh, spec.shape, partition, axes if gathered else ())
        layer = local[1:] if spec.letters.startswith("R") else local
        if wanted in [sorted(n for n in shape if n > 1) for shape in (local, layer)]:
            fitting.append(name)
    return fitting


def _joined(names: Sequence[str]) -> str:
    """Joins names of one layer: "decoder/block/self_attention_0/(key or query)"."""
    if len(names) < 2:
        return "".join(names)
    last = [name.rpartition("/")[2] for name in names]
    return f"{names[0].rpartition('/')[0]}/({' or '.join(last)})"


def _gathered_weight(names: Sequence[str], axes: tuple[str, ...], context: Context) -> Reason:
    """Returns why a weight is gathered along `axes`, and whether a copy on each device is better."""
    spec = context.weights[names[0]]
    partition = context.mesh.partition(spec.letters, names[0])
    split_letters = _split_letters(spec.letters, partition, axes)
    why = (
        f"{_joined(names)} ({spec.letters}) is split on {', '.join(split_letters)} over mesh axes "
        f"{list(axes)}, but a product needs it whole"
    )
    chip = context.topology.chip
    memory = chip.hbm_bytes if chip else 2**34
    if spec.nbytes > memory * _CHEAP_COPY:
        return Reason(f"{why}; the rule for {split_letters[0]} asks for this split")

    def layout(name: str) -> Mapping[str, Sequence[str] | None]:
        # A new entry takes the place of the one that the weight has now.
        letters = context.weights[name].letters
        own, usual = context.mesh.partition(letters, name), context.mesh.partition(letters)
        each = zip(letters, own, usual, strict=True)
        kept = {letter: now or None for letter, now, rule in each if now != rule}
        return kept | dict.fromkeys(_split_letters(letters, own, axes))

    return Reason(
        why,
        asked_for=False,
        remedy=f"keep a copy on every device, {spec.nbytes / 2**20:,.1f} MiB (Mesh.overrides, below)",
        overrides={name: layout(name) for name in names},
    )
