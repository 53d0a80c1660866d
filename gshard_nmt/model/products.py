"""Matrix products, at the precision of `Model.matmul_precision`.

    default     what the device does with operands of their own dtype: a CPU multiplies float32, a TPU
                rounds both operands to bfloat16.
    bfloat16    both operands are rounded to bfloat16, and the sums are float32, on every device.

Weights, their gradients and activations keep their dtypes in both cases. CPUs with instructions for
bfloat16 multiply it faster than float32. But XLA:CPU has a fast kernel only for a product
that sums over the last dimension of its left operand, in the memory's order, and whose result is
float32. So the products of the gradients are written in this form, and `_in_order` moves the numbers.
"""

import contextlib
import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd.sharding import tiles

PRECISIONS = ("auto", "default", "bfloat16")


_precision: contextvars.ContextVar[str] = contextvars.ContextVar("precision", default="default")


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """Makes `name`, one of PRECISIONS, the precision of the products in the block."""
    token = _precision.set(name)
    try:
        yield
    finally:
        _precision.reset(token)


def _rounds(x: "tf.Tensor") -> bool:
    return _precision.get() == "bfloat16" and x.dtype != tf.float64


def product(equation: str, x: "tf.Tensor", weight: "tf.Tensor") -> "tf.Tensor":
    """Returns the einsum of x and a weight in the dtype of x, with a gradient that is fast on CPUs.

    TensorFlow's gradient of the weight begins with the gradient of the result. XLA:CPU then transposes
    this array, which is often the larger one, and its product is slow. Ours begins with the smaller one.
    """
    if _rounds(x):
        return _rounded_product(equation, x, weight)
    return _product(equation, x, weight, einsum)


def _product(
    equation: str, x: "tf.Tensor", weight: "tf.Tensor", multiply: Callable[..., "tf.Tensor"]
) -> "tf.Tensor":
    operands, y_letters = equation.split("->")
    x_letters, letters = operands.split(",")
    scope = gradient_scope()

    @tf.custom_gradient
    def of(x: "tf.Tensor", weight: "tf.Tensor") -> tuple["tf.Tensor", Callable]:
        def gradient(dy: "tf.Tensor") -> tuple["tf.Tensor", "tf.Tensor"]:
            both = [(y_letters, dy), (x_letters, x)]
            (first, small), (second, large) = sorted(both, key=lambda b: b[1].shape.num_elements())
            with tf.name_scope(scope):
                dx = einsum(f"{y_letters},{letters}->{x_letters}", dy, weight)
                return dx, einsum(f"{first},{second}->{letters}", small, large)

        return multiply(equation, x, weight), gradient

    return of(x, tf.cast(weight, x.dtype))


def product_of_activations(equation: str, x: "tf.Tensor", y: "tf.Tensor") -> "tf.Tensor":
    """Returns the einsum of two activations, as attention has it, in their dtype."""
    return _rounded_product(equation, x, y) if _rounds(x) else einsum(equation, x, y)


def einsum(equation: str, x: "tf.Tensor", y: "tf.Tensor") -> "tf.Tensor":
    """Returns an einsum; each letter is in two of the three tensors, or in all of them.

    TF2XLA lowers each tf.einsum by an MLIR pipeline of its own, which takes fifty times as long as XLA's
    own operation. That one is for float32 and bfloat16, and for programs of XLA only.
    """
    if tf.executing_eagerly() or x.dtype not in (tf.float32, tf.bfloat16):
        return tf.einsum(equation, x, y)
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_einsum(x, y, equation, name="einsum")


def _rounded_product(equation: str, x: "tf.Tensor", y: "tf.Tensor") -> "tf.Tensor":
    """Returns the einsum of two tensors that are rounded to bfloat16, in the dtype of x.

    Args:
      equation: each letter is in two of the three tensors, or in all of them.
    """
    operands, wanted = equation.split("->")
    x_letters, y_letters = operands.split(",")
    shared = [letter for letter in x_letters if letter in y_letters and letter in wanted]
    summed = [letter for letter in x_letters if letter not in wanted]
    rows = [letter for letter in x_letters if letter not in y_letters]
    columns = [letter for letter in y_letters if letter not in x_letters]
    s, k, r, c = map("".join, (shared, summed, rows, columns))
    left = s + r + k
    right = y_letters if y_letters in (s + k + c, s + c + k) else s + c + k
    result = s + r + c
    scope = gradient_scope()

    @tf.custom_gradient
    def of(x: "tf.Tensor", y: "tf.Tensor") -> tuple["tf.Tensor", Callable]:
        x16, y16 = tf.cast(x, tf.bfloat16), tf.cast(y, tf.bfloat16)

        def gradient(dz: "tf.Tensor") -> tuple["tf.Tensor", "tf.Tensor"]:
            with tf.name_scope(scope):
                dz16 = tf.cast(dz, tf.bfloat16)
                dx = rounded_einsum(f"{result},{right}->{left}", dz16, y16)
                # Moving x gives dy in the order k, c; moving dz, if it is not far larger, the order c, k.
                big = dz.shape.num_elements() > x.shape.num_elements() + y.shape.num_elements()
                if right == s + k + c or big:
                    moved = _in_order(x16, left, s + k + r)
                    dy = rounded_einsum(f"{s + k + r},{result}->{s + k + c}", moved, dz16)
                    if right == s + c + k:
                        dy = transposed(_in_order(dy, s + k + c, s + k + c), s + k + c, right)
                else:
                    moved = _in_order(dz16, result, s + c + r)
                    dy = rounded_einsum(f"{s + c + r},{left}->{right}", moved, x16)
                return tf.cast(dx, x.dtype), tf.cast(dy, y.dtype)

        return tf.cast(rounded_einsum(f"{left},{right}->{result}", x16, y16), x.dtype), gradient

    x, y = transposed(x, x_letters, left), transposed(y, y_letters, right)
    return transposed(of(x, y), result, wanted)


def transposed(x: "tf.Tensor", letters: str, wanted: str) -> "tf.Tensor":
    """Returns x, whose dimensions are `letters`, with its dimensions in the wanted order."""
    return x if letters == wanted else tf.transpose(x, [letters.index(a) for a in wanted])


def _in_order(x: "tf.Tensor", letters: str, wanted: str) -> "tf.Tensor":
    """Returns x with its dimensions in the wanted order, in memory too.

    XLA would fold a transposition into the product that reads it, or choose a memory layout that needs
    none, and the product would have no fast kernel. A barrier on an array of one dimension prevents
    both. Dimensions that the mesh splits stay apart, because a device can order its own part only.
    """
    x = transposed(x, letters, wanted)
    sizes = x.shape.as_list()
    parts = [n if size % n == 0 else 1 for n, size in zip(tiles(wanted), sizes, strict=True)]
    split = [axis for axis, n in enumerate(parts) if n > 1]
    apart = [*itertools.chain.from_iterable((n, s // n) for n, s in zip(parts, sizes, strict=True))]
    order = [2 * axis for axis in split]
    order += [place for place in range(len(apart)) if place not in order]
    x = tf.transpose(tf.reshape(x, apart), order) if split else x
    grouped = x.shape.as_list()
    (flat,) = barrier([tf.reshape(x, [*grouped[: len(split)], -1])])
    x = tf.reshape(flat, grouped)
    if split:
        x = tf.transpose(x, [order.index(place) for place in range(len(apart))])
    return tf.reshape(x, sizes)


def rounded_einsum(equation: str, x: "tf.Tensor", y: "tf.Tensor") -> "tf.Tensor":
    """Returns an einsum of bfloat16 operands that is summed in float32, as float32.

    Args:
      equation: the result has the letters of both operands, then the others of x, then those of y.
    """
    if tf.executing_eagerly():
        return tf.einsum(equation, tf.cast(x, tf.float32), tf.cast(y, tf.float32))
    return _dot(equation, x, y)


def _dot(equation: str, x: "tf.Tensor", y: "tf.Tensor", exact: str = "DEFAULT") -> "tf.Tensor":
    """Returns an einsum like `rounded_einsum`, of any operands; `exact` is a precision of XLA."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops
    from tensorflow.compiler.xla import xla_data_pb2

    operands, wanted = equation.split("->")
    x_letters, y_letters = operands.split(",")
    shared = [letter for letter in x_letters if letter in y_letters and letter in wanted]
    summed = [letter for letter in x_letters if letter in y_letters and letter not in wanted]
    free = [letter for letter in x_letters + y_letters if letter in wanted]
    assert wanted == "".join(dict.fromkeys(shared + free)), equation
    numbers = xla_data_pb2.DotDimensionNumbers(
        lhs_batch_dimensions=map(x_letters.index, shared),
        rhs_batch_dimensions=map(y_letters.index, shared),
        lhs_contracting_dimensions=map(x_letters.index, summed),
        rhs_contracting_dimensions=map(y_letters.index, summed),
    ).SerializeToString()
    both = xla_data_pb2.PrecisionConfig(operand_precision=[exact] * 2).SerializeToString()
    return gen_xla_ops.xla_dot_v2(x, y, numbers, both, preferred_element_type=tf.float32)


def exact_product(x: "tf.Tensor", weight: "tf.Tensor") -> "tf.Tensor":
    """Returns x[..., M] weight[M, E] in true float32.

    A TPU then makes six products of bfloat16 parts. The gradients have the default precision, as those of
    all other weights: they choose no expert.
    """
    leading = "ABCD"[: x.shape.rank - 1]
    is_plain = tf.executing_eagerly() or x.dtype != tf.float32
    multiply = einsum if is_plain else functools.partial(_dot, exact="HIGHEST")
    return _product(f"{leading}M,ME->{leading}E", x, weight, multiply)


def gradient_scope() -> str:
    """Returns the name scope of the gradient of what is computed here, as TensorFlow would name it."""
    return f"gradient_tape/{tf.compat.v1.get_default_graph().get_name_scope()}/"


def barrier(tensors: Sequence["tf.Tensor"]) -> Sequence["tf.Tensor"]:
    """Returns the same tensors behind an optimization barrier; XLA treats them as new tensors."""
    if tf.executing_eagerly():
        return tensors
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_optimization_barrier(list(tensors))


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
            result = einsum("XY,ZY->XZ", rows, self.values)
        else:
            result = low_precision_product("XY,ZY->XZ", rows, self.values)
        return tf.reshape(result, [*x.shape.as_list()[: len(batch)], *self.kept_sizes])


def low_precision_product(equation: str, x: "tf.Tensor", weight: "tf.Tensor") -> "tf.Tensor":
    return tf.cast(rounded_einsum(equation, tf.cast(x, tf.bfloat16), weight), x.dtype)
