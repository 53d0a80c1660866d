"""Changes the number of devices of a mesh. The names of the axes and the rules stay."""

import dataclasses
import math
from collections.abc import Sequence

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh


def nearest_mesh(mesh: Mesh, devices: int) -> Mesh:
    """Returns a mesh of `devices` devices that keeps the sizes of the last axes as far as possible.

    We start with all devices and divide them over the axes, from the last axis to the second. Each axis
    gets the greatest common divisor of its old size and the number of remaining devices. The first axis
    gets the rest. For instance, on 8 devices [1, 2] becomes [4, 2], and [4, 4, 6] becomes [1, 4, 2].
    """
    if mesh.num_devices == devices:
        return mesh
    shape: list[int] = []
    left = devices
    for size in mesh.shape[:0:-1]:
        shape.insert(0, math.gcd(size, left))
        left //= shape[0]
    return of_shape(mesh, (left, *shape))


def resized_mesh(mesh: Mesh, devices: int, machine: str) -> Mesh:
    """Returns the mesh with another size of its first axis, so that it has `devices` devices.

    Args:
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

    Each axis longer than 1 starts at 2. Then the first axis doubles up to its old size, after it the
    second, and so on, until all devices are used.

    Raises:
      UserError: no such mesh has this number of devices.
    """
    shape, left = [min(2, size) for size in mesh.shape], devices
    for size in shape:
        left //= size
    for axis in range(len(shape)):
        while mesh.shape[axis] > shape[axis] and left > 1 and left % 2 == 0:
            shape[axis], left = shape[axis] * 2, left // 2
    reduced = of_shape(mesh, shape)
    if reduced.num_devices != devices:
        raise UserError(
            f"--equivalence on {devices} devices: the mesh with axes {list(mesh.axes)} can be reduced "
            f"to {list(reduced.shape)}, which is {reduced.num_devices} devices, but not to {devices}. "
            f"Give --devices {reduced.num_devices}, or a power of 2 that is at least "
            f"{2 ** len(mesh.axes)}, so that every axis still splits the arrays."
        )
    return reduced


def of_shape(mesh: Mesh, shape: Sequence[int]) -> Mesh:
    """Returns the mesh with a shape. A new shape drops the device order, which fits only the old one."""
    if tuple(shape) == tuple(mesh.shape):
        return mesh
    return dataclasses.replace(mesh, axes=mesh.axes or ("x",), shape=tuple(shape), device_order=())
