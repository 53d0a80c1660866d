"""The least time that a collective needs on the links between the chips of a slice.

Bandwidth alone counts, no latency, and nothing overlaps. What counts is where the devices of a group
lie: a group along one mesh axis may be a few neighbours, every eighth chip of a row, or all chips.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from gshard_nmt.spmd.chips import Chip
from gshard_nmt.spmd.topology import Topology


@dataclasses.dataclass(frozen=True)
class Line:
    """The places of a group along one axis of the torus.

    Attributes:
      places: how many.
      stride: chips from one to the next; as many groups share each link.
      is_ring: whether the last is next to the first.
    """

    places: int
    stride: int
    is_ring: bool

    @property
    def links(self) -> float:
        """Links on which a chip sends along this axis, in the group's share: the end of an open
        line has one, so that a reduction along it has no more.
        """
        return (2 if self.is_ring else 1) / self.stride


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a group of devices lies.

    Attributes:
      lines: of the box of chips that holds the group, axes of one chip left out.
      chips: that hold the group's devices.
      devices_of_chip: of the group on each of them.
    """

    lines: tuple[Line, ...]
    chips: int
    devices_of_chip: int


def place(group: Sequence[int], coordinates: np.ndarray, topology: Topology) -> Placement:
    """The placement of a group.

    Args:
      group: devices, by their places in the mesh.
      coordinates: int[devices, axes], the chip of each device of the mesh.
      topology: the torus.
    """
    chips = np.unique(coordinates[list(group)], axis=0)
    along = [np.unique(column) for column in chips.T]
    is_box = len(chips) == math.prod(map(len, along))
    lines = []
    for places, size, wraps in zip(along, topology.shape, topology.wraps(), strict=True):
        steps = np.diff(places)
        if not len(steps):
            continue
        if is_box and len(set(steps.tolist())) == 1:
            count, stride = len(places), int(steps[0])
        else:
            count, stride = int(places[-1] - places[0]) + 1, 1
        lines.append(Line(count, stride, wraps and count * stride == size))
    return Placement(tuple(lines), len(chips), max(1, len(group) // len(chips)))


def whole(topology: Topology) -> Placement:
    """The placement of all devices of a slice."""
    coordinates = np.array(list(itertools.product(*map(range, topology.shape))))
    chips = place(range(topology.num_chips), coordinates, topology)
    per_chip = topology.chip.devices_per_chip if topology.chip else 1
    return dataclasses.replace(chips, devices_of_chip=per_chip)


def seconds(kind: str, nbytes: float, placement: Placement, chip: Chip) -> float:
    """The least time of one collective that every group of its kind makes at once.

    All-reduce, all-gather and reduce-scatter go around all axes at once. An all-to-all is bound by the
    links across the middle of the longest axis, so that on a square it grows as the square root of
    the devices (GShard section 5.3). A permutation travels as far as its first pair.

    Args:
      kind: of the collective.
      nbytes: on a device: what comes out of an all-gather, what goes into the others.
      placement: of a group.
      chip: whose links these are.
    """
    lines, bandwidth = placement.lines, chip.link_bandwidth
    if not lines:
        # The cores of one chip share its memory.
        return nbytes / chip.hbm_bandwidth if placement.devices_of_chip > 1 else 0.0
    of_chip = nbytes * chip.devices_per_chip
    if kind == "all-to-all":
        box = math.prod(line.places for line in lines)
        # Half of what a chip has crosses the middle, half of that in each direction.
        crossing = (line.places / box / line.links for line in lines)
        return of_chip * placement.chips / 4 * max(crossing) / bandwidth
    if kind == "collective-permute":
        return of_chip * sum(line.stride * (line.places - 1) for line in lines) / bandwidth
    # Cores of one group reduce within their chip first.
    payload = of_chip / placement.devices_of_chip * (1 - 1 / placement.chips)
    passes = 2 if kind == "all-reduce" else 1
    return passes * payload / (bandwidth * sum(line.links for line in lines))
