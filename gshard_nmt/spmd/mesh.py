"""The mesh of devices, and the rules that map the letters of tensor dimensions to mesh axes.

A tensor names its dimensions by letters, such as "GSM". The rules map each letter to mesh axes. This
module is arithmetic only: it imports neither TensorFlow nor jax, so any machine can describe a pod.
"""

import dataclasses
import fnmatch
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.ranges import Rule, between, check

Partition = tuple[tuple[str, ...], ...]
"""For each dimension of a tensor, the mesh axes that split it, outermost first; () if none does."""

MOST_DEVICES = 2**20

Axes = str | Sequence[str] | None
"""The axes that split one dimension, as configs write them.

One mesh axis, an ordered list of mesh axes, or None if nothing splits the dimension.
"""


@dataclasses.dataclass(frozen=True)
class UnevenDimension:
    """A dimension of a tensor that does not divide over the mesh axes that split it."""

    letter: str  # the letter of the dimension
    size: int  # the size of the dimension
    axes: tuple[str, ...]  # the mesh axes that split it
    shards: int  # the number of shards that these axes make, which does not divide `size`

    def describe(self, name: str) -> str:
        """Returns the error message: the dimension of the tensor `name`, and the nearest sizes."""
        sizes = " or ".join(map(str, self.nearest_sizes))
        nearest = f"sizes are {sizes}" if " or " in sizes else f"size is {sizes}"
        return (
            f"{name}: dimension {self.letter} has size {self.size}, which does not divide over the "
            f"{self.shards} devices of mesh axes {list(self.axes)}; the nearest legal {nearest}."
        )

    @property
    def nearest_sizes(self) -> tuple[int, ...]:
        """The nearest sizes that divide: the next smaller, unless it is 0, and the next larger."""
        below = self.size // self.shards * self.shards
        above = below + self.shards
        return (below, above) if below else (above,)


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A grid of devices with named axes, and how arrays are split over it (GSPMD section 3.1)."""

    # Devices
    axes: Sequence[str] = ("x",)
    """Names of the mesh axes, outermost first."""
    shape: Sequence[int] = (1,)
    """Number of devices along each axis."""

    # How arrays are split
    rules: Mapping[str, Axes] = dataclasses.field(
        default_factory=lambda: {"B": "x", "G": "x", "E": "x"}
    )
    """Maps each letter to a mesh axis, or to an ordered list of mesh axes.

    A letter without a rule is not split. If two letters of a tensor have the same axis, the leftmost
    letter gets it.
    """
    overrides: Mapping[str, Sequence[Axes] | Mapping[str, Axes]] = dataclasses.field(
        default_factory=dict
    )
    """Maps a pattern of array names (with shell wildcards) to the layout of these arrays.

    A layout has one of two forms. A list, such as `['x', None]`, has one entry per dimension and
    replaces the rules. A table of letters, such as `{'M': 'x'}`, replaces only the rules of these
    letters. The first pattern that matches a name is used. A weight, its gradient and its moving average
    have one layout: `encoder/*` and `parameters/encoder/*` both match the weights of the encoder.
    """

    shared_update: bool = False
    """Whether the devices that hold copies of a weight share its update (Xu et al. 2020).

    Each device then adds up the gradients of a part of the weight, updates this part and sends it to the
    others. The gradients need less memory, and the optimizer less time, but the links may take longer;
    compare both with gshard-inspect.
    """

    # Order of the devices
    device_order: Sequence[int] | str = ()
    """The device at each place of the mesh, row by row. An empty list takes them in jax's order.

    Device numbers count a TPU slice by coordinates: first the cores of a chip, then the chips along the
    first axis of the torus, then along the second, and so on. Other devices have the numbers of jax.

    Write a list of device numbers, or a permutation in XLA's notation. `'[4,2]T(1,0)'` writes the
    devices as 4 rows of 2 and reads them by columns, here for a mesh of shape (2, 4):

        0 1
        2 3    ->    0 2 4 6
        4 5          1 3 5 7
        6 7

    A collective over an axis exchanges data among devices whose places differ only along this axis,
    for instance the devices of one row. So choose an order in which these devices are neighbors in
    the machine (GShard section A.3, Figure 10). If the machine is a grid of 2 x 4, then
    `(0, 1, 5, 4, 2, 3, 7, 6)` makes each row of the mesh a ring of neighbors:

        0 - 1   2 - 3
        |   |   |   |
        4 - 5   6 - 7
    """

    RULES: ClassVar[Sequence[Rule]] = (between(1, MOST_DEVICES, "shape"),)

    def __post_init__(self) -> None:
        check(self, self.RULES)
        names, shape = list(self.axes), list(self.shape)
        if len(names) != len(shape):
            message = f"Mesh.axes is {names} and Mesh.shape {shape}; give each axis one size."
            raise UserError(message, ["Mesh.axes", "Mesh.shape"])
        if len({*names}) != len(names):
            message = f"Mesh.axes has a name twice: {names}; name each axis once."
            raise UserError(message, ["Mesh.axes"])
        if self.num_devices > MOST_DEVICES:
            raise UserError(
                f"Mesh.shape is {shape}, {self.num_devices} devices; it must have at most "
                f"{MOST_DEVICES}.",
                ["Mesh.shape"],
            )
        has_order = isinstance(self.device_order, str) or self.device_order
        if has_order and sorted(self._order) != list(range(self.num_devices)):
            raise UserError(
                f"Mesh.device_order is {self.device_order!r}; it must name each of the "
                f"devices 0 to {self.num_devices - 1} of Mesh.shape {list(self.shape)} once.",
                ["Mesh.device_order", "Mesh.shape"],
            )
        for setting, axes in self._axes_by_setting():
            for axis in axes:
                if axis not in self.axes:
                    raise UserError(
                        f"{setting} names the mesh axis {axis!r}; Mesh.axes is {list(self.axes)}.",
                        [setting.partition("[")[0], "Mesh.axes"],
                    )
            if len(set(axes)) != len(axes):
                raise UserError(
                    f"{setting} names a mesh axis twice: {list(axes)}; name each axis at most once.",
                    [setting.partition("[")[0]],
                )

    def _axes_by_setting(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields each setting that names mesh axes, and all axes that it names for one tensor."""
        tables = {"Mesh.rules": self.rules}
        for name, layout in self.overrides.items():
            setting = f"Mesh.overrides[{name!r}]"
            if isinstance(layout, Mapping):
                tables[setting] = layout
            else:
                yield setting, tuple(axis for axes in layout for axis in _as_axes(axes))
        for setting, table in tables.items():
            for letter, axes in table.items():
                if not re.fullmatch("[A-Z]", letter):
                    raise UserError(
                        f"{setting} has the key {letter!r}; a key must be the capital letter of a "
                        "dimension, such as B for the rows of a batch.",
                        [setting.partition("[")[0]],
                    )
                yield f"{setting}[{letter!r}]", _as_axes(axes)

    @functools.cached_property
    def _order(self) -> Sequence[int]:
        if isinstance(self.device_order, str):
            return _permuted(self.device_order)
        return tuple(self.device_order) or range(self.num_devices)

    @property
    def num_devices(self) -> int:
        return math.prod(self.shape)

    def devices(self) -> np.ndarray:
        """Returns the device number at each place of the mesh, int64[shape]."""
        return np.array(self._order, np.int64).reshape(tuple(self.shape))

    @property
    def sizes(self) -> dict[str, int]:
        """The number of devices along each axis, by the name of the axis."""
        return dict(zip(self.axes, self.shape, strict=True))

    @property
    def words(self) -> str:
        """The axes and their sizes, such as "data=2 x model=4"."""
        return " x ".join(f"{axis}={size}" for axis, size in self.sizes.items())

    def axis_size(self, axes: Sequence[str]) -> int:
        return math.prod(self.sizes[axis] for axis in axes)

    def partition(self, letters: str, name: str = "") -> Partition:
        """Returns the mesh axes of each dimension of a tensor whose dimensions are `letters`.

        If a name is given, it is looked up in the overrides first. The result also names mesh axes of
        size 1, although they split nothing. So a config gives the same result for every mesh shape.
        """
        names = {name}
        is_bare = "embedding" in name or name == "output_bias"
        if ("/" in name or is_bare) and not name.startswith(("moments/", "guard/")):
            weight = name.removeprefix("parameters/").removeprefix("ema/")
            names |= {weight, f"parameters/{weight}"}
        matches = (p for p in self.overrides if name and fnmatch.filter(names, p))
        pattern = next(matches, None)
        layout = {} if pattern is None else self.overrides[pattern]
        if not isinstance(layout, Mapping):
            if len(layout) != len(letters):
                raise UserError(
                    f"Mesh.overrides[{pattern!r}] is {list(layout)}, but {name} has the dimensions "
                    f"{letters}; give one entry per dimension."
                )
            return tuple(_as_axes(axes) for axes in layout)
        table = {**self.rules, **layout}
        taken: set[str] = set()
        partition = []
        for letter in letters:
            axes = tuple(a for a in _as_axes(table.get(letter)) if a not in taken)
            taken.update(axes)
            partition.append(axes)
        return tuple(partition)

    def uneven(
        self, letters: str, shape: Sequence[int], name: str = ""
    ) -> Iterator["UnevenDimension"]:
        """Yields the dimensions of a tensor that do not divide over their mesh axes."""
        for letter, size, axes in zip(letters, shape, self.partition(letters, name), strict=True):
            shards = self.axis_size(axes)
            if size % shards:
                yield UnevenDimension(letter, size, axes, shards)


def _as_axes(axes: Axes) -> tuple[str, ...]:
    if axes is None:
        return ()
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _permuted(order: str) -> tuple[int, ...]:
    """Returns the devices in the order of XLA's notation: 0, 2, 4, 6, 1, 3, 5, 7 for `[4,2]T(1,0)`."""
    match = re.fullmatch(r"\[(\d+(?:,\d+)*)\](?:T\((\d+(?:,\d+)*)\))?", order.replace(" ", ""))
    shape = [int(size) for size in match[1].split(",")] if match else []
    if math.prod(shape) > MOST_DEVICES:
        raise UserError(
            f"Mesh.device_order is {order!r}; it must name at most {MOST_DEVICES} devices.",
            ["Mesh.device_order"],
        )
    dims = [int(dim) for dim in match[2].split(",")] if match and match[2] else range(len(shape))
    if match is None or sorted(dims) != list(range(len(shape))):
        raise UserError(
            f"Mesh.device_order is {order!r}; a string must give sizes and a permutation of their "
            "axes, for instance '[4,2]T(1,0)'.",
            ["Mesh.device_order"],
        )
    return tuple(np.arange(math.prod(shape)).reshape(shape).transpose(dims).ravel().tolist())


@dataclasses.dataclass(frozen=True)
class TileAssignment:
    """The device of each tile of a tensor (GSPMD section 3.1, Figure 1).

    It is the mesh with its dimensions permuted and grouped. In this form an assignment to thousands of
    devices is as short as an assignment to eight.
    """

    tiles: tuple[int, ...]  # Number of tiles along each dimension of the tensor
    manual: int  # Devices along the manual axes, 1 without them; they have one tile, but own values
    replicas: int  # Devices that hold the same tile. If above 1, the tensor is partially tiled
    order: tuple[int, ...]  # The permutation of the dimensions of the mesh

    def devices(self, mesh: np.ndarray) -> np.ndarray:
        """Returns the device numbers int64[tiles..., manual, replicas] of a mesh, int64[its shape]."""
        return mesh.transpose(self.order).reshape(*self.tiles, self.manual, self.replicas)


def tile_assignment(mesh: Mesh, partition: Partition, manual: Sequence[str] = ()) -> TileAssignment:
    """Returns the tiles of a partition. Mesh axes that the partition does not name replicate them.

    Args:
      partition: the mesh axes of each dimension, none of which is manual.
      manual: mesh axes that are partitioned manually (GSPMD section 3.4).
    """
    split = [axis for axes in partition for axis in axes]
    manual_axes = [axis for axis in mesh.axes if axis in manual]
    rest = [axis for axis in mesh.axes if axis not in split and axis not in manual_axes]
    tiles = tuple(mesh.axis_size(axes) for axes in partition)
    order = tuple(map(list(mesh.axes).index, (*split, *manual_axes, *rest)))
    return TileAssignment(tiles, mesh.axis_size(manual_axes), mesh.axis_size(rest), order)


def nearest_mesh(mesh: Mesh, devices: int) -> Mesh:
    """Returns a mesh of `devices` devices that keeps the sizes of the last axes as far as possible.

    We start with all devices and divide them over the axes, from the last axis to the second. Each axis
    gets the greatest common divisor of its old size and the number of remaining devices. The first axis
    gets the rest. For instance, on 8 devices [1, 2] becomes [4, 2], and [4, 4, 6] becomes [1, 4, 2].
    """
    if mesh.num_devices == devices:
        return mesh
    shape: list[int] = []
    left = devices
    for size in mesh.shape[:0:-1]:
        shape.insert(0, math.gcd(size, left))
        left //= shape[0]
    return of_shape(mesh, (left, *shape))


def resized_mesh(mesh: Mesh, devices: int, machine: str) -> Mesh:
    """Returns the mesh with another size of its first axis, so that it has `devices` devices.

    Raises:
      UserError: the other axes do not divide the number of devices.
    """
    resized = nearest_mesh(mesh, devices)
    if tuple(resized.shape[1:]) != tuple(mesh.shape[1:]):
        raise UserError(
            f"Mesh.shape {list(mesh.shape)} is {mesh.num_devices} devices and {machine} has "
            f"{devices}; set a Mesh.shape whose sizes multiply to {devices} with "
            "--gin 'Mesh.shape = ...'."
        )
    return resized


def reduced_mesh(mesh: Mesh, devices: int) -> Mesh:
    """Returns a mesh of fewer devices on which every axis that splits arrays still splits them.

    Each axis longer than 1 starts at 2. Then the first axis doubles while it is shorter than before,
    after it the second, and so on, until all devices are used.

    Raises:
      UserError: no such mesh has this number of devices.
    """
    shape, left = [min(2, size) for size in mesh.shape], devices
    for size in shape:
        left //= size
    for axis in range(len(shape)):
        while mesh.shape[axis] > shape[axis] and left > 1 and left % 2 == 0:
            shape[axis], left = shape[axis] * 2, left // 2
    reduced = of_shape(mesh, shape)
    if reduced.num_devices != devices:
        raise UserError(
            f"--equivalence on {devices} devices: the mesh with axes {list(mesh.axes)} can be reduced "
            f"to {list(reduced.shape)}, which is {reduced.num_devices} devices, but not to {devices}. "
            f"Give --devices {reduced.num_devices}, or a power of 2 that is at least "
            f"{2 ** len(mesh.axes)}, so that every axis still splits the arrays."
        )
    return reduced


def of_shape(mesh: Mesh, shape: Sequence[int]) -> Mesh:
    """Returns the mesh with a shape. A new shape drops the device order, which fits only the old one."""
    if tuple(shape) == tuple(mesh.shape):
        return mesh
    return dataclasses.replace(mesh, axes=mesh.axes or ("x",), shape=tuple(shape), device_order=())
