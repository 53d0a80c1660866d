"""Computes a batch in microbatches, one after another, and adds up their results.

A step then needs the memory of one microbatch, plus the gradients that have been added up. The results
are those of the whole batch, so every mean over the batch gets a term from each of the n microbatches:

    mean over tokens         the mean of the microbatch, times its share of the tokens
    mean over groups         the mean of the microbatch, divided by n
    figures of a layer       computed at the end, from sums over all microbatches
    figures of a language    computed at the end, from the values of all tokens

If a stack is a loop over its blocks, its backward loop adds the gradients of the blocks to the sums of
the former microbatches. So the gradients of one microbatch need no memory besides the sums.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from gshard_nmt.model import figures
from gshard_nmt.model.config import STACK_NAMES, Model
from gshard_nmt.model.figures import LayerSums
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.loss import TokenLoss
from gshard_nmt.model.parameters import scoped, within
from gshard_nmt.model.stack import Declaration, Totals, read_at, write_at
from gshard_nmt.model.stages import join_microbatches, microbatches_of
from gshard_nmt.model.token_counts import SIDES

Arrays = Mapping[str, "tf.Tensor"]


@dataclasses.dataclass(frozen=True)
class Forward:
    """The results of a forward pass: the loss of the tokens, and the totals of the MoE layers."""

    loss: TokenLoss  # the loss of the target tokens
    encoder: Totals  # the totals of the stacks; {} without experts
    decoder: Totals  # the totals of the stacks; {} without experts


def for_each(
    batch: Arrays,
    number: int,
    start: Any,
    add: Callable[["tf.Tensor", dict[str, "tf.Tensor"], Any], Any],
) -> Any:
    """Computes the microbatches in turn, in a loop that is compiled once.

    Args:
      batch: int32[B, L] each.
      number: n, the number of microbatches.
      start: tensors in nested dictionaries, the sums before the first microbatch.
      add: (index, microbatch, sums) -> sums, with the structure of `start`. The index is int32[].

    Returns:
      The sums after the last microbatch.
    """
    divided = {name: microbatches_of(array, number, "BL") for name, array in batch.items()}

    def body(index: "tf.Tensor", sums: Any) -> tuple["tf.Tensor", Any]:
        microbatch = {name: read_at(array, index) for name, array in divided.items()}
        return index + 1, add(index, microbatch, sums)

    begin = tf.zeros([], tf.int32)
    _, sums = tf.while_loop(lambda index, _: index < number, body, [begin, start])
    return sums


@dataclasses.dataclass(frozen=True)
class WholeBatch:
    """Puts the results of a batch together from those of its microbatches."""

    model: Model  # the settings of the model
    batch: Arrays  # the arrays of the batch, int32[B, L] each
    number: int  # n, the number of microbatches

    @property
    def model_of_microbatch(self) -> Model:
        """The model with the groups of one microbatch. `Model.num_groups` are those of the batch."""
        return dataclasses.replace(self.model, num_groups=self.model.num_groups // self.number)

    def shares(self, microbatch: Arrays) -> dict[str, "tf.Tensor"]:
        """Returns the microbatch's share of the tokens on each side: "source", "target"; float32[]."""
        return {
            side: _tokens(microbatch, side) / tf.maximum(_tokens(self.batch, side), 1.0)
            for side in SIDES
        }

    def counters(self, shares: Arrays) -> list[LayerSums]:
        """Returns the counters of the encoder and of the decoder, for a microbatch of these shares."""
        return [LayerSums(self.model.experts, shares[side]) for side in SIDES]

    def term(self, forward: Forward, shares: Arrays) -> Forward:
        """Returns the results of a microbatch as a term in the sum over all microbatches."""

        def weighted(totals: Totals, share: "tf.Tensor") -> Totals:
            weights = {"aux_loss": 1 / self.number, "z_loss": share}
            return {name: value * weights.get(name, 1.0) for name, value in totals.items()}

        loss, share = forward.loss, shares["target"]
        return Forward(
            dataclasses.replace(loss, loss=loss.loss * share, nll=loss.nll * share),
            weighted(forward.encoder, shares["source"]),
            weighted(forward.decoder, share),
        )

    def zeros(self) -> dict[str, "tf.Tensor"]:
        return {name: total.zeros() for name, total in self._declared.items()}

    def added(self, index: "tf.Tensor", term: Forward, sums: Arrays) -> dict[str, "tf.Tensor"]:
        """Adds the term of microbatch `index`, int32[], to the sums.

        The values of single tokens are not added. They are stored at this index.
        """
        values = {field: getattr(term.loss, field) for field in _LOSS_FIELDS}
        for stack, totals in zip(STACK_NAMES, (term.encoder, term.decoder), strict=True):
            values |= scoped(stack, totals)
        return {
            name: total.annotated(
                write_at(sums[name], index, values[name])
                if total.letters
                else sums[name] + values[name]
            )
            for name, total in self._declared.items()
        }

    def result(self, sums: Arrays) -> Forward:
        values = dict(sums)
        for name, total in self._declared.items():
            if total.letters:
                shape = self._shape("source" if name.startswith("encoder/") else "target")
                # Shape: [n, B/n, L] or [n, G/n, S] -> [n, B/n, L] -> [B, L]
                stored = tf.reshape(values[name], [self.number, *shape])
                values[name] = join_microbatches(stored, "BL")
        stacks = [within(values, stack) for stack in STACK_NAMES]
        for totals in filter(None, stacks):
            totals["by_layer"] = figures.from_layer_sums(totals.pop("layer_sums"))
        return Forward(TokenLoss(*(values[field] for field in _LOSS_FIELDS)), *stacks)

    @functools.cached_property
    def _declared(self) -> dict[str, Declaration]:
        """The sums. If a sum has letters, it holds the values of all tokens, by microbatch."""
        declared = {name: Declaration(()) for name in ("loss", "nll", "tokens")}
        declared["token_nll"] = Declaration((self.number, *self._shape("target")), "_BL")
        for stack, side in zip(STACK_NAMES, SIDES, strict=True):
            if not self.model.has_experts(stack):
                continue
            moe, repeats = self.model_of_microbatch.moe(training=True), self.model.repeats(stack)
            totals = figures.declare_totals(moe, *self._shape(side), repeats)
            del totals["by_layer"]
            totals |= LayerSums(self.model.experts, 1.0).declare(repeats)
            for name, total in totals.items():
                stored = total.stacked([self.number], "_") if total.letters else total
                declared[f"{stack}/{name}"] = stored
        return declared

    def _shape(self, side: str) -> tuple[int, int]:
        """Returns the number of rows of a microbatch, and the length of a row."""
        rows, length = self.batch[f"{side}_segments"].shape.as_list()
        return rows // self.number, length


_LOSS_FIELDS = [field.name for field in dataclasses.fields(TokenLoss)]


def _tokens(batch: Arrays, side: str) -> "tf.Tensor":
    return tf.reduce_sum(tf.cast(batch[f"{side}_segments"] > 0, tf.float32))
