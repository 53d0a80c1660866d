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
    check_axes,
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
    """Declares that these axes of the active mesh are partitioned manually inside the block.

    If code between `auto_to_manual` and `manual_to_auto` has annotations, put it into such a block. Its
    annotations then apply only to the other axes.

    Raises:
      UserError: the active mesh does not have one of these axes.
    """
    outer = active.get()
    if outer.mesh is not None:
        check_axes("manual_axes", outer.mesh, axes)
    token = active.set(ActiveMesh(outer.mesh, (*outer.manual, *axes), outer.for_cpu))
    try:
        yield
    finally:
        active.reset(token)


def auto_to_manual(
    x: "tf.Tensor", mesh: Mesh, dims_mapping: DimsMapping, axes: Sequence[str] | None = None
) -> "tf.Tensor":
    """Returns each device's own shard of a tensor (GShard section 3.2, GSPMD section 3.4).

    Until `manual_to_auto`, the code sees the shape of one shard, and each device runs it on its own
    shard. If a dimension does not divide, the last shard is padded with zeros.

    >>> def reverse_each_shard(x):
    ...     local = auto_to_manual(x, mesh, ["x", -1], axes=["x"])
    ...     with manual_axes("x"):  # along y the compiler still partitions
    ...         local = annotate(tf.reverse(local, [0]), "BH")
    ...     return manual_to_auto(local, mesh, ["x", -1], x.shape, axes=["x"])
    >>> annotations_of(reverse_each_shard, (16, 12), mesh=mesh)[1]  # inside the block
    '{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual}}'

    The gradient puts the gradients of the shards together. If a manual axis splits no dimension of x,
    the shards along this axis are copies, and their gradients are summed.

    Args:
      dims_mapping: how x is split, as for `mesh_split`. A dimension mapped to -1 is not split over
        manual axes; whether automatic axes split it is left to propagation.
      axes: the mesh axes that become manual; None for all.

    Returns:
      The shard. The size of a dimension mapped to manual axes is divided by the number of devices along
      these axes, and rounded up. Eagerly, on one device, or without a mesh, the result is x itself.
    """
    conversion = _Conversion.of("auto_to_manual", x.shape.rank, mesh, dims_mapping, axes)
    return x if conversion is None else _full_to_shard(x, conversion)


def manual_to_auto(
    x: "tf.Tensor",
    mesh: Mesh,
    dims_mapping: DimsMapping,
    full_shape: Sequence[int],
    axes: Sequence[str] | None = None,
) -> "tf.Tensor":
    """Puts the shards of all devices together; the inverse of `auto_to_manual`.

    >>> def sum_of_each_shard(x):
    ...     local = auto_to_manual(x, mesh, [("x", "y"), -1])
    ...     total = tf.reduce_sum(local, axis=0, keepdims=True)
    ...     return manual_to_auto(total, mesh, [("x", "y"), -1], full_shape=[8, 12])
    >>> annotations_of(sum_of_each_shard, (16, 12), mesh=mesh)
    ['{devices=[8,1]<=[8]}', '{manual}']

    If a manual axis splits no dimension, all devices along this axis must hold the same values.

    Args:
      mesh, dims_mapping, axes: as for `auto_to_manual`.

    Raises:
      UserError: x does not have the shape of a shard of the full tensor.
    """
    conversion = _Conversion.of("manual_to_auto", x.shape.rank, mesh, dims_mapping, axes)
    shape = [int(size) for size in full_shape]
    expected = shape if conversion is None else conversion.shard_shape(shape)
    if x.shape.as_list() != expected:
        raise UserError(
            f"manual_to_auto: the tensor has the shape {x.shape.as_list()}; a shard of the full shape "
            f"{shape} has the shape {expected}."
        )
    return x if conversion is None else _shard_to_full(x, conversion, shape)


@dataclasses.dataclass(frozen=True)
class _Conversion:
    """A conversion of one tensor between automatic and manual partitioning."""

    mesh: Mesh
    partition: Partition  # The mesh axes of each dimension of the full tensor
    # The axes that are manual for the shards, and automatic for the full tensor
    manual: tuple[str, ...]
    # The axes that an enclosing block made manual, for the shards and for the full tensor
    outer_manual: tuple[str, ...]

    @staticmethod
    def of(
        caller: str, rank: int, mesh: Mesh, dims_mapping: DimsMapping, axes: Sequence[str] | None
    ) -> "_Conversion | None":
        """Checks the arguments and returns the conversion; None if there is nothing to do."""
        partition = partition_of(caller, rank, mesh, dims_mapping)
        manual = tuple(mesh.axes) if axes is None else tuple(axes)
        check_axes(caller, mesh, manual)
        for dim, split_over in enumerate(partition):
            manual_of_dim = [axis for axis in split_over if axis in manual]
            if manual_of_dim and manual_of_dim != list(split_over):
                raise UserError(
                    f"{caller}: dimension {dim} is split over {list(split_over)}, but only "
                    f"{manual_of_dim} are manual. Either all axes of a dimension must be manual, or "
                    "none."
                )
        outer_manual = tuple(axis for axis in active.get().manual if axis not in manual)
        if is_identity(caller, mesh):
            return None
        return _Conversion(mesh, partition, manual, outer_manual)

    def shard_shape(self, full_shape: Sequence[int]) -> list[int]:
        """Returns the shape of a shard. Only the manual axes split the full shape."""
        return [
            -(-size // self.mesh.axis_size([a for a in axes if a in self.manual]))
            for size, axes in zip(full_shape, self.partition, strict=True)
        ]

    def replicas(self) -> tuple[str, ...]:
        """Returns the manual axes that do not split the tensor. Its shards along them are copies."""
        used = {axis for axes in self.partition for axis in axes}
        return tuple(axis for axis in self.manual if axis not in used)

    def full(self) -> tuple[Any, list[int]]:
        """Returns the sharding of the full tensor, and its dimensions that are left to propagation."""
        return self._sharding(self.partition, self.outer_manual)

    def local(self) -> tuple[Any, list[int]]:
        """Returns the sharding of the shards, and their dimensions that are left to propagation.

        The compiler sees a shard as a full tensor: it does not know how the manual axes split it.
        """
        automatic = tuple(tuple(a for a in axes if a not in self.manual) for axes in self.partition)
        return self._sharding(automatic, (*self.outer_manual, *self.manual))

    def _sharding(self, partition: Partition, manual: tuple[str, ...]) -> tuple[Any, list[int]]:
        tiles = tile_assignment(self.mesh, partition, manual)
        has_automatic = len({*self.outer_manual, *self.manual}) < len(self.mesh.axes)
        unspecified = [dim for dim, axes in enumerate(partition) if not axes and has_automatic]
        return op_sharding(tiles, places_of(self.mesh.devices())), unspecified


def _full_to_shard(x: "tf.Tensor", conversion: _Conversion) -> "tf.Tensor":
    import tensorflow as tf

    shape = x.shape.as_list()

    @tf.custom_gradient
    def convert(x):
        annotated = xla_sharding(x, *conversion.full())
        shard = change_shape(
            "SPMDFullToShardShape", annotated, conversion.local(), conversion.shard_shape(shape)
        )

        def gradient(dy):
            if not conversion.replicas():
                return _shard_to_full(dy, conversion, shape)
            # Each device along these axes has a copy. We stack their gradients in a new dimension,
            # which is split over these axes, and sum over it.
            replicas = conversion.replicas()
            stacks = dataclasses.replace(conversion, partition=(replicas, *conversion.partition))
            copies = conversion.mesh.axis_size(replicas)
            stacked = _shard_to_full(dy[tf.newaxis], stacks, [copies, *shape])
            return tf.reduce_sum(stacked, axis=0)

        return shard, gradient

    return convert(x)


def _shard_to_full(x: "tf.Tensor", conversion: _Conversion, full_shape: list[int]) -> "tf.Tensor":
    import tensorflow as tf

    @tf.custom_gradient
    def convert(x):
        annotated = xla_sharding(x, *conversion.local())
        full = change_shape("SPMDShardToFullShape", annotated, conversion.full(), full_shape)

        def gradient(dy):
            dx = _full_to_shard(dy, conversion)
            copies = conversion.mesh.axis_size(conversion.replicas())
            # Each of the equal copies gets an equal share, so that their sum is the whole gradient.
            return dx if copies == 1 else dx / copies

        return full, gradient

    return convert(x)
