"""Counts which experts the tokens of each language choose, by layer, language and expert.

The counts are totals of a stack, like the router's figures in `figures`. Only a study of a trained model
asks for them. Training, evaluation and decoding do not compute them.
"""

import dataclasses
from collections.abc import Mapping

from gshard_nmt.model import gating, products, token_counts
from gshard_nmt.model.gating import Gating, Routing
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import Index, Total, Totals


@dataclasses.dataclass(frozen=True)
class UseCounter:
    """Counts the choices of each language's tokens in the MoE layers of one stack."""

    # int32[B, L], 1 + the number of the language of each token; 0 is padding
    languages: "tf.Tensor"
    number: int  # the number of languages
    gating: Gating  # the settings of the gate, with the capacity to compare with
    # S, the tokens that share this capacity. It divides B * L. 0 means that there is no limit.
    group_size: int

    def declare(self, repeats: int) -> dict[str, Total]:
        """Declares the totals of one stack with R = `repeats` blocks; see `totals_of`."""
        choices = (repeats, self.number, self.gating.choices, self.gating.experts)
        return {
            "chosen": Total(choices),
            "weight": Total(choices),
            "lost": Total((repeats, self.number, 2)),
        }

    def totals_of(self, routing: Routing, repeat: Index, repeats: int) -> Totals:
        """Returns what one MoE layer adds to the totals.

        Args:
          routing: the routing of the layer, which must have dropped nothing.

        Returns:
          `chosen` float32[R, languages, A, E]: the tokens of a language that chose an expert, first and
          second choices apart. `weight`: the sum of the weights of these choices, of the same shape.
          `lost` float32[R, languages, 2]: the tokens of a language that would lose one, or both, of
          their experts if the experts had the capacity of `gating`. Row `repeat` is set, other rows
          are 0.
        """
        experts, assignments = self.gating.experts, self.gating.choices
        # Shape: [G, S, A] -> [G, S, A, E]. A choice without a slot has the number E, and its row is 0.
        one_hot = tf.one_hot(routing.slot // routing.capacity, experts, dtype=routing.weight.dtype)
        weighted = one_hot * routing.weight[..., tf.newaxis]
        lost = self._lost(routing)
        tokens = self.languages.shape.num_elements()
        per_choice = assignments * experts
        # Shape: [G, S, A, E] -> [G S, A E]; [G', S'] -> [G S, 1]
        columns = [
            tf.reshape(one_hot, [tokens, per_choice]),
            tf.reshape(weighted, [tokens, per_choice]),
            *(
                tf.reshape(tf.cast(tf.equal(lost, number), one_hot.dtype), [tokens, 1])
                for number in (1, 2)
            ),
        ]
        # Shape: [B, L] -> [B L] -> [B L, languages] -> [languages, B L]
        languages = tf.reshape(self.languages, [tokens])
        is_language = token_counts.one_hot_languages(languages, self.number)
        is_language = tf.transpose(tf.cast(is_language, one_hot.dtype))
        # At a TPU's default precision the weights would be rounded to bfloat16.
        sums = products.exact_product(is_language, tf.stop_gradient(tf.concat(columns, axis=-1)))
        chosen, weight, losses = tf.split(sums, [per_choice, per_choice, 2], axis=-1)
        by_choice = [self.number, assignments, experts]
        totals = {
            "chosen": tf.reshape(chosen, by_choice),
            "weight": tf.reshape(weight, by_choice),
            "lost": losses,
        }
        row = tf.one_hot(repeat, repeats, dtype=one_hot.dtype)
        return {
            name: tf.reshape(row, [repeats] + [1] * total.shape.rank) * total[tf.newaxis]
            for name, total in totals.items()
        }

    def _lost(self, routing: Routing) -> "tf.Tensor":
        """Returns the number of experts that each token would lose to the capacity, float32[G', S']."""
        if not self.group_size:
            return tf.zeros_like(routing.lost)
        groups = self.languages.shape.num_elements() // self.group_size
        # Shape: [G, S, E] -> [G', S', E]
        logits = tf.reshape(routing.logits, [groups, self.group_size, self.gating.experts])
        # Shape: [B, L] -> [G', S']
        is_token = tf.reshape(self.languages > 0, [groups, self.group_size])
        return gating.assign(logits, is_token, self.gating).lost


def together(stacks: Mapping[str, Totals], tokens: Mapping[str, "tf.Tensor"]) -> Totals:
    """Returns the counts of all MoE layers, encoder first: leading dimension layers instead of R.

    Args:
      stacks: the totals of the stack of each side, "source" (the encoder) first; {} without experts.
      tokens: float32[languages] for each side, the tokens of each language.

    Returns:
      `chosen`, `weight` and `lost` of `UseCounter.totals_of`, and `tokens` float32[layers, languages].
    """
    stacks = {side: totals for side, totals in stacks.items() if totals}
    counts = {
        name: tf.concat([totals[name] for totals in stacks.values()], axis=0)
        for name in ("chosen", "weight", "lost")
    }
    rows = [
        tf.broadcast_to(tokens[side], [totals["lost"].shape[0], *tokens[side].shape])
        for side, totals in stacks.items()
    ]
    return counts | {"tokens": tf.concat(rows, axis=0)}
