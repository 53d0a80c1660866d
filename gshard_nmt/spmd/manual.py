"""Manual partitioning: each device computes on its own shard (GShard section 3.2, GSPMD section 3.4)."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.annotation import (
    ActiveMesh,
    DimsMapping,
    active,
    change_shape,
    is_identity,
    op_sharding,
    partition_of,
    places_of,
    xla_sharding,
)
from gshard_nmt.spmd.mesh import Mesh, Partition, tile_assignment

if TYPE_CHECKING:
    import tensorflow as tf


@contextlib.contextmanager
def manual_axes(*axes: str) -> Iterator[None]:
    """Says that these axes of the mesh in force are partitioned by hand within the block.

    What is computed between `auto_to_manual` and `manual_to_auto` belongs in such a block if it is
    annotated: its annotations then leave these axes alone and speak of the others only.

    Raises:
      UserError: the mesh in force has no such axis.
    """
    now = active.get()
    if now.mesh is not None:
        for axis in axes:
            if axis not in now.mesh.axes:
                raise UserError(
                    f"manual_axes: the mesh has no axis {axis!r}; its axes are "
                    f"{list(now.mesh.axes)}."
                )
    token = active.set(ActiveMesh(now.mesh, (*now.manual, *axes)))
    try:
        yield
    finally:
        active.reset(token)


def auto_to_manual(
    x: "tf.Tensor", mesh: Mesh, dims_mapping: DimsMapping, axes: Sequence[str] | None = None
) -> "tf.Tensor":
    """Gives each device its own shard, to be computed with by hand (GShard section 3.2, GSPMD 3.4).

    What follows, until `manual_to_auto`, sees shapes of a shard, and each device computes it of its
    own shard. Of a dimension that does not divide, the last shard is filled up with zeros.

    >>> def reverse_each_shard(x):
    ...     local = auto_to_manual(x, mesh, ["x", -1], axes=["x"])
    ...     with manual_axes("x"):  # along y the compiler still partitions
    ...         local = annotate(tf.reverse(local, [0]), "BH")
    ...     return manual_to_auto(local, mesh, ["x", -1], x.shape, axes=["x"])
    >>> annotations_of(reverse_each_shard, (16, 12), mesh=mesh)[1]  # the one among manual axes
    '{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual}}'

    The gradient is the shards' gradients put together; where x has no dimension along a manual axis,
    its shards are copies, and their gradients are summed over it.

    Args:
      x: the full tensor.
      mesh: the mesh in force.
      dims_mapping: how x is split, as for `mesh_split`. Along axes that stay automatic a dimension
        mapped to -1 is left to propagation.
      axes: the mesh axes that are partitioned by hand; None for all.

    Returns:
      The shard: along each dimension mapped to manual axes, size / devices, rounded up. Eagerly, on
      one device, or without a mesh: x itself.
    """
    call = _Conversion.of("auto_to_manual", x.shape.rank, mesh, dims_mapping, axes)
    if call is None:
        return x
    return _full_to_shard(x, call)


def manual_to_auto(
    x: "tf.Tensor",
    mesh: Mesh,
    dims_mapping: DimsMapping,
    full_shape: Sequence[int],
    axes: Sequence[str] | None = None,
) -> "tf.Tensor":
    """Puts the devices' shards together again: the inverse of `auto_to_manual`.

    >>> def sum_of_each_shard(x):
    ...     local = auto_to_manual(x, mesh, [("x", "y"), -1])
    ...     total = tf.reduce_sum(local, axis=0, keepdims=True)
    ...     return manual_to_auto(total, mesh, [("x", "y"), -1], full_shape=[8, 12])
    >>> annotations_of(sum_of_each_shard, (16, 12), mesh=mesh)
    ['{devices=[8,1]<=[8]}', '{manual}']

    Along a manual axis that no dimension is mapped to, all devices must hold the same values.

    Args:
      x: the shard.
      mesh, dims_mapping, axes: as for `auto_to_manual`.
      full_shape: the shape of the whole.

    Raises:
      UserError: shards of x's shape do not make up the full shape.
    """
    call = _Conversion.of("manual_to_auto", x.shape.rank, mesh, dims_mapping, axes)
    shape = [int(size) for size in full_shape]
    expected = shape if call is None else call.shard_shape(shape)
    if x.shape.as_list() != expected:
        raise UserError(
            f"manual_to_auto: a shard of the full shape {shape} has the shape {expected}, this one "
            f"has {x.shape.as_list()}."
        )
    return x if call is None else _shard_to_full(x, call, shape)


@dataclasses.dataclass(frozen=True)
class _Conversion:
    """A change between automatic and manual partitioning of one tensor.

    Attributes:
      mesh: the devices.
      partition: of the full tensor.
      manual: the axes that are or become manual in this change.
      around: the axes that are manual on either side of it.
    """

    mesh: Mesh
    partition: Partition
    manual: tuple[str, ...]
    around: tuple[str, ...]

    @staticmethod
    def of(
        what: str, rank: int, mesh: Mesh, dims_mapping: DimsMapping, axes: Sequence[str] | None
    ) -> "_Conversion | None":
        """The change after all checks; None where there is nothing to do."""
        partition = partition_of(what, rank, mesh, dims_mapping)
        manual = tuple(mesh.axes) if axes is None else tuple(axes)
        for axis in manual:
            if axis not in mesh.axes:
                raise UserError(
                    f"{what}: the mesh has no axis {axis!r}; its axes are {list(mesh.axes)}."
                )
        for dim, split_over in enumerate(partition):
            by_hand = [axis for axis in split_over if axis in manual]
            if by_hand and by_hand != list(split_over):
                raise UserError(
                    f"{what}: dimension {dim} is split over {list(split_over)}, of which "
                    f"{by_hand} are manual; all axes of a dimension must be, or none."
                )
        now = active.get()
        if is_identity(what, mesh):
            return None
        around = tuple(axis for axis in now.manual if axis not in manual)
        return _Conversion(mesh, partition, manual, around)

    def shard_shape(self, full_shape: Sequence[int]) -> list[int]:
        """The shape of one device's shard along the manual axes."""
        return [
            -(-size // self.mesh.axis_size([a for a in axes if a in self.manual]))
            for size, axes in zip(full_shape, self.partition, strict=True)
        ]

    def replicas(self) -> tuple[str, ...]:
        """The manual axes along which the tensor is not split: its shards there are copies."""
        used = {axis for axes in self.partition for axis in axes}
        return tuple(axis for axis in self.manual if axis not in used)

    def with_replicas_split(self) -> "_Conversion":
        """The same of a tensor with a leading dimension, split over the replicas."""
        return dataclasses.replace(self, partition=(self.replicas(), *self.partition))

    def full(self) -> tuple[Any, list[int]]:
        """The sharding of the whole tensor, and its dimensions that are left to propagation."""
        tiles = tile_assignment(self.mesh, self.partition, self.around)
        return op_sharding(tiles, places_of(self.mesh.devices())), self._open(self.partition)

    def local(self) -> tuple[Any, list[int]]:
        """The same of the shards: what was split by hand is a whole to the compiler."""
        kept = tuple(
            tuple(axis for axis in axes if axis not in self.manual) for axes in self.partition
        )
        tiles = tile_assignment(self.mesh, kept, (*self.around, *self.manual))
        return op_sharding(tiles, places_of(self.mesh.devices())), self._open(kept)

    def _open(self, partition: Partition) -> list[int]:
        if len({*self.around, *self.manual}) == len(self.mesh.axes):
            return []
        return [dim for dim, axes in enumerate(partition) if not axes]


def _full_to_shard(x: "tf.Tensor", call: _Conversion) -> "tf.Tensor":
    import tensorflow as tf

    shape = x.shape.as_list()

    @tf.custom_gradient
    def convert(x):
        annotated = xla_sharding(x, *call.full())
        shard = change_shape(
            "SPMDFullToShardShape", annotated, call.local(), call.shard_shape(shape)
        )

        def gradient(dy):
            if not call.replicas():
                return _shard_to_full(dy, call, shape)
            # A copy on each device of these axes: together they are a dimension, to be summed over.
            copies = call.mesh.axis_size(call.replicas())
            every = _shard_to_full(dy[tf.newaxis], call.with_replicas_split(), [copies, *shape])
            return tf.reduce_sum(every, axis=0)

        return shard, gradient

    return convert(x)


def _shard_to_full(x: "tf.Tensor", call: _Conversion, full_shape: list[int]) -> "tf.Tensor":
    import tensorflow as tf

    @tf.custom_gradient
    def convert(x):
        annotated = xla_sharding(x, *call.local())
        full = change_shape("SPMDShardToFullShape", annotated, call.full(), full_shape)

        def gradient(dy):
            dx = _full_to_shard(dy, call)
            copies = call.mesh.axis_size(call.replicas())
            # Each of the equal copies has its share, so that a sum over them is the whole.
            return dx if copies == 1 else dx / copies

        return full, gradient

    return convert(x)
