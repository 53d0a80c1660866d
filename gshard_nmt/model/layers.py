"""The layers that every Transformer shares: norm, dropout, feed-forward, positions, products.

Parameters are float32. Activations have the dtype of the model, float32 or bfloat16; a weight is cast
where it is used. Norms, softmax and the gate compute in float32 whatever they are given.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from gshard_nmt.model import counter_random
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import ONES, Parameter, fan_in_uniform
from gshard_nmt.spmd.sharding import annotate

_EPSILON = 1e-6
ACTIVATIONS = ("relu", "geglu")


@dataclasses.dataclass(frozen=True)
class Mode:
    """How a layer is being run.

    Attributes:
      training: whether dropout and the random second expert are on.
      key: where a training step's random numbers come from; None outside training.
      scope: the layer's name, with which those of its random numbers begin.
      prepared: keys that were made beforehand, by their full name.
    """

    training: bool = False
    key: counter_random.Key | None = None
    scope: str = ""
    prepared: Mapping[str, counter_random.Key] = dataclasses.field(default_factory=dict)

    def named(self, name: str) -> "Mode":
        """The same mode, for a layer of this name within."""
        return dataclasses.replace(self, scope=f"{self.scope}{name}/")

    def key_of(self, use: str) -> counter_random.Key | None:
        """The key of one use of random numbers in this layer; None where nothing is drawn."""
        if not self.training or self.key is None:
            return None
        name = f"{self.scope}{use}"
        return self.prepared[name] if name in self.prepared else self.key.fold(name)


def declare_norm(model_dim: int) -> dict[str, Parameter]:
    """The scale of one norm, M."""
    return {"scale": Parameter((model_dim,), "M", ONES, keep_float32=True)}


def rms_norm(p: Mapping[str, "tf.Tensor"], x: "tf.Tensor") -> "tf.Tensor":
    """x / rms(x) * scale over the last dimension, no mean and no bias; float32 inside."""
    x32 = to_float32(x)
    mean_square = tf.reduce_mean(tf.square(x32), axis=-1, keepdims=True)
    return tf.cast(x32 * tf.math.rsqrt(mean_square + _EPSILON) * p["scale"], x.dtype)


def to_float32(x: "tf.Tensor") -> "tf.Tensor":
    """The same values in float32, or in float64 if they have it."""
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def project(equation: str, x: "tf.Tensor", p: Mapping[str, "tf.Tensor"], name: str) -> "tf.Tensor":
    """tf.einsum of x and the weight of a name, in the dtype of x.

    The name reaches the compiled program, where gshard-inspect reads whose gradient is added up.
    """
    with tf.name_scope(name):
        return tf.einsum(equation, x, tf.cast(p[name], x.dtype))


def dropout(x: "tf.Tensor", rate: float, mode: Mode, name: str) -> "tf.Tensor":
    """Zeroes each element with probability `rate` and rescales the others; training only."""
    key = mode.key_of(name) if rate else None
    if key is None:
        return x
    keep = counter_random.keep_mask(key, x.shape.as_list(), rate)
    return tf.where(keep, x * (1.0 / (1.0 - rate)), tf.zeros([], x.dtype))


def declare_feed_forward(
    model_dim: int, hidden_dim: int, activation: str = "relu"
) -> dict[str, Parameter]:
    """Two matrices without biases, three where the activation is gated; variance 1 / fan-in."""
    declared = {
        "wi": Parameter((model_dim, hidden_dim), "MH", fan_in_uniform(model_dim)),
        "wo": Parameter((hidden_dim, model_dim), "HM", fan_in_uniform(hidden_dim)),
    }
    if activation == "geglu":
        declared["wi_linear"] = declared["wi"]
    return declared


def feed_forward(p: Mapping[str, "tf.Tensor"], x: "tf.Tensor") -> "tf.Tensor":
    """relu(x wi) wo, or (gelu(x wi) * (x wi_linear)) wo, for x[B, L, M]."""
    hidden = annotate(activated(p, "BLM,MH->BLH", x), "BLH")
    return project("BLH,HM->BLM", hidden, p, "wo")


def activated(p: Mapping[str, "tf.Tensor"], equation: str, x: "tf.Tensor") -> "tf.Tensor":
    """The hidden layer: ReLU, or with a `wi_linear` GEGLU (Shazeer 2020), gelu(x wi) * (x wi_linear)."""
    hidden = project(equation, x, p, "wi")
    if "wi_linear" not in p:
        return tf.nn.relu(hidden)
    return tf.nn.gelu(hidden, approximate=True) * project(equation, x, p, "wi_linear")


def exact_product(x: "tf.Tensor", weight: "tf.Tensor") -> "tf.Tensor":
    """x[..., M] weight[M, E] in true float32, forward and backward.

    At the default precision a TPU multiplies float32 operands in bfloat16.
    """
    if tf.executing_eagerly():
        return tf.tensordot(x, weight, axes=1)
    leading = list(range(x.shape.rank - 1))

    @tf.custom_gradient
    def product(x, weight):
        def gradient(dy):
            d_x = _dot(dy, weight, [len(leading)], [1])
            return d_x, _dot(x, dy, leading, leading)

        return _dot(x, weight, [len(leading)], [0]), gradient

    return product(x, tf.cast(weight, x.dtype))


def _dot(
    left: "tf.Tensor", right: "tf.Tensor", left_dims: Sequence[int], right_dims: Sequence[int]
) -> "tf.Tensor":
    """Contracts some dimensions of two arrays at XLA's precision HIGHEST."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops
    from tensorflow.compiler.xla import xla_data_pb2

    dimensions = xla_data_pb2.DotDimensionNumbers(
        lhs_contracting_dimensions=left_dims, rhs_contracting_dimensions=right_dims
    )
    highest = xla_data_pb2.PrecisionConfig.HIGHEST
    precision = xla_data_pb2.PrecisionConfig(operand_precision=[highest, highest])
    return gen_xla_ops.xla_dot(
        left, right, dimensions.SerializeToString(), precision.SerializeToString()
    )


def sinusoids(positions: "tf.Tensor", model_dim: int) -> "tf.Tensor":
    """Sines and cosines of positions, float32[..., M] (Vaswani et al. 2017, section 3.5)."""
    half = model_dim // 2
    exponents = tf.range(half, dtype=tf.float32) * (-math.log(10_000.0) / max(half - 1, 1))
    angles = tf.cast(positions, tf.float32)[..., tf.newaxis] * tf.exp(exponents)
    return tf.concat([tf.sin(angles), tf.cos(angles)], axis=-1)
