"""The layers that every Transformer shares: norm, dropout, feed-forward, positions, products.

Parameters are float32. Activations have the dtype of the model, float32 or bfloat16, and a weight is
cast to it at each use. Norms, softmax and the gate always compute in float32.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

from gshard_nmt.model import counter_random, kept_results
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import ONES, SUMMED, ZEROS, Parameter, Parameters, fan_in_uniform
from gshard_nmt.model.products import Packed, gradient_scope, low_precision_product, product
from gshard_nmt.spmd.sharding import annotate

EPSILONS = {"rms": 1e-6, "layer": 1e-5}
"""The number that each norm adds to the variance."""
ACTIVATIONS = ("relu", "gelu", "swish", "geglu")
NORMS = ("rms", "layer")


@dataclasses.dataclass(frozen=True)
class Mode:
    """How a layer runs: in training or not, and with which random numbers."""

    # the random key of the training step; None outside training
    key: counter_random.Key | None = None
    scope: str = ""  # the name of the layer, a prefix of the names of its random streams
    # the keys of all streams of a block, by their full name; {} outside blocks
    prepared: Mapping[str, counter_random.Key] = dataclasses.field(default_factory=dict)
    # keeps results for the backward pass
    keep: kept_results.Keep = kept_results.not_kept

    @property
    def training(self) -> bool:
        """Whether dropout and the random second expert are on."""
        return self.key is not None

    def named(self, name: str) -> "Mode":
        return dataclasses.replace(self, scope=f"{self.scope}{name}/")

    def key_of(self, use: str) -> counter_random.Key | None:
        """Returns the key of one random stream of this layer, or None outside training."""
        if self.key is None:
            return None
        name = f"{self.scope}{use}"
        # A name that `prepared` lacks is an error: its key would be the same in all repeats of a block.
        return self.prepared[name] if self.prepared else self.key.fold(name)


def declare_norm(model_dim: int, kind: str = "rms") -> dict[str, Parameter]:
    declared = {"scale": Parameter((model_dim,), "M", ONES, keep_float32=True)}
    if kind == "layer":
        declared["bias"] = Parameter((model_dim,), "M", ZEROS, keep_float32=True)
    return declared


def norm(p: Mapping[str, "tf.Tensor"], x: "tf.Tensor") -> "tf.Tensor":
    """Normalizes the last dimension of x[..., M], in float32.

    It returns x / rms(x) * scale. If `p` has a bias, this is a layer norm, as in GShard (Figure 3): the
    mean of x is subtracted first, and the bias is added last.
    """
    x32, kind = to_float32(x), "layer" if "bias" in p else "rms"
    if kind == "layer":
        x32 -= tf.reduce_mean(x32, axis=-1, keepdims=True)
    mean_square = tf.reduce_mean(tf.square(x32), axis=-1, keepdims=True)
    normed = x32 * tf.math.rsqrt(mean_square + EPSILONS[kind]) * p["scale"]
    return tf.cast(normed + p["bias"] if kind == "layer" else normed, x.dtype)


def to_float32(x: "tf.Tensor") -> "tf.Tensor":
    """Casts x to float32. A float64 tensor, as in tests of gradients, stays float64."""
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def project(equation: str, x: "tf.Tensor", p: Mapping[str, "tf.Tensor"], name: str) -> "tf.Tensor":
    """Returns the einsum of x and the weight `name`, in the dtype of x.

    If `p` has a bias `NAME_bias`, the bias is added.

    The compiled program keeps the name of the weight. If an all-reduce sums the gradient of a weight,
    gshard-inspect uses this name to tell which weight it is.
    """
    weight = p[name]
    with tf.name_scope(name):
        if isinstance(weight, Packed):
            y = weight.product(equation, x)
        elif weight.dtype == tf.bfloat16 and x.dtype == tf.float32:  # rounded for decoding
            y = low_precision_product(equation, x, weight)
        else:
            y = product(equation, x, weight)
        bias = p.get(f"{name}_bias")
        return y if bias is None else _with_bias(equation, y, bias)


def _with_bias(equation: str, y: "tf.Tensor", bias: "tf.Tensor") -> "tf.Tensor":
    """Returns the result y of an einsum plus the bias, whose letters are those of the weight in y."""
    letters, output = equation.split(",")[1].split("->")
    sizes = zip(output, y.shape.as_list(), strict=True)
    shape = [size if letter in letters else 1 for letter, size in sizes]
    return y + tf.reshape(tf.cast(bias, y.dtype), shape)


def dropout(x: "tf.Tensor", rate: float, mode: Mode, name: str) -> "tf.Tensor":
    """Sets each element to 0 with probability `rate` and rescales the others, in training only."""
    key = mode.key_of(name) if rate else None
    if key is None:
        return x
    keep = counter_random.keep_mask(key, x.shape.as_list(), rate)
    # In bfloat16 the factor itself would be rounded, and all results would be too small.
    rescaled = tf.cast(to_float32(x) * (1.0 / (1.0 - rate)), x.dtype)
    return tf.where(keep, rescaled, tf.zeros([], x.dtype))


def declare_feed_forward(
    model_dim: int, hidden_dim: int, activation: str = "relu", biases: bool = False
) -> dict[str, Parameter]:
    """Declares two matrices, or three if the activation is gated, and their biases if `biases`.

    The variance of a matrix is 1 / fan-in, and a bias is 0.
    """
    declared = {
        "wi": Parameter((model_dim, hidden_dim), "MH", fan_in_uniform(model_dim)),
        "wo": Parameter((hidden_dim, model_dim), "HM", fan_in_uniform(hidden_dim)),
    }
    if activation == "geglu":
        declared["wi_linear"] = declared["wi"]
    return declared | declare_biases(declared) if biases else declared


def declare_biases(matrices: Parameters) -> dict[str, Parameter]:
    """Declares the bias of each matrix. It has all dimensions of the matrix but the summed ones."""
    biases = {}
    for name, matrix in matrices.items():
        kept = [i for i, letter in enumerate(matrix.letters) if letter not in SUMMED[name]]
        shape = tuple(matrix.shape[i] for i in kept)
        biases[f"{name}_bias"] = Parameter(shape, "".join(matrix.letters[i] for i in kept), ZEROS)
    return biases


def feed_forward(
    p: Mapping[str, "tf.Tensor"], x: "tf.Tensor", activation: str = "relu"
) -> "tf.Tensor":
    """Returns activation(x wi) wo, or (gelu(x wi) * (x wi_linear)) wo, for x[B, L, M]."""
    hidden = annotate(activated(p, "BLM,MH->BLH", x, activation), "BLH")
    return project("BLH,HM->BLM", hidden, p, "wo")


def activated(
    p: Mapping[str, "tf.Tensor"], equation: str, x: "tf.Tensor", activation: str = "relu"
) -> "tf.Tensor":
    """Returns the hidden layer: activation(x wi), or gelu(x wi) * (x wi_linear) for "geglu".

    The second is in Shazeer 2020. "gelu" alone is the exact function, and "swish" is x sigmoid(x).
    """
    hidden = project(equation, x, p, "wi")
    if activation == "geglu":
        return tf.nn.gelu(hidden, approximate=True) * project(equation, x, p, "wi_linear")
    functions = {"relu": relu, "gelu": tf.nn.gelu, "swish": tf.nn.silu}
    return functions[activation](hidden)


def relu(x: "tf.Tensor") -> "tf.Tensor":
    """Returns max(x, 0), with a gradient that reads the result.

    TensorFlow's gradient compares the result with 0 and selects. If the backward pass computes x again,
    the TPU compiler stores the comparisons as packed bits, which it must pack and unpack. A product with
    the sign of the result becomes a part of the matrix product before it. A TPU rounds the result to
    bfloat16 for the next product. The sign is read from the rounded result, so the TPU stores no other.
    """
    scope = gradient_scope()

    @tf.custom_gradient
    def of(x: "tf.Tensor") -> tuple["tf.Tensor", Callable]:
        y = tf.nn.relu(x)

        def gradient(dy: "tf.Tensor") -> "tf.Tensor":
            with tf.name_scope(scope):
                rounded = tf.cast(y, tf.bfloat16) if y.dtype == tf.float32 else y
                return dy * tf.cast(tf.sign(rounded), dy.dtype)

        return y, gradient

    return of(x)


def lookup(p: Mapping[str, "tf.Tensor"], name: str, ids: "tf.Tensor") -> "tf.Tensor":
    """Returns the rows of the embedding p[name][V, M] with these numbers: int32[B, L] -> [B, L, M].

    The gradient is split like the embedding. The gradient of the logits is added to it, and may be split
    in another way (`Mesh.shared_update`). Without this annotation, the partitioner would begin with zeros
    that are split like the sum, and gather them.
    """

    @tf.custom_gradient
    def of(table: "tf.Tensor") -> tuple["tf.Tensor", Callable]:
        def gradient(dy: "tf.Tensor") -> "tf.Tensor":
            summed = tf.math.unsorted_segment_sum(dy, ids, table.shape[0])
            return annotate(summed, "VM", name)

        return tf.gather(table, ids), gradient

    return of(p[name])


def sinusoids(positions: "tf.Tensor", model_dim: int, reaches_longest: bool = True) -> "tf.Tensor":
    """Returns sines and cosines of positions: int32[...] -> float32[..., M].

    See Vaswani et al. 2017, section 3.5. All sines come first, then all cosines.

    Args:
      reaches_longest: whether the last of the M / 2 wavelengths is 10,000 times the first, as in
        Tensor2Tensor. In the paper, it is the next one that would be.
    """
    half = model_dim // 2
    steps = max(half - 1, 1) if reaches_longest else half
    exponents = tf.range(half, dtype=tf.float32) * (-math.log(10_000.0) / steps)
    angles = tf.cast(positions, tf.float32)[..., tf.newaxis] * tf.exp(exponents)
    return tf.concat([tf.sin(angles), tf.cos(angles)], axis=-1)
