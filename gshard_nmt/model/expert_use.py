"""Counts which experts the tokens of each language choose, by layer, language and expert.

The counts are totals of a stack, like the router's figures in `figures`. Only a study of a trained model
asks for them. Training, evaluation and decoding do not compute them.
"""

import dataclasses
from collections.abc import Mapping

from gshard_nmt.model import products, token_counts
from gshard_nmt.model.gating import Routing
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import Declaration, Index, Totals


@dataclasses.dataclass(frozen=True)
class UseCounter:
    """Counts the choices of each language's tokens in the MoE layers of one stack."""

    # int32[B, L], 1 + the number of the language of each token; 0 is padding
    languages: "tf.Tensor"
    number: int  # the number of languages
    experts: int  # E

    def declare(self, repeats: int) -> dict[str, Declaration]:
        """Declares the totals of one stack with R = `repeats` blocks; see `totals_of`."""
        total = Declaration((repeats, self.number, self.experts))
        return {"chosen": total, "weight": total}

    def totals_of(self, routing: Routing, repeat: Index, repeats: int) -> Totals:
        """Returns what one MoE layer adds to the totals.

        Args:
          routing: the routing of the layer, which must have dropped nothing.

        Returns:
          `chosen` float32[R, languages, E]: the tokens of a language that chose an expert. `weight`: the
          sum of the weights of these choices, of the same shape. Row `repeat` is set, other rows are 0.
        """
        # Shape: [G, S, A] -> [G, S, A, E]. A choice without a slot has the number E, and its row is 0.
        slots = routing.slot // routing.capacity
        one_hot = tf.one_hot(slots, self.experts, dtype=routing.weight.dtype)
        weighted = one_hot * routing.weight[..., tf.newaxis]
        tokens = self.languages.shape.num_elements()
        # Shape: [G, S, A, E] -> [G, S, E] -> [G S, E]
        columns = [
            tf.reshape(tf.reduce_sum(counts, axis=2), [tokens, self.experts])
            for counts in (one_hot, weighted)
        ]
        # Shape: [B, L] -> [B L] -> [B L, languages] -> [languages, B L]
        languages = tf.reshape(self.languages, [tokens])
        is_language = token_counts.one_hot_languages(languages, self.number)
        is_language = tf.transpose(tf.cast(is_language, one_hot.dtype))
        # At a TPU's default precision the weights would be rounded to bfloat16.
        sums = products.exact_product(is_language, tf.stop_gradient(tf.concat(columns, axis=-1)))
        chosen, weight = tf.split(sums, 2, axis=-1)
        row = tf.reshape(tf.one_hot(repeat, repeats, dtype=one_hot.dtype), [repeats, 1, 1])
        return {"chosen": row * chosen[tf.newaxis], "weight": row * weight[tf.newaxis]}


def together(stacks: Mapping[str, Totals], tokens: Mapping[str, "tf.Tensor"]) -> Totals:
    """Returns the counts of all MoE layers, encoder first: leading dimension layers instead of R.

    Args:
      stacks: the totals of the stack of each side, "source" (the encoder) first; {} without experts.
      tokens: float32[languages] for each side, the tokens of each language.

    Returns:
      `chosen` and `weight` of `UseCounter.totals_of`, and `tokens` float32[layers, languages].
    """
    stacks = {side: totals for side, totals in stacks.items() if totals}
    counts = {
        name: tf.concat([totals[name] for totals in stacks.values()], axis=0)
        for name in ("chosen", "weight")
    }
    rows = [
        tf.broadcast_to(tokens[side], [totals["chosen"].shape[0], *tokens[side].shape])
        for side, totals in stacks.items()
    ]
    return counts | {"tokens": tf.concat(rows, axis=0)}
