"""Sharding annotations on TensorFlow tensors: the only module that mentions XlaSharding.

    with rules(mesh):
        x = annotate(x, "GSM")      # each letter is looked up in the mesh's rules table

An annotation changes no value. In a lowered program it becomes a `@Sharding` custom call that XLA's
SPMD partitioner obeys; its gradient is the same annotation (GSPMD section 3.6). Executed eagerly, or
traced without a mesh or for one device, it is the identity, so that a function runs as it stands on
one device; a wrong argument is an error all the same.

The examples below show the annotations of the lowered program; they run as tests, after

    >>> from gshard_nmt.spmd.lowering import annotations_of
    >>> mesh = Mesh(("x", "y"), (2, 4), rules={"B": "x", "G": "x", "E": "x", "H": "y"})
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh, Partition, TileAssignment, tile_assignment

if TYPE_CHECKING:
    import tensorflow as tf

DimsMapping = Sequence[int | str | Sequence[str]] | Partition
"""For each dimension a mesh axis (name or index), an ordered list of names, or -1: not split."""


@dataclasses.dataclass(frozen=True)
class _InForce:
    """What annotations follow: the mesh, and its axes that are partitioned by hand."""

    mesh: Mesh | None = None
    manual: tuple[str, ...] = ()


_NOTHING = _InForce()
_in_force: contextvars.ContextVar[_InForce] = contextvars.ContextVar("in_force", default=_NOTHING)


@contextlib.contextmanager
def rules(mesh: Mesh | None) -> Iterator[None]:
    """Makes `mesh` the one that annotations follow, within the block; None makes them identities."""
    token = _in_force.set(_InForce(mesh))
    try:
        yield
    finally:
        _in_force.reset(token)


def annotate(x: "tf.Tensor", letters: str, name: str = "") -> "tf.Tensor":
    """Annotates a tensor by the letters of its dimensions, looked up in the rules in force.

    >>> annotations_of(lambda x: annotate(x, "BLH"), (8, 5, 12), mesh=mesh)
    ['{devices=[2,1,4]<=[8]}']
    >>> annotations_of(lambda x: annotate(x, "B?H"), (8, 5, 12), mesh=mesh)
    ['{devices=[2,1,4]<=[8]} unspecified_dims=[1]']

    Args:
      x: a tensor with one dimension a letter.
      letters: for instance "GSEC"; `_` is a dimension that is never split, `?` one that is left to
        propagation.
      name: a name for Mesh.overrides to match.

    Raises:
      UserError: the tensor's rank is not the number of letters.
    """
    if x.shape.rank != len(letters):
        raise UserError(
            f"annotate({name or 'a tensor'}, {letters!r}): the tensor has {x.shape.rank} dimensions, "
            f"the letters name {len(letters)}; give one letter a dimension."
        )
    mesh = _in_force.get().mesh
    if mesh is None or mesh.num_devices == 1:
        return x
    unspecified = [dim for dim, letter in enumerate(letters) if letter == "?"]
    return _annotated(x, mesh, mesh.partition(letters, name), unspecified)


def replicate(x: "tf.Tensor") -> "tf.Tensor":
    """Puts the whole tensor on every device (GShard section 3.2).

    >>> annotations_of(lambda x: replicate(x), (8, 12), mesh=mesh)
    ['{replicated}']
    """
    mesh = _in_force.get().mesh
    return x if mesh is None else _annotated(x, mesh, ((),) * x.shape.rank)


def split(x: "tf.Tensor", dim: int, num_partitions: int) -> "tf.Tensor":
    """Splits one dimension into `num_partitions`, the i'th on the i'th device (GShard section 3.2).

    >>> annotations_of(lambda x: split(x, 0, 8), (16, 12), mesh=mesh)
    ['{devices=[8,1]<=[8]}']

    With fewer partitions than devices the rest replicate (partial tiling): partition i is on the
    devices i, i + num_partitions, i + 2 num_partitions and so on, so `num_partitions` must divide the
    number of devices. The size of the dimension need not be a multiple of it.

    >>> annotations_of(lambda x: split(x, 1, 2), (16, 15), mesh=mesh)
    ['{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}']

    Args:
      x: the tensor.
      dim: the dimension to split; a negative one counts from the last.
      num_partitions: in how many parts.

    Raises:
      UserError: no such dimension, or a number that does not divide the devices of the mesh.
    """
    rank = x.shape.rank
    if not -rank <= dim < rank:
        raise UserError(
            f"split: there is no dimension {dim}; the tensor has the shape {x.shape.as_list()}, "
            f"dimensions 0 to {rank - 1}."
        )
    if num_partitions < 1:
        raise UserError(f"split: {num_partitions} partitions; the least number is 1.")
    mesh = _in_force.get().mesh
    if mesh is None or mesh.num_devices == 1:
        return x
    devices = mesh.num_devices
    if devices % num_partitions:
        legal = [n for n in range(1, devices + 1) if devices % n == 0]
        raise UserError(
            f"split: {num_partitions} partitions do not divide {devices} devices; "
            f"legal numbers are {legal}."
        )
    _refuse_manual("split")
    line = Mesh(("replicas", "parts"), (devices // num_partitions, num_partitions), rules={})
    partition: list[tuple[str, ...]] = [()] * rank
    partition[dim] = ("parts",)
    return _place(x, _sharding(tile_assignment(line, tuple(partition)), line.devices()))


def shard(
    x: "tf.Tensor", device_assignment: np.ndarray | Sequence, replicate_last: bool = False
) -> "tf.Tensor":
    """Splits any dimensions, and says which device takes which tile (GShard section A.3).

    >>> rows_by_columns = [[[0, 1, 2, 3], [7, 6, 5, 4]]]
    >>> annotations_of(lambda x: shard(x, rows_by_columns), (3, 16, 64), mesh=mesh)
    ['{devices=[1,2,4]0,1,2,3,7,6,5,4}']

    A tensor [3, 16, 64] with a device assignment of shape [1, 2, 4] has tiles of [3, 8, 16].

    >>> annotations_of(lambda x: shard(x, [[[0, 1]], [[2, 3]]], replicate_last=True), (8, 6),
    ...                mesh=Mesh(("x",), (4,)))
    ['{devices=[2,1,2]<=[4] last_tile_dim_replicate}']

    Args:
      x: the tensor.
      device_assignment: int[tiles of each dimension], of the rank of x; each element is the number of
        the device that takes this tile, and each device of the mesh has one place.
      replicate_last: the assignment has one more dimension, of the devices that hold the same tile
        (GSPMD section 3.1, partially tiled).

    Raises:
      UserError: an assignment of another rank, or one that does not name each device once.
    """
    assignment = np.asarray(device_assignment)
    rank = x.shape.rank + replicate_last
    if assignment.ndim != rank:
        raise UserError(
            f"shard: the device assignment has {assignment.ndim} dimensions {assignment.shape}; it "
            f"must have {rank}, one for each dimension of the tensor"
            f"{' and one of replicas' if replicate_last else ''}."
        )
    if not np.issubdtype(assignment.dtype, np.integer):
        raise UserError(
            f"shard: the device assignment is of {assignment.dtype}; devices are whole numbers."
        )
    mesh = _in_force.get().mesh
    devices = assignment.size if mesh is None or mesh.num_devices == 1 else mesh.num_devices
    if sorted(assignment.ravel().tolist()) != list(range(devices)):
        raise UserError(
            f"shard: the device assignment {assignment.tolist()} must name each of the devices 0 to "
            f"{devices - 1} once."
        )
    if mesh is None or mesh.num_devices == 1:
        return x
    _refuse_manual("shard")
    dims = assignment.shape if replicate_last else (*assignment.shape, 1)
    tiles = TileAssignment((*dims[:-1], 1, dims[-1]), tuple(range(rank)), 1, dims[-1])
    return _place(x, _sharding(tiles, _places(assignment)))


def mesh_split(
    x: "tf.Tensor", mesh: Mesh, dims_mapping: DimsMapping, unspecified_dims: Sequence[int] = ()
) -> "tf.Tensor":
    """Splits each dimension of a tensor over the mesh axes mapped to it (GSPMD section 3.1).

    >>> annotations_of(lambda x: mesh_split(x, mesh, [1, 0]), (8, 12), mesh=mesh)
    ['{devices=[4,2]<=[2,4]T(1,0)}']

    Mesh axes that are not mapped replicate the tiles (partial tiling):

    >>> annotations_of(lambda x: mesh_split(x, mesh, [-1, "x"]), (8, 12), mesh=mesh)
    ['{devices=[1,2,4]<=[8] last_tile_dim_replicate}']

    A dimension can be left to propagation, where -1 alone says that it is not split (section 3.5):

    >>> annotations_of(lambda x: mesh_split(x, mesh, ["x", -1], unspecified_dims=[1]), (8, 12),
    ...                mesh=mesh)
    ['{devices=[2,1,4]<=[8] last_tile_dim_replicate} unspecified_dims=[1]']

    Args:
      x: the tensor.
      mesh: the devices; another than the one in force must have the same number of them.
      dims_mapping: for each dimension a mesh axis (its name or its index), an ordered list of names,
        or -1 for a dimension that is not split.
      unspecified_dims: dimensions, mapped to -1, that propagation may split.

    Raises:
      UserError: a wrong number of entries, an unknown mesh axis, or one used twice.
    """
    partition = _partition_of("mesh_split", x.shape.rank, mesh, dims_mapping)
    for dim in unspecified_dims:
        if not 0 <= dim < len(partition) or partition[dim]:
            free = [i for i, axes in enumerate(partition) if not axes]
            raise UserError(
                f"mesh_split: dimension {dim} cannot be unspecified; of {list(dims_mapping)} those "
                f"that are mapped to -1 can: {free}."
            )
    return _annotated(x, mesh, partition, unspecified_dims)


@contextlib.contextmanager
def manual_axes(*axes: str) -> Iterator[None]:
    """Says that these axes of the mesh in force are partitioned by hand within the block.

    What is computed between `auto_to_manual` and `manual_to_auto` belongs in such a block if it is
    annotated: its annotations then leave these axes alone and speak of the others only.

    Raises:
      UserError: the mesh in force has no such axis.
    """
    now = _in_force.get()
    if now.mesh is not None:
        for axis in axes:
            if axis not in now.mesh.axes:
                raise UserError(
                    f"manual_axes: the mesh has no axis {axis!r}; its axes are "
                    f"{list(now.mesh.axes)}."
                )
    token = _in_force.set(_InForce(now.mesh, (*now.manual, *axes)))
    try:
        yield
    finally:
        _in_force.reset(token)


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
        partition = _partition_of(what, rank, mesh, dims_mapping)
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
        now = _in_force.get()
        if _is_identity(what, mesh):
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
        return _sharding(tiles, _places(self.mesh.devices())), self._open(self.partition)

    def local(self) -> tuple[Any, list[int]]:
        """The same of the shards: what was split by hand is a whole to the compiler."""
        kept = tuple(
            tuple(axis for axis in axes if axis not in self.manual) for axes in self.partition
        )
        tiles = tile_assignment(self.mesh, kept, (*self.around, *self.manual))
        return _sharding(tiles, _places(self.mesh.devices())), self._open(kept)

    def _open(self, partition: Partition) -> list[int]:
        if len({*self.around, *self.manual}) == len(self.mesh.axes):
            return []
        return [dim for dim, axes in enumerate(partition) if not axes]


def _full_to_shard(x: "tf.Tensor", call: _Conversion) -> "tf.Tensor":
    import tensorflow as tf

    shape = x.shape.as_list()

    @tf.custom_gradient
    def convert(x):
        annotated = _place(x, *call.full())
        shard = _change("SPMDFullToShardShape", annotated, call.local(), call.shard_shape(shape))

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
        annotated = _place(x, *call.local())
        full = _change("SPMDShardToFullShape", annotated, call.full(), full_shape)

        def gradient(dy):
            dx = _full_to_shard(dy, call)
            copies = call.mesh.axis_size(call.replicas())
            # Each of the equal copies has its share, so that a sum over them is the whole.
            return dx if copies == 1 else dx / copies

        return full, gradient

    return convert(x)


def _partition_of(what: str, rank: int, mesh: Mesh, dims_mapping: DimsMapping) -> Partition:
    partition = tuple(_axes_of(what, mesh, entry) for entry in dims_mapping)
    if len(partition) != rank:
        raise UserError(
            f"{what}: {len(partition)} entries {list(dims_mapping)} for a tensor of {rank} "
            "dimensions; give one entry a dimension, -1 where it is not split."
        )
    used = [axis for axes in partition for axis in axes]
    if len(set(used)) != len(used):
        raise UserError(
            f"{what}: {list(dims_mapping)} uses a mesh axis twice; each may split one dimension."
        )
    return partition


def _axes_of(what: str, mesh: Mesh, entry: int | str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(entry, int):
        if not -1 <= entry < len(mesh.axes):
            raise UserError(
                f"{what}: mesh axis {entry} does not exist; the mesh has axes 0 to "
                f"{len(mesh.axes) - 1} {list(mesh.axes)}, and -1 means not split."
            )
        return () if entry == -1 else (mesh.axes[entry],)
    names = (entry,) if isinstance(entry, str) else tuple(entry)
    for name in names:
        if name not in mesh.axes:
            raise UserError(
                f"{what}: the mesh has no axis {name!r}; its axes are {list(mesh.axes)}."
            )
    return names


def _is_identity(what: str, mesh: Mesh) -> bool:
    """Whether nothing is to be partitioned; raises where `mesh` is not of the run's devices."""
    now = _in_force.get()
    if now.mesh is None or now.mesh.num_devices == 1:
        return True
    if mesh.num_devices != now.mesh.num_devices:
        raise UserError(
            f"{what}: the mesh has {mesh.num_devices} devices, the run's has "
            f"{now.mesh.num_devices}; every mesh of a program must have all its devices."
        )
    if now.manual and mesh != now.mesh:
        raise UserError(
            f"{what}: among manual axes {list(now.manual)} only the mesh in force has meaning."
        )
    return _executes_eagerly()


def _annotated(
    x: "tf.Tensor", mesh: Mesh, partition: Partition, unspecified_dims: Sequence[int] = ()
) -> "tf.Tensor":
    manual = _in_force.get().manual
    if _is_identity("mesh_split", mesh) or len(set(manual)) == len(mesh.axes):
        return x
    if manual:
        partition = tuple(tuple(a for a in axes if a not in manual) for axes in partition)
    tiles = tile_assignment(mesh, partition, manual)
    return _place(x, _sharding(tiles, _places(mesh.devices())), unspecified_dims)


def _refuse_manual(what: str) -> None:
    manual = _in_force.get().manual
    if manual:
        raise UserError(
            f"{what} speaks of all devices, but the axes {list(manual)} are manual here; use "
            "mesh_split or annotate."
        )


def _places(devices: np.ndarray) -> np.ndarray:
    """Devices by number, as the program numbers them: their places in the mesh in force.

    A program is compiled for an ordered list of devices and speaks of their places in it; the order
    itself is the business of the runtime.
    """
    mesh = _in_force.get().mesh
    return devices if mesh is None else np.argsort(mesh.devices().ravel())[devices]


def _sharding(tiles: TileAssignment, places: np.ndarray) -> Any:
    """XLA's OpSharding of a tile assignment to `places`, int64[the mesh's shape]."""
    from tensorflow.compiler.xla import xla_data_pb2

    proto = xla_data_pb2.OpSharding
    if tiles.manual == places.size > 1:
        return proto(type=proto.MANUAL)
    if tiles.replicas == places.size:
        return proto(type=proto.REPLICATED)
    last = [(tiles.manual, proto.MANUAL), (tiles.replicas, proto.REPLICATED)]
    sharding = proto(
        type=proto.OTHER,
        tile_assignment_dimensions=[*tiles.tiles, *(size for size, _ in last if size > 1)],
    )
    if tiles.manual > 1:
        sharding.last_tile_dims.extend(kind for size, kind in last if size > 1)
    else:
        sharding.replicate_on_last_tile_dim = tiles.replicas > 1
    if (places.ravel() == np.arange(places.size)).all():
        # In the iota form the annotation is as short for thousands of devices as for eight.
        sharding.iota_reshape_dims.extend(places.shape)
        sharding.iota_transpose_perm.extend(tiles.order)
    else:
        sharding.tile_assignment_devices.extend(tiles.devices(places).ravel().tolist())
    return sharding


def _place(x: "tf.Tensor", sharding: Any, unspecified_dims: Sequence[int] = ()) -> "tf.Tensor":
    """The annotation itself, an XlaSharding op, whose registered gradient is the same op."""
    from tensorflow.compiler.tf2xla.python import xla

    if _executes_eagerly():
        return x
    return xla.sharding(
        x, sharding=sharding.SerializeToString(), unspecified_dims=list(unspecified_dims)
    )


def _change(
    target: str, x: "tf.Tensor", sharding: tuple[Any, list[int]], shape: Sequence[int]
) -> "tf.Tensor":
    """The custom call that changes between full and shard shape; its result has the sharding.

    TensorFlow's own ops for it convert one dimension or all, and know no group of mesh axes.
    """
    from tensorflow.compiler.tf2xla.python import xla
    from tensorflow.core.framework import attr_value_pb2

    proto, unspecified = sharding
    result = xla.custom_call(
        [x],
        target_name=target,
        backend_config=f"unspecified_dims=[{','.join(map(str, unspecified))}]"
        if unspecified
        else "",
        dtype=x.dtype,
        shape=list(shape),
    )
    result.op._set_attr("_XlaSharding", attr_value_pb2.AttrValue(s=proto.SerializeToString()))
    return result


def _executes_eagerly() -> bool:
    import tensorflow as tf

    return tf.executing_eagerly()
