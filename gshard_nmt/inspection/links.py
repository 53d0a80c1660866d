"""Computes the least time of a collective on the links between chips, or between GPUs.

We count only bandwidth, and leave out latency and overlap. The time depends on the positions of the
group's chips: they may be a few neighbors, every eighth chip of a row, or all chips.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Chip, Gpu, Topology


@dataclasses.dataclass(frozen=True)
class Placement:
    """The positions of a group of devices in the slice."""

    # for each axis of the torus on which the group has several positions, their number, and the links
    # that the group can use along the axis, divided by the groups that share them
    lines: tuple[tuple[int, float], ...]
    # number of positions along every axis of the torus; for GPUs, hosts and GPUs of a host
    shape: tuple[int, ...]
    chips: int  # number of chips that hold the group's devices
    devices_of_chip: int  # number of the group's devices on each of these chips
    hops: int  # links between the first two neighbors of the group that are on different chips


def place(group: Sequence[int], coordinates: np.ndarray, topology: Topology) -> Placement:
    """Returns the placement of a group of devices, given by their positions in the mesh.

    `coordinates` int[devices, axes] are those of each device's chip.
    """
    members = coordinates[list(group)]
    chips = np.unique(members, axis=0)
    along = [np.unique(column) for column in chips.T]
    is_box = len(chips) == math.prod(map(len, along))
    lines = []
    for places, size, wraps in zip(along, topology.shape, topology.wraps(), strict=True):
        distances = set(np.diff(places).tolist())
        if not distances:
            continue
        # The distance of neighbors in chips is also the number of groups that share each link.
        if is_box and len(distances) == 1:
            count, stride = len(places), distances.pop()
        else:
            count, stride = int(places[-1] - places[0]) + 1, 1
        # A chip of a ring has two links. An open line counts one, because the chip at its end has one.
        links = 2 if wraps and count * stride == size else 1
        lines.append((count, links / stride))
    shape, devices_of_chip = tuple(map(len, along)), max(1, len(members) // len(chips))
    hops = next(filter(None, np.abs(np.diff(members, axis=0)).sum(axis=1).tolist()), 0)
    return Placement(tuple(lines), shape, len(chips), devices_of_chip, hops)


def counted(topology: Topology) -> tuple[int, ...]:
    """Returns the sizes of a machine's axes as device numbers count them, the slowest first.

    That is the last axis of a torus to the first, then the cores of a chip; or the hosts and then the
    GPUs of a host.
    """
    if isinstance(topology.chip, Gpu):
        return topology.shape
    return (*reversed(topology.shape), topology.num_devices // topology.num_chips)


@functools.cache
def _coordinates(topology: Topology) -> np.ndarray:
    """Returns int[devices, axes of the torus], the coordinates of the chip of each device number."""
    sizes = counted(topology)
    grid = np.indices(sizes).reshape(len(sizes), -1)
    return (grid if isinstance(topology.chip, Gpu) else grid[-2::-1]).T


@functools.cache
def by_host(topology: Topology) -> np.ndarray:
    """Returns int[devices], the numbers of the devices as jax lists them: host by host of 2x2 chips."""
    *slow, y, x, cores = (1, 1, *counted(topology))
    numbers = np.arange(topology.num_devices)
    if isinstance(topology.chip, Gpu) or x % 2 or y % 2:
        return numbers
    hosts = numbers.reshape(math.prod(slow), y // 2, 2, x // 2, 2, cores)
    return hosts.swapaxes(2, 3).ravel()


def place_on(topology: Topology, mesh: Mesh, axes: Sequence[str]) -> Placement:
    """Returns the placement of the first group along some axes, of a mesh with any device order."""
    group = mesh.devices()[tuple(slice(None) if axis in axes else 0 for axis in mesh.axes)]
    if not mesh.device_order:
        group = by_host(topology)[group]
    return _placement(topology, tuple(group.ravel().tolist()))


@functools.lru_cache(maxsize=4096)
def _placement(topology: Topology, group: tuple[int, ...]) -> Placement:
    return place(group, _coordinates(topology), topology)


def seconds(kind: str, nbytes: float, placement: Placement, chip: Chip) -> float:
    """Returns the least time of one collective, in seconds, if all groups of the mesh run it at once.

    All-reduce, all-gather and reduce-scatter use all axes at once. An all-to-all is limited by the
    links across the middle of the longest axis. On a square slice its time therefore grows as the
    square root of the devices (GShard section 5.3). In a permutation each device sends to its neighbor in
    the group. `nbytes` are those of one device: the output of an all-gather, the input of other kinds.
    """
    if isinstance(chip, Gpu):
        return _seconds_of_gpus(kind, nbytes, placement, chip)
    lines, bandwidth = placement.lines, chip.link_bandwidth
    if not lines:
        # The cores of one chip share its memory.
        return nbytes / chip.hbm_bandwidth if placement.devices_of_chip > 1 else 0.0
    chip_bytes = nbytes * chip.devices_per_chip
    if kind == "all-to-all":
        box = math.prod(count for count, _ in lines)
        # Half of a chip's bytes cross the middle, and half of these go in each direction.
        crossing = max(count / box / links for count, links in lines)
        return chip_bytes * placement.chips / 4 * crossing / bandwidth
    if kind == "collective-permute":
        return chip_bytes * placement.hops / bandwidth
    # The cores of a chip that are in one group reduce within the chip first.
    payload = chip_bytes / placement.devices_of_chip * (1 - 1 / placement.chips)
    passes = 2 if kind == "all-reduce" else 1
    return passes * payload / (bandwidth * sum(links for _, links in lines))


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
