"""Dispatch and combine: tokens to the slots of their experts, and outputs back, weighted.

Three implementations of one contract, equal to rounding in outputs and gradients. Each makes from a
routing a pair of functions

    dispatch: [G, S, M] -> [G, E, C, M], empty slots zero
    combine:  [G, E, C, M] -> [G, S, M], the weighted sum over a token's slots

`dense` has no slots: every expert sees every token, [G, S, M] -> [E, G, S, M] and back.
"""

from collections.abc import Callable

from gshard_nmt.model.gating import Routing
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd.sharding import annotate

Pair = tuple[Callable[["tf.Tensor"], "tf.Tensor"], Callable[["tf.Tensor"], "tf.Tensor"]]


def by_einsum(routing: Routing, experts: int, dtype: "tf.DType") -> Pair:
    """Products with one-hot tensors GSEC (GShard Algorithm 2): best on a TPU, whose products are fast.

    Costs S / (2H) of the experts' work for each group of S tokens.
    """
    g, s, _ = routing.slot.shape.as_list()
    slots = experts * routing.capacity
    one_hot = tf.one_hot(routing.slot, slots, dtype=dtype)  # GSKJ

    def by_slot(of_choices: "tf.Tensor") -> "tf.Tensor":
        """GSKJ -> GSJ, split as GSEC. With thousands of experts C is 2 or 4, and products whose last
        dimension is as short waste most of a TPU's lanes: J = EC is the same numbers in one dimension.
        """
        summed = tf.reduce_sum(of_choices, axis=2)
        annotated = annotate(tf.reshape(summed, [g, s, experts, routing.capacity]), "GSEC")
        return tf.reshape(annotated, [g, s, slots])

    dispatch_mask = by_slot(one_hot)
    combine_weights = by_slot(one_hot * tf.cast(routing.weight, dtype)[..., tf.newaxis])

    def dispatch(tokens: "tf.Tensor") -> "tf.Tensor":
        slotted = tf.einsum("GSJ,GSM->GJM", dispatch_mask, tokens)
        shape = [g, experts, routing.capacity, tokens.shape[-1]]
        return annotate(tf.reshape(slotted, shape), "GECM")

    def combine(outputs: "tf.Tensor") -> "tf.Tensor":
        flat = tf.reshape(annotate(outputs, "GECM"), [g, slots, outputs.shape[-1]])
        return tf.einsum("GSJ,GJM->GSM", combine_weights, flat)

    return dispatch, combine


def by_gather(routing: Routing, experts: int, dtype: "tf.DType") -> Pair:
    """Indices within the group (GShard section 3.2): best on a CPU and for large groups.

    A slot holds at most one token, so the gradient of a gather over slots is a gather over tokens:
    activations are never scattered, in either direction.
    """
    g, s, choices = routing.slot.shape.as_list()
    slots = experts * routing.capacity
    hit = routing.slot[..., tf.newaxis] == tf.range(slots)  # bool[G, S, K, J]
    numbered = tf.where(hit, tf.range(1, s + 1)[:, tf.newaxis, tf.newaxis], 0)
    occupant = tf.reduce_sum(numbered, axis=[1, 2]) - 1  # int32[G, J]; -1 = empty
    token_of_slot, full = tf.maximum(occupant, 0), tf.cast(occupant >= 0, dtype)
    slot = tf.minimum(routing.slot, slots - 1)
    kept = tf.cast(routing.slot < slots, dtype)
    second = tf.reduce_any(hit[:, :, -1], axis=1) if choices > 1 else None  # bool[G, J]

    def to_slots(tokens: "tf.Tensor") -> "tf.Tensor":
        return tf.gather(tokens, token_of_slot, batch_dims=1) * full[..., tf.newaxis]

    def of_choice(slotted: "tf.Tensor", k: int) -> "tf.Tensor":
        return tf.gather(slotted, slot[:, :, k], batch_dims=1) * kept[:, :, k, tf.newaxis]

    @tf.custom_gradient
    def dispatch_flat(tokens):
        return to_slots(tokens), lambda dy: sum(of_choice(dy, k) for k in range(choices))

    @tf.custom_gradient
    def combine_flat(outputs, weight):
        chosen = [of_choice(outputs, k) for k in range(choices)]
        combined = sum(weight[:, :, k, tf.newaxis] * chosen[k] for k in range(choices))

        def gradient(dy):
            d_weight = tf.stack([tf.reduce_sum(one * dy, axis=-1) for one in chosen], axis=-1)
            of_token = tf.gather(weight, token_of_slot, batch_dims=1)  # GJK
            of_slot = of_token[..., 0]
            if second is not None:
                of_slot = tf.where(second, of_token[..., 1], of_slot)
            return to_slots(dy) * of_slot[..., tf.newaxis], d_weight

        return combined, gradient

    def dispatch(tokens: "tf.Tensor") -> "tf.Tensor":
        shape = [g, experts, routing.capacity, tokens.shape[-1]]
        return annotate(tf.reshape(annotate(dispatch_flat(tokens), "GJM"), shape), "GECM")

    def combine(outputs: "tf.Tensor") -> "tf.Tensor":
        flat = annotate(tf.reshape(outputs, [g, slots, outputs.shape[-1]]), "GJM")
        return combine_flat(flat, tf.cast(routing.weight, dtype))

    return dispatch, combine


def dense(routing: Routing, experts: int, dtype: "tf.DType") -> Pair:
    """Every expert on every token, weighted by the gates of those it chose: no capacity, no drops."""
    one_hot = tf.one_hot(routing.slot // routing.capacity, experts, dtype=dtype)  # GSKE
    weight = tf.cast(routing.weight, dtype)
    mixture = annotate(tf.reduce_sum(one_hot * weight[..., tf.newaxis], axis=2), "GSE")

    def dispatch(tokens: "tf.Tensor") -> "tf.Tensor":
        g, s, m = tokens.shape.as_list()
        return annotate(tf.broadcast_to(tokens[tf.newaxis], [experts, g, s, m]), "EGSM")

    def combine(outputs: "tf.Tensor") -> "tf.Tensor":
        return tf.einsum("GSE,EGSM->GSM", mixture, outputs)

    return dispatch, combine


BY_SLOTS = {"gather": by_gather, "einsum": by_einsum}
DISPATCHES = (*BY_SLOTS, "dense")
