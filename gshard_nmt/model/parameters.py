"""Parameters are declared before they exist: name, shape, letters, initialiser.

A model of 600 billion parameters is described, counted, sharded and lowered from these declarations
without allocating a byte of it. Nothing here imports TensorFlow until values are asked for.
"""

import dataclasses
import math
from collections.abc import Mapping

from gshard_nmt.model import counter_random
from gshard_nmt.model.lazy_tensorflow import tf


@dataclasses.dataclass(frozen=True)
class Initializer:
    """How a parameter starts: its distribution and that distribution's scale.

    Attributes:
      kind: "normal" (scale = standard deviation), "uniform" (scale = limit on either side) or
        "constant" (scale = the value).
      scale: see kind.
    """

    kind: str
    scale: float


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A weight, as declared.

    Attributes:
      shape: sizes, one a letter.
      letters: the dimensions; R and E are batch dimensions to the optimiser.
      initializer: how it starts.
      dtype: of its values.
      keep_float32: whether it is used in float32 even if activations are bfloat16.
    """

    shape: tuple[int, ...]
    letters: str
    initializer: Initializer
    dtype: str = "float32"
    keep_float32: bool = False

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


Parameters = Mapping[str, Parameter]


def normal(standard_deviation: float) -> Initializer:
    """N(0, standard_deviation**2)."""
    return Initializer("normal", standard_deviation)


def fan_in_uniform(fan_in: int) -> Initializer:
    """U(-sqrt(3 / fan_in), sqrt(3 / fan_in)): variance 1 / fan_in."""
    return Initializer("uniform", math.sqrt(3.0 / fan_in))


ONES = Initializer("constant", 1.0)
ZEROS = Initializer("constant", 0.0)


def scoped(prefix: str, declared: Parameters) -> dict[str, Parameter]:
    """The same parameters under `prefix/`."""
    return {f"{prefix}/{name}": parameter for name, parameter in declared.items()}


def stacked(repeats: int, declared: Parameters) -> dict[str, Parameter]:
    """The same parameters for `repeats` equal blocks, with a leading dimension R."""
    return {
        name: dataclasses.replace(p, shape=(repeats, *p.shape), letters="R" + p.letters)
        for name, p in declared.items()
    }


def within(values: Mapping[str, "tf.Tensor"], prefix: str) -> dict[str, "tf.Tensor"]:
    """The values whose names begin with `prefix/`, without it."""
    start = f"{prefix}/"
    return {name[len(start) :]: v for name, v in values.items() if name.startswith(start)}


def initial_values(declared: Parameters, key: counter_random.Key) -> dict[str, "tf.Tensor"]:
    """Draws every parameter, float32, elementwise in its index: sharded, each device draws its own."""
    drawn = [name for name, p in declared.items() if p.initializer.kind != "constant"]
    keys = key.fold_each(drawn).at(0)
    return {name: _draw(p, keys.get(name, key)) for name, p in declared.items()}


def _draw(parameter: Parameter, key: counter_random.Key) -> "tf.Tensor":
    kind, scale = parameter.initializer.kind, parameter.initializer.scale
    if kind == "normal":
        return counter_random.normal(key, parameter.shape) * scale
    if kind == "uniform":
        return (2.0 * counter_random.uniform(key, parameter.shape) - 1.0) * scale
    # From a run-time zero: a constant would be folded on the host at its full, unpartitioned size.
    zero = tf.cast(key.word0 & tf.constant(0, tf.uint32), parameter.dtype)
    return tf.broadcast_to(zero + tf.cast(scale, parameter.dtype), parameter.shape)


def count(declared: Parameters) -> int:
    """Number of weights in all."""
    return sum(p.size for p in declared.values())
