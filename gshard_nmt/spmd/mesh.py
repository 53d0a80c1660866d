"""The mesh of devices and the rules that lay dimension letters over its axes.

A tensor names its dimensions by letter ("GSM"); the rules map a letter to mesh axes. This module is
arithmetic only: it imports neither TensorFlow nor jax, so a pod can be described on any machine.
"""

import dataclasses
import fnmatch
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.ranges import between, check

Partition = tuple[tuple[str, ...], ...]
"""For each dimension of a tensor, the mesh axes that split it, outermost first; () = not split."""

MOST_DEVICES = 2**20

Axes = str | Sequence[str] | None
"""As a config says it: one mesh axis, an ordered list of them, or None for not split."""


@dataclasses.dataclass(frozen=True)
class UnevenDimension:
    """A dimension of a tensor that does not divide over the mesh axes that split it.

    Attributes:
      letter: the letter of the dimension.
      size: the size of the dimension.
      axes: the mesh axes that split it.
      shards: the number of shards that these axes make, which does not divide `size`.
    """

    letter: str
    size: int
    axes: tuple[str, ...]
    shards: int

    @property
    def nearest_sizes(self) -> tuple[int, ...]:
        """The nearest positive sizes that divide: one below `size` if there is one, one above."""
        below = self.size // self.shards * self.shards
        above = below + self.shards
        return (below, above) if below else (above,)


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A grid of devices with named axes (GSPMD section 3.1).

    Attributes:
      axes: the names of the mesh axes.
      shape: the number of devices along each axis.
      rules: letter -> a mesh axis, or an ordered list of mesh axes. Letters without a rule are not
        split. Within a tensor the leftmost letter that claims an axis gets it.
      overrides: parameter or tensor name pattern (shell wildcards) -> what the rules cannot say: one
        entry a dimension (`['x', None]`), or a table of letters that comes before the rules
        (`{'M': 'x'}`). The first pattern that matches a name counts.
      device_order: which device stands at each place of the mesh, row by row: a list of device
        numbers, or how to permute them, in XLA's notation: `'[4,2]T(1,0)'` lays 0, 1, 2, ... out as
        4 rows of 2 and reads them by columns. Empty for 0, 1, 2, ... The collectives over an axis
        run among the devices of one line along it (GShard section A.3, Figure 10).
    """

    axes: Sequence[str] = ("x",)
    shape: Sequence[int] = (1,)
    rules: Mapping[str, Axes] = dataclasses.field(
        default_factory=lambda: {"B": "x", "G": "x", "E": "x"}
    )
    overrides: Mapping[str, Sequence[Axes] | Mapping[str, Axes]] = dataclasses.field(
        default_factory=dict
    )
    device_order: Sequence[int] | str = ()

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            raise UserError(
                f"Mesh.axes is {list(self.axes)} and Mesh.shape {list(self.shape)}; give each axis "
                "one size."
            )
        if len(set(self.axes)) != len(self.axes):
            raise UserError(f"Mesh.axes has a name twice: {list(self.axes)}; name each axis once.")
        check(self, between(1, MOST_DEVICES, "shape"))
        if self.num_devices > MOST_DEVICES:
            raise UserError(
                f"Mesh.shape is {list(self.shape)}, {self.num_devices} devices; it must have at most "
                f"{MOST_DEVICES}."
            )
        has_order = isinstance(self.device_order, str) or self.device_order
        if has_order and sorted(self._order) != list(range(self.num_devices)):
            raise UserError(
                f"Mesh.device_order is {_as_given(self.device_order)}; it must name each of the "
                f"devices 0 to {self.num_devices - 1} of Mesh.shape {list(self.shape)} once."
            )
        for what, axes in self._claims():
            for axis in axes:
                if axis not in self.axes:
                    raise UserError(
                        f"{what} names the mesh axis {axis!r}; Mesh.axes is {list(self.axes)}."
                    )
            if len(set(axes)) != len(axes):
                raise UserError(
                    f"{what} names a mesh axis twice: {list(axes)}; each may split a tensor once."
                )

    def _claims(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """What names mesh axes, and the axes; in one tensor none may stand twice."""
        yield from (
            (f"Mesh.rules[{letter!r}]", _as_axes(axes)) for letter, axes in self.rules.items()
        )
        for name, dims in self.overrides.items():
            if isinstance(dims, Mapping):
                yield from (
                    (f"Mesh.overrides[{name!r}][{letter!r}]", _as_axes(axes))
                    for letter, axes in dims.items()
                )
            else:
                yield (
                    f"Mesh.overrides[{name!r}]",
                    tuple(axis for axes in dims for axis in _as_axes(axes)),
                )

    @functools.cached_property
    def _order(self) -> Sequence[int]:
        if isinstance(self.device_order, str):
            return _permuted(self.device_order)
        return tuple(self.device_order) or range(self.num_devices)

    @property
    def num_devices(self) -> int:
        """The number of devices in the mesh."""
        return math.prod(self.shape)

    def devices(self) -> np.ndarray:
        """Device numbers, int64[shape]."""
        return np.array(self._order, np.int64).reshape(tuple(self.shape))

    def axis_size(self, axes: Sequence[str]) -> int:
        """The number of shards that splitting over these axes makes."""
        sizes = dict(zip(self.axes, self.shape, strict=True))
        return math.prod(sizes[axis] for axis in axes)

    def partition(self, letters: str, name: str = "") -> Partition:
        """The mesh axes of each dimension of a tensor whose dimensions are `letters`.

        `name`, where given, is looked up in the overrides first. Mesh axes of size 1 are kept: they
        split nothing, and a config then means the same on every mesh.
        """
        table: Mapping[str, Axes] = self.rules
        pattern, dims = self._override(name)
        if isinstance(dims, Mapping):
            table = {**self.rules, **dims}
        elif dims is not None:
            if len(dims) != len(letters):
                raise UserError(
                    f"Mesh.overrides[{pattern!r}] is {list(dims)}, but {name} has the dimensions "
                    f"{letters}; give one entry a dimension."
                )
            return tuple(_as_axes(axes) for axes in dims)
        taken: set[str] = set()
        partition = []
        for letter in letters:
            axes = tuple(a for a in _as_axes(table.get(letter)) if a not in taken)
            taken.update(axes)
            partition.append(axes)
        return tuple(partition)

    def _override(self, name: str) -> tuple[str, Sequence[Axes] | Mapping[str, Axes] | None]:
        for pattern, dims in self.overrides.items():
            if name and fnmatch.fnmatchcase(name, pattern):
                return pattern, dims
        return "", None

    def uneven(
        self, letters: str, shape: Sequence[int], name: str = ""
    ) -> Iterator["UnevenDimension"]:
        """Yields the dimensions of a tensor that do not divide over their mesh axes."""
        for letter, size, axes in zip(letters, shape, self.partition(letters, name), strict=True):
            shards = self.axis_size(axes)
            if size % shards:
                yield UnevenDimension(letter, size, axes, shards)

    def check_divides(self, name: str, letters: str, shape: Sequence[int]) -> None:
        """Raises UserError if a dimension of an input does not divide over its mesh axes.

        Inside a program XLA pads uneven dimensions; at its boundary they must be even.
        """
        for uneven in self.uneven(letters, shape, name):
            sizes = uneven.nearest_sizes
            nearest = (
                f"size is {sizes[0]}" if len(sizes) == 1 else f"sizes are {sizes[0]} or {sizes[1]}"
            )
            raise UserError(
                f"{name}: dimension {uneven.letter} has size {uneven.size}, which does not divide "
                f"over the {uneven.shards} devices of mesh axes {list(uneven.axes)}; the nearest "
                f"legal {nearest}."
            )

    def unmatched_overrides(self, names: Iterable[str]) -> list[str]:
        """The patterns of the overrides that match none of these names."""
        known = list(names)
        return [
            pattern
            for pattern in self.overrides
            if not any(fnmatch.fnmatchcase(name, pattern) for name in known)
        ]


def _as_axes(axes: Axes) -> tuple[str, ...]:
    if axes is None:
        return ()
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _as_given(order: Sequence[int] | str) -> str:
    return repr(order) if isinstance(order, str) else str(list(order))


def _permuted(order: str) -> tuple[int, ...]:
    """The devices of `[4,2]T(1,0)`: 0, 2, 4, 6, 1, 3, 5, 7."""
    match = re.fullmatch(r"\[(\d+(?:,\d+)*)\](?:T\((\d+(?:,\d+)*)\))?", order.replace(" ", ""))
    shape = [int(size) for size in match[1].split(",")] if match else []
    if math.prod(shape) > MOST_DEVICES:
        raise UserError(
            f"Mesh.device_order is {order!r}; it must name at most {MOST_DEVICES} devices."
        )
    dims = [int(dim) for dim in match[2].split(",")] if match and match[2] else range(len(shape))
    if match is None or sorted(dims) != list(range(len(shape))):
        raise UserError(
            f"Mesh.device_order is {order!r}; as text it must be sizes and a permutation of them, "
            "for instance '[4,2]T(1,0)'."
        )
    return tuple(np.arange(math.prod(shape)).reshape(shape).transpose(dims).ravel().tolist())


@dataclasses.dataclass(frozen=True)
class TileAssignment:
    """The device of each tile of a tensor (GSPMD section 3.1, Figure 1).

    The mesh, its dimensions permuted and grouped: `mesh.transpose(order).reshape(dims)`. Written down
    so, an assignment to thousands of devices is as short as one to eight.

    Attributes:
      dims: the tiles along each dimension of the tensor, then `manual`, then `replicas`.
      order: the mesh's dimensions in the order that makes the tiles.
      manual: how many devices along the manual axes take each tile; 1 where no axis is manual.
      replicas: how many devices hold the same tile; above 1 the tensor is partially tiled.
    """

    dims: tuple[int, ...]
    order: tuple[int, ...]
    manual: int
    replicas: int

    @property
    def tiles(self) -> tuple[int, ...]:
        """The tiles along each dimension of the tensor."""
        return self.dims[:-2]

    def devices(self, mesh: np.ndarray) -> np.ndarray:
        """Device numbers int64[tiles..., manual, replicas], of those at the places of the mesh."""
        return mesh.transpose(self.order).reshape(self.dims)


def tile_assignment(mesh: Mesh, partition: Partition, manual: Sequence[str] = ()) -> TileAssignment:
    """The tiles that a partition makes; mesh axes that it does not name replicate them.

    Args:
      mesh: the devices.
      partition: the mesh axes of each dimension; none of them manual.
      manual: mesh axes that are partitioned by hand (GSPMD section 3.4).
    """
    split = [axis for axes in partition for axis in axes]
    by_hand = [axis for axis in mesh.axes if axis in manual]
    rest = [axis for axis in mesh.axes if axis not in split and axis not in by_hand]
    tiles = [mesh.axis_size(axes) for axes in partition]
    place = list(mesh.axes).index
    return TileAssignment(
        (*tiles, mesh.axis_size(by_hand), mesh.axis_size(rest)),
        tuple(place(axis) for axis in (*split, *by_hand, *rest)),
        mesh.axis_size(by_hand),
        mesh.axis_size(rest),
    )
