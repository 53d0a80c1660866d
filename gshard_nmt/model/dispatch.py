"""Dispatch and combine: tokens go to the slots of their experts, and weighted outputs come back.

There are two implementations. Their outputs and gradients are equal up to rounding. Each takes a
routing and returns a pair of functions:

    dispatch: [G, S, M] -> [G, E, C, M], empty slots are zero
    combine:  [G, E, C, M] -> [G, S, M], the weighted sum over the slots of a token
"""

import functools
import operator
from collections.abc import Callable, Sequence

from gshard_nmt.model.gating import Routing
from gshard_nmt.model.last_dimension import total
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.products import einsum
from gshard_nmt.spmd.sharding import annotate

DispatchAndCombine = tuple[
    Callable[["tf.Tensor"], "tf.Tensor"], Callable[["tf.Tensor"], "tf.Tensor"]
]


def by_einsum(routing: Routing, experts: int, dtype: "tf.DType") -> DispatchAndCombine:
    """Returns dispatch and combine as products with one-hot tensors GSEC (GShard Algorithm 2).

    This is best on a TPU, because a TPU is fast at products. Dispatch and combine each cost S / (2H) of
    the work of the experts (if their activation is not gated), so this is slow for large groups.
    """
    num_groups = routing.slot.shape[0]
    expert_capacity = routing.capacity
    num_slots = experts * expert_capacity
    # Shape: [G, S, A] -> A times [G, S, J]
    one_hots = [tf.one_hot(s, num_slots, dtype=dtype) for s in tf.unstack(routing.slot, axis=-1)]

    def by_slot(terms: Sequence["tf.Tensor"]) -> "tf.Tensor":
        """Adds up the assignments of a token, A times [G, S, J]: [G, S, J].

        We add A tensors. A TPU is several times slower at the sum over a dimension A of one tensor.

        With thousands of experts, C is 2 or 4. If the last dimension of an array is so short, most of a
        TPU's lanes are idle. We therefore merge E and C into one dimension J. All slots of an expert
        follow each other, so a mesh splits J as it splits E.
        """
        return annotate(functools.reduce(operator.add, terms), "GSE")

    dispatch_mask = by_slot(one_hots)
    # Shape: [G, S, A] -> A times [G, S]
    weights = tf.unstack(tf.cast(routing.weight, dtype), axis=-1)
    combine_weights = by_slot(
        [one_hot * w[..., tf.newaxis] for one_hot, w in zip(one_hots, weights, strict=True)]
    )

    def dispatch(tokens: "tf.Tensor") -> "tf.Tensor":
        inputs = einsum("GSJ,GSM->GJM", dispatch_mask, tokens)
        # Shape: [G, J, M] -> [G, E, C, M]
        shape = [num_groups, experts, expert_capacity, tokens.shape[-1]]
        return annotate(tf.reshape(inputs, shape), "GECM")

    def combine(outputs: "tf.Tensor") -> "tf.Tensor":
        # Shape: [G, E, C, M] -> [G, J, M]
        shape = [num_groups, num_slots, outputs.shape[-1]]
        outputs = tf.reshape(annotate(outputs, "GECM"), shape)
        return einsum("GSJ,GJM->GSM", combine_weights, outputs)

    return dispatch, combine


def by_gather(routing: Routing, experts: int, dtype: "tf.DType") -> DispatchAndCombine:
    """Returns dispatch and combine with indices within the group (GShard section 3.2).

    This is best on a CPU and for large groups.

    (1) For each slot, find the token in it. A slot holds at most one token.
    (2) Dispatch gathers, for each slot, its token.
    (3) Combine gathers, for each token, the outputs of its slots, and adds them with their weights.

    The automatic gradient of a gather is a scatter. Here the gradient of (2) gathers for each token, as
    (3) does. The gradient of (3) gathers for each slot, as (2) does. So no activation is ever scattered.
    This is right only because a slot holds at most one token.
    """
    num_groups, group_size, assignments = routing.slot.shape.as_list()
    num_slots = experts * routing.capacity
    # Shape: [G, S, A] -> bool[G, J, S A]
    choices = tf.reshape(routing.slot, [num_groups, 1, group_size * assignments])
    is_in_slot = choices == tf.range(num_slots)[:, tf.newaxis]
    numbers = tf.range(1, group_size * assignments + 1)
    # Shape: [G, J, S A] -> int32[G, J]; -1 in an empty slot
    choice_or_empty = total(tf.where(is_in_slot, numbers, 0))[..., 0] - 1
    choice_of_slot = tf.maximum(choice_or_empty, 0)
    is_occupied = tf.cast(choice_or_empty >= 0, dtype)
    token_of_slot, choice = choice_of_slot // assignments, choice_of_slot % assignments
    # A dropped choice has no slot. It reads the last slot, and the mask makes the result zero.
    slot_of_choice = tf.minimum(routing.slot, num_slots - 1)
    is_admitted = tf.cast(routing.slot < num_slots, dtype)

    def gather_tokens(tokens: "tf.Tensor") -> "tf.Tensor":
        """Reads the token of each slot: [G, S, M] -> [G, J, M]."""
        return tf.gather(tokens, token_of_slot, batch_dims=1) * is_occupied[..., tf.newaxis]

    def gather_slots(slots: "tf.Tensor", a: int) -> "tf.Tensor":
        """Reads the slot of choice `a` of each token: [G, J, M] -> [G, S, M]."""
        read = tf.gather(slots, slot_of_choice[:, :, a], batch_dims=1)
        return read * is_admitted[:, :, a, tf.newaxis]

    @tf.custom_gradient
    def dispatch_flat(tokens):
        return gather_tokens(tokens), lambda dy: sum(
            gather_slots(dy, a) for a in range(assignments)
        )

    @tf.custom_gradient
    def combine_flat(outputs, weight):
        chosen = [gather_slots(outputs, a) for a in range(assignments)]
        combined = sum(weight[:, :, a, tf.newaxis] * chosen[a] for a in range(assignments))

        def gradient(dy):
            d_weight = tf.stack([tf.reduce_sum(y * dy, axis=-1) for y in chosen], axis=-1)
            # Shape: [G, S, A] -> [G, J, A] -> [G, J]
            weights_of_token = tf.gather(weight, token_of_slot, batch_dims=1)
            weight_of_slot = weights_of_token[..., 0]
            if assignments > 1:
                weight_of_slot = tf.where(choice == 1, weights_of_token[..., 1], weight_of_slot)
            return gather_tokens(dy) * weight_of_slot[..., tf.newaxis], d_weight

        return combined, gradient

    def dispatch(tokens: "tf.Tensor") -> "tf.Tensor":
        # (2) Shape: [G, S, M] -> [G, J, M] -> [G, E, C, M]
        shape = [num_groups, experts, routing.capacity, tokens.shape[-1]]
        return annotate(tf.reshape(annotate(dispatch_flat(tokens), "GJM"), shape), "GECM")

    def combine(outputs: "tf.Tensor") -> "tf.Tensor":
        # (3) Shape: [G, E, C, M] -> [G, J, M] -> [G, S, M]
        shape = [num_groups, num_slots, outputs.shape[-1]]
        outputs = annotate(tf.reshape(outputs, shape), "GJM")
        return combine_flat(outputs, tf.cast(routing.weight, dtype))

    return dispatch, combine


BY_SLOTS = {"gather": by_gather, "einsum": by_einsum}
DISPATCHES = (*BY_SLOTS, "dense", "blocks")
