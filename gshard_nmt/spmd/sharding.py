"""Sharding annotations on TensorFlow tensors, under GShard's and GSPMD's names.

    with rules(mesh):
        x = annotate(x, "GSM")      # each letter is looked up in the mesh's rules table

An annotation changes no value. In a lowered function it becomes a `@Sharding` custom call, which XLA's
SPMD partitioner follows. Its gradient is the same annotation (GSPMD section 3.6). If a function runs
eagerly, without a mesh or on one device, its annotations do nothing. Wrong arguments are an error in
all cases.

The examples below show the annotations of the lowered function. They run as tests, and they all need
these two lines:

    >>> from gshard_nmt.spmd.lowering import annotations_of
    >>> mesh = Mesh(("x", "y"), (2, 4), rules={"B": "x", "G": "x", "E": "x", "H": "y"})
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import shared_update
from gshard_nmt.spmd.annotation import (
    DimsMapping,
    active,
    is_identity,
    op_sharding,
    partition_of,
    places_of,
    rules,
    xla_sharding,
)
from gshard_nmt.spmd.manual import auto_to_manual, manual_axes, manual_to_auto
from gshard_nmt.spmd.mesh import Mesh, Partition, TileAssignment, tile_assignment

if TYPE_CHECKING:
    import tensorflow as tf

# Names of other modules that models import from here.
__all__ = ["Mesh", "auto_to_manual", "manual_axes", "manual_to_auto", "rules"]


def annotate(x: "tf.Tensor", letters: str, name: str = "") -> "tf.Tensor":
    """Splits a tensor by the letters of its dimensions, which are looked up in the active rules.

    >>> annotations_of(lambda x: annotate(x, "BLH"), (8, 5, 12), mesh=mesh)
    ['{devices=[2,1,4]<=[8]}']
    >>> annotations_of(lambda x: annotate(x, "B?H"), (8, 5, 12), mesh=mesh)
    ['{devices=[2,1,4]<=[8]} unspecified_dims=[1]']

    Args:
      x: a tensor with one dimension per letter.
      letters: for instance "GSEC". `_` is a dimension that is never split, and `?` is a dimension that
        is left to propagation.
      name: a name that patterns of Mesh.overrides can match.

    Raises:
      UserError: the tensor's rank is not the number of letters.
    """
    if x.shape.rank != len(letters):
        raise UserError(
            f"annotate({name or 'a tensor'}, {letters!r}): the tensor has {x.shape.rank} dimensions "
            f"and there are {len(letters)} letters; give one letter per dimension."
        )
    active_mesh = active.get()
    mesh = active_mesh.mesh
    if mesh is None or mesh.num_devices == 1:
        return x
    if not name:
        active_mesh.annotated.add((letters, tuple(x.shape)))
    unspecified = [dim for dim, letter in enumerate(letters) if letter == "?"]
    return _annotated(x, mesh, mesh.partition(letters, name), unspecified)


def annotate_gradient(x: "tf.Tensor", letters: str, name: str) -> "tf.Tensor":
    """Splits the gradient of a weight like the weight, or over all devices if they share its update.

    >>> annotations_of(lambda x: annotate_gradient(x, "MH", "wi"), (32, 256), mesh=mesh)
    ['{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}']
    >>> sharing = Mesh(("x", "y"), (2, 4), rules={"H": "y"}, shared_update=True)
    >>> annotations_of(lambda x: annotate_gradient(x, "MH", "wi"), (32, 256), mesh=sharing)
    ['{devices=[2,4]<=[8]}']
    """
    return own_part(x, letters, name) if _shares_updates() else annotate(x, letters, name)


def own_part(x: "tf.Tensor", letters: str, name: str) -> "tf.Tensor":
    """Gives each device the part of a weight that it updates; changes nothing if no update is shared.

    The arguments are those of `annotate_gradient`.
    """
    mesh = active.get().mesh
    if mesh is None or not _shares_updates():
        return x
    fine, partition = shared_update.fine_mesh(mesh, letters, tuple(x.shape), name)
    return _annotated(x, fine, partition)


def exchange_parts(x: "tf.Tensor", letters: str, name: str, one: "tf.Tensor") -> "tf.Tensor":
    """Gathers an updated weight from the parts of all devices; changes nothing if none is shared.

    Args:
      x: the new weight, of which each device has computed its own part.
      one: float32[], the number 1.0, which the compiler does not know. The product makes XLA write the
        new weight where the old one was. The TPU compiler would copy both otherwise.
    """
    if not _shares_updates():
        return x
    return annotate(own_part(x, letters, name), letters, name) * one


def _shares_updates() -> bool:
    mesh = active.get().mesh
    return mesh is not None and mesh.shared_update and not active.get().manual


def active_mesh() -> Mesh | None:
    """Returns the mesh that annotations follow; None if there is none."""
    return active.get().mesh


def is_for_cpu() -> bool:
    """Returns whether the program shall be fast on CPUs, or on accelerators."""
    return active.get().for_cpu


def tiles(letters: str) -> list[int]:
    """Returns the number of parts into which `annotate` splits each dimension of an activation.

    >>> with rules(mesh):
    ...     tiles("BLH")
    [2, 1, 4]
    """
    mesh, manual = active.get().mesh, active.get().manual
    if mesh is None:
        return [1] * len(letters)
    return [
        mesh.axis_size([axis for axis in axes if axis not in manual])
        for axes in mesh.partition(letters)
    ]


def replicate(x: "tf.Tensor") -> "tf.Tensor":
    """Puts the whole tensor on every device (GShard section 3.2).

    >>> annotations_of(lambda x: replicate(x), (8, 12), mesh=mesh)
    ['{replicated}']
    """
    mesh = active.get().mesh
    return x if mesh is None else _annotated(x, mesh, ((),) * x.shape.rank)


def split(x: "tf.Tensor", dim: int, num_partitions: int) -> "tf.Tensor":
    """Splits one dimension into partitions, the i'th on the i'th device (GShard section 3.2).

    >>> annotations_of(lambda x: split(x, 0, 8), (16, 12), mesh=mesh)
    ['{devices=[8,1]<=[8]}']

    If there are fewer partitions than devices, several devices hold the same partition (partial
    tiling): partition i is on the devices i, i + num_partitions, i + 2 num_partitions and so on. So
    `num_partitions` must divide the number of devices. It does not have to divide the dimension.

    >>> annotations_of(lambda x: split(x, 1, 2), (16, 15), mesh=mesh)
    ['{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}']

    Args:
      dim: the dimension to split. A negative number counts from the end.

    Raises:
      UserError: the dimension does not exist, or the number does not divide the devices of the mesh.
    """
    rank = x.shape.rank
    if not -rank <= dim < rank:
        raise UserError(
            f"split: there is no dimension {dim}; the tensor has the shape {x.shape.as_list()}, "
            f"dimensions 0 to {rank - 1}."
        )
    if num_partitions < 1:
        raise UserError(f"split: {num_partitions} partitions; the smallest number is 1.")
    mesh = active.get().mesh
    if mesh is None or mesh.num_devices == 1:
        return x
    devices = mesh.num_devices
    if devices % num_partitions:
        legal = [n for n in range(1, devices + 1) if devices % n == 0]
        raise UserError(
            f"split: {num_partitions} partitions do not divide {devices} devices; "
            f"allowed numbers are {legal}."
        )
    _refuse_manual("split")
    grid = Mesh(("replicas", "parts"), (devices // num_partitions, num_partitions), rules={})
    partition: list[tuple[str, ...]] = [()] * rank
    partition[dim] = ("parts",)
    return xla_sharding(
        x, op_sharding(tile_assignment(grid, tuple(partition)), places_of(grid.devices()))
    )


def shard(
    x: "tf.Tensor", device_assignment: np.ndarray | Sequence, replicate_last: bool = False
) -> "tf.Tensor":
    """Splits a tensor into tiles and assigns a device to each tile (GShard section A.3).

    >>> rows_by_columns = [[[0, 1, 2, 3], [7, 6, 5, 4]]]
    >>> annotations_of(lambda x: shard(x, rows_by_columns), (3, 16, 64), mesh=mesh)
    ['{devices=[1,2,4]0,1,2,3,7,6,5,4}']

    A tensor [3, 16, 64] with a device assignment of shape [1, 2, 4] has tiles of [3, 8, 16].

    >>> annotations_of(lambda x: shard(x, [[[0, 1]], [[2, 3]]], replicate_last=True), (8, 6),
    ...                mesh=Mesh(("x",), (4,)))
    ['{devices=[2,1,2]<=[4] last_tile_dim_replicate}']

    Args:
      device_assignment: int[number of tiles along each dimension of x]. Each element is the number of
        the device that holds this tile. Every device of the mesh must occur once.
      replicate_last: whether the assignment has one more dimension, for the devices that hold the same
        tile (GSPMD section 3.1, partially tiled).

    Raises:
      UserError: the assignment has another rank, or does not name each device once.
    """
    assignment = np.asarray(device_assignment, np.int64)
    rank = x.shape.rank + replicate_last
    if assignment.ndim != rank:
        raise UserError(
            f"shard: the device assignment has {assignment.ndim} dimensions {assignment.shape}; it "
            f"must have {rank}, one for each dimension of the tensor"
            f"{' and one of replicas' if replicate_last else ''}."
        )
    mesh = active.get().mesh
    is_alone = mesh is None or mesh.num_devices == 1
    devices = assignment.size if mesh is None or is_alone else mesh.num_devices
    if sorted(assignment.ravel().tolist()) != list(range(devices)):
        raise UserError(
            f"shard: the device assignment {assignment.tolist()} must name each of the devices 0 to "
            f"{devices - 1} once."
        )
    if is_alone:
        return x
    _refuse_manual("shard")
    dims = assignment.shape if replicate_last else (*assignment.shape, 1)
    tiles = TileAssignment(dims[:-1], 1, dims[-1], tuple(range(assignment.ndim)))
    return xla_sharding(x, op_sharding(tiles, places_of(assignment)))


def mesh_split(
    x: "tf.Tensor", mesh: Mesh, dims_mapping: DimsMapping, unspecified_dims: Sequence[int] = ()
) -> "tf.Tensor":
    """Splits each dimension of a tensor over the mesh axes that it is mapped to (GSPMD section 3.1).

    >>> annotations_of(lambda x: mesh_split(x, mesh, [1, 0]), (8, 12), mesh=mesh)
    ['{devices=[4,2]<=[2,4]T(1,0)}']

    If a mesh axis splits no dimension of x, the devices along this axis hold copies of the same tile
    (partial tiling):

    >>> annotations_of(lambda x: mesh_split(x, mesh, [-1, "x"]), (8, 12), mesh=mesh)
    ['{devices=[1,2,4]<=[8] last_tile_dim_replicate}']

    A dimension mapped to -1 is not split. If it is also in `unspecified_dims`, it is left to
    propagation (section 3.5):

    >>> annotations_of(lambda x: mesh_split(x, mesh, ["x", -1], unspecified_dims=[1]), (8, 12),
    ...                mesh=mesh)
    ['{devices=[2,1,4]<=[8] last_tile_dim_replicate} unspecified_dims=[1]']

    Args:
      mesh: the devices. If it is not the active mesh, it must have the same number of devices.
      dims_mapping: for each dimension a mesh axis (its name or its index), an ordered list of names,
        or -1 for a dimension that is not split.
      unspecified_dims: dimensions, mapped to -1, that propagation may split.

    Raises:
      UserError: a wrong number of entries, an unknown mesh axis, or a mesh axis used twice.
    """
    partition = partition_of("mesh_split", x.shape.rank, mesh, dims_mapping)
    for dim in unspecified_dims:
        if not 0 <= dim < len(partition) or partition[dim]:
            free = [i for i, axes in enumerate(partition) if not axes]
            raise UserError(
                f"mesh_split: dimension {dim} cannot be unspecified; in {list(dims_mapping)} only the "
                f"dimensions mapped to -1 can: {free}."
            )
    return _annotated(x, mesh, partition, unspecified_dims)


def _annotated(
    x: "tf.Tensor", mesh: Mesh, partition: Partition, unspecified_dims: Sequence[int] = ()
) -> "tf.Tensor":
    manual = active.get().manual
    if is_identity("mesh_split", mesh) or len(set(manual)) == len(mesh.axes):
        return x
    if manual:
        partition = tuple(tuple(a for a in axes if a not in manual) for axes in partition)
    tiles = tile_assignment(mesh, partition, manual)
    return xla_sharding(x, op_sharding(tiles, places_of(mesh.devices())), unspecified_dims)


def _refuse_manual(caller: str) -> None:
    manual = active.get().manual
    if manual:
        raise UserError(
            f"{caller} assigns all devices, but the axes {list(manual)} are manual here. Use "
            "mesh_split or annotate."
        )
