"""The collectives of a compiled program: how many, how large, over whom, and what caused each.

A combined all-reduce of many gradients is taken apart again, so that each tensor has its line.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from gshard_nmt.inspection.compute import Origins
from gshard_nmt.inspection.hlo import Array, Instruction, Program
from gshard_nmt.inspection.origin import Origin
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
      remedy: the setting that would remove it where nobody asked for it; "" where it is asked for.
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
    remedy: str

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
      dense_experts: whether every expert sees every token, so that there is no dispatch.
    """

    topology: Topology
    mesh: Mesh
    weights: Mapping[str, ArraySpec]
    dense_experts: bool = False


def collectives(program: Program, around: Surroundings) -> list[Source]:
    """Every collective of a step, most bytes first."""
    origins = Origins(program)
    found = []
    channels: set[str] = set()
    for one, times in program.executed():
        for inner in program.fused(one):
            kind = inner.opcode.removesuffix("-start")
            if kind in KINDS and _is_new(inner, channels):
                found += _sources(program, inner, kind, times, origins, around)
    return sorted(found, key=lambda source: -source.bytes_per_step)


def count_instructions(program: Program) -> dict[str, int]:
    """Collective instructions of the program text, whatever the loops around them."""
    channels: set[str] = set()
    kinds = [
        one.opcode.removesuffix("-start")
        for one in program.by_name.values()
        if one.opcode.removesuffix("-start") in KINDS and _is_new(one, channels)
    ]
    return {kind: kinds.count(kind) for kind in KINDS}


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
        pieces, own = arrays, origins.of(one)
        whole = Array(pieces[0].dtype, (len(pieces), *pieces[0].dims))
        arrays, makers = [whole], [own]
    elif len(arrays) == 1:
        makers = [origins.of(one)]
    else:
        makers = [origins.producer(name) for name in one.operands]
    found = []
    for array, origin in zip(arrays, makers, strict=False):
        seconds = link_seconds(kind, array.nbytes, len(group), around.topology)
        why, remedy = _explain(kind, array, origin, axes, around)
        found.append(
            Source(
                kind,
                origin,
                str(array),
                array.nbytes,
                times,
                len(group),
                axes,
                None if seconds is None else seconds * times,
                why,
                remedy,
            )
        )
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


def link_seconds(kind: str, nbytes: int, group_size: int, topology: Topology) -> float | None:
    """The least time that the links need; None without a chip.

    A group of all devices has the whole torus; a smaller one is taken to lie along a ring of its own.
    Bandwidth alone counts, no latency. All-reduce and all-gather use every link in both directions;
    an all-to-all is bound by the links that cross the middle of the longest axis, so that it grows as
    the square root of the devices on a 2D torus (GShard section 5.3).
    """
    chip = topology.chip
    if chip is None:
        return None
    if group_size <= 1:
        return 0.0
    whole = group_size == topology.num_devices
    chips = max(1, group_size // chip.devices_per_chip)
    shape = topology.shape if whole else (chips,)
    wraps = topology.wraps() if whole else (False,)
    axes = [(n, wrap) for n, wrap in zip(shape, wraps, strict=True) if n > 1]
    if not axes:
        return nbytes / chip.hbm_bandwidth  # both cores of one chip share its memory
    out = 2 * len(axes) * chip.link_bandwidth
    cores = chip.devices_per_chip
    left = 1 - 1 / chips
    if kind == "all-reduce":
        return 2 * nbytes * (1 if whole else cores) * left / out
    if kind in ("all-gather", "reduce-scatter"):
        return nbytes * (1 if whole else cores) * left / out
    if kind == "all-to-all":
        crossing = (n / (8 if wrap else 4) for n, wrap in axes)
        return nbytes * cores * max(crossing) / chip.link_bandwidth
    return nbytes * cores / chip.link_bandwidth


def _explain(
    kind: str, array: Array, origin: Origin, axes: tuple[str, ...], around: Surroundings
) -> tuple[str, str]:
    """Why the collective is there, in one line, and what would remove it."""
    over = f" over mesh axes {list(axes)}" if axes else ""
    fitting = _weights_of(array, origin, axes, around, gathered=kind == "all-gather")
    weight = _joined(fitting)
    if around.dense_experts and "moe" in origin.layer and kind in ("all-gather", "all-to-all"):
        return f"every expert sees every token (dispatch 'dense'){over}", ""
    if kind == "all-to-all" and "moe" in origin.layer:
        # GShard section 3.3.2: the same dimension split before, another after.
        to_experts = (origin.part != "combine") != origin.backward
        what = "tokens to their experts" if to_experts else "the experts' results to their tokens"
        letters = "GECM -> EGCM" if to_experts else "EGCM -> GECM"
        return f"{what}: {letters}, split on the first letter{over}", ""
    if kind == "all-reduce":
        if array.nbytes <= _SMALL and origin.kind in ("embedding and loss", "gating", "other"):
            return f"adds up a statistic of the batch{over}", ""
        summed = origin.backward or origin.kind == "gradients and metrics"
        if weight and summed and array.nbytes > 4:
            return f"adds up the gradient of {weight}, of which each device has a copy{over}", ""
        if origin.kind in ("optimizer", "gradients and metrics"):
            return f"adds up a mean square over the shards of a weight{over}", ""
        if origin.backward:
            return f"adds up partial gradients over a dimension that is split{over}", ""
        return f"adds up partial products over a contracted dimension that is split{over}", ""
    if kind == "reduce-scatter":
        return f"adds up {weight or 'partial results'}, each device keeping its shard{over}", ""
    if kind == "all-gather" and weight:
        return _gathered_weight(weight, around.weights[fitting[0]], fitting[0], axes, around)
    what = {"all-gather": "gathers", "collective-permute": "moves"}.get(kind, "reshards")
    place = origin.layer or origin.kind
    return (
        f"{what} {array} of {place}: it is split one way where it is made and another where it is "
        f"used{over}",
        f"annotate the tensor in {place} with the letters that it is used with, or make one letter "
        "claim the same mesh axis on both sides (Mesh.rules)",
    )


def _weights_of(
    array: Array, origin: Origin, axes: tuple[str, ...], around: Surroundings, gathered: bool
) -> list[str]:
    """The names of the weights of which an array is one, or the gradient of one; [] where none fits.

    The shape decides: that of a device's shard, or with `gathered` the shard made whole along `axes`.
    Of several weights of that shape those of the origin's own layer come first.
    """
    exact: list[str] = []
    transposed: list[str] = []
    for name, spec in around.weights.items():
        partition = around.mesh.partition(spec.letters, name)
        held = [
            size // around.mesh.axis_size([a for a in split if not (gathered and a in axes)])
            for size, split in zip(spec.shape, partition, strict=True)
        ]
        if gathered and not any(a in axes for split in partition for a in split):
            continue
        one_layer = held[1:] if spec.letters.startswith("R") else held
        shape, fitting = _real(array.dims), (_real(held), _real(one_layer))
        if shape and shape in fitting:
            exact.append(name)
        elif shape and sorted(shape) in map(sorted, fitting):  # the compiler may transpose it
            transposed.append(name)
    stack, _, sublayer = origin.layer.partition(" ")
    sublayer = sublayer.split(" ")[-1]
    for candidates in (exact, transposed):
        near = [
            name for name in candidates if sublayer and f"{stack}/" in name and sublayer in name
        ]
        if near:
            return near
    found = exact or transposed
    return found if len(found) == 1 and not origin.layer else []


def _joined(names: Sequence[str]) -> str:
    """Names of one layer as one: "decoder/block/self_attention_0/(key or query)"."""
    if len(names) < 2:
        return "".join(names)
    last = [name.rpartition("/")[2] for name in names]
    return f"{names[0].rpartition('/')[0]}/({' or '.join(last)})"


def _real(dims: Sequence[int]) -> list[int]:
    return [n for n in dims if n > 1]


def _gathered_weight(
    weight: str, spec: ArraySpec, name: str, axes: tuple[str, ...], around: Surroundings
) -> tuple[str, str]:
    partition = around.mesh.partition(spec.letters, name)
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
        return f"{why}, as the rule for {split[0]} asks", ""
    no_axis = dict.fromkeys(split)
    return why, (
        f"Mesh.overrides = {{'{weight}': {no_axis}}} keeps a copy on every device "
        f"({spec.nbytes / 2**20:,.1f} MiB)"
    )
