"""Reads which devices exchange data in a collective, and along which mesh axes they lie."""

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from gshard_nmt.spmd.mesh import Mesh

_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))?\s*\{([^}]*)\}"
)
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")


def replica_group(attributes: str, devices: int) -> tuple[int, ...]:
    """Returns the first group of devices of a collective; reads every notation that XLA prints."""
    if match := _MESH_GROUPS.search(attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        names, taken = list(sizes), re.findall(r"'(\w+)'", match[4])
        devices_in_order = np.arange(math.prod(map(int, sizes.values())))
        if match[2]:
            dims = [int(n) for n in match[2].split(",")]
            order = [int(n) for n in match[3].split(",")]
            devices_in_order = devices_in_order.reshape(dims).transpose(order)
        grid = devices_in_order.reshape([int(s) for s in sizes.values()])
        index = tuple(slice(None) if name in taken else 0 for name in names)
        return tuple(int(n) for n in grid[index].ravel())
    if match := _IOTA_GROUPS.search(attributes):
        groups, size = int(match[1]), int(match[2])
        dims = [int(n) for n in match[3].split(",")]
        grid = np.arange(math.prod(dims)).reshape(dims)
        if match[4]:
            grid = grid.transpose([int(n) for n in match[4].split(",")])
        return tuple(int(n) for n in grid.reshape(groups, size)[0])
    if match := _LISTED_GROUPS.search(attributes):
        return tuple(int(n) for n in match[1].split(",") if n) or tuple(range(devices))
    if match := _PAIRS.search(attributes):
        return int(match[1]), int(match[2])
    return tuple(range(devices))


def axes_of_group(mesh: Mesh, group: Sequence[int]) -> tuple[str, ...]:
    """Returns the mesh axes along which a group of devices lies; () if it lies along none."""
    # A program numbers the devices by their position in the mesh.
    places = np.arange(mesh.num_devices).reshape(tuple(mesh.shape))
    for count in range(1, len(mesh.axes) + 1):
        for axes in itertools.combinations(mesh.axes, count):
            if mesh.axis_size(axes) != len(group):
                continue
            index = tuple(slice(None) if axis in axes else 0 for axis in mesh.axes)
            if set(places[index].ravel().tolist()) == set(group):
                return axes
    return ()


def axes_between(mesh: Mesh, devices: Sequence[int]) -> tuple[str, ...]:
    """Returns the mesh axes along which devices have different places.

    Args:
      devices: their positions in the mesh, such as the first two of a rotation along an axis.
    """
    places = np.unravel_index(np.array(devices), tuple(mesh.shape))
    return tuple(axis for axis, place in zip(mesh.axes, places, strict=True) if len(set(place)) > 1)
