"""Holds the active mesh, numbers the devices of a program, and makes XlaSharding ops.

Models call `sharding.py` and `manual.py`, which are built from these functions. Only this module
mentions XlaSharding.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh, Partition, TileAssignment

if TYPE_CHECKING:
    import tensorflow as tf

DimsMapping = Sequence[int | str | Sequence[str]] | Partition
"""For each dimension a mesh axis (name or index), an ordered list of names, or -1 for not split."""


@dataclasses.dataclass(frozen=True)
class ActiveMesh:
    """The mesh that annotations follow, and a record of the annotations so far."""

    mesh: Mesh | None = None  # The devices; None turns annotations into identities
    manual: tuple[str, ...] = ()  # The axes of the mesh that are partitioned manually
    for_cpu: bool = True  # Whether the program shall be fast on CPUs, or on accelerators
    # (letters, shape) of each activation so far. Activations are annotated without a name.
    annotated: set[tuple[str, tuple[int, ...]]] = dataclasses.field(default_factory=set)


_NO_MESH = ActiveMesh()
active: contextvars.ContextVar[ActiveMesh] = contextvars.ContextVar("active_mesh", default=_NO_MESH)


@contextlib.contextmanager
def rules(mesh: Mesh | None, for_cpu: bool | None = None) -> Iterator[ActiveMesh]:
    """Makes `mesh` the active mesh inside the block. None turns annotations into identities.

    `for_cpu` is whether the program shall be fast on CPUs, or on accelerators. None is as outside.
    """
    active_mesh = ActiveMesh(mesh, for_cpu=active.get().for_cpu if for_cpu is None else for_cpu)
    token = active.set(active_mesh)
    try:
        yield active_mesh
    finally:
        active.reset(token)


def partition_of(caller: str, rank: int, mesh: Mesh, dims_mapping: DimsMapping) -> Partition:
    """Returns the mesh axes of each dimension of a tensor.

    Raises:
      UserError: a wrong number of entries, an unknown mesh axis, or a mesh axis used twice.
    """
    partition = tuple(_axes_of(caller, mesh, entry) for entry in dims_mapping)
    if len(partition) != rank:
        raise UserError(
            f"{caller}: {len(partition)} entries {list(dims_mapping)} for a tensor of {rank} "
            "dimensions; give one entry per dimension, -1 if it is not split."
        )
    used = [axis for axes in partition for axis in axes]
    if len(set(used)) != len(used):
        raise UserError(
            f"{caller}: {list(dims_mapping)} uses a mesh axis twice; a mesh axis can split only one "
            "dimension."
        )
    return partition


def _axes_of(caller: str, mesh: Mesh, entry: int | str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(entry, int):
        if not -1 <= entry < len(mesh.axes):
            raise UserError(
                f"{caller}: mesh axis {entry} does not exist; the mesh has axes 0 to "
                f"{len(mesh.axes) - 1} {list(mesh.axes)}, and -1 means not split."
            )
        return () if entry == -1 else (mesh.axes[entry],)
    names = (entry,) if isinstance(entry, str) else tuple(entry)
    check_axes(caller, mesh, names)
    return names


def check_axes(caller: str, mesh: Mesh, axes: Sequence[str]) -> None:
    """Raises UserError if the mesh does not have one of these axes."""
    for axis in axes:
        if axis not in mesh.axes:
            raise UserError(
                f"{caller}: the mesh has no axis {axis!r}; its axes are {list(mesh.axes)}."
            )


def is_identity(caller: str, mesh: Mesh) -> bool:
    """Returns whether annotations do nothing: in eager mode, on one device, or without a mesh.

    Raises:
      UserError: `mesh` and the active mesh differ in the number of devices, or they differ in any way
        while some axes are manual.
    """
    active_mesh = active.get()
    if active_mesh.mesh is None or active_mesh.mesh.num_devices == 1:
        return True
    if mesh.num_devices != active_mesh.mesh.num_devices:
        raise UserError(
            f"{caller}: this mesh has {mesh.num_devices} devices, and the mesh of the run has "
            f"{active_mesh.mesh.num_devices}. Use a mesh with the same number of devices."
        )
    if active_mesh.manual and mesh != active_mesh.mesh:
        raise UserError(
            f"{caller}: the axes {list(active_mesh.manual)} are manual here, so only the active mesh "
            "can be used. Pass the mesh of the enclosing rules(mesh)."
        )
    return _executes_eagerly()


def places_of(devices: np.ndarray) -> np.ndarray:
    """Returns the position of each device in the active mesh.

    A program is compiled for an ordered list of devices and refers to a device by its position in this
    list. The runtime passes the devices in the order of the mesh.
    """
    mesh = active.get().mesh
    return devices if mesh is None else np.argsort(mesh.devices().ravel())[devices]


def op_sharding(tiles: TileAssignment, places: np.ndarray) -> Any:
    """Returns XLA's OpSharding for a tile assignment to `places`, int64[shape of the mesh]."""
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
        # XLA's iota form is as short for thousands of devices as for eight.
        sharding.iota_reshape_dims.extend(places.shape)
        sharding.iota_transpose_perm.extend(tiles.order)
    else:
        sharding.tile_assignment_devices.extend(tiles.devices(places).ravel().tolist())
    return sharding


def xla_sharding(
    x: "tf.Tensor", sharding: Any, unspecified_dims: Sequence[int] = ()
) -> "tf.Tensor":
    """Annotates a tensor by an XlaSharding op. TensorFlow's gradient of this op is the same op."""
    from tensorflow.compiler.tf2xla.python import xla

    if _executes_eagerly():
        return x
    return xla.sharding(
        x, sharding=sharding.SerializeToString(), unspecified_dims=list(unspecified_dims)
    )


def change_shape(
    target: str, x: "tf.Tensor", sharding: tuple[Any, list[int]], shape: Sequence[int]
) -> "tf.Tensor":
    """Converts a tensor to its full shape or to its shard's shape, and gives the result a sharding.

    TensorFlow's own ops make either one dimension of the tensor manual, or all dimensions. They cannot
    make only some axes of the mesh manual, so we write the custom call.

    Args:
      target: "SPMDFullToShardShape" or "SPMDShardToFullShape".
      sharding: XLA's OpSharding of the result, and its dimensions that are left to propagation.
    """
    from tensorflow.compiler.tf2xla.python import xla
    from tensorflow.core.framework import attr_value_pb2

    proto, unspecified = sharding
    dims = ",".join(map(str, unspecified))
    result = xla.custom_call(
        [x],
        target_name=target,
        backend_config=f"unspecified_dims=[{dims}]" if unspecified else "",
        dtype=x.dtype,
        shape=list(shape),
    )
    result.op._set_attr("_XlaSharding", attr_value_pb2.AttrValue(s=proto.SerializeToString()))
    return result


def _executes_eagerly() -> bool:
    import tensorflow as tf

    return tf.executing_eagerly()
