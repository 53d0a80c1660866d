"""The Mixture-of-Experts layer: gate, dispatch, experts, combine (GShard section 2.2, Algorithm 2)."""

from collections.abc import Mapping

from gshard_nmt.model import dispatch, expert_shards, layers, regularizers
from gshard_nmt.model.gating import MoE, Routing, route
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import Parameter, fan_in_uniform, scoped, stacked, within
from gshard_nmt.spmd.sharding import annotate


def declare_moe(model_dim: int, moe: MoE) -> dict[str, Parameter]:
    """Declares the gate ME, the experts EMH and EHM with their biases if any, and the shared expert.

    An expert has two matrices, or three if the activation is gated. Their variance is 1 / fan-in of one
    expert. The gate stays whole on every device (GShard section 3.2, `replicate(wg)`): its dimension E is
    declared with the letter `_`, which no rule splits.
    """
    shape = (model_dim, moe.experts)
    gate = Parameter(shape, "M_", fan_in_uniform(model_dim), keep_float32=True)
    expert = layers.declare_feed_forward(model_dim, moe.hidden_dim, moe.activation, moe.biases)
    declared = {"gate": gate, **stacked("E", moe.experts, expert)}
    if not moe.shared_expert_dim:
        return declared
    shared = layers.declare_feed_forward(
        model_dim, moe.shared_expert_dim, moe.activation, moe.biases
    )
    return declared | scoped("shared", shared)


def moe_layer(
    p: Mapping[str, "tf.Tensor"], x: "tf.Tensor", is_token: "tf.Tensor", moe: MoE, mode: Mode
) -> tuple["tf.Tensor", Routing]:
    """Sends each token through its experts and adds their weighted outputs (Algorithm 2).

    Args:
      p: the parameters gate, wi, wo, for GEGLU wi_linear, and the biases if there are any. Those of a
        shared expert begin with "shared/".
      x: float32 or bfloat16[B, L, M].
      is_token: bool[B, L], False for padding, which takes no slot and enters no loss.
      mode: training or evaluation, and the random numbers.

    Returns:
      The output [B, L, M] and the routing. A token that lost all its choices has only the output of
      the shared expert, or 0 if there is none.
    """
    rows, length, model_dim = x.shape.as_list()
    num_groups = moe.groups(rows, length)
    tokens_per_group = rows * length // num_groups
    # Shape: [B, L, M] -> [G, S, M]. A group is S consecutive tokens of the row-major batch.
    tokens = annotate(tf.reshape(x, [num_groups, tokens_per_group, model_dim]), "GSM")
    # Shape: [B, L] -> [G, S]
    is_token = tf.reshape(is_token, [num_groups, tokens_per_group])
    # The loop over blocks has no gradient.
    by_blocks = moe.dispatch == "blocks" and not mode.training
    compute = _by_blocks if by_blocks else _by_slots
    combined, routing = compute(p, tokens, is_token, moe, mode)
    # Shape: [G, S, M] -> [B, L, M]
    output = annotate(tf.reshape(annotate(combined, "GSM"), [rows, length, model_dim]), "BLM")
    if moe.shared_expert_dim:
        with tf.name_scope("shared_expert"):
            output += layers.feed_forward(within(p, "shared"), x, moe.activation)
    return output, routing


def _by_slots(p, tokens, is_token, moe: MoE, mode: Mode) -> tuple["tf.Tensor", Routing]:
    # The scopes reach the compiled program, where gshard-inspect tells these four kinds of work apart.
    with tf.name_scope("gating"):
        routing = route(tokens, p["gate"], is_token, moe, mode)
        routing = regularizers.mask_expert_outputs(routing, moe.expert_output_masking, mode)
        by_slots = dispatch.by_gather if moe.has_room else dispatch.BY_SLOTS[moe.dispatch]
        to_experts, to_tokens = by_slots(routing, moe.experts, tokens.dtype)
        at_home = regularizers.stays_at_home(moe.gating_dropout, tokens.shape[0], moe.experts, mode)
    with tf.name_scope("dispatch"):
        # Shape: [G, E, C, M] -> [E, G, C, M], the first all-to-all: to the devices of the experts.
        inputs = regularizers.exchange(to_experts(tokens), "EGCM", *at_home)
        inputs = _kept(moe, mode, inputs, "EGM")
    with tf.name_scope("experts"):
        hidden = annotate(layers.activated(p, "EGCM,EMH->EGCH", inputs, moe.activation), "EGCH")
        hidden = layers.dropout(hidden, moe.expert_dropout, mode, "expert")
        outputs = annotate(layers.project("EGCH,EHM->EGCM", hidden, p, "wo"), "EGCM")
    with tf.name_scope("combine"):
        # Shape: [E, G, C, M] -> [G, E, C, M], the second all-to-all: to the devices of the tokens.
        outputs = regularizers.exchange(outputs, "GECM", *at_home)
        return to_tokens(_kept(moe, mode, outputs, "GEM")), routing


def _kept(moe: MoE, mode: Mode, slots: "tf.Tensor", letters: str) -> "tf.Tensor":
    """Keeps slots [E, G, C, M] or [G, E, C, M], without their dimension C, for the backward pass.

    With thousands of experts C is 2 or 4, and a TPU would keep such an array with 8 rows for C. Slots for
    all tokens in every expert would be too much to keep.
    """
    if moe.has_room:
        return slots
    first, second, capacity, model_dim = slots.shape.as_list()
    # Shape: [E, G, C, M] -> [E, G C, M]
    merged = tf.reshape(slots, [first, second * capacity, model_dim])
    return tf.reshape(mode.keep("experts", merged, letters), slots.shape)


def _by_blocks(p, tokens, is_token, moe: MoE, mode: Mode) -> tuple["tf.Tensor", Routing]:
    # An expert that no slot names gets no work.
    with tf.name_scope("gating"):
        routing = route(tokens, p["gate"], is_token, moe, mode, letters="GS_")
        by_token = {
            "tokens": tokens,
            # A choice without a slot has the number E, which no device has.
            "expert": routing.slot // routing.capacity,
            "weight": tf.cast(routing.weight, tokens.dtype),
        }
    weights = {name: p[name] for name in expert_shards.LETTERS if name in p}
    with tf.name_scope("experts"):
        return expert_shards.mixture(weights, by_token, moe.activation), routing
