"""Reads which devices of several TPU slices exchange data, from the text of a compiled program.

The compiler divides a collective between slices: reductions and gathers inside a slice are usual
collectives, and between slices a host sends and receives for its devices (Megascale). For an all-reduce
over two slices of 8 devices it writes:

    %reduce-scatter.1 = ... replica_groups={{0,1,2,3,4,5,6,7}}
    %send = ... send(%x, ...), frontend_attributes={_xla_megascale_target="{1,2}x{0:7}",
      _xla_megascale_transfer_type="ALL_REDUCE"}
    %all-gather.1 = ... replica_groups={{0,1,2,3,4,5,6,7}}

Groups inside a slice number its devices from 0 in the order of the mesh. A transfer names them as slice,
from 1, and number, such as {1,2}x{0:7}: each device with those of its number, or as 100007: number 7 of
slice 1.
"""

import re
from collections.abc import Sequence

import numpy as np

from gshard_nmt.inspection.hlo import HloModule, Instruction

_TYPE = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_PRODUCT = re.compile(r'_xla_megascale_target="\{([\d,]+)\}x')
_LISTED = re.compile(r"_xla_megascale_target=\{\{([\d,]+)\}")
_PAIR = re.compile(r"_xla_megascale_target=\{\{(\d+)->(\d+)\}")
_KINDS = {
    "ALL_TO_ALL": "all-to-all",
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ONE_TO_ONE": "collective-permute",
}
_SLICE = 100_000
"""The number of a device is this times its slice, from 1, plus its number in the slice."""
_TRANSPARENT = ("bitcast", "copy", "reshape", "transpose", "get-tuple-element", "fusion")


def transfer_kind(instruction: Instruction) -> str:
    """Returns the kind of collective that a `send` belongs to; "" if it is no transfer between slices."""
    match = _TYPE.search(instruction.attributes)
    return _KINDS.get(match[1], "") if match and instruction.opcode == "send" else ""


def transfer_group(instruction: Instruction, slice_of_place: Sequence[int]) -> tuple[int, ...]:
    """Returns the first group of devices of a transfer, by their places in the mesh.

    Args:
      instruction: a `send` between slices.
      slice_of_place: int[devices], the slice of each device, from 0, in the order of the mesh.
    """
    attributes = instruction.attributes
    if match := _PRODUCT.search(attributes):
        members = [int(number) * _SLICE for number in match[1].split(",")]
    elif match := _PAIR.search(attributes):
        members = [int(match[1]), int(match[2])]
    else:
        match = _LISTED.search(attributes)
        members = [int(number) for number in match[1].split(",")] if match else []
    places = [_places(slice_of_place, member // _SLICE - 1)[member % _SLICE] for member in members]
    return tuple(sorted(places))


def group_in_slice(group: Sequence[int], slice_of_place: Sequence[int]) -> tuple[int, ...]:
    """Returns the places in the mesh of a group that is given by the numbers in the first slice."""
    places = _places(slice_of_place, 0)
    return tuple(places[number] for number in group)


def _places(slice_of_place: Sequence[int], number: int) -> list[int]:
    """Returns the places of the devices of a slice, in the order of the mesh."""
    return [int(place) for place in np.flatnonzero(np.asarray(slice_of_place) == number)]


def ends_an_all_reduce(module: HloModule, gather: Instruction) -> bool:
    """Returns whether an all-gather collects the sums that came from the other slices."""
    instruction = gather
    for _ in range(8):
        makers = [module.by_name[name] for name in instruction.operands if name in module.by_name]
        if not makers:
            return False
        instruction = makers[0]
        if instruction.opcode == "recv-done":
            received = module.by_name[instruction.operands[0]]
            return "ALL_REDUCE" in received.attributes
        if instruction.opcode not in _TRANSPARENT:
            return False
    return False
