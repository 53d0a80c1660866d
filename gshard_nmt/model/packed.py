"""Weights in the order that products read them fastest, and products in bfloat16."""

import dataclasses
import math

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.products import rounded_einsum


@dataclasses.dataclass(frozen=True)
class Packed:
    """A weight for products with rows, as a matrix whose last dimension is the one that is summed.

    A weight with more dimensions would be copied into a matrix before every product.
    """

    values: "tf.Tensor"  # float32 or bfloat16[kept, summed]
    # the letters of the dimensions that were merged: those that are kept, then the summed ones
    letters: str
    kept_sizes: tuple[int, ...]  # the sizes of the dimensions that are kept

    def product(self, equation: str, x: "tf.Tensor") -> "tf.Tensor":
        """Returns the einsum of x and the weight, in the dtype of x.

        Args:
          equation: as for `tf.einsum`, for the weight in its own order, such as "BKM,MND->BKND".
          x: float32 or bfloat16. The letters of the sum are its last ones.
        """
        x_letters, output = equation.split("->")[0].split(",")[0], equation.split("->")[1]
        kept, summed = self.letters[: len(self.kept_sizes)], self.letters[len(self.kept_sizes) :]
        batch = x_letters.removesuffix(summed)
        assert batch + kept == output, (equation, self.letters)
        rows = tf.reshape(x, [-1, self.values.shape[1]])
        if self.values.dtype == x.dtype:
            result = tf.einsum("XY,ZY->XZ", rows, self.values)
        else:
            result = low_precision_product("XY,ZY->XZ", rows, self.values)
        return tf.reshape(result, [*x.shape.as_list()[: len(batch)], *self.kept_sizes])


def low_precision_product(equation: str, x: "tf.Tensor", weight: "tf.Tensor") -> "tf.Tensor":
    """Returns the einsum of x and a weight that was rounded for decoding, in the dtype of x."""
    return tf.cast(rounded_einsum(equation, tf.cast(x, tf.bfloat16), weight), x.dtype)


def pack(weight: "tf.Tensor", letters: str, summed: str) -> "tf.Tensor":
    """Returns a weight as the matrix of `Packed`, [kept, summed].

    Args:
      summed: the letters that its product sums over.
    """
    kept = "".join(letter for letter in letters if letter not in summed)
    order = [letters.index(letter) for letter in kept + summed]
    values = weight if order == sorted(order) else tf.transpose(weight, order)
    sizes = values.shape.as_list()
    return tf.reshape(values, [math.prod(sizes[: len(kept)]), math.prod(sizes[len(kept) :])])
