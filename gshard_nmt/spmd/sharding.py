"""Sharding annotations on TensorFlow tensors: the only module that mentions XlaSharding.

    with rules(mesh):
        x = annotate(x, "GSM")      # each letter is looked up in the mesh's rules table

An annotation changes no value. In a lowered program it becomes a `@Sharding` custom call that XLA's
SPMD partitioner obeys; its gradient is the same annotation (GShard section 3.1). Executed eagerly, or
traced without a mesh, it is the identity.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh, Partition, tile_assignment

if TYPE_CHECKING:
    import tensorflow as tf

_mesh: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


@contextlib.contextmanager
def rules(mesh: Mesh | None) -> Iterator[None]:
    """Makes `mesh` the one whose rules `annotate` follows, within the block."""
    token = _mesh.set(mesh)
    try:
        yield
    finally:
        _mesh.reset(token)


def annotate(x: "tf.Tensor", letters: str, name: str = "") -> "tf.Tensor":
    """Annotates a tensor by the letters of its dimensions, looked up in the rules in force.

    Args:
      x: a tensor with one dimension a letter.
      letters: for instance "GSEC"; `_` is a dimension that is never split.
      name: a name for Mesh.overrides to match.

    Raises:
      UserError: the tensor's rank is not the number of letters.
    """
    mesh = _mesh.get()
    if x.shape.rank != len(letters):
        raise UserError(
            f"annotate({name or 'a tensor'}, {letters!r}): the tensor has {x.shape.rank} dimensions, "
            f"the letters name {len(letters)}; give one letter a dimension."
        )
    if mesh is None or mesh.num_devices == 1:
        return x
    return mesh_split(x, mesh, mesh.partition(letters, name))


def mesh_split(
    x: "tf.Tensor", mesh: Mesh, dims_mapping: Sequence[int | str | Sequence[str]] | Partition
) -> "tf.Tensor":
    """Splits each dimension of a tensor over the mesh axes mapped to it (GSPMD section 3.1).

    Args:
      x: the tensor.
      mesh: the devices.
      dims_mapping: for each dimension a mesh axis (its name or its index), an ordered list of names,
        or -1 for a dimension that is not split. Mesh axes that are not named replicate the tiles.

    Raises:
      UserError: a wrong number of entries, an unknown mesh axis, or one used twice.
    """
    partition = tuple(_axes_of(mesh, entry) for entry in dims_mapping)
    if len(partition) != x.shape.rank:
        raise UserError(
            f"mesh_split: {len(partition)} entries {list(dims_mapping)} for a tensor of "
            f"{x.shape.rank} dimensions; give one entry a dimension, -1 where it is not split."
        )
    used = [axis for axes in partition for axis in axes]
    if len(set(used)) != len(used):
        raise UserError(
            f"mesh_split: {list(dims_mapping)} uses a mesh axis twice; each may split one dimension."
        )
    if mesh.axis_size(used) == 1:
        return replicate(x)
    return _apply(x, *tile_assignment(mesh, partition))


def replicate(x: "tf.Tensor") -> "tf.Tensor":
    """Puts the whole tensor on every device (GShard section 3.1)."""
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    if _executes_eagerly():
        return x
    return xla_sharding.Sharding.replicate().apply_to_tensor(x, use_sharding_op=True)


def split(x: "tf.Tensor", dim: int, num_partitions: int, num_devices: int) -> "tf.Tensor":
    """Splits one dimension into `num_partitions`, in device order (GShard section 3.1).

    With fewer partitions than devices each tile is replicated over the rest (partial tiling), so
    `num_partitions` must divide `num_devices`.
    """
    if num_partitions < 1 or num_devices % num_partitions:
        legal = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
        raise UserError(
            f"split: {num_partitions} partitions do not divide {num_devices} devices; "
            f"legal numbers are {legal}."
        )
    mesh = Mesh(("parts", "replicas"), (num_partitions, num_devices // num_partitions), rules={})
    mapping = [-1] * x.shape.rank
    mapping[dim] = 0
    return mesh_split(x, mesh, mapping)


def _axes_of(mesh: Mesh, entry: int | str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(entry, int):
        if not -1 <= entry < len(mesh.axes):
            raise UserError(
                f"mesh_split: mesh axis {entry} does not exist; the mesh has axes 0 to "
                f"{len(mesh.axes) - 1} {list(mesh.axes)}, and -1 means not split."
            )
        return () if entry == -1 else (mesh.axes[entry],)
    names = (entry,) if isinstance(entry, str) else tuple(entry)
    for name in names:
        if name not in mesh.axes:
            raise UserError(
                f"mesh_split: the mesh has no axis {name!r}; its axes are {list(mesh.axes)}."
            )
    return names


def _apply(x: "tf.Tensor", tiles: np.ndarray, partially: bool) -> "tf.Tensor":
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    if _executes_eagerly():
        return x
    make = xla_sharding.Sharding.partial_tile if partially else xla_sharding.Sharding.tile
    return make(tiles).apply_to_tensor(x, use_sharding_op=True)


def _executes_eagerly() -> bool:
    # TensorFlow's helpers read `tensor.op`, which an eager tensor does not have.
    import tensorflow as tf

    return tf.executing_eagerly()
