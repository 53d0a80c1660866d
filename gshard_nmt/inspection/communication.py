"""Lists the collectives of a compiled program: number, size, group of devices, and cause.

XLA combines the all-reduces of many gradients into one. Here each tensor has an entry of its own.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from gshard_nmt.inspection import links
from gshard_nmt.inspection.causes import Context, Reason, explain
from gshard_nmt.inspection.compute import UNKNOWN, Origin, find_origin
from gshard_nmt.inspection.hlo import Array, HloModule, Instruction
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import COLLECTIVE_KINDS

_CHANNEL = re.compile(r"channel_id=(\d+)")


@dataclasses.dataclass(frozen=True)
class Source:
    """One tensor of one collective instruction."""

    kind: str  # one of COLLECTIVE_KINDS
    origin: Origin  # the part of the model that it comes from
    # dtype and dimensions of the array on one device, for example "f32[8,16]": the output of an
    # all-gather, the input of other collectives
    shape: str
    bytes: int  # size of that array on one device
    count: int  # executions in a step
    group_size: int  # number of devices that exchange it
    # mesh axes along which the devices of the group lie; () if the group matches no mesh axes
    axes: tuple[str, ...]
    # time of all its executions in a step, at the links' peak; None for a CPU
    seconds: float | None
    reason: Reason  # why it is there, and what would remove it

    @property
    def bytes_per_step(self) -> int:
        return self.bytes * self.count


def collectives(module: HloModule, context: Context) -> list[Source]:
    """Returns all collectives of a step, most bytes first."""
    sources = []
    for instruction, inner, kind, times in _new_collectives(module):
        origin = find_origin(module, inner)
        origin = find_origin(module, instruction) if origin == UNKNOWN else origin
        sources += _sources(module, inner, kind, origin, times, context)
    return sorted(sources, key=lambda source: -source.bytes_per_step)


def _new_collectives(module: HloModule) -> Iterator[tuple[Instruction, Instruction, str, int]]:
    """Yields (instruction, the collective in it, its kind, times) of each collective once.

    From v5e on, the TPU compiler prints an asynchronous collective several times: in the fusions
    that start it, overlap it and wait for it. All copies have the same opcode and the same channel.
    On v3, a reduce-scatter may be a fusion of an all-reduce and a slice.
    """
    seen = set()
    for instruction, times in module.executed():
        for inner in module.fused(instruction):
            kind = inner.opcode.removesuffix("-start")
            if kind == "all-reduce" and len(instruction.arrays) == 1:
                is_scattered = instruction.arrays[0].size < inner.arrays[0].size
                kind = "reduce-scatter" if is_scattered else kind
            channel = _CHANNEL.search(inner.attributes)
            key = inner.opcode, channel[1] if channel else inner.name
            if kind in COLLECTIVE_KINDS and not (channel and key in seen):
                seen.add(key)
                yield instruction, inner, kind, times


def _sources(
    module: HloModule,
    instruction: Instruction,
    kind: str,
    origin: Origin,
    times: int,
    context: Context,
) -> list[Source]:
    """Returns a Source for each tensor of a collective that runs `times` times in a step."""
    operands = [module.by_name[name] for name in instruction.operands if name in module.by_name]
    if len(operands) == 1 and kind == "all-reduce":
        operands = _unpacked(module, operands[0])
    number = max(1, len(operands))
    inputs = [array for operand in operands for array in operand.arrays]
    arrays: Sequence[Array] = inputs[:number] or instruction.arrays
    if kind == "all-gather":  # the result of an asynchronous start is (inputs, outputs)
        arrays = instruction.arrays[-number:]
    if kind == "all-to-all" and len(arrays) > 1:
        # On a CPU the operands of an all-to-all are the pieces of one tensor, one for each device.
        arrays = [Array(arrays[0].dtype, (len(arrays), *arrays[0].dims))]
    tensor_origins = [origin]
    if len(arrays) > 1:
        tensor_origins = [find_origin(module, operand) for operand in operands]
    group = replica_group(instruction.attributes, context.mesh.num_devices)
    # A permutation names pairs of devices, which are a part of an axis.
    find_axes = axes_between if kind == "collective-permute" else axes_of_group
    axes = find_axes(context.mesh, group)
    chip, seconds, sources = context.topology.chip, None, []
    for array, tensor_origin in zip(arrays, tensor_origins, strict=False):
        if chip is not None and context.coordinates is not None:
            placement = links.place(group, context.coordinates, context.topology)
            seconds = times * links.seconds(kind, array.nbytes, placement, chip)
        reason = explain(kind, array, tensor_origin, axes, context)
        size = str(array), array.nbytes, times, len(group), axes
        sources.append(Source(kind, tensor_origin, *size, seconds, reason))
    return sources


def _unpacked(module: HloModule, operand: Instruction) -> list[Instruction]:
    """Returns the tensors that an operand consists of.

    The GPU compiler copies many gradients into one array, and adds up that array over the devices.
    """
    inside = module.computations[operand.calls[0]] if operand.opcode == "fusion" else ()
    numbers = {i.name: i.parameter_number for i in inside if i.opcode == "parameter"}
    packed = [i for i in inside if i.is_root and i.opcode == "concatenate"]
    tensors = []
    for name in packed[0].operands if packed else ():
        if name in numbers:
            tensor = module.by_name[operand.operands[numbers[name]]]
            # Before the copy, the tensor was flattened.
            while (
                tensor.opcode == "bitcast" and len(module.by_name[tensor.operands[0]].arrays) == 1
            ):
                tensor = module.by_name[tensor.operands[0]]
            tensors.append(tensor)
    return tensors or [operand]


_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))?\s*\{([^}]*)\}"
)
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")


def replica_group(attributes: str, devices: int) -> tuple[int, ...]:
    """Returns the first group of devices of a collective; reads every notation that XLA prints."""
    if match := _MESH_GROUPS.search(attributes):
        axes = re.findall(r"'(\w+)'=(\d+)", match[1])
        sizes = [int(size) for _, size in axes]
        order = np.arange(math.prod(sizes))
        if match[2]:
            order = order.reshape(_ints(match[2])).transpose(_ints(match[3]))
        taken = re.findall(r"'(\w+)'", match[4])
        index = tuple(slice(None) if name in taken else 0 for name, _ in axes)
        return tuple(order.reshape(sizes)[index].ravel().tolist())
    if match := _IOTA_GROUPS.search(attributes):
        dims = _ints(match[3])
        grid = np.arange(math.prod(dims)).reshape(dims)
        if match[4]:
            grid = grid.transpose(_ints(match[4]))
        return tuple(grid.reshape(int(match[1]), int(match[2]))[0].tolist())
    if match := _PAIRS.search(attributes):
        return int(match[1]), int(match[2])
    match = _LISTED_GROUPS.search(attributes)
    return tuple(_ints(match[1]) if match else ()) or tuple(range(devices))


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def axes_of_group(mesh: Mesh, group: Sequence[int]) -> tuple[str, ...]:
    """Returns the mesh axes along which a group of devices lies; () if it lies along none."""
    # A program numbers the devices by their position in the mesh.
    places = np.arange(mesh.num_devices).reshape(tuple(mesh.shape))
    for count in range(1, len(mesh.axes) + 1):
        for axes in itertools.combinations(mesh.axes, count):
            index = tuple(slice(None) if axis in axes else 0 for axis in mesh.axes)
            if mesh.axis_size(axes) == len(group) and not {*group} - {*places[index].flat}:
                return axes
    return ()


def axes_between(mesh: Mesh, devices: Sequence[int]) -> tuple[str, ...]:
    """Returns the mesh axes along which devices, given by their positions in the mesh, are apart."""
    places = np.unravel_index(np.array(devices), tuple(mesh.shape))
    return tuple(axis for axis, place in zip(mesh.axes, places, strict=True) if len(set(place)) > 1)
