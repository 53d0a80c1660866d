"""Computes the least time of a collective on the links between chips, or between GPUs.

We count only bandwidth, and leave out latency and overlap. The time depends on the positions of the
group's chips: they may be a few neighbors, every eighth chip of a row, or all chips. Between TPU slices
there is only the data center network. A group of several slices uses both, one after the other.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gshard_nmt.spmd.chips import Chip, Gpu
from gshard_nmt.spmd.topology import Topology


@dataclasses.dataclass(frozen=True)
class Line:
    """The positions of a group along one axis of the torus."""

    places: int  # number of positions
    # distance between neighbors, in chips. This is also the number of groups that share each link.
    stride: int
    is_ring: bool  # whether the last position is next to the first

    @property
    def links(self) -> float:
        """Links that the group can use along this axis, divided by the groups that share them.

        A chip of a ring has two. An open line counts one, because the chip at its end has only one.
        """
        return (2 if self.is_ring else 1) / self.stride


@dataclasses.dataclass(frozen=True)
class Placement:
    """The positions of a group of devices in the slice."""

    # the group's positions along each axis of the torus on which it has more than one position
    lines: tuple[Line, ...]
    # number of positions along every axis of the torus; for GPUs, hosts and GPUs of a host
    shape: tuple[int, ...]
    chips: int  # number of chips that hold the group's devices
    devices_of_chip: int  # number of the group's devices on each of these chips
    hops: int  # links between the first two neighbors of the group that are on different chips
    # number of slices that hold the group. The other fields describe its part in one of them.
    slices: int = 1
    slice_bandwidth: float = 0.0  # bytes per second between a chip and those of other slices


def place(group: Sequence[int], coordinates: np.ndarray, topology: Topology) -> Placement:
    """Returns the placement of a group of devices, given by their positions in the mesh.

    `coordinates` int[devices, axes] are those of each device's chip; with several slices, the last is the
    slice. The group has an equal part in each slice that it uses.
    """
    members, slices = coordinates[list(group)], 1
    if topology.slices > 1:
        of_member = members[:, -1]
        slices = len(np.unique(of_member))
        members = members[of_member == of_member[0], :-1]
    chips = np.unique(members, axis=0)
    along = [np.unique(column) for column in chips.T]
    is_box = len(chips) == math.prod(map(len, along))
    lines = []
    for places, size, wraps in zip(along, topology.shape, topology.wraps(), strict=True):
        distances = np.diff(places)
        if not len(distances):
            continue
        if is_box and len(set(distances.tolist())) == 1:
            count, stride = len(places), int(distances[0])
        else:
            count, stride = int(places[-1] - places[0]) + 1, 1
        lines.append(Line(count, stride, wraps and count * stride == size))
    return Placement(
        tuple(lines),
        tuple(map(len, along)),
        len(chips),
        max(1, len(members) // len(chips)),
        next(filter(None, np.abs(np.diff(members, axis=0)).sum(axis=1).tolist()), 0),
        slices,
        topology.slice_bandwidth,
    )


def seconds(kind: str, nbytes: float, placement: Placement, chip: Chip) -> float:
    """Returns the least time of one collective, in seconds, if all groups of the mesh run it at once.

    All-reduce, all-gather and reduce-scatter use all axes at once. An all-to-all is limited by the
    links across the middle of the longest axis. On a square slice its time therefore grows as the
    square root of the devices (GShard section 5.3). In a permutation each device sends to its neighbor in
    the group. `nbytes` are those of one device: the output of an all-gather, the input of other kinds.
    """
    if isinstance(chip, Gpu):
        return _seconds_of_gpus(kind, nbytes, placement, chip)
    if placement.slices > 1:
        return _seconds_of_slices(kind, nbytes, placement, chip)
    lines, bandwidth = placement.lines, chip.link_bandwidth
    if not lines:
        # The cores of one chip share its memory.
        return nbytes / chip.hbm_bandwidth if placement.devices_of_chip > 1 else 0.0
    chip_bytes = nbytes * chip.devices_per_chip
    if kind == "all-to-all":
        box = math.prod(line.places for line in lines)
        # Half of a chip's bytes cross the middle, and half of these go in each direction.
        crossing = (line.places / box / line.links for line in lines)
        return chip_bytes * placement.chips / 4 * max(crossing) / bandwidth
    if kind == "collective-permute":
        return chip_bytes * placement.hops / bandwidth
    # The cores of a chip that are in one group reduce within the chip first.
    payload = chip_bytes / placement.devices_of_chip * (1 - 1 / placement.chips)
    passes = 2 if kind == "all-reduce" else 1
    return passes * payload / (bandwidth * sum(line.links for line in lines))


def _seconds_of_slices(kind: str, nbytes: float, placement: Placement, chip: Chip) -> float:
    """Returns the least time of one collective between TPU slices, in seconds.

    A reduction adds up inside each slice first. Then each device sends its share to its partners in the
    other slices. A gather inside the slice ends an all-reduce. The TPU compiler writes it in this way.
    """
    slices, inside = placement.slices, dataclasses.replace(placement, slices=1)
    outside = 1 - 1 / slices
    of_group = placement.chips * placement.devices_of_chip
    if kind == "all-to-all":
        sent, local = nbytes * outside, seconds(kind, nbytes / slices, inside, chip)
    elif kind == "collective-permute":
        sent, local = nbytes, 0.0
    else:
        passes = 2 if kind == "all-reduce" else 1
        sent = passes * nbytes / of_group * outside
        local = seconds(kind, nbytes, inside, chip) if of_group > 1 else 0.0
    return local + sent * chip.devices_per_chip / placement.slice_bandwidth


def _seconds_of_gpus(kind: str, nbytes: float, placement: Placement, gpu: Gpu) -> float:
    """Returns the least time of one collective of GPUs, in seconds.

    The GPUs of a host reach each other at the full speed of their links, and every GPU reaches other
    hosts at the full speed of its network adapter. Both work at the same time. A reduction is done in
    each host first, so each GPU sends only its share of the host's bytes over the network.
    """
    hosts, gpus = placement.shape
    if kind == "all-to-all":
        inside, outside = nbytes * (gpus - 1) / (hosts * gpus), nbytes * (hosts - 1) / hosts
    elif kind == "collective-permute":
        inside, outside = (0.0, nbytes) if hosts > 1 else (nbytes, 0.0)
    else:
        total = nbytes * (2 if kind == "all-reduce" else 1)
        inside, outside = total * (1 - 1 / gpus), total / gpus * (1 - 1 / hosts)
    return max(inside / gpu.link_bandwidth, outside / gpu.network_bandwidth)
