"""The weights of a model as decoding reads them: by layer, and in the precision that the user chose.

Each step of a search multiplies a few rows by every weight. So the weights are put into the best order
once for each batch, before the loop of the search:

- A layer has its own arrays. If the loop cut them out of the stack, each step would copy all weights.
- The dimensions that a product sums over come last. XLA's kernels for CPUs then run at their full speed,
  and each row of a product has the same bits for any number of rows above one.
"""

import dataclasses
from collections.abc import Mapping

from gshard_nmt.model.lazy_tensorflow import tf

PRECISIONS = ("model", "bfloat16", "int8")
"""The precisions of products with weights. "model" is the dtype of the model's activations."""


@dataclasses.dataclass(frozen=True)
class Packed:
    """A weight for products, whose last dimensions are those that a product sums over.

    Attributes:
      values: the weight, float32, bfloat16 or int8.
      letters: the letters of its dimensions.
      scale: float32, what int8 values must be multiplied by: the dimensions of `values` that are not
        summed over. None for other dtypes.
    """

    values: "tf.Tensor"
    letters: str
    scale: "tf.Tensor | None" = None

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
        if self.scale is None:
            low = tf.cast(x, self.values.dtype)
            return tf.cast(_dot(low, x_letters, self, output, tf.float32), x.dtype)
        summed = [i for i, letter in enumerate(x_letters) if letter not in output]
        rows, row_scale = quantise(tf.cast(x, tf.float32), summed)
        sums = tf.cast(_dot(rows, x_letters, self, output, tf.int32), tf.float32)
        row_letters = "".join(letter for letter in x_letters if letter in output)
        scale_letters = "".join(letter for letter in self.letters if letter in output)
        result = sums * _spread(tf.squeeze(row_scale, summed), row_letters, output)
        return tf.cast(result * _spread(self.scale, scale_letters, output), x.dtype)


def low_precision(weight: "tf.Tensor", x: "tf.Tensor") -> bool:
    """Returns whether a weight was rounded for decoding, so that its product with x rounds x too."""
    return weight.dtype == tf.bfloat16 and x.dtype == tf.float32


def quantise(x: "tf.Tensor", summed: list[int]) -> tuple["tf.Tensor", "tf.Tensor"]:
    """Returns int8 values and their scale: x is about values * scale.

    Each part of x over the dimensions `summed` has a scale of its own, so that its largest absolute value
    becomes 127. `scale` keeps these dimensions with size 1.
    """
    largest = tf.reduce_max(tf.abs(x), axis=summed, keepdims=True)
    scale = tf.maximum(largest, 1e-30) / 127.0
    return tf.cast(tf.round(x / scale), tf.int8), scale


def _spread(values: "tf.Tensor", letters: str, output: str) -> "tf.Tensor":
    """Adds dimensions of size 1 to values, so that they broadcast to the letters of an output."""
    shape = [values.shape[letters.index(x)] if x in letters else 1 for x in output]
    return tf.reshape(values, shape)


def _dot(
    x: "tf.Tensor", x_letters: str, weight: Packed, output: str, dtype: "tf.DType"
) -> "tf.Tensor":
    """Multiplies bfloat16 or int8 operands and sums in float32 or int32."""
    if tf.executing_eagerly():
        wide = tf.float32 if dtype == tf.float32 else tf.float64
        equation = f"{x_letters},{weight.letters}->{output}"
        exact = tf.einsum(equation, tf.cast(x, wide), tf.cast(weight.values, wide))
        return tf.cast(exact, dtype)
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
        preferred_element_type=dtype,
    )


def pack(weight: "tf.Tensor", letters: str, summed: str, precision: str) -> Packed:
    """Packs a weight.

    Args:
      weight: float32.
      letters: the letters of its dimensions.
      summed: the letters that its product sums over.
      precision: one of PRECISIONS.
    """
    kept = "".join(letter for letter in letters if letter not in summed)
    order = [letters.index(letter) for letter in kept + summed]
    values = weight if order == sorted(order) else tf.transpose(weight, order)
    if precision == "int8":
        dims = list(range(len(kept), len(letters)))
        values, scale = quantise(values, dims)
        return Packed(values, kept + summed, tf.squeeze(scale, dims))
    if precision == "bfloat16":
        values = tf.cast(values, tf.bfloat16)
    return Packed(values, kept + summed)


SUMMED: Mapping[str, tuple[str, str]] = {
    "query": ("MND", "M"),
    "key": ("MND", "M"),
    "value": ("MND", "M"),
    "output": ("NDM", "ND"),
    "wi": ("MH", "M"),
    "wi_linear": ("MH", "M"),
    "wo": ("HM", "H"),
}
"""The letters of each matrix, and those that its product sums over, by the last word of its name."""


def prepare(
    p: Mapping[str, "tf.Tensor"], precision: str
) -> dict[str, "tf.Tensor | list[tf.Tensor] | list[Packed] | Packed"]:
    """Returns the weights for decoding.

    Args:
      p: all parameters of the model.
      precision: one of PRECISIONS.

    Returns:
      The same names. Every array of a block is a list, with an entry for each repeat of the block. The
      weights of SUMMED are packed. `output_embedding` is the target embedding, packed for the logits.
    """
    prepared: dict = {}
    for name, weight in p.items():
        _, _, place = name.partition("/block/")
        if not place:
            prepared[name] = weight
            continue
        word = name.rpartition("/")[2]
        layers = [weight[repeat] for repeat in range(weight.shape[0])]
        is_expert = "moe_" in place and word in ("wi", "wi_linear", "wo")
        if is_expert and precision != "model":
            layers = [tf.cast(layer, tf.bfloat16) for layer in layers]
        elif word in SUMMED and not is_expert:
            layers = [pack(layer, *SUMMED[word], precision) for layer in layers]
        prepared[name] = layers
    prepared["output_embedding"] = pack(p["target_embedding"], "VM", "M", precision)
    return prepared
