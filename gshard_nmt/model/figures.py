"""The figures that a training step reports about its router and its losses: by layer, and by language.

Each MoE layer adds to the totals of all layers. Some totals have an element for each layer or each token.
So a loop over the layers can add them up, and they can still be separated afterwards.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from gshard_nmt.model import token_counts
from gshard_nmt.model.config import STACK_NAMES, Model
from gshard_nmt.model.expert_use import UseCounter
from gshard_nmt.model.gating import MoE, Routing
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import Declaration, Index, Totals, write_at
from gshard_nmt.model.stages import join_microbatches

LAYER_FIGURES = ("router_entropy", "overflow_fraction", "busiest_expert", "effective_experts")
"""The figures of one MoE layer, in the order of the columns of the total `by_layer`."""

OF_TOKENS = ("lost_one", "lost_both")
"""The totals that have a value for each token."""


def moe_layer_names(model: Model) -> list[str]:
    """Returns the names of the MoE layers, encoder first, such as "decoder_3"; layers count from 1."""
    return [
        f"{stack}_{block * model.block_layers(stack) + model.moe_layer(stack) + 1}"
        for stack in STACK_NAMES
        if model.has_experts(stack)
        for block in range(model.repeats(stack))
    ]


def declare_totals(moe: MoE | None, rows: int, length: int, repeats: int) -> dict[str, Declaration]:
    """Declares the totals of the MoE layers of one stack, for B rows of L tokens; {} without experts."""
    if moe is None:
        return {}
    groups = moe.groups(rows, length)
    tokens = Declaration((groups, rows * length // groups), "GS")
    return {
        "aux_loss": Declaration(()),
        "z_loss": Declaration(()),
        "by_layer": Declaration((repeats, len(LAYER_FIGURES))),
        **dict.fromkeys(OF_TOKENS, tokens),
    }


def totals_of(routings: Sequence[Routing], repeat: Index, repeats: int) -> Totals:
    """Returns what the MoE layer of a part of a block adds to the totals, or {} if there is no layer.

    Args:
      routings: the routing of the layer, if there is one. A block has one MoE layer.

    Returns:
      `aux_loss` and `z_loss` float32[]; `by_layer` float32[R, figures], with the
      figures of LAYER_FIGURES in row `repeat` and 0 elsewhere; `lost_one` and `lost_both` float32[G, S],
      1 if the token lost one, or both, of its chosen experts.
    """
    if not routings:
        return {}
    (routing,) = routings
    figures = _of_layer(routing.entropy, routing.overflow_fraction, routing.load)
    by_layer = tf.stop_gradient(tf.stack(figures))
    return {
        "aux_loss": routing.aux_loss,
        "z_loss": routing.z_loss,
        "by_layer": row_of(by_layer, repeat, repeats),
        "lost_one": tf.cast(tf.equal(routing.lost, 1), routing.load.dtype),
        "lost_both": tf.cast(tf.equal(routing.lost, 2), routing.load.dtype),
    }


def row_of(values: "tf.Tensor", repeat: Index, repeats: int) -> "tf.Tensor":
    """Returns [R, ...] with the values in row `repeat` and 0 elsewhere."""
    if isinstance(repeat, int):
        row = tf.one_hot(repeat, repeats, dtype=values.dtype)
        return tf.tensordot(row, values, axes=0)
    # Inside a pipeline's stage, no range and no zeros may equal those of outside: the compiler would
    # share them. So there is no one_hot, and the zeros come from the repeat, which is never negative.
    zero = tf.cast(tf.minimum(repeat, 0), values.dtype)
    return write_at(tf.broadcast_to(zero, [repeats, *values.shape]), repeat, values)


def of_batch(totals: Totals, segments: "tf.Tensor") -> Totals:
    """Returns the totals of a batch from those of its microbatches.

    Args:
      totals: the totals of `totals_of` and of `LayerSums`, with a leading dimension n, the number of
        microbatches; or {}. `LayerSums` has counted each microbatch with the share 1.
      segments: int32[n, B/n, L], the segments of the microbatches.

    Returns:
      The totals of `totals_of`, as for the whole batch. The values of tokens are [B, L], in the order of
      the batch.
    """
    if not totals:
        return {}
    tokens = tf.reduce_sum(tf.cast(segments > 0, tf.float32), axis=[1, 2])
    shares = tokens / tf.maximum(tf.reduce_sum(tokens), 1.0)
    # A mean over groups has equal terms. A mean over tokens has a term by the number of tokens.
    joined = {"aux_loss": tf.reduce_mean(totals["aux_loss"], axis=0)}
    joined["z_loss"] = tf.tensordot(shares, totals["z_loss"], axes=1)
    for name in OF_TOKENS:
        joined[name] = join_microbatches(tf.reshape(totals[name], segments.shape), "BL")
    entropy, counts, load = tf.split(totals["layer_sums"], [1, 2, -1], axis=2)
    terms = [tf.tensordot(shares, entropy, axes=1), tf.reduce_sum(counts, axis=0)]
    terms.append(tf.tensordot(shares, load, axes=1))
    return joined | {"by_layer": from_layer_sums(tf.concat(terms, axis=1))}


def _of_layer(
    entropy: "tf.Tensor", overflow_fraction: "tf.Tensor", load: "tf.Tensor"
) -> list["tf.Tensor"]:
    """Returns the figures of one layer, float32[] each, in the order of LAYER_FIGURES."""
    busiest_expert = tf.reduce_max(load) * load.shape[0]
    return [entropy, overflow_fraction, busiest_expert, effective_experts(load)]


@dataclasses.dataclass(frozen=True)
class LayerSums:
    """Adds up what the figures of each layer are computed from, over the microbatches of a batch.

    The figures themselves cannot be added up. For example, the busiest expert of the batch need not be
    the busiest expert of any microbatch.
    """

    experts: int  # E
    # float32[], the share of the batch's tokens that are in the microbatch
    share: "tf.Tensor | float"

    def declare(self, repeats: int) -> dict[str, Declaration]:
        """Declares the totals of one stack of R = `repeats` blocks; see `totals_of`."""
        return {"layer_sums": Declaration((repeats, 3 + self.experts))}

    def totals_of(self, routing: Routing, repeat: Index, repeats: int) -> Totals:
        """Returns the terms of a microbatch in the sums of one layer.

        They are `layer_sums` float32[R, 3 + E]. Row `repeat` has the term of the mean entropy, the number
        of choices that found no slot, the number of requests for a slot, and the terms of the load of
        each expert. Other rows are 0.
        """
        counts = [routing.entropy * self.share, tf.reduce_sum(routing.lost), routing.requests]
        terms = tf.stop_gradient(tf.concat([tf.stack(counts), routing.load * self.share], axis=0))
        return {"layer_sums": row_of(terms, repeat, repeats)}


LayerCounter = LayerSums | UseCounter
"""Adds totals of its own to those of a stack."""


def from_layer_sums(layer_sums: "tf.Tensor") -> "tf.Tensor":
    """Returns the total `by_layer` float32[R, figures] of a whole batch from its sums [R, 3 + E]."""
    rows = []
    for sums in tf.unstack(layer_sums):
        entropy, lost, requests, load = tf.split(sums, [1, 1, 1, -1])
        overflow_fraction = lost[0] / tf.maximum(requests[0], 1.0)
        rows.append(tf.stack(_of_layer(entropy[0], overflow_fraction, load)))
    return tf.stack(rows)


def effective_experts(load: "tf.Tensor") -> "tf.Tensor":
    """Returns exp(entropy) of the load float32[E]: E at balance, and 1 if one expert gets all tokens."""
    return tf.exp(-tf.reduce_sum(load * tf.math.log(tf.maximum(load, 1e-30))))


def router_metrics(model: Model, encoder: Totals, decoder: Totals) -> dict[str, "tf.Tensor"]:
    """Returns the router's figures as means over all MoE layers, and of each layer.

    Returns:
      float32[]: aux_loss and overflow_fraction, which are 0 in a dense model. With experts there are also
      router_z_loss, router_entropy in nats per token, and busiest_expert: the largest share of first
      choices that one expert of a layer gets, times E. It is 1 at perfect balance.
      float32[layers], in the order of `moe_layer_names`: `layer_NAME` for each of LAYER_FIGURES.
    """
    if not model.experts:
        return {"aux_loss": tf.zeros([]), "overflow_fraction": tf.zeros([])}
    stacks = [totals for totals in (encoder, decoder) if totals]
    by_layer = tf.concat([totals["by_layer"] for totals in stacks], axis=0)
    columns = dict(zip(LAYER_FIGURES, tf.unstack(by_layer, axis=1), strict=True))
    layers = by_layer.shape[0]
    return {
        "aux_loss": loss_total(encoder, decoder, "aux_loss") / layers,
        "overflow_fraction": tf.reduce_mean(columns["overflow_fraction"]),
        "router_z_loss": loss_total(encoder, decoder, "z_loss") / layers,
        **{n: tf.reduce_mean(columns[n]) for n in ("router_entropy", "busiest_expert")},
        **{f"layer_{name}": column for name, column in columns.items()},
    }


def loss_total(encoder: Totals, decoder: Totals, name: str) -> "tf.Tensor":
    return tf.add_n([totals[name] for totals in (encoder, decoder) if totals])


def language_metrics(
    model: Model,
    batch: Mapping[str, "tf.Tensor"],
    number: int,
    token_nll: "tf.Tensor",
    encoder: Totals,
    decoder: Totals,
) -> dict[str, "tf.Tensor"]:
    """Returns float32[languages] each, 0 for a language that has no token in the batch.

    Args:
      batch: int32[B, L] each.
      number: the number of languages of the run.
      token_nll: float32[B, L], the cross-entropy of each target token, in nats.

    Returns:
      `language_target_tokens`; `language_nll`, in nats per target token; with experts also
      `language_lost_one_expert` and `language_lost_both_experts`: the share of visits in which the
      token lost one, or both, of its chosen experts. A visit is one token in one MoE layer.
    """

    def by_language(languages: "tf.Tensor", values: "tf.Tensor") -> "tf.Tensor":
        """Sums values of tokens, [B, L] or [G, S], by language: [languages]."""
        # Shape: [B, L] -> [B, L] or [G, S]
        languages = tf.reshape(languages, values.shape)
        one_hot = token_counts.one_hot_languages(languages, number)
        values = tf.stop_gradient(values)[..., tf.newaxis]
        return tf.reduce_sum(tf.where(one_hot, values, tf.zeros([], values.dtype)), [0, 1])

    target = batch["target_languages"]
    target_tokens = by_language(target, tf.ones_like(token_nll))
    metrics = {
        "language_target_tokens": target_tokens,
        "language_nll": by_language(target, token_nll) / tf.maximum(target_tokens, 1.0),
    }
    stacks = [
        (batch[f"{side}_languages"], totals, model.repeats(stack))
        for side, stack, totals in zip(
            token_counts.SIDES, STACK_NAMES, (encoder, decoder), strict=True
        )
        if totals
    ]
    if not stacks:
        return metrics
    visits = [by_language(side, tf.ones(side.shape)) * repeats for side, _, repeats in stacks]
    for name, metric in (("lost_one", "lost_one_expert"), ("lost_both", "lost_both_experts")):
        lost = [by_language(side, totals[name]) for side, totals, _ in stacks]
        metrics[f"language_{metric}"] = tf.add_n(lost) / tf.maximum(tf.add_n(visits), 1.0)
    return metrics
