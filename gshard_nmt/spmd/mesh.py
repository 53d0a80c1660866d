"""The mesh of devices and the rules that lay dimension letters over its axes.

A tensor names its dimensions by letter ("GSM"); the rules map a letter to mesh axes. This module is
arithmetic only: it imports neither TensorFlow nor jax, so a pod can be described on any machine.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Mapping, Sequence

import numpy as np

from gshard_nmt.errors import UserError

Partition = tuple[tuple[str, ...], ...]
"""For each dimension of a tensor, the mesh axes that split it, outermost first; () = not split."""


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A grid of devices with named axes (GSPMD section 3.1).

    Attributes:
      axes: the names of the mesh axes.
      shape: the number of devices along each axis.
      rules: letter -> a mesh axis, or an ordered list of mesh axes. Letters without a rule are not
        split. Within a tensor the leftmost letter that claims an axis gets it.
      overrides: parameter or tensor name pattern (shell wildcards) -> one entry a dimension, a mesh
        axis, a list of axes or None; for what the rules cannot say.
      device_order: device numbers in row-major mesh order; empty for 0, 1, 2, ...
    """

    axes: Sequence[str] = ("x",)
    shape: Sequence[int] = (1,)
    rules: Mapping[str, str | Sequence[str]] = dataclasses.field(
        default_factory=lambda: {"B": "x", "G": "x", "E": "x"}
    )
    overrides: Mapping[str, Sequence[str | Sequence[str] | None]] = dataclasses.field(
        default_factory=dict
    )
    device_order: Sequence[int] = ()

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            raise UserError(
                f"Mesh: {len(self.axes)} axes {list(self.axes)} but a shape of "
                f"{len(self.shape)} sizes {list(self.shape)}; give each axis one size."
            )
        if len(set(self.axes)) != len(self.axes):
            raise UserError(f"Mesh.axes has a name twice: {list(self.axes)}; name each axis once.")
        if any(size < 1 for size in self.shape):
            raise UserError(f"Mesh.shape is {list(self.shape)}; every size must be 1 or more.")
        if self.device_order and sorted(self.device_order) != list(range(self.num_devices)):
            raise UserError(
                f"Mesh.device_order is {list(self.device_order)}; it must name each of the devices "
                f"0 to {self.num_devices - 1} once."
            )
        for letter, axes in [*self.rules.items(), *self._override_entries()]:
            for axis in _as_axes(axes):
                if axis not in self.axes:
                    raise UserError(
                        f"the rule for {letter!r} names the mesh axis {axis!r}; the mesh has "
                        f"{list(self.axes)}."
                    )

    def _override_entries(self) -> list[tuple[str, str | Sequence[str] | None]]:
        return [(name, axes) for name, dims in self.overrides.items() for axes in dims]

    @property
    def num_devices(self) -> int:
        """The number of devices in the mesh."""
        return math.prod(self.shape)

    def devices(self) -> np.ndarray:
        """Device numbers, int64[shape]."""
        order = self.device_order or range(self.num_devices)
        return np.array(order, np.int64).reshape(tuple(self.shape))

    def axis_size(self, axes: Sequence[str]) -> int:
        """The number of shards that splitting over these axes makes."""
        sizes = dict(zip(self.axes, self.shape, strict=True))
        return math.prod(sizes[axis] for axis in axes)

    def partition(self, letters: str, name: str = "") -> Partition:
        """The mesh axes of each dimension of a tensor whose dimensions are `letters`.

        `name`, where given, is looked up in the overrides first. Mesh axes of size 1 are kept: they
        split nothing, and a config then means the same on every mesh.
        """
        for pattern, dims in self.overrides.items():
            if name and fnmatch.fnmatchcase(name, pattern):
                if len(dims) != len(letters):
                    raise UserError(
                        f"Mesh.overrides[{pattern!r}] has {len(dims)} entries, but {name} has the "
                        f"{len(letters)} dimensions {letters}; give one entry a dimension."
                    )
                return tuple(_as_axes(axes) for axes in dims)
        taken: set[str] = set()
        partition = []
        for letter in letters:
            axes = tuple(a for a in _as_axes(self.rules.get(letter)) if a not in taken)
            taken.update(axes)
            partition.append(axes)
        return tuple(partition)

    def check_divides(self, name: str, letters: str, shape: Sequence[int]) -> None:
        """Raises UserError where a dimension of an input does not divide over its mesh axes.

        Inside a program XLA pads uneven dimensions; at its boundary they must be even.
        """
        for letter, size, axes in zip(letters, shape, self.partition(letters, name), strict=True):
            shards = self.axis_size(axes)
            if size % shards:
                below, above = size // shards * shards, -(-size // shards) * shards
                nearest = " or ".join(str(n) for n in (below, above) if n)
                raise UserError(
                    f"{name}: dimension {letter} has size {size}, which does not divide over the "
                    f"{shards} devices of mesh axes {list(axes)}; the nearest legal sizes are "
                    f"{nearest}."
                )


def _as_axes(axes: str | Sequence[str] | None) -> tuple[str, ...]:
    if axes is None:
        return ()
    return (axes,) if isinstance(axes, str) else tuple(axes)


def tile_assignment(mesh: Mesh, partition: Partition) -> tuple[np.ndarray, bool]:
    """The device of each tile (GSPMD section 3.1, Figure 1).

    Returns:
      int64[tiles of each dimension (+ replicas)] of device numbers, and whether the last dimension
      counts replicas (a partially tiled tensor) rather than tiles.
    """
    used = [axis for axes in partition for axis in axes]
    unused = [axis for axis in mesh.axes if axis not in used]
    order = [list(mesh.axes).index(axis) for axis in [*used, *unused]]
    tiles = [mesh.axis_size(axes) for axes in partition]
    replicas = mesh.axis_size(unused)
    devices = mesh.devices().transpose(order)
    if replicas == 1:
        return devices.reshape(tiles), False
    return devices.reshape([*tiles, replicas]), True
