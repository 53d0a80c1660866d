"""The weights of a model as decoding reads them: by layer, and in the precision that the user chose.

Each step of a search multiplies a few rows by every weight. So the weights are put into the best order
once, before the first batch:

- A layer has its own arrays. If the loop of the search cut them out of the stack, each step would copy
  all weights.
- The dimensions that a product sums over come last. XLA's kernels for CPUs then run at their full speed,
  and each row of a product has the same bits for any number of rows above one.

`plan` says which arrays there are, `prepare` computes them, and `read` gives them to the model.
"""

import dataclasses
import math
from collections.abc import Mapping

from gshard_nmt.model.config import Model
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import SUMMED, Parameter
from gshard_nmt.model.products import Packed, transposed


@dataclasses.dataclass(frozen=True)
class Piece:
    """One array of the weights for decoding."""

    source: str  # the name of the parameter
    # the repeat of the block that this array belongs to; None takes the whole parameter
    repeat: int | None
    declared: Parameter  # the array before it is packed
    summed: str  # the letters of the dimensions that products sum over, if the array is packed
    dtype: str  # the dtype of the array

    @property
    def kept(self) -> str:
        """The letters of the other dimensions."""
        return "".join(letter for letter in self.declared.letters if letter not in self.summed)

    @property
    def letters(self) -> str:
        """The letters of the array. A dimension that was merged has the letter of its first part."""
        return self.kept[0] + self.summed[0] if self.summed else self.declared.letters

    @property
    def shape(self) -> tuple[int, ...]:
        if not self.summed:
            return self.declared.shape
        return self._size(self.kept), self._size(self.summed)

    def of(self, parameter: "tf.Tensor") -> "tf.Tensor":
        values = parameter if self.repeat is None else parameter[self.repeat]
        if self.summed:
            ordered = transposed(values, self.declared.letters, self.kept + self.summed)
            values = tf.reshape(ordered, self.shape)
        return tf.cast(values, self.dtype)

    def for_model(self, array: "tf.Tensor") -> "tf.Tensor | Packed":
        if not self.summed:
            return array
        sizes = tuple(self._size(letter) for letter in self.kept)
        return Packed(array, self.kept + self.summed, sizes)

    def _size(self, letters: str) -> int:
        sizes = dict(zip(self.declared.letters, self.declared.shape, strict=True))
        return math.prod(sizes[letter] for letter in letters)


def plan(model: Model, declared: Mapping[str, Parameter], precision: str) -> dict[str, Piece]:
    """Returns the arrays for decoding, by their names.

    Args:
      precision: "model" keeps the precision of the model's activations. "bfloat16" rounds the operands of
        all products with weights except the gate, and sums them in float32.

    Returns:
      Each repeat of a block has its own arrays. The weights of SUMMED are bfloat16 if the products
      are, and packed unless they are of experts. `output_embedding` is the target embedding, packed
      for the logits. An encoder that is a loop keeps its stacked arrays.
    """
    rounded = "bfloat16" if precision == "bfloat16" else "float32"
    pieces = {}
    for name, parameter in declared.items():
        stack, is_block, _ = name.partition("/block/")
        if not is_block or (stack == "encoder" and model.stack == "scan"):
            pieces[name] = Piece(name, None, parameter, "", parameter.dtype)
            continue
        word = name.rpartition("/")[2]
        layer = dataclasses.replace(
            parameter, shape=parameter.shape[1:], letters=parameter.letters[1:]
        )
        dtype = rounded if word in SUMMED else parameter.dtype
        # A shared expert is a dense feed-forward: its matrices have no dimension E.
        summed = "" if "E" in layer.letters else SUMMED.get(word, "")
        for repeat in range(parameter.shape[0]):
            pieces[f"{name}/{repeat}"] = Piece(name, repeat, layer, summed, dtype)
    source = "target_embedding"
    pieces["output_embedding"] = Piece(source, None, declared[source], "M", rounded)
    return pieces


def prepare(pieces: Mapping[str, Piece], p: Mapping[str, "tf.Tensor"]) -> dict[str, "tf.Tensor"]:
    return {name: piece.of(p[piece.source]) for name, piece in pieces.items()}


def read(pieces: Mapping[str, Piece], arrays: Mapping[str, "tf.Tensor"]) -> dict:
    """Returns what the model reads, by the names of the parameters.

    Every array of a block is a list, with an entry for each repeat of the block.
    """
    values: dict = {}
    for name, piece in pieces.items():
        value = piece.for_model(arrays[name])
        if piece.repeat is None:
            values[name] = value
        else:
            values.setdefault(piece.source, []).append(value)
    return values
