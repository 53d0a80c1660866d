"""The collectives of a compiled program: how many, how large, over whom, and what caused each.

A combined all-reduce of many gradients is taken apart again, so that each tensor has its line.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gshard_nmt.inspection import links
from gshard_nmt.inspection.compute import Origins
from gshard_nmt.inspection.hlo import Array, Instruction, Program
from gshard_nmt.inspection.origin import UNKNOWN, Origin
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology

KINDS = ("all-to-all", "all-reduce", "all-gather", "reduce-scatter", "collective-permute")

_SMALL = 4096
"""Bytes up to which an all-reduce is a statistic rather than a tensor."""

_CHEAP_COPY = 1 / 256
"""Share of a device's memory up to which a copy on every device is no reason to split a weight."""


@dataclasses.dataclass(frozen=True)
class Source:
    """One tensor of one collective instruction.

    Attributes:
      kind: one of KINDS.
      origin: what made it.
      shape: text of the array on one device: of what comes out of an all-gather, else of what goes in.
      bytes: of that array.
      count: how often it runs in a step.
      group_size: devices that exchange it.
      axes: the mesh axes over which they lie; () where they lie otherwise.
      seconds: in a step, at the peak of the links; None without a chip.
      why: in one line.
      asked_for: whether an annotation, a rule of the mesh or the arithmetic implies it.
      remedy: where nobody asked for it what may remove it; "" where nothing is known.
      overrides: where a weight should rather be whole on every device, its letters for
        Mesh.overrides, by name.
    """

    kind: str
    origin: Origin
    shape: str
    bytes: int
    count: int
    group_size: int
    axes: tuple[str, ...]
    seconds: float | None
    why: str
    asked_for: bool = True
    remedy: str = ""
    overrides: Mapping[str, Mapping[str, None]] = dataclasses.field(default_factory=dict)

    @property
    def bytes_per_step(self) -> int:
        """Bytes in a step."""
        return self.bytes * self.count


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What is known of the program beside its text.

    Attributes:
      topology, mesh: where it runs.
      weights: the model's parameters by name.
      coordinates: int[devices, axes], the chip of each device of the mesh; None on a CPU.
      annotated: (letters, shape) of the activations that the model annotates.
      dense_experts: whether every expert sees every token, so that there is no dispatch.
    """

    topology: Topology
    mesh: Mesh
    weights: Mapping[str, ArraySpec]
    coordinates: np.ndarray | None = None
    annotated: Collection[tuple[str, tuple[int, ...]]] = ()
    dense_experts: bool = False

    def placement(self, group: Sequence[int]) -> links.Placement | None:
        """Where a group of devices lies in the slice; None on a CPU."""
        if self.coordinates is None:
            return None
        return links.place(group, self.coordinates, self.topology)


def collectives(program: Program, around: Surroundings) -> list[Source]:
    """Every collective of a step, most bytes first."""
    origins = Origins(program)
    found = []
    channels: set[str] = set()
    for one, times in program.executed():
        for inner in program.fused(one):
            kind = _kind(one, inner)
            if kind in KINDS and _is_new(inner, channels):
                origin = origins.of(inner)
                own = origins.of(one) if origin == UNKNOWN else origin
                found += _sources(program, inner, kind, own, times, origins, around)
    return sorted(found, key=lambda source: -source.bytes_per_step)


def count_instructions(program: Program) -> dict[str, int]:
    """Collective instructions of the program text, whatever the loops around them."""
    channels: set[str] = set()
    fused = {
        name for one in program.by_name.values() if one.opcode == "fusion" for name in one.calls
    }
    kinds = [
        _kind(one, inner)
        for name, body in program.computations.items()
        for one in body
        for inner in program.fused(one)
        if name not in fused and _kind(one, inner) in KINDS and _is_new(inner, channels)
    ]
    return {kind: kinds.count(kind) for kind in KINDS}


def _kind(one: Instruction, inner: Instruction) -> str:
    """The kind of an instruction, or of what it fuses; "" or another word where it is no collective.

    A TPU's reduce-scatter may be a fusion of an all-reduce and the slice that a device keeps of it.
    """
    kind = inner.opcode.removesuffix("-start")
    if kind == "all-reduce" and one is not inner and len(one.arrays) == 1:
        kept = one.arrays[0].size
        return "reduce-scatter" if kept < inner.arrays[0].size else kind
    return kind


def _is_new(one: Instruction, channels: set[str]) -> bool:
    """Whether a collective has not been seen; from v5e on the TPU compiler writes an asynchronous one
    into the fusion that starts it, those that run meanwhile, and the one that waits: one channel.
    """
    found = _CHANNEL.search(one.attributes)
    if found is None:
        return True
    if found[1] in channels:
        return False
    channels.add(found[1])
    return True


def _sources(
    program: Program,
    one: Instruction,
    kind: str,
    own: Origin,
    times: int,
    origins: Origins,
    around: Surroundings,
) -> list[Source]:
    operands = [program.by_name[name] for name in one.operands if name in program.by_name]
    given = [array for operand in operands for array in operand.arrays]
    if kind == "all-gather":
        # The start of an asynchronous one gives (what went in, what comes out).
        arrays: Sequence[Array] = one.arrays[-max(1, len(operands)) :]
    else:
        arrays = given[: max(1, len(operands))] or one.arrays
    group = replica_group(one.attributes, around.mesh.num_devices)
    axes = axes_of_group(around.mesh, group)
    if kind == "all-to-all" and len(arrays) > 1:
        # On a CPU an all-to-all is a tuple of one piece a device: one tensor all the same.
        pieces = arrays
        whole = Array(pieces[0].dtype, (len(pieces), *pieces[0].dims))
        arrays, makers = [whole], [own]
    elif len(arrays) == 1:
        makers = [own]
    else:
        makers = [origins.producer(name) for name in one.operands]
    chip, placement = around.topology.chip, around.placement(group)
    found = []
    for array, origin in zip(arrays, makers, strict=False):
        seconds = None
        if chip is not None and placement is not None:
            seconds = times * links.seconds(kind, array.nbytes, placement, chip)
        reason = _explain(kind, array, origin, axes, around)
        size, devices = array.nbytes, len(group)
        found.append(
            Source(
                kind, origin, str(array), size, times, devices, axes, seconds,
                reason.why, reason.asked_for, reason.remedy, reason.overrides,
            )
        )  # fmt: skip
    return found


_CHANNEL = re.compile(r"channel_id=(\d+)")
_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))?\s*\{([^}]*)\}"
)
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")


def replica_group(attributes: str, devices: int) -> tuple[int, ...]:
    """The first group of devices of a collective, from any of the notations that XLA prints."""
    if found := _MESH_GROUPS.search(attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        names, taken = list(sizes), re.findall(r"'(\w+)'", found[4])
        devices_in_order = np.arange(math.prod(map(int, sizes.values())))
        if found[2]:
            dims = [int(n) for n in found[2].split(",")]
            order = [int(n) for n in found[3].split(",")]
            devices_in_order = devices_in_order.reshape(dims).transpose(order)
        grid = devices_in_order.reshape([int(s) for s in sizes.values()])
        index = tuple(slice(None) if name in taken else 0 for name in names)
        return tuple(int(n) for n in grid[index].ravel())
    if found := _IOTA_GROUPS.search(attributes):
        groups, size = int(found[1]), int(found[2])
        dims = [int(n) for n in found[3].split(",")]
        grid = np.arange(math.prod(dims)).reshape(dims)
        if found[4]:
            grid = grid.transpose([int(n) for n in found[4].split(",")])
        return tuple(int(n) for n in grid.reshape(groups, size)[0])
    if found := _LISTED_GROUPS.search(attributes):
        return tuple(int(n) for n in found[1].split(",") if n) or tuple(range(devices))
    if found := _PAIRS.search(attributes):
        return int(found[1]), int(found[2])
    return tuple(range(devices))


def axes_of_group(mesh: Mesh, group: Sequence[int]) -> tuple[str, ...]:
    """The mesh axes along which a group of devices lies; () where it lies along none."""
    # Within a program devices are numbered by their place in the mesh.
    places = np.arange(mesh.num_devices).reshape(tuple(mesh.shape))
    for count in range(1, len(mesh.axes) + 1):
        for axes in itertools.combinations(mesh.axes, count):
            if mesh.axis_size(axes) != len(group):
                continue
            index = tuple(slice(None) if axis in axes else 0 for axis in mesh.axes)
            if set(places[index].ravel().tolist()) == set(group):
                return axes
    return ()


@dataclasses.dataclass(frozen=True)
class _Reason:
    """The last fields of a Source."""

    why: str
    asked_for: bool = True
    remedy: str = ""
    overrides: Mapping[str, Mapping[str, None]] = dataclasses.field(default_factory=dict)


def _explain(
    kind: str, array: Array, origin: Origin, axes: tuple[str, ...], around: Surroundings
) -> _Reason:
    """Why the collective is there, in one line, and what would remove it."""
    over = f" over mesh axes {list(axes)}" if axes else ""
    moe = "moe" in origin.layer
    if around.dense_experts and moe and kind in ("all-gather", "all-to-all"):
        return _Reason(f"every expert sees every token (dispatch 'dense'){over}")
    if kind == "all-to-all" and moe:
        # GShard section 3.3.2: the same dimension split before, another after.
        to_experts = (origin.part != "combine") != origin.backward
        what = "tokens to their experts" if to_experts else "the experts' results to their tokens"
        letters = "GECM -> EGCM" if to_experts else "EGCM -> GECM"
        return _Reason(f"{what}: {letters}, split on the first letter{over}")
    if kind in ("all-reduce", "reduce-scatter"):
        return _Reason(_summed(kind, array, origin, axes, around) + over)
    if kind == "all-gather":
        weights = _weights_of(array, origin, axes, around, gathered=True)
        if weights:
            return _gathered_weight(weights, axes, around)
        activation = _contracted(array, axes, around)
        if activation:
            return _Reason(
                f"an activation annotated {activation[0]}, split on {activation[1]}, is used "
                f"whole by a product with a weight that is split there too{over}"
            )
    what = {"all-gather": "gathers", "collective-permute": "moves"}.get(kind, "reshards")
    why = (
        f"{what} {array} of {origin.layer or origin.kind}: it is split one way where it is made and "
        f"another where it is used{over}"
    )
    if not origin.layer:
        return _Reason(why, asked_for=False)
    remedy = (
        f"annotate the tensor in {origin.layer} with the letters that it is used with, or make one "
        "letter claim the same mesh axis on both sides (Mesh.rules)"
    )
    return _Reason(why, asked_for=False, remedy=remedy)


def _summed(
    kind: str, array: Array, origin: Origin, axes: tuple[str, ...], around: Surroundings
) -> str:
    """What an all-reduce or a reduce-scatter adds up."""
    small = kind == "all-reduce" and array.nbytes <= _SMALL
    if small and origin.kind in ("embedding and loss", "gating", "other"):
        return "adds up a statistic of the batch"
    summed = origin.backward or origin.kind in ("gradients and metrics", "other")
    if summed and (origin.layer or not small):
        if whole := _joined(_weights_of(array, origin, axes, around, gathered=False)):
            return f"adds up the gradient of {whole}, of which each device has a copy"
        if shard := _joined(_weights_of(array, origin, axes, around, gathered=True)):
            return f"adds up the gradient of {shard}, of which each device keeps its shard"
    if origin.kind in ("optimizer", "gradients and metrics"):
        return "adds up a mean square over the shards of a weight"
    what = "partial gradients" if origin.backward else "partial products"
    if letters := _contracted(array, axes, around):
        return (
            f"adds up {what} of an activation annotated {letters[0]}, of which each device keeps its "
            f"shard of {letters[1]}"
        )
    return f"adds up {what} over a contracted dimension that is split"


def _contracted(
    array: Array, axes: tuple[str, ...], around: Surroundings
) -> tuple[str, str] | None:
    """The annotated activation that an array is, made whole along `axes`, and its letters split there.

    Only where a product needs it whole: a weight has the letter, and another one split over the same
    axes (GSPMD Table 1, 2D finalized: BLM with M over y, MH with H over y).
    """
    mesh = around.mesh
    for letters, shape in sorted(around.annotated):
        partition = mesh.partition(letters)
        split = [a for a, used in zip(letters, partition, strict=True) if set(used) & set(axes)]
        if not split or not all(_needs_whole(letter, axes, around) for letter in split):
            continue
        held = [
            -(-size // mesh.axis_size([a for a in used if a not in axes]))
            for size, used in zip(shape, partition, strict=True)
        ]
        # The compiler may reshape it on the way.
        if math.prod(held) == array.size:
            return letters, ", ".join(split)
    return None


def _needs_whole(letter: str, axes: tuple[str, ...], around: Surroundings) -> bool:
    for name, spec in around.weights.items():
        partition = around.mesh.partition(spec.letters, name)
        others = (
            used for other, used in zip(spec.letters, partition, strict=True) if other != letter
        )
        if letter in spec.letters and any(set(used) & set(axes) for used in others):
            return True
    return False


def _weights_of(
    array: Array, origin: Origin, axes: tuple[str, ...], around: Surroundings, gathered: bool
) -> list[str]:
    """The names of the weights of which an array is one, or the gradient of one; [] where none fits.

    The shape decides, in any order, as the compiler transposes: that of a device's shard, or with
    `gathered` the shard made whole along `axes`. Of several weights of that shape those of the
    origin's own layer come first.
    """
    candidates: list[str] = []
    for name, spec in around.weights.items():
        partition = around.mesh.partition(spec.letters, name)
        held = [
            size // around.mesh.axis_size([a for a in split if not (gathered and a in axes)])
            for size, split in zip(spec.shape, partition, strict=True)
        ]
        if gathered and not any(a in axes for split in partition for a in split):
            continue
        one_layer = held[1:] if spec.letters.startswith("R") else held
        shape = sorted(_real(array.dims))
        if shape and shape in (sorted(_real(held)), sorted(_real(one_layer))):
            candidates.append(name)
    stack, _, sublayer = origin.layer.partition(" ")
    sublayer = sublayer.split(" ")[-1]
    named = [name for name in candidates if name.rpartition("/")[2] in origin.scopes]
    near = [
        name
        for name in named or candidates
        if sublayer and f"{stack}/" in name and sublayer in name
    ]
    if near or named:
        return near or named
    return candidates if len(candidates) == 1 and not origin.layer else []


def _joined(names: Sequence[str]) -> str:
    """Names of one layer as one: "decoder/block/self_attention_0/(key or query)"."""
    if len(names) < 2:
        return "".join(names)
    last = [name.rpartition("/")[2] for name in names]
    return f"{names[0].rpartition('/')[0]}/({' or '.join(last)})"


def _real(dims: Sequence[int]) -> list[int]:
    return [n for n in dims if n > 1]


def _gathered_weight(names: Sequence[str], axes: tuple[str, ...], around: Surroundings) -> _Reason:
    weight, spec = _joined(names), around.weights[names[0]]
    partition = around.mesh.partition(spec.letters, names[0])
    split = [
        letter
        for letter, used in zip(spec.letters, partition, strict=True)
        if any(axis in axes for axis in used)
    ]
    whole = spec.nbytes // spec.shape[0] if spec.letters.startswith("R") else spec.nbytes
    why = (
        f"{weight} ({spec.letters}) is split on {', '.join(split)} over {list(axes)} and used whole "
        f"there: {whole / 2**20:,.1f} MiB gathered"
    )
    chip = around.topology.chip
    memory = chip.hbm_bytes if chip else 2**34
    if spec.nbytes > memory * _CHEAP_COPY:
        return _Reason(f"{why}, as the rule for {split[0]} asks")
    return _Reason(
        why,
        asked_for=False,
        remedy=f"a copy on every device takes {spec.nbytes / 2**20:,.1f} MiB (Mesh.overrides, below)",
        overrides={name: dict.fromkeys(split) for name in names},
    )
