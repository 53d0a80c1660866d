"""Lists the meshes that a config may use on a machine: rules, shapes, and orders of the devices."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from gshard_nmt.inspection import links
from gshard_nmt.settings.config import configs_folder
from gshard_nmt.spmd.chips import Gpu
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology

FOR_ALL = ("expert", "zero", "data_expert_tensor")
FOR_EXPERTS = ("data_expert", "hybrid")
FOR_DENSE = ("data_tensor_attempt1", "data_tensor_attempt2", "data_tensor")
PIPELINES = ("pipeline", "pipeline_tensor")
"""Files of configs/meshes, whose axes and rules are good for meshes of many shapes."""


@functools.cache
def family(name: str) -> Mesh:
    """Returns the mesh of a file of configs/meshes, with two devices along each axis."""
    from gshard_nmt.settings.gin_reader import load_config

    file = configs_folder() / "meshes" / f"{name}.gin"
    sizes = re.findall(r"(?m)^(\w+) = %gin.REQUIRED", file.read_text(encoding="utf-8"))
    return load_config(str(file), [f"{size} = 2" for size in sizes]).mesh


def pipelines(num_devices: int) -> Iterator[tuple[str, Mesh]]:
    """Yields every mesh of the pipelines, with two stages or more, and the name of its file."""
    divisors = [size for size in range(1, num_devices + 1) if num_devices % size == 0]
    for name, stages, tensor in itertools.product(PIPELINES, divisors[1:], divisors):
        data, rest = divmod(num_devices, stages * tensor)
        # With one device along `tensor`, both pipelines are the same.
        if not rest and (tensor > 1 or name == PIPELINES[0]):
            yield name, dataclasses.replace(family(name), shape=(stages, data, tensor))


def meshes(num_devices: int, has_experts: bool) -> Iterator[tuple[str, Mesh]]:
    """Yields every mesh that suits a model, and the name of its file.

    A mesh with an axis of size 1 is a mesh of another file and is left out. The only exception is
    the axis `expert` of a dense model, which always has size 1.
    """
    for name in (*FOR_ALL, *(FOR_EXPERTS if has_experts else FOR_DENSE)):
        mesh = family(name)
        split = [axis for axis in mesh.axes if has_experts or axis != "expert"]
        for sizes in factorizations(num_devices, len(split)):
            size_of = dict(zip(split, sizes, strict=True))
            shape = tuple(size_of.get(axis, 1) for axis in mesh.axes)
            yield name, dataclasses.replace(mesh, shape=shape)


def factorizations(n: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields all ways to write n as an ordered product of `count` factors above 1."""
    if count == 1:
        if n > 1:
            yield (n,)
        return
    for first in range(2, n // 2 + 1):
        if n % first == 0:
            for rest in factorizations(n // first, count - 1):
                yield (first, *rest)


def device_orders(topology: Topology, shape: Sequence[int]) -> Iterator[str]:
    """Yields values of Mesh.device_order, in XLA's notation, that put each mesh axis on a box of chips.

    Every axis of the torus, and the cores of a chip, are divided among the mesh axes in all ways that
    give their sizes. In one order, the same mesh axis has neighboring chips on all axes of the torus.
    """
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    for shares in _shares([shape[axis] for axis in axes], _counted(topology)):
        # The last axis of `outside_in` has neighboring devices.
        for outside_in in itertools.permutations(range(len(axes))):
            grid = [
                (axis, share[axis]) for share in shares for axis in outside_in if share[axis] > 1
            ]
            order = sorted(range(len(grid)), key=lambda place: grid[place][0])
            if order == sorted(order):
                yield f"[{math.prod(shape)}]"
            else:
                sizes = ",".join(str(size) for _, size in grid)
                yield f"[{sizes}]T({','.join(map(str, order))})"


def _shares(shape: Sequence[int], machine: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields the share that each mesh axis has of each axis of a machine; they multiply to its size."""
    if not machine:
        yield ()
        return
    choices = ([n for n in range(1, size + 1) if size % n == 0] for size in shape)
    for share in itertools.product(*choices):
        if math.prod(share) == machine[0]:
            left = [size // n for size, n in zip(shape, share, strict=True)]
            for rest in _shares(left, machine[1:]):
                yield (share, *rest)


def _counted(topology: Topology) -> tuple[int, ...]:
    """Returns the sizes of a machine's axes as device numbers count them, the slowest first.

    That is the slices, then the last axis of a torus to the first, then the cores of a chip; or the hosts
    and then the GPUs of a host.
    """
    if isinstance(topology.chip, Gpu):
        return topology.grid
    return (*reversed(topology.grid), topology.num_devices // topology.num_chips)


@functools.cache
def _coordinates(topology: Topology) -> np.ndarray:
    """Returns int[devices, axes of the torus], the coordinates of the chip of each device number."""
    grid = np.indices(_counted(topology)).reshape(len(_counted(topology)), -1)
    return (grid if isinstance(topology.chip, Gpu) else grid[-2::-1]).T


def place_on(topology: Topology, mesh: Mesh, axes: Sequence[str]) -> links.Placement:
    """Returns the placement of the first group along some axes, of a mesh with any device order."""
    group = mesh.devices()[tuple(slice(None) if axis in axes else 0 for axis in mesh.axes)]
    return _placement(topology, tuple(group.ravel().tolist()))


@functools.lru_cache(maxsize=4096)
def _placement(topology: Topology, group: tuple[int, ...]) -> links.Placement:
    return links.place(group, _coordinates(topology), topology)
