"""Computes a function for each stage of a pipeline, on the devices of the stage (GSPMD section 3.4).

The code of a stage is manual along the mesh axes that split the stages: it sees the tensors of one stage.
Along all other axes the compiler partitions it. A batch is divided into microbatches here, too.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import run_time_zeros
from gshard_nmt.spmd.sharding import (
    Mesh,
    active_mesh,
    annotate,
    auto_to_manual,
    manual_axes,
    manual_to_auto,
    mesh_split,
)

Tensors = dict[str, "tf.Tensor"]


@dataclasses.dataclass(frozen=True)
class Lettered:
    """A tensor and its letters."""

    value: "tf.Tensor"  # the tensor
    letters: str  # one for each dimension
    # the name of a parameter [R, ...], which patterns of Mesh.overrides can match. Its R is divided
    # into stages, visits and blocks here, so the letters are P, `_`, `_` and those of a block.
    name: str = ""

    def split(self, value: "tf.Tensor") -> "tf.Tensor":
        mesh = active_mesh()
        return value if mesh is None else mesh_split(value, mesh, _partition(mesh, self))


LetteredTensors = Mapping[str, Lettered]


def on_stages(
    function: Callable[[Tensors, Tensors, Tensors], Tensors],
    carried: LetteredTensors,
    own: LetteredTensors,
    every: LetteredTensors,
) -> Tensors:
    """Computes function(carried, own, every) for each stage, without communication among the stages.

    The function is not inlined, which keeps it apart until XLA has the program. `in_own_computation` then
    keeps it apart until the program is partitioned.

    Args:
      function: takes the tensors of one stage, which have no dimension P, and returns the new values of
        `carried`.
      carried: tensors [P, ...] that the function replaces.
      own: tensors [P, ...] that it only reads.
      every: tensors that every stage reads as a whole. They have no dimension P.

    Returns:
      The new values of `carried`, [P, ...].
    """
    mesh = active_mesh()
    axes = () if mesh is None else mesh.partition("P")[0]
    if mesh is None or mesh.axis_size(axes) == 1:
        values = [{k: t.value for k, t in group.items()} for group in (carried, own, every)]
        return _for_each_row(function, *values)

    def shards(group: LetteredTensors) -> Tensors:
        partitions = {name: _partition(mesh, t) for name, t in group.items()}
        local = {k: auto_to_manual(t.value, mesh, partitions[k], axes) for k, t in group.items()}
        with manual_axes(*axes):
            return {name: group[name].split(shard) for name, shard in local.items()}

    def manually(values: Tensors) -> Tensors:
        latest = {n: dataclasses.replace(t, value=values[n]) for n, t in carried.items()}
        stage = shards(latest), shards(own), shards(every)
        with manual_axes(*axes):
            results = _for_each_row(function, *stage)
            results = {name: carried[name].split(r) for name, r in results.items()}
        whole = {}
        for name, result in results.items():
            partition = _partition(mesh, carried[name])
            whole[name] = manual_to_auto(result, mesh, partition, values[name].shape, axes)
        return whole

    separate = tf.function(manually, autograph=False, experimental_attributes={"_noinline": True})
    return in_own_computation(separate, {name: t.value for name, t in carried.items()})


def in_own_computation(function: Callable[[Any], Any], values: Any) -> Any:
    """Computes function(values), which is manual code, in the body of a loop that ends after one repeat.

    The compiler merges equal constants and ranges of a computation. If the code around the function
    shared one with it, XLA's partitioner would take that code for manual code and would fail. A body is a
    computation of its own.

    Args:
      function: returns tensors of the same structure, shapes and dtypes as its argument.
    """
    _, results = tf.while_loop(
        lambda again, _: again,
        lambda again, values: (tf.logical_not(again), function(values)),
        [tf.constant(True), values],
    )
    return results


def annotate_for_stages(x: "tf.Tensor", letters: str) -> "tf.Tensor":
    """Annotates a tensor that every stage reads: the mesh axes of the stages do not split it."""
    return Lettered(x, letters).split(x)


def _partition(mesh: Mesh, tensor: Lettered) -> list[tuple[str, ...]]:
    """Returns the mesh axes of each dimension. The axes of the stages split only P."""
    letters = tensor.letters
    if tensor.name:
        stages = mesh.partition("P")[0]
        own = mesh.partition("R" + letters[3:], tensor.name)[1:]
        return [stages, (), (), *(tuple(a for a in axes if a not in stages) for axes in own)]
    if letters.startswith("P"):
        return list(mesh.partition(letters))
    return list(mesh.partition("P" + letters)[1:])


def _for_each_row(function, carried: Tensors, own: Tensors, every: Tensors) -> Tensors:
    """Computes the function for each stage of a device, one after another."""
    rows = next(iter(carried.values())).shape[0]
    results = [
        function({k: v[i] for k, v in carried.items()}, {k: v[i] for k, v in own.items()}, every)
        for i in range(rows)
    ]
    return {name: tf.stack([result[name] for result in results]) for name in carried}


def stage_numbers(stages: int) -> "tf.Tensor":
    """Returns int32[P]: 0, 1, 2, ...

    This is no range, because the compiler may merge a range of the same size in the code of a stage with
    it, and the partitioner then fails (see `on_stages`).
    """
    ones = annotate(run_time_zeros([stages], tf.int32) + 1, "_")
    return annotate(tf.cumsum(ones) - 1, "_")


def rotated(state: "tf.Tensor", by: int) -> "tf.Tensor":
    return tf.concat([state[-by:], state[:-by]], axis=0)


def where_stage(mask: "tf.Tensor", x: "tf.Tensor", y: "tf.Tensor | int") -> "tf.Tensor":
    """Returns x if the mask of the stage, bool[P], is True, otherwise y; x and y are [P, b, L, M]."""
    return tf.where(tf.reshape(mask, [-1, 1, 1, 1]), x, tf.cast(y, x.dtype))


def if_valid(own: Tensors, value: "tf.Tensor") -> "tf.Tensor":
    """Returns the value, or 0 in a bubble, in which it may be NaN."""
    return tf.where(own["is_valid"], value, tf.zeros([], value.dtype))


Annotate = Callable[["tf.Tensor", str], "tf.Tensor"]


def microbatches_of(
    x: "tf.Tensor", number: int, letters: str, annotate: Annotate = annotate
) -> "tf.Tensor":
    """Returns [n, B/n, ...], the microbatches of x[B, ...] (GSPMD section 3.3).

    Microbatch m of n has the rows m, m + n, m + 2n, and so on. So if the rows are split over devices,
    each device has its share of every microbatch, and dividing moves no data (if n divides its rows).
    The new dimension, the first, is not split.
    """
    rows, *rest = x.shape.as_list()
    together = tf.reshape(x, [rows // number, number, *rest])
    permutation = [1, 0, *range(2, together.shape.rank)]
    return annotate(tf.transpose(together, permutation), "_" + letters)


def join_microbatches(x: "tf.Tensor", letters: str, annotate: Annotate = annotate) -> "tf.Tensor":
    """Joins microbatches, the inverse of `microbatches_of`: [n, B/n, ...] -> [B, ...]."""
    microbatches, rows, *rest = x.shape.as_list()
    permutation = [1, 0, *range(2, x.shape.rank)]
    joined = tf.reshape(tf.transpose(x, permutation), [microbatches * rows, *rest])
    return annotate(joined, letters)
