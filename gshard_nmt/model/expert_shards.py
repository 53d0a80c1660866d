"""Runs each expert on the device that has its weights: tokens move between devices, and weights stay.

Each device computes a partial result: the outputs of its own experts for all tokens that reach it. The
sum of the partial results over the devices is the result. There are three steps, all in one program:

(1) The tokens are gathered along the mesh axes that split the experts or their hidden units.
(2) Each device computes its own experts on its own, without communication.
(3) The partial results are summed along the same axes, and each device keeps its own tokens.

A token has one or two experts. So at most two partial results of a token are not zero, and their sum is
the same in any order, on CPUs bit for bit. If the mesh splits the hidden units too, each product is a sum
over devices, and its last bits depend on their number.
"""

import functools

from gshard_nmt.model import blocks, layers
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import Values, read, run_time_zeros, write
from gshard_nmt.model.stages import in_own_computation
from gshard_nmt.spmd.sharding import (
    Mesh,
    active_mesh,
    annotate,
    auto_to_manual,
    is_for_cpu,
    manual_to_auto,
    mesh_split,
)

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


def mixture(weights: Values, by_token: Values, activation: str = "relu") -> "tf.Tensor":
    """Returns the weighted outputs of the experts of each token, [G, S, M].

    Args:
      weights: the weights of all experts, by the names in LETTERS.
      by_token: `tokens` [G, S, M]; `expert` int32[G, S, A], E or more if the choice is none;
        `weight` [G, S, A] in the dtype of `tokens`.
      activation: one of `layers.ACTIVATIONS`.
    """
    tokens, mesh = by_token["tokens"], active_mesh()
    num_groups, group_size, _ = tokens.shape.as_list()
    if mesh is None or mesh.num_devices == 1 or tf.executing_eagerly():
        size = piece_size(num_groups, group_size)
        outputs_of = functools.partial(_own_outputs, weights, activation, 0, 1)
    else:
        outputs_of = functools.partial(_on_devices, mesh, weights, activation)
        _, _, groups = mesh.partition("EHG")
        size = piece_size(-(-num_groups // mesh.axis_size(groups)), group_size)
    if size == group_size:
        return outputs_of(by_token)

    def piece(start, outputs):
        part = {name: read(x, start, size, axis=1) for name, x in by_token.items()}
        outputs = write(outputs, start, outputs_of(part), axis=1)
        return start + size, annotate(outputs, "GSM")

    empty = annotate(run_time_zeros(tokens.shape, tokens.dtype), "GS_")
    start = [tf.zeros([], tf.int32), empty]
    return tf.while_loop(lambda start, _: start < group_size, piece, start)[1]


def piece_size(num_groups: int, group_size: int) -> int:
    """Returns how many tokens of each group run at a time. It divides S."""
    most = min(max(1, MOST_TOKENS // num_groups), group_size)
    return max(n for n in range(1, most + 1) if group_size % n == 0)


def _on_devices(mesh: Mesh, weights: Values, activation: str, by_token: Values) -> "tf.Tensor":
    """Computes the experts of each device on it, and returns the sums of the partial results."""
    # Groups are split over the axes that experts and hidden units leave.
    experts, hidden, groups = mesh.partition("EHG")
    summed, tokens = (*experts, *hidden), by_token["tokens"]
    if "wo_bias" in weights and hidden:
        # Each device with a part of the hidden units adds a part of the bias.
        weights = {**weights, "wo_bias": weights["wo_bias"] / mesh.axis_size(hidden)}
    number = tf.range(weights["wi"].shape[0])
    inputs = {**weights, **by_token, "number": number}
    partitions = {name: mesh.partition(LETTERS[name]) for name in weights}
    partitions |= dict.fromkeys(by_token, (groups, (), ())) | {"number": (experts,)}
    # The partial results are stacked in a new first dimension.
    partition = (summed, groups, (), ())
    empty = run_time_zeros([mesh.axis_size(summed), *tokens.shape], tokens.dtype)

    def work(_: "tf.Tensor") -> "tf.Tensor":
        own = {name: auto_to_manual(x, mesh, partitions[name]) for name, x in inputs.items()}
        own_weights = {name: own[name] for name in weights}
        shards = mesh.axis_size(experts)
        result = _own_outputs(own_weights, activation, own["number"][0], shards, own)
        return manual_to_auto(result[tf.newaxis], mesh, partition, empty.shape)

    stacked = in_own_computation(work, mesh_split(empty, mesh, partition))
    # This is step (3).
    return annotate(tf.reduce_sum(stacked, axis=0), "GSM")


def _own_outputs(
    weights: Values, activation: str, first_expert: "tf.Tensor | int", shards: int, by_token: Values
) -> "tf.Tensor":
    """Returns the outputs [G, S, M] of the experts in `weights`, one of `shards` equal parts of all."""

    def expert(p: Values, x: "tf.Tensor") -> "tf.Tensor":
        hidden = layers.activated(p, "NBM,NMH->NBH", x, activation)
        return layers.project("NBH,NHM->NBM", hidden, p, "wo")

    num_groups, group_size, _ = by_token["tokens"].shape.as_list()
    # Shape: [G, S, ...] -> [n, ...]
    tokens, choices, weight = (
        tf.reshape(by_token[name], [num_groups * group_size, -1])
        for name in ("tokens", "expert", "weight")
    )
    choices, experts = choices - first_expert, weights["wi"].shape[0]
    sizes = blocks.ONE_BLOCK
    if not is_for_cpu():
        numbers = sum(w.shape.num_elements() for w in weights.values()) // experts
        own_choices = -(-choices.shape.num_elements() // shards)
        sizes = blocks.many_blocks(own_choices, experts, numbers * tokens.dtype.size)
    rows = blocks.plan(choices, weight, experts, sizes)
    return tf.reshape(blocks.mixture(expert, weights, tokens, rows), by_token["tokens"].shape)
