"""The Mixture of Experts: top-2 gating in local groups, dispatch, experts, combine.

GShard section 2.2, Algorithm 1 (gating) and Algorithm 2 (the layer). Where the paper's pseudo-code and
its authors' code differ, this follows the code, and says so at the line.
"""

import dataclasses
import math
from collections.abc import Mapping

from gshard_nmt.errors import UserError
from gshard_nmt.model import random
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.parameters import Parameter, fan_in_uniform
from gshard_nmt.model.tensorflow import tf
from gshard_nmt.spmd.sharding import annotate

DISPATCHES = ("gather", "einsum")
_POLICIES = ("random", "all")


@dataclasses.dataclass(frozen=True)
class MoE:
    """The shape and the rules of one Mixture-of-Experts layer.

    Attributes:
      experts: E.
      hidden_dim: H of an expert.
      num_groups: G; tokens are divided into as many groups, and each is gated on its own.
      capacity_factor: slots of all experts together for each token of a group; C = ceil(factor S / E).
        The paper's is 2.
      second_expert: "random" sends a token to its second expert with probability min(1, 2 w2), as the
        paper; "all" always does.
      dispatch: "gather" (indices, fast on a CPU and for large groups) or "einsum" (one-hot products,
        Algorithm 2, fast on a TPU); equal to rounding.
    """

    experts: int
    hidden_dim: int
    num_groups: int
    capacity_factor: float
    second_expert: str
    dispatch: str

    def __post_init__(self) -> None:
        if self.second_expert not in _POLICIES:
            raise UserError(
                f"second_expert is {self.second_expert!r}; it must be one of {list(_POLICIES)}."
            )
        if self.dispatch not in DISPATCHES:
            raise UserError(f"dispatch is {self.dispatch!r}; it must be one of {list(DISPATCHES)}.")
        if self.experts < 2:
            raise UserError(f"{self.experts} experts; top-2 gating needs at least 2.")

    def capacity(self, group_size: int) -> int:
        """C, the slots of an expert in a group of S tokens; at least 1, at most S."""
        slots = math.ceil(self.capacity_factor * group_size / self.experts)
        return max(1, min(group_size, slots))


@dataclasses.dataclass(frozen=True)
class Routing:
    """Where each token goes. Of the two choices of a token, the first is k = 0.

    Attributes:
      slot: int32[G, S, 2], expert * C + position in the expert; E * C where the choice is dropped.
      weight: float32[G, S, 2], the gate's weight; 0 where the choice is dropped.
      capacity: C.
      aux_loss: float32[], E * sum_e f_e m_e, averaged over groups; 1 at balance. E**2 times the
        paper's, the authors' scale.
      overflow_fraction: float32[], the share of wanted choices that found their expert full.
      load: float32[E], the share of first choices that each expert got.
    """

    slot: "tf.Tensor"
    weight: "tf.Tensor"
    capacity: int
    aux_loss: "tf.Tensor"
    overflow_fraction: "tf.Tensor"
    load: "tf.Tensor"


def declare_moe(model_dim: int, moe: MoE) -> dict[str, Parameter]:
    """The gate ME and two matrices an expert, EMH and EHM, variance 1 / fan-in of one expert."""
    m, h, e = model_dim, moe.hidden_dim, moe.experts
    return {
        "gate": Parameter((m, e), "ME", fan_in_uniform(m)),
        "wi": Parameter((e, m, h), "EMH", fan_in_uniform(m)),
        "wo": Parameter((e, h, m), "EHM", fan_in_uniform(h)),
    }


def moe_layer(
    p: Mapping[str, "tf.Tensor"], x: "tf.Tensor", real: "tf.Tensor", moe: MoE, mode: Mode
) -> tuple["tf.Tensor", Routing]:
    """Each token through its two experts (Algorithm 2).

    Args:
      p: gate, wi and wo.
      x: float32[B, L, M].
      real: bool[B, L], False for padding, which takes no slot and enters no loss.
      moe: the layer's shape and rules.
      mode: training or not, and random numbers.

    Returns:
      float32[B, L, M], 0 for a token that lost both choices, and the routing.
    """
    b, l, m = x.shape.as_list()
    g = moe.num_groups
    if b * l % g:
        raise UserError(
            f"{b} rows of {l} tokens do not divide into num_groups = {g}; "
            f"the nearest legal numbers of groups are {nearest_divisors(b * l, g)}."
        )
    # [B, L, M] -> [G, S, M]: a group is S consecutive tokens of the row-major batch.
    tokens = annotate(tf.reshape(x, [g, b * l // g, m]), "GSM")
    routing = route(tokens, p["gate"], tf.reshape(real, [g, b * l // g]), moe, mode)
    dispatch, combine = {"gather": _by_gather, "einsum": _by_einsum}[moe.dispatch](routing, moe)
    # GECM -> EGCM on other devices: the first all-to-all.
    inputs = annotate(tf.transpose(dispatch(tokens), [1, 0, 2, 3]), "EGCM")
    outputs = annotate(_experts(p, inputs), "EGCM")
    # EGCM -> GECM, back where the tokens live: the second all-to-all.
    outputs = annotate(tf.transpose(outputs, [1, 0, 2, 3]), "GECM")
    combined = annotate(combine(outputs), "GSM")
    return annotate(tf.reshape(combined, [b, l, m]), "BLM"), routing


def route(
    tokens: "tf.Tensor", gate: "tf.Tensor", real: "tf.Tensor", moe: MoE, mode: Mode
) -> Routing:
    """Top-2 gating with local groups, capacity and the auxiliary loss (Algorithm 1).

    Args:
      tokens: float32[G, S, M].
      gate: float32[M, E].
      real: bool[G, S].
      moe: the rules.
      mode: training draws the random second expert where the policy asks for it.
    """
    logits = tf.einsum("GSM,ME->GSE", tokens, gate)
    key = mode.named("second_expert").key
    draw = None
    if mode.training and moe.second_expert == "random" and key is not None:
        draw = random.uniform(key, real.shape.as_list())
    return top2(annotate(logits, "GSE"), real, moe.capacity(real.shape[1]), draw)


def top2(
    logits: "tf.Tensor", real: "tf.Tensor", capacity: int, draw: "tf.Tensor | None"
) -> Routing:
    """Algorithm 1 on logits float32[G, S, E]; real bool[G, S]; draw float32[G, S] in [0, 1) or None.

    All first choices of a group come before all second choices, and within a pass earlier tokens come
    first. Weights are normalised over the pair before anything is dropped and never again.
    """
    experts = logits.shape[-1]
    gates = tf.nn.softmax(logits)
    first = tf.argmax(logits, axis=-1, output_type=tf.int32)
    hot1 = tf.one_hot(first, experts)
    # Masked with -inf rather than multiplied: with one-hot gates the second must still differ.
    second = tf.argmax(tf.where(hot1 > 0, -math.inf, logits), axis=-1, output_type=tf.int32)
    hot2 = tf.one_hot(second, experts)
    gate1, gate2 = tf.reduce_sum(gates * hot1, -1), tf.reduce_sum(gates * hot2, -1)
    total = gate1 + gate2 + 1e-9
    weight1, weight2 = gate1 / total, gate2 / total

    wanted1 = real
    # A second choice that the draw drops takes no slot: the authors' code. Algorithm 1 as printed
    # counts it all the same, against the text's aim of saving capacity.
    wanted2 = real if draw is None else real & (2.0 * weight2 > draw)
    mask1 = tf.cast(hot1, tf.int32) * tf.cast(wanted1, tf.int32)[..., tf.newaxis]
    mask2 = tf.cast(hot2, tf.int32) * tf.cast(wanted2, tf.int32)[..., tf.newaxis]
    admitted_firsts = tf.minimum(tf.reduce_sum(mask1, axis=1, keepdims=True), capacity)
    position1 = tf.reduce_sum(_count_before(mask1) * mask1, axis=-1)
    position2 = tf.reduce_sum((_count_before(mask2) + admitted_firsts) * mask2, axis=-1)
    kept1 = wanted1 & (position1 < capacity)
    kept2 = wanted2 & (position2 < capacity)

    dropped = experts * capacity
    slot = tf.stack(
        [
            tf.where(kept1, first * capacity + position1, dropped),
            tf.where(kept2, second * capacity + position2, dropped),
        ],
        axis=-1,
    )
    kept = tf.stack([kept1, kept2], axis=-1)
    weight = tf.where(kept, tf.stack([weight1, weight2], axis=-1), 0.0)

    real_float = tf.cast(real, tf.float32)[..., tf.newaxis]
    # Means over all S tokens, padding included, as in the authors' code.
    density = tf.reduce_mean(hot1 * real_float, axis=1)
    mean_gate = tf.reduce_mean(gates * real_float, axis=1)
    aux_loss = experts * tf.reduce_mean(tf.reduce_sum(density * mean_gate, axis=-1))
    wanted = tf.reduce_sum(tf.cast(wanted1, tf.float32)) + tf.reduce_sum(
        tf.cast(wanted2, tf.float32)
    )
    lost = wanted - tf.reduce_sum(tf.cast(kept, tf.float32))
    load = tf.reduce_sum(density, axis=0) / tf.maximum(tf.reduce_sum(density), 1e-9)
    return Routing(slot, weight, capacity, aux_loss, lost / tf.maximum(wanted, 1.0), load)


def _count_before(mask: "tf.Tensor") -> "tf.Tensor":
    """int32[G, S, E]: how many earlier tokens of the group chose the expert."""
    return tf.cumsum(mask, axis=1, exclusive=True)


def _experts(p: Mapping[str, "tf.Tensor"], inputs: "tf.Tensor") -> "tf.Tensor":
    """relu(x wi) wo, each expert with its own matrices: float32[E, G, C, M] -> the same shape."""
    hidden = annotate(tf.nn.relu(tf.einsum("EGCM,EMH->EGCH", inputs, p["wi"])), "EGCH")
    return tf.einsum("EGCH,EHM->EGCM", hidden, p["wo"])


def _by_einsum(routing: Routing, moe: MoE):
    """Dispatch and combine as products with one-hot tensors GSEC (Algorithm 2)."""
    g, s, _ = routing.slot.shape.as_list()
    e, c = moe.experts, routing.capacity
    one_hot = tf.one_hot(routing.slot, e * c)  # GSKJ; a dropped choice is all zero
    shape = [g, s, e, c]
    dispatch_mask = annotate(tf.reshape(tf.reduce_sum(one_hot, axis=2), shape), "GSEC")
    combine_weights = annotate(
        tf.reshape(tf.einsum("GSKJ,GSK->GSJ", one_hot, routing.weight), shape), "GSEC"
    )

    def dispatch(tokens: "tf.Tensor") -> "tf.Tensor":
        return annotate(tf.einsum("GSEC,GSM->GECM", dispatch_mask, tokens), "GECM")

    def combine(outputs: "tf.Tensor") -> "tf.Tensor":
        return tf.einsum("GSEC,GECM->GSM", combine_weights, outputs)

    return dispatch, combine


def _by_gather(routing: Routing, moe: MoE):
    """Dispatch and combine by indices within the group (GShard section 3.2).

    A slot holds at most one token, so the gradient of a gather over slots is a gather over tokens:
    activations are never scattered, in either direction.
    """
    g, s, _ = routing.slot.shape.as_list()
    slots = moe.experts * routing.capacity
    hit = routing.slot[..., tf.newaxis] == tf.range(slots)  # bool[G, S, 2, J]
    numbered = tf.where(hit, tf.range(1, s + 1)[:, tf.newaxis, tf.newaxis], 0)
    occupant = tf.reduce_sum(numbered, axis=[1, 2]) - 1  # int32[G, J]; -1 = empty
    token_of_slot, full = tf.maximum(occupant, 0), tf.cast(occupant >= 0, tf.float32)
    slot = tf.minimum(routing.slot, slots - 1)
    kept = tf.cast(routing.slot < slots, tf.float32)
    choice_of_slot = tf.reduce_sum(tf.where(hit[:, :, 1], 1, 0), axis=1)  # int32[G, J]

    def to_slots(tokens: "tf.Tensor") -> "tf.Tensor":
        return tf.gather(tokens, token_of_slot, batch_dims=1) * full[..., tf.newaxis]

    def of_choice(slotted: "tf.Tensor", k: int) -> "tf.Tensor":
        return tf.gather(slotted, slot[:, :, k], batch_dims=1) * kept[:, :, k, tf.newaxis]

    @tf.custom_gradient
    def dispatch_flat(tokens):
        return to_slots(tokens), lambda dy: of_choice(dy, 0) + of_choice(dy, 1)

    @tf.custom_gradient
    def combine_flat(outputs, weight):
        chosen = [of_choice(outputs, k) for k in range(2)]
        combined = sum(weight[:, :, k, tf.newaxis] * chosen[k] for k in range(2))

        def gradient(dy):
            d_weight = tf.stack([tf.reduce_sum(chosen[k] * dy, axis=-1) for k in range(2)], -1)
            both = tf.gather(weight, token_of_slot, batch_dims=1)  # GJK
            weight_of_slot = tf.where(choice_of_slot == 0, both[..., 0], both[..., 1])
            return to_slots(dy) * weight_of_slot[..., tf.newaxis], d_weight

        return combined, gradient

    shape = [g, moe.experts, routing.capacity, -1]

    def dispatch(tokens: "tf.Tensor") -> "tf.Tensor":
        return annotate(tf.reshape(annotate(dispatch_flat(tokens), "GJM"), shape), "GECM")

    def combine(outputs: "tf.Tensor") -> "tf.Tensor":
        flat = annotate(tf.reshape(outputs, [g, slots, outputs.shape[-1]]), "GJM")
        return combine_flat(flat, routing.weight)

    return dispatch, combine


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of `number` on either side of `wanted`, itself included."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    below = [n for n in divisors if n <= wanted][-1:]
    above = [n for n in divisors if n >= wanted][:1]
    return sorted({*below, *above})
