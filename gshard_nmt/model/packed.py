"""Weights in the order that products read them fastest, and products in bfloat16."""

import dataclasses

from gshard_nmt.model.lazy_tensorflow import tf


@dataclasses.dataclass(frozen=True)
class Packed:
    """A weight for products, whose last dimensions are those that a product sums over.

    Attributes:
      values: the weight, float32 or bfloat16.
      letters: the letters of its dimensions.
    """

    values: "tf.Tensor"
    letters: str

    def product(self, equation: str, x: "tf.Tensor") -> "tf.Tensor":
        """Returns the einsum of x and the weight, in the dtype of x.

        Args:
          equation: as for `tf.einsum`, for the weight in its own order, such as "BKM,MND->BKND".
          x: float32 or bfloat16. The letters of the sum are its last ones, except those of experts.
        """
        operands, output = equation.split("->")
        x_letters = operands.split(",")[0]
        if self.values.dtype == x.dtype:
            return tf.einsum(f"{x_letters},{self.letters}->{output}", x, self.values)
        low = tf.cast(x, self.values.dtype)
        return tf.cast(_dot(low, x_letters, self, output), x.dtype)


def low_precision(weight: "tf.Tensor", x: "tf.Tensor") -> bool:
    """Returns whether a weight was rounded for decoding, so that its product with x rounds x too."""
    return weight.dtype == tf.bfloat16 and x.dtype == tf.float32


def _dot(x: "tf.Tensor", x_letters: str, weight: Packed, output: str) -> "tf.Tensor":
    """Multiplies bfloat16 operands and sums in float32."""
    if tf.executing_eagerly():
        equation = f"{x_letters},{weight.letters}->{output}"
        return tf.einsum(equation, tf.cast(x, tf.float32), tf.cast(weight.values, tf.float32))
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops
    from tensorflow.compiler.xla import xla_data_pb2

    batch = [letter for letter in x_letters if letter in weight.letters and letter in output]
    summed = [letter for letter in x_letters if letter in weight.letters and letter not in output]
    numbers = xla_data_pb2.DotDimensionNumbers(
        lhs_batch_dimensions=[x_letters.index(letter) for letter in batch],
        rhs_batch_dimensions=[weight.letters.index(letter) for letter in batch],
        lhs_contracting_dimensions=[x_letters.index(letter) for letter in summed],
        rhs_contracting_dimensions=[weight.letters.index(letter) for letter in summed],
    )
    free = [letter for letter in x_letters + weight.letters if letter in output]
    assert output == "".join(dict.fromkeys(batch + free)), (x_letters, weight.letters, output)
    return gen_xla_ops.xla_dot_v2(
        x,
        weight.values,
        numbers.SerializeToString(),
        xla_data_pb2.PrecisionConfig().SerializeToString(),
        preferred_element_type=tf.float32,
    )


def pack(weight: "tf.Tensor", letters: str, summed: str, precision: str) -> Packed:
    """Packs a weight.

    Args:
      weight: float32.
      letters: the letters of its dimensions.
      summed: the letters that its product sums over.
      precision: "model" or "bfloat16".
    """
    kept = "".join(letter for letter in letters if letter not in summed)
    order = [letters.index(letter) for letter in kept + summed]
    values = weight if order == sorted(order) else tf.transpose(weight, order)
    if precision == "bfloat16":
        values = tf.cast(values, tf.bfloat16)
    return Packed(values, kept + summed)
