"""Runs the experts where their weights are: tokens move between devices, and weights stay.

Each device computes a partial result: the outputs of its own experts for all tokens that reach it. The
sum of the partial results over the devices is the result. There are three steps, all in one program:

(1) The tokens are gathered along the mesh axes that split the experts or their hidden units.
(2) Each device computes its own experts on its own, without communication.
(3) The partial results are summed along the same axes, and each device keeps its own tokens.

A token has one or two experts. So at most two partial results of a token are not zero, and their sum is
the same in any order, bit for bit. If the mesh splits the hidden units too, each product is a sum over
devices, and its last bits depend on their number.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from gshard_nmt.model import blocks, layers
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import run_time_zeros
from gshard_nmt.spmd.sharding import (
    Mesh,
    active_mesh,
    annotate,
    auto_to_manual,
    manual_to_auto,
    mesh_split,
)

Axes = tuple[str, ...]
Partition = Sequence[Axes]
Tensors = Mapping[str, "tf.Tensor"]
LETTERS = {"wi": "E_H", "wi_linear": "E_H", "wo": "EH_"}
"""The letters of an expert's weights. Their dimension M is whole on each device."""
MOST_TOKENS = 8192
"""The most tokens that reach a device at a time. More are cut into pieces, to bound the memory."""


def mixture(weights: Tensors, by_token: Tensors) -> "tf.Tensor":
    """Returns the weighted outputs of the experts of each token, [G, S, M].

    Args:
      weights: the weights of all experts, by the names in LETTERS.
      by_token: `tokens` [G, S, M]; `expert` int32[G, S, A], E or more if the choice is none;
        `weight` [G, S, A] in the dtype of `tokens`.
    """
    split = Split.of_active_mesh()
    num_groups, group_size, _ = by_token["tokens"].shape.as_list()
    size = split.piece_size(num_groups, group_size)
    if size == group_size:
        return _sum_over_devices(split, weights, by_token)

    def piece(start, outputs):
        part = {name: blocks.read(x, start, size, axis=1) for name, x in by_token.items()}
        result = _sum_over_devices(split, weights, part)
        return start + size, annotate(blocks.write(outputs, start, result, axis=1), "GSM")

    tokens = by_token["tokens"]
    outputs = annotate(run_time_zeros(tokens.shape, tokens.dtype), "GSM")
    _, outputs = tf.while_loop(
        lambda start, _: start < group_size, piece, [tf.zeros([], tf.int32), outputs]
    )
    return outputs


@dataclasses.dataclass(frozen=True)
class Split:
    """How a mesh splits the work of one MoE layer.

    Attributes:
      mesh: the active mesh, if it has several devices.
      tokens: the mesh axes that split the groups of tokens in step (2).
      experts: the axes that split the experts.
      summed: the axes that split the experts or their hidden units.
    """

    mesh: Mesh | None = None
    tokens: Axes = ()
    experts: Axes = ()
    summed: Axes = ()

    @staticmethod
    def of_active_mesh() -> "Split":
        """Returns the axes that the rules of the active mesh give to experts, hidden units and groups."""
        mesh = active_mesh()
        if mesh is None or mesh.num_devices == 1 or tf.executing_eagerly():
            return Split()
        experts, _, hidden = mesh.partition("E_H")
        summed = (*experts, *hidden)
        (groups,) = mesh.partition("G")
        return Split(mesh, tuple(axis for axis in groups if axis not in summed), experts, summed)

    def piece_size(self, num_groups: int, group_size: int) -> int:
        """Returns how many tokens of each group run at a time. It divides S."""
        groups = num_groups if self.mesh is None else -(-num_groups // self._size(self.tokens))
        allowed = max(1, MOST_TOKENS // groups)
        return max(n for n in range(1, min(allowed, group_size) + 1) if group_size % n == 0)

    def copies(self) -> int:
        """Returns the number of partial results of a token."""
        return self._size(self.summed)

    def _size(self, axes: Axes) -> int:
        return 1 if self.mesh is None else self.mesh.axis_size(axes)


def _sum_over_devices(split: Split, weights: Tensors, by_token: Tensors) -> "tf.Tensor":
    if split.mesh is None:
        return _own_experts(weights, by_token, tf.zeros([], tf.int32))
    num_experts = next(iter(weights.values())).shape[0]
    inputs = {**weights, **by_token, "numbers": tf.range(num_experts)}
    partitions = {name: split.mesh.partition(LETTERS[name]) for name in weights}
    partitions |= {name: (split.tokens, (), ()) for name in by_token}
    partitions["numbers"] = (split.experts,)

    def partial(shards: Tensors) -> "tf.Tensor":
        own = {name: shards[name] for name in weights}
        result = _own_experts(own, {name: shards[name] for name in by_token}, shards["numbers"][0])
        # Shape: [G, S, M] -> [1, G, S, M]
        return result[tf.newaxis]

    tokens = by_token["tokens"]
    stacked = _on_each_device(
        partial,
        split.mesh,
        inputs,
        partitions,
        run_time_zeros([split.copies(), *tokens.shape], tokens.dtype),
        (split.summed, split.tokens, (), ()),
    )
    # (3) Shape: [copies, G, S, M] -> [G, S, M]
    return annotate(tf.reduce_sum(stacked, axis=0), "GSM")


def _on_each_device(
    function: Callable[[Tensors], "tf.Tensor"],
    mesh: Mesh,
    inputs: Tensors,
    partitions: Mapping[str, Partition],
    empty: "tf.Tensor",
    partition: Partition,
) -> "tf.Tensor":
    """Returns the tensor whose shards are function(the shards of the inputs).

    The function runs in the body of a loop that ends after its first repeat. The compiler merges equal
    constants of a computation. If the partitioned code around the function shared a constant with it,
    XLA's partitioner would take that code for manual code and would fail. A body is a computation of
    its own.

    Args:
      function: takes the shards of one device and returns its shard of the result.
      mesh: the active mesh.
      inputs: the full tensors.
      partitions: the mesh axes that split each dimension of each input.
      empty: a tensor with the shape and the dtype of the result.
      partition: the mesh axes that split each dimension of the result.
    """

    def body(again, _):
        shards = {name: auto_to_manual(x, mesh, partitions[name]) for name, x in inputs.items()}
        result = manual_to_auto(function(shards), mesh, partition, empty.shape)
        return tf.logical_not(again), result

    start = [tf.constant(True), mesh_split(empty, mesh, partition)]
    _, result = tf.while_loop(lambda again, _: again, body, start)
    return result


def _own_experts(weights: Tensors, by_token: Tensors, first_expert: "tf.Tensor") -> "tf.Tensor":
    """Returns the outputs [G, S, M] of the experts in `weights`, whose first is `first_expert`."""
    num_groups, group_size, model_dim = by_token["tokens"].shape.as_list()
    # Shape: [G, S, ...] -> [n, ...]
    tokens, expert, weight = (
        tf.reshape(by_token[name], [num_groups * group_size, -1])
        for name in ("tokens", "expert", "weight")
    )
    rows = blocks.plan(expert - first_expert, weight, weights["wi"].shape[0])
    outputs = blocks.mixture(_expert, weights, tokens, rows)
    return tf.reshape(outputs, [num_groups, group_size, model_dim])


def _expert(p: Tensors, x: "tf.Tensor") -> "tf.Tensor":
    """Returns the output [B, M] of one expert for x[B, M]."""
    return layers.project("BH,HM->BM", layers.activated(p, "BM,MH->BH", x), p, "wo")
