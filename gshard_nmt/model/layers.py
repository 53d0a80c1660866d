"""The layers that every Transformer shares: norm, dropout, feed-forward, positions."""

import dataclasses
import math
from collections.abc import Mapping

from gshard_nmt.model import random
from gshard_nmt.model.parameters import ONES, Parameter, fan_in_uniform
from gshard_nmt.model.tensorflow import tf
from gshard_nmt.spmd.sharding import annotate

_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Mode:
    """How a layer is being run.

    Attributes:
      training: whether dropout and the random second expert are on.
      key: where a training step's random numbers come from; None outside training.
    """

    training: bool = False
    key: random.Key | None = None

    def named(self, name: str, index: int = 0) -> "Mode":
        """The same mode with random numbers of its own for one use of a layer."""
        if self.key is None:
            return self
        return dataclasses.replace(self, key=self.key.fold(name, index))


def declare_norm(model_dim: int) -> dict[str, Parameter]:
    """The scale of one norm, M."""
    return {"scale": Parameter((model_dim,), "M", ONES)}


def rms_norm(p: Mapping[str, "tf.Tensor"], x: "tf.Tensor") -> "tf.Tensor":
    """x / rms(x) * scale over the last dimension, no mean and no bias; float32 inside."""
    mean_square = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
    return x * tf.math.rsqrt(mean_square + _EPSILON) * p["scale"]


def dropout(x: "tf.Tensor", rate: float, mode: Mode, name: str) -> "tf.Tensor":
    """Zeroes each element with probability `rate` and rescales the others; training only."""
    key = mode.named(name).key
    if not mode.training or rate == 0.0 or key is None:
        return x
    keep = random.keep_mask(key, x.shape.as_list(), rate)
    return tf.where(keep, x * (1.0 / (1.0 - rate)), tf.zeros([], x.dtype))


def declare_feed_forward(model_dim: int, hidden_dim: int) -> dict[str, Parameter]:
    """Two matrices without biases, variance 1 / fan-in."""
    return {
        "wi": Parameter((model_dim, hidden_dim), "MH", fan_in_uniform(model_dim)),
        "wo": Parameter((hidden_dim, model_dim), "HM", fan_in_uniform(hidden_dim)),
    }


def feed_forward(p: Mapping[str, "tf.Tensor"], x: "tf.Tensor") -> "tf.Tensor":
    """relu(x wi) wo for x float32[B, L, M]."""
    hidden = tf.nn.relu(tf.einsum("BLM,MH->BLH", x, p["wi"]))
    return tf.einsum("BLH,HM->BLM", annotate(hidden, "BLH"), p["wo"])


def sinusoids(positions: "tf.Tensor", model_dim: int) -> "tf.Tensor":
    """Sines and cosines of positions, float32[..., M] (Vaswani et al. 2017, section 3.5)."""
    half = model_dim // 2
    exponents = tf.range(half, dtype=tf.float32) * (-math.log(10_000.0) / max(half - 1, 1))
    angles = tf.cast(positions, tf.float32)[..., tf.newaxis] * tf.exp(exponents)
    return tf.concat([tf.sin(angles), tf.cos(angles)], axis=-1)
