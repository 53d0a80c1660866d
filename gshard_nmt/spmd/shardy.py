"""Rewrites the annotations of a lowered function in Shardy's dialect, the successor of GSPMD's.

TensorFlow writes an annotation as tiles of numbered devices, and Shardy as names of mesh axes.
"""

import collections
import functools
import io
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh, Partition

_TILES = re.compile(
    r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))"
    r"(?: last_tile_dim_replicate)?\}"
)
_MANUAL = ("SPMDFullToShardShape", "SPMDShardToFullShape")


def in_shardy(stablehlo: bytes, mesh: Mesh) -> bytes:
    """Replaces each annotation of a module by a sharding constraint on the axes of the mesh.

    Args:
      stablehlo: MLIR bytecode of a module whose annotations are `@Sharding` custom calls.

    Returns:
      MLIR bytecode of the module without `@Sharding` custom calls.

    Raises:
      UserError: an annotation does not follow the axes of the mesh, or there is a manual region.
    """
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    calls: dict[str, list] = collections.defaultdict(list)

    def visit(operation):
        if operation.name == "stablehlo.custom_call":
            calls[_text(operation, "call_target_name")].append(operation)
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context():
        module = ir.Module.parse(stablehlo)
        module.operation.walk(visit)
        if any(target in calls for target in _MANUAL):
            raise _unsupported("a manual region")
        for annotation in calls["Sharding"]:
            _replace(annotation, mesh)
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
        return bytecode.getvalue()


def _replace(annotation, mesh: Mesh) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    rank = ir.RankedTensorType(annotation.results[0].type).rank
    partition = partition_in(
        _text(annotation, "mhlo.sharding"), rank, tuple(mesh.axes), tuple(mesh.shape)
    )
    unspecified = {int(dim) for dim in re.findall(r"\d+", _text(annotation, "backend_config"))}
    axes = [sdy.MeshAxisAttr.get(*axis) for axis in zip(mesh.axes, mesh.shape, strict=True)]
    dims = [
        sdy.DimensionShardingAttr.get(
            [sdy.AxisRefAttr.get(axis) for axis in split_over], is_closed=dim not in unspecified
        )
        for dim, split_over in enumerate(partition)
    ]
    sharding = sdy.TensorShardingAttr.get(sdy.MeshAttr.get(axes), dims)
    with ir.InsertionPoint(annotation), annotation.location:
        constraint = sdy.ShardingConstraintOp(annotation.operands[0], sharding)
    annotation.results[0].replace_all_uses_with(constraint.result)
    annotation.operation.erase()


def _text(operation, attribute: str) -> str:
    from jaxlib.mlir import ir

    attributes = operation.attributes
    return ir.StringAttr(attributes[attribute]).value if attribute in attributes else ""


@functools.cache
def partition_in(
    sharding: str, rank: int, axes: tuple[str, ...], shape: tuple[int, ...]
) -> Partition:
    """Returns the mesh axes that split each dimension of a tensor, without axes of size 1.

    Args:
      sharding: tiles of devices as XLA writes them, such as `{devices=[4,2]<=[2,4]T(1,0)}`.
      rank: the number of dimensions of the tensor.
      shape: the number of devices along each axis.

    Raises:
      UserError: the tiles do not follow the axes.
    """
    if sharding == "{replicated}":
        return ((),) * rank
    match = _TILES.fullmatch(sharding)
    if match is None:
        raise _unsupported(f"the annotation {sharding}")
    tiles = _numbers(match[1])
    devices = np.array(_numbers(match[4])) if match[4] else _iota(match[2], match[3])
    # The tile of each device along each dimension, and its place along each mesh axis.
    tile_of = np.unravel_index(np.argsort(devices), tiles)
    places = np.unravel_index(np.arange(devices.size), shape)
    partition = []
    for tile, count in zip(tile_of[:rank], tiles, strict=False):
        axes_of_dim = _axes_of(tile, count, places, shape)
        if axes_of_dim is None:
            raise _unsupported(f"the annotation {sharding}, which does not follow the mesh axes")
        partition.append(tuple(axes[axis] for axis in axes_of_dim))
    return tuple(partition)


def _axes_of(
    tile: np.ndarray, count: int, places: Sequence[np.ndarray], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Returns the axes, outermost first, that give each device its tile out of `count` tiles."""
    useful = [axis for axis, size in enumerate(shape) if size > 1]
    for length in range(len(useful) + 1):
        for order in itertools.permutations(useful, length):
            sizes = [shape[axis] for axis in order]
            if math.prod(sizes) != count:
                continue
            if (
                not order
                or (np.ravel_multi_index([places[axis] for axis in order], sizes) == tile).all()
            ):
                return order
    return None


def _iota(shape: str, order: str | None) -> np.ndarray:
    sizes = _numbers(shape)
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    return grid.transpose(_numbers(order) if order else range(len(sizes))).ravel()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _unsupported(what: str) -> UserError:
    return UserError(
        f"Mesh.partitioner is 'shardy', which cannot express {what}. Set Mesh.partitioner = 'gspmd'.",
        ["Mesh.partitioner"],
    )
