"""Lists the meshes that a config may use on a machine: rules, shapes, and orders of the devices."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.inspection import links
from gshard_nmt.spmd.chips import Gpu
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology


@dataclasses.dataclass(frozen=True)
class Family:
    """The axes and rules of a file of configs/meshes, which are good for meshes of many shapes."""

    name: str  # the name of the file
    axes: tuple[str, ...]  # names of the mesh axes
    rules: Mapping[str, Any]  # Mesh.rules
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # Mesh.overrides
    experts: bool = True  # whether it suits models with experts
    dense: bool = True  # whether it suits models without experts


_WEIGHTS_BY_X = {"*norm/scale": {"M": None}, "*": {"M": "x"}}
_WHOLE_GATE = {"*/gate": {"M": None}}
_TENSOR = {"H": "y", "N": "y", "V": "y"}
_GROUPS = ("data", "expert")

FAMILIES = (
    Family("expert", ("x",), {"B": "x", "G": "x", "E": "x"}),
    Family("zero", ("x",), {"B": "x", "G": "x", "E": "x"}, _WHOLE_GATE | _WEIGHTS_BY_X),
    Family("data_expert", _GROUPS, {"B": _GROUPS, "G": _GROUPS, "E": "expert"}, dense=False),
    Family(
        "data_expert_tensor",
        (*_GROUPS, "tensor"),
        {"B": _GROUPS, "G": _GROUPS, "E": "expert", "H": "tensor", "N": "tensor", "V": "tensor"},
    ),
    Family("data_tensor_attempt1", ("x", "y"), {"M": "x", **_TENSOR}, experts=False),
    Family("data_tensor_attempt2", ("x", "y"), {"B": "x", **_TENSOR}, _WEIGHTS_BY_X, experts=False),
    Family(
        "data_tensor", ("x", "y"), {"B": "x", "M": "y", **_TENSOR}, _WEIGHTS_BY_X, experts=False
    ),
    Family(
        "hybrid",
        ("x", "y"),
        {"B": "x", "G": "x", "E": "x", "M": "y", **_TENSOR},
        _WHOLE_GATE | _WEIGHTS_BY_X,
        dense=False,
    ),
)

_STAGES = {"P": "stage", "R": "stage", "B": ("stage", "data"), "G": ("stage", "data"), "E": "data"}
_IN_STAGES = {"H": "tensor", "N": "tensor", "V": ("tensor", "stage")}
_PIPELINE_AXES = ("stage", "data", "tensor")

PIPELINES = (
    Family("pipeline", _PIPELINE_AXES, _STAGES | _IN_STAGES),
    Family(
        "pipeline_tensor",
        _PIPELINE_AXES,
        _STAGES | {"M": "tensor"} | _IN_STAGES,
        {"*": {"M": None}},
    ),
)


def pipelines(num_devices: int) -> Iterator[tuple[Family, Mesh]]:
    """Yields every mesh of the families of pipelines, with two stages or more."""
    divisors = [size for size in range(1, num_devices + 1) if num_devices % size == 0]
    for family, stages, tensor in itertools.product(PIPELINES, divisors[1:], divisors):
        data, rest = divmod(num_devices, stages * tensor)
        # With one device along `tensor`, both families are the same.
        if not rest and (tensor > 1 or family is PIPELINES[0]):
            shape = (stages, data, tensor)
            yield family, Mesh(family.axes, shape, family.rules, family.overrides)


def meshes(num_devices: int, has_experts: bool) -> Iterator[tuple[Family, Mesh]]:
    """Yields every mesh of every family that suits a model.

    A mesh with an axis of size 1 is a mesh of another family and is left out. The only exception is
    the axis `expert` of a dense model, which always has size 1.
    """
    for family in FAMILIES:
        if not (family.experts if has_experts else family.dense):
            continue
        split = [axis for axis in family.axes if has_experts or axis != "expert"]
        for sizes in factorizations(num_devices, len(split)):
            size_of = dict(zip(split, sizes, strict=True))
            shape = tuple(size_of.get(axis, 1) for axis in family.axes)
            yield family, Mesh(family.axes, shape, family.rules, family.overrides)


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


Part = tuple[int, int, int]
"""Some positions along an axis of the torus: (axis, number of positions, distance between them).

If there are several slices, the axis after the last one of the torus counts the slices. The last axis
counts the cores of a chip.
"""


@dataclasses.dataclass(frozen=True)
class DeviceOrder:
    """An order of the devices in which every mesh axis is a product of parts of the torus's axes."""

    parts: tuple[tuple[Part, ...], ...]  # the parts of each mesh axis, outermost first
    counted: tuple[int, ...]  # the axes, as device numbers count them, the fastest first

    @property
    def text(self) -> str:
        """The value of Mesh.device_order, in XLA's notation: a grid of all parts, transposed.

        Device numbers count the last part of the grid first. Parts that stay together are written as
        one.
        """
        in_order = [part for parts in self.parts for part in parts]
        return _transposed(sorted(in_order, key=lambda part: _speed(part, self.counted)), in_order)

    def place(self, topology: Topology, mesh_axes: Sequence[int]) -> links.Placement:
        parts = tuple(part for axis in sorted(mesh_axes) for part in self.parts[axis])
        return _placement(topology, parts)


def _transposed(grid: Sequence[Part], order: Sequence[Part]) -> str:
    """Returns the transposition of a grid into another order, such as "[4,2]T(1,0)"."""
    places = [grid.index(part) for part in order]
    starts = [i for i, place in enumerate(places) if i == 0 or place != places[i - 1] + 1]
    runs = [places[i:end] for i, end in zip(starts, [*starts[1:], len(places)], strict=True)]
    by_place = sorted(runs)
    sizes = [math.prod(grid[place][1] for place in run) for run in by_place] or [1]
    permutation = [by_place.index(run) for run in runs]
    text = f"[{','.join(map(str, sizes))}]"
    return text if len(runs) < 2 else f"{text}T({','.join(map(str, permutation))})"


@functools.cache
def _placement(topology: Topology, parts: tuple[Part, ...]) -> links.Placement:
    axes = len(topology.grid)
    group = np.zeros((1, axes + 1), np.int64)
    for axis, count, stride in parts:
        steps = np.zeros((count, axes + 1), np.int64)
        steps[:, axis] = stride * np.arange(count)
        group = (group[:, np.newaxis] + steps).reshape(-1, axes + 1)
    return links.place(range(len(group)), group[:, :axes], topology)


def device_orders(topology: Topology, shape: Sequence[int]) -> Iterator[DeviceOrder]:
    """Yields the orders of a slice's devices in which each mesh axis is a box of chips.

    Every axis of the torus, and the cores of a chip, are divided among the mesh axes in all ways that
    give their sizes. In one order, the same mesh axis has neighboring chips on all axes of the torus.
    """
    torus = (*topology.grid, topology.num_devices // topology.num_chips)
    counted = counted_axes(topology)
    split = [axis for axis, size in enumerate(shape) if size > 1]
    for shares in _assignments(tuple(shape), torus):
        # `inside` begins with the mesh axis whose devices are neighbors.
        for inside in itertools.permutations(split):
            parts: list[list[Part]] = [[] for _ in shape]
            for dim in range(len(torus)):
                stride = 1
                for axis in inside:
                    if (count := shares[axis][dim]) > 1:
                        parts[axis].append((dim, count, stride))
                    stride *= shares[axis][dim]
            yield DeviceOrder(
                tuple(tuple(sorted(p, key=lambda part: _speed(part, counted))) for p in parts),
                counted,
            )


def _speed(part: Part, counted: Sequence[int]) -> tuple[int, int]:
    """Returns a key that sorts parts as device numbers count them, the slowest first."""
    axis, _, stride = part
    return -counted.index(axis), -stride


def counted_axes(topology: Topology) -> tuple[int, ...]:
    """Returns the axes of a machine in the order in which device numbers count them, the fastest first.

    The cores of a chip, which have the number after the last axis, have neighboring numbers. Then follow
    the first axis of a torus and so on, and at last the slices; or the GPUs of a host and then the hosts.
    """
    axes = range(len(topology.grid))
    return (len(axes), *(reversed(axes) if isinstance(topology.chip, Gpu) else axes))


def coordinates_by_number(topology: Topology) -> np.ndarray:
    """Returns int[devices, axes of the torus], the coordinates of the chip of each device number."""
    sizes = (*topology.grid, topology.num_devices // topology.num_chips)
    slowest_first = counted_axes(topology)[::-1]
    grid = np.indices([sizes[axis] for axis in slowest_first]).reshape(len(sizes), -1)
    return np.stack([grid[slowest_first.index(axis)] for axis in range(len(topology.grid))], axis=1)


def place_on(topology: Topology, mesh: Mesh, axes: Sequence[str]) -> links.Placement:
    """Returns the placement of the first group along some axes, of a mesh with any device order."""
    places = mesh.devices()[tuple(slice(None) if axis in axes else 0 for axis in mesh.axes)]
    coordinates = coordinates_by_number(topology)[places.ravel()]
    return links.place(range(len(coordinates)), coordinates, topology)


def _assignments(
    shape: tuple[int, ...], torus: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields for each mesh axis its share of each axis of the torus; the shares multiply to the size."""
    if not shape:
        if all(size == 1 for size in torus):
            yield ()
        return
    for shares in _shares(shape[0], torus):
        left = tuple(size // share for size, share in zip(torus, shares, strict=True))
        for rest in _assignments(shape[1:], left):
            yield (shares, *rest)


def _shares(size: int, torus: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yields a divisor of each axis of the torus, in all ways that multiply to a size."""
    if not torus:
        if size == 1:
            yield ()
        return
    for share in range(1, min(size, torus[0]) + 1):
        if torus[0] % share == 0 and size % share == 0:
            for rest in _shares(size // share, torus[1:]):
                yield (share, *rest)
