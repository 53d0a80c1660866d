"""Changes the number of devices of a mesh. The names of the axes and the rules stay."""

import dataclasses
import math
from collections.abc import Sequence

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh


def nearest_mesh(mesh: Mesh, devices: int) -> Mesh:
    """Returns a mesh of `devices` devices that is as near to `mesh` as the numbers allow.

    From the last axis to the second, each axis keeps the largest divisor of its size that divides the
    devices that are left. The first axis takes the rest. For instance [1, 2] on 8 devices becomes
    [4, 2], and [4, 4, 6] becomes [1, 4, 2].
    """
    if mesh.num_devices == devices:
        return mesh
    shape: list[int] = []
    left = devices
    for size in mesh.shape[:0:-1]:
        shape.insert(0, math.gcd(size, left))
        left //= shape[0]
    return _of_shape(mesh, (left, *shape))


def resized_mesh(mesh: Mesh, devices: int, machine: str) -> Mesh:
    """Returns the mesh with another size of its first axis, so that it has `devices` devices.

    Args:
      mesh: the mesh to change.
      devices: the number of devices of the new mesh.
      machine: the name of the machine that has them, for the message.

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

    Each axis longer than 1 starts at 2. The axes then double in turn, up to their old sizes, until
    all devices are used.

    Raises:
      UserError: no such mesh has this number of devices.
    """
    shape, left = [min(2, size) for size in mesh.shape], devices
    for size in shape:
        left //= size
    for axis in range(len(shape)):
        while mesh.shape[axis] > shape[axis] and left > 1 and left % 2 == 0:
            shape[axis], left = shape[axis] * 2, left // 2
    reduced = _of_shape(mesh, shape)
    if reduced.num_devices != devices:
        raise UserError(
            f"--equivalence on {devices} devices: a mesh of axes {list(mesh.axes)} reduces to "
            f"{list(reduced.shape)}; give --devices {reduced.num_devices}, or another power of 2 that "
            f"is at least {2 ** len(mesh.axes)}, so that every axis splits."
        )
    return reduced


def _of_shape(mesh: Mesh, shape: Sequence[int]) -> Mesh:
    """Returns the mesh with another shape, without its device order, which fits only the old shape."""
    return dataclasses.replace(mesh, axes=mesh.axes or ("x",), shape=tuple(shape), device_order=())
