"""Runs each expert on the device that has its weights: tokens move between devices, and weights stay.

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
LETTERS = {
    "wi": "E_H",
    "wi_linear": "E_H",
    "wo": "EH_",
    "wi_bias": "EH",
    "wi_linear_bias": "EH",
    "wo_bias": "E_",
}
"""The letters of an expert's weights. Their dimension M is whole on each device."""
MOST_TOKENS = 8192
"""The most tokens that reach a device at a time. More are cut into pieces, to bound the memory."""


def mixture(weights: Tensors, by_token: Tensors, activation: str = "relu") -> "tf.Tensor":
    """Returns the weighted outputs of the experts of each token, [G, S, M].

    Args:
      weights: the weights of all experts, by the names in LETTERS.
      by_token: `tokens` [G, S, M]; `expert` int32[G, S, A], E or more if the choice is none;
        `weight` [G, S, A] in the dtype of `tokens`.
      activation: one of `layers.ACTIVATIONS`.
    """
    names, split = sorted(weights), Split.of_active_mesh(activation)

    # A custom gradient takes and returns flat sequences of tensors.
    @tf.custom_gradient
    def run(tokens, weight, *flat):
        weights = dict(zip(names, flat, strict=True))
        if "wo_bias" in weights and split.hidden_shards > 1:
            # Each device with a part of the hidden units adds a part of the bias. Each of them computes
            # the whole gradient of the bias, so the gradient is not divided.
            weights["wo_bias"] /= split.hidden_shards
        arguments = {"tokens": tokens, "weight": weight, "expert": by_token["expert"]}
        outputs = _forward(split, weights, arguments)

        def gradient(dy):
            d_tokens, d_weight, d_weights = _backward(split, weights, {**arguments, "dy": dy})
            return (d_tokens, d_weight, *[d_weights[name] for name in names])

        return outputs, gradient

    return run(by_token["tokens"], by_token["weight"], *[weights[name] for name in names])


@dataclasses.dataclass(frozen=True)
class Split:
    """How a mesh splits the work of one MoE layer."""

    mesh: Mesh | None = None  # the active mesh, if it has several devices
    tokens: Axes = ()  # the mesh axes that split the groups of tokens in step (2)
    experts: Axes = ()  # the axes that split the experts
    summed: Axes = ()  # the axes that split the experts or their hidden units
    activation: str = "relu"  # the activation of the experts

    @staticmethod
    def of_active_mesh(activation: str) -> "Split":
        """Returns the axes that the rules of the active mesh give to experts, hidden units and groups."""
        mesh = active_mesh()
        if mesh is None or mesh.num_devices == 1 or tf.executing_eagerly():
            return Split(activation=activation)
        experts, _, hidden = mesh.partition("E_H")
        summed = (*experts, *hidden)
        (groups,) = mesh.partition("G")
        tokens = tuple(axis for axis in groups if axis not in summed)
        return Split(mesh, tokens, experts, summed, activation)

    @property
    def hidden_shards(self) -> int:
        return self._size(self.summed) // self._size(self.experts)

    def expert(self, p: Tensors, x: "tf.Tensor") -> "tf.Tensor":
        """Returns the output [B, M] of one expert for x[B, M]."""
        hidden = layers.activated(p, "BM,MH->BH", x, self.activation)
        return layers.project("BH,HM->BM", hidden, p, "wo")

    def piece_size(self, num_groups: int, group_size: int) -> int:
        """Returns how many tokens of each group run at a time. It divides S."""
        groups = num_groups if self.mesh is None else -(-num_groups // self._size(self.tokens))
        allowed = max(1, MOST_TOKENS // groups)
        return max(n for n in range(1, min(allowed, group_size) + 1) if group_size % n == 0)

    def for_each_piece(self, body, by_token: Tensors, carried):
        """Applies body(piece of by_token, its first position in a group, carried) to each piece."""
        num_groups, group_size, _ = by_token["tokens"].shape.as_list()
        size = self.piece_size(num_groups, group_size)

        def piece(start, carried):
            part = {name: blocks.read(x, start, size, axis=1) for name, x in by_token.items()}
            return start + size, body(part, start, carried)

        start = tf.zeros([], tf.int32)
        if size == group_size:
            return body(by_token, start, carried)
        return tf.while_loop(lambda start, _: start < group_size, piece, [start, carried])[1]

    def on_devices(
        self,
        function: Callable[[Tensors, Tensors, "tf.Tensor"], Sequence["tf.Tensor"]],
        weights: Tensors,
        by_token: Tensors,
        like_tokens: Sequence[str],
        like_weights: Sequence[str],
    ) -> list["tf.Tensor"]:
        """Computes a function on each device, and returns the sums of its partial results.

        Args:
          function: takes the device's shards of `weights`, its groups of `by_token` and the number of
            its first expert, int32[]. Its results are partial results for these groups, then partial
            results for these experts.
          by_token: tensors [G, S, ...].
          like_tokens: for each result for the groups, the tensor of `by_token` with its shape and dtype.
          like_weights: for each result for the experts, the weight with its shape.
        """
        if self.mesh is None:
            return list(function(weights, by_token, tf.zeros([], tf.int32)))
        of_weights = {name: self.mesh.partition(LETTERS[name]) for name in weights}
        of_tokens = {
            name: (self.tokens, *[()] * (x.shape.rank - 1)) for name, x in by_token.items()
        }
        numbers = {"numbers": tf.range(next(iter(weights.values())).shape[0])}

        def partial(shards: Tensors) -> list["tf.Tensor"]:
            own_weights = {name: shards[name] for name in weights}
            own_tokens = {name: shards[name] for name in by_token}
            results = function(own_weights, own_tokens, shards["numbers"][0])
            return [result[tf.newaxis] for result in results]

        # The partial results are stacked in a new first dimension.
        results = [
            (by_token[name].shape, by_token[name].dtype, (self.summed, *of_tokens[name]))
            for name in like_tokens
        ]
        results += [
            (weights[name].shape, _sum_dtype(weights[name]), (self.tokens, *of_weights[name]))
            for name in like_weights
        ]
        empty = [
            mesh_split(
                run_time_zeros([self._size(partition[0]), *shape], dtype), self.mesh, partition
            )
            for shape, dtype, partition in results
        ]
        stacked = _on_each_device(
            partial,
            self.mesh,
            {**weights, **by_token, **numbers},
            {**of_weights, **of_tokens, "numbers": (self.experts,)},
            empty,
            [partition for _, _, partition in results],
        )
        letters = ["GSM" if name == "tokens" else "GS_" for name in like_tokens]
        letters += [LETTERS[name] for name in like_weights]
        # This is step (3).
        return [
            annotate(tf.reduce_sum(result, axis=0), letters_of_result)
            for result, letters_of_result in zip(stacked, letters, strict=True)
        ]

    def _size(self, axes: Axes) -> int:
        return 1 if self.mesh is None else self.mesh.axis_size(axes)


def _forward(split: "Split", weights: Tensors, by_token: Tensors) -> "tf.Tensor":
    """Returns the outputs [G, S, M], piece by piece."""
    # On a mesh there is a loop more already; see _on_each_device.
    own_outputs = functools.partial(_own_outputs, split.expert, nested=split.mesh is None)

    def piece(part: Tensors, start: "tf.Tensor", outputs: "tf.Tensor") -> "tf.Tensor":
        (result,) = split.on_devices(own_outputs, weights, part, ["tokens"], [])
        return annotate(blocks.write(outputs, start, result, axis=1), "GSM")

    return split.for_each_piece(piece, by_token, _zeros_like(by_token["tokens"]))


def _backward(
    split: "Split", weights: Tensors, by_token: Tensors
) -> tuple["tf.Tensor", "tf.Tensor", Tensors]:
    """Returns the gradients of the tokens, of their weights and of the experts, piece by piece."""
    names = sorted(weights)
    own_gradients = functools.partial(_own_gradients, split.expert)

    def piece(part: Tensors, start: "tf.Tensor", carried):
        d_tokens, d_weight, totals = carried
        tokens, weight, *d_weights = split.on_devices(
            own_gradients, weights, part, ["tokens", "weight"], names
        )
        return (
            annotate(blocks.write(d_tokens, start, tokens, axis=1), "GSM"),
            annotate(blocks.write(d_weight, start, weight, axis=1), "GS_"),
            [
                annotate(total + d, LETTERS[name])
                for name, total, d in zip(names, totals, d_weights, strict=True)
            ],
        )

    start = (
        _zeros_like(by_token["tokens"]),
        _zeros_like(by_token["weight"]),
        [
            annotate(run_time_zeros(weights[n].shape, _sum_dtype(weights[n])), LETTERS[n])
            for n in names
        ],
    )
    d_tokens, d_weight, totals = split.for_each_piece(piece, by_token, start)
    d_weights = zip(names, totals, strict=True)
    return d_tokens, d_weight, {n: tf.cast(total, weights[n].dtype) for n, total in d_weights}


def _own_outputs(
    expert: blocks.Expert,
    weights: Tensors,
    by_token: Tensors,
    first_expert: "tf.Tensor",
    nested: bool,
) -> list["tf.Tensor"]:
    """Returns the outputs [G, S, M] of the experts in `weights`, whose first is `first_expert`."""
    rows, tokens = _plan(weights, by_token, first_expert)
    outputs = blocks.mixture(expert, weights, tokens, rows, nested)
    return [tf.reshape(outputs, by_token["tokens"].shape)]


def _own_gradients(
    expert: blocks.Expert, weights: Tensors, by_token: Tensors, first_expert: "tf.Tensor"
):
    """Returns the parts of the gradients that come from the experts in `weights`."""
    rows, tokens = _plan(weights, by_token, first_expert)
    dy = tf.reshape(by_token["dy"], tokens.shape)
    d_tokens, d_weight, d_weights = blocks.mixture_gradients(expert, weights, tokens, rows, dy)
    return [
        tf.reshape(d_tokens, by_token["tokens"].shape),
        tf.reshape(d_weight, by_token["weight"].shape),
        *[d_weights[name] for name in sorted(d_weights)],
    ]


def _plan(weights: Tensors, by_token: Tensors, first_expert) -> tuple[blocks.Plan, "tf.Tensor"]:
    num_groups, group_size, _ = by_token["tokens"].shape.as_list()
    # Shape: [G, S, ...] -> [n, ...]
    tokens, expert, weight = (
        tf.reshape(by_token[name], [num_groups * group_size, -1])
        for name in ("tokens", "expert", "weight")
    )
    return blocks.plan(expert - first_expert, weight, weights["wi"].shape[0]), tokens


def _zeros_like(x: "tf.Tensor") -> "tf.Tensor":
    return annotate(run_time_zeros(x.shape, x.dtype), "GS_")


def _sum_dtype(x: "tf.Tensor") -> "tf.DType":
    return tf.float64 if x.dtype == tf.float64 else tf.float32


def _on_each_device(
    function: Callable[[Tensors], Sequence["tf.Tensor"]],
    mesh: Mesh,
    inputs: Tensors,
    partitions: Mapping[str, Partition],
    empty: Sequence["tf.Tensor"],
    result_partitions: Sequence[Partition],
) -> list["tf.Tensor"]:
    """Returns the tensors whose shards are function(the shards of the inputs).

    The function runs in the body of a loop that ends after its first repeat. The compiler merges equal
    constants of a computation. If the partitioned code around the function shared a constant with it,
    XLA's partitioner would take that code for manual code and would fail. A body is a computation of
    its own.

    Args:
      function: takes the shards of one device and returns its shards of the results.
      partitions: the mesh axes that split each dimension of each input.
      empty: tensors with the shapes, dtypes and shardings of the results.
      result_partitions: the mesh axes that split each dimension of each result.
    """

    def body(again, _):
        shards = {name: auto_to_manual(x, mesh, partitions[name]) for name, x in inputs.items()}
        results = [
            manual_to_auto(result, mesh, partition, like.shape)
            for result, like, partition in zip(
                function(shards), empty, result_partitions, strict=True
            )
        ]
        return tf.logical_not(again), results

    _, results = tf.while_loop(lambda again, _: again, body, [tf.constant(True), list(empty)])
    return results
