"""What an annotation is to XLA: the mesh in force, devices by place, and XlaSharding ops.

`sharding.py` and `manual.py` are what is written in models; this is what they are made of, and the
only module that mentions XlaSharding.
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
"""For each dimension a mesh axis (name or index), an ordered list of names, or -1: not split."""


@dataclasses.dataclass(frozen=True)
class ActiveMesh:
    """What annotations follow, and which there were.

    Attributes:
      mesh: the devices; None makes annotations identities.
      manual: its axes that are partitioned by hand.
      annotated: (letters, shape) of the tensors annotated so far that have no name of their own:
        activations.
    """

    mesh: Mesh | None = None
    manual: tuple[str, ...] = ()
    annotated: set[tuple[str, tuple[int, ...]]] = dataclasses.field(default_factory=set)


_NO_MESH = ActiveMesh()
active: contextvars.ContextVar[ActiveMesh] = contextvars.ContextVar("active_mesh", default=_NO_MESH)


@contextlib.contextmanager
def rules(mesh: Mesh | None) -> Iterator[ActiveMesh]:
    """Makes `mesh` the one that annotations follow, within the block; None makes them identities."""
    followed = ActiveMesh(mesh)
    token = active.set(followed)
    try:
        yield followed
    finally:
        active.reset(token)


def partition_of(what: str, rank: int, mesh: Mesh, dims_mapping: DimsMapping) -> Partition:
    """The mesh axes of each dimension of a tensor, checked; `what` is who asks, for messages."""
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


def is_identity(what: str, mesh: Mesh) -> bool:
    """Whether nothing is to be partitioned; raises where `mesh` is not of the run's devices."""
    now = active.get()
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


def places_of(devices: np.ndarray) -> np.ndarray:
    """Devices by number, as the program numbers them: their places in the mesh in force.

    A program is compiled for an ordered list of devices and speaks of their places in it; the order
    itself is the business of the runtime.
    """
    mesh = active.get().mesh
    return devices if mesh is None else np.argsort(mesh.devices().ravel())[devices]


def op_sharding(tiles: TileAssignment, places: np.ndarray) -> Any:
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


def xla_sharding(
    x: "tf.Tensor", sharding: Any, unspecified_dims: Sequence[int] = ()
) -> "tf.Tensor":
    """The annotation itself, an XlaSharding op, whose registered gradient is the same op."""
    from tensorflow.compiler.tf2xla.python import xla

    if _executes_eagerly():
        return x
    return xla.sharding(
        x, sharding=sharding.SerializeToString(), unspecified_dims=list(unspecified_dims)
    )


def change_shape(
    target: str, x: "tf.Tensor", sharding: tuple[Any, list[int]], shape: Sequence[int]
) -> "tf.Tensor":
    """The custom call that changes between full and shard shape; its result has the sharding.

    TensorFlow's own ops for it convert one dimension or all, and know no group of mesh axes.
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
