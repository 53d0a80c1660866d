"""Declares parameters before they exist: name, shape, letters, initializer.

We describe, count, shard and lower a model of 600 billion parameters from these declarations, without
allocating any of it. Nothing here imports TensorFlow until `initial_values` draws the values.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from gshard_nmt.model import counter_random
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd.sharding import active_mesh, mesh_split

T = TypeVar("T")

_GROUP_SIZE = 2**22
"""The largest number of weights that are drawn together."""


@dataclasses.dataclass(frozen=True)
class Initializer:
    """The distribution that the initial values of a parameter are drawn from."""

    kind: str  # "normal", "uniform" or "constant"
    # the standard deviation of a normal distribution, the limit a of a uniform distribution over
    # [-a, a], or the value of a constant
    scale: float


@dataclasses.dataclass(frozen=True)
class Parameter:
    """The declaration of one array of weights."""

    shape: tuple[int, ...]  # the size of each dimension
    letters: str  # one letter for each dimension. R and E are batch dimensions for the optimizer.
    initializer: Initializer  # the distribution of the initial values
    dtype: str = "float32"  # the dtype of the values
    # whether the weight is used in float32 even if activations are bfloat16
    keep_float32: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def scaled(self, factor: float) -> "Parameter":
        scale = factor * self.initializer.scale
        return dataclasses.replace(self, initializer=Initializer(self.initializer.kind, scale))


Parameters = Mapping[str, Parameter]

SUMMED: Mapping[str, str] = {
    "query": "M",
    "key": "M",
    "value": "M",
    "output": "ND",
    "wi": "M",
    "wi_linear": "M",
    "wo": "H",
}
"""The letters that the product of a matrix sums over, by the last word of its name."""


def normal(standard_deviation: float) -> Initializer:
    """Returns the initializer N(0, standard_deviation**2)."""
    return Initializer("normal", standard_deviation)


def fan_in_uniform(fan_in: int) -> Initializer:
    """Returns the initializer U(-sqrt(3 / fan_in), sqrt(3 / fan_in)), whose variance is 1 / fan_in."""
    return Initializer("uniform", math.sqrt(3.0 / fan_in))


ONES = Initializer("constant", 1.0)
ZEROS = Initializer("constant", 0.0)


def scoped(prefix: str, declared: Mapping[str, T]) -> dict[str, T]:
    """Returns the same entries, such as parameters, with `prefix/` before each name."""
    return {f"{prefix}/{name}": entry for name, entry in declared.items()}


def stacked(letter: str, size: int, declared: Parameters) -> dict[str, Parameter]:
    """Returns the parameters of equal blocks or experts: the same ones with a leading dimension."""
    return {
        name: dataclasses.replace(p, shape=(size, *p.shape), letters=letter + p.letters)
        for name, p in declared.items()
    }


def within(values: Mapping[str, "tf.Tensor"], prefix: str) -> dict[str, "tf.Tensor"]:
    """Returns the values whose names begin with `prefix/`, by the rest of their name."""
    start = f"{prefix}/"
    return {name[len(start) :]: v for name, v in values.items() if name.startswith(start)}


def initial_values(declared: Parameters, key: counter_random.Key) -> dict[str, "tf.Tensor"]:
    """Draws the initial values of every parameter.

    Random values are float32, and constants have the declared dtype. A value depends only on the key
    and on its own index, so each device draws its own shard alone.
    """
    groups = _groups(declared)
    names = [name for group in groups for name in group]
    keys, start, values = key.fold_each(names), 0, {}
    for group in groups:
        stop = start + len(group)
        own = counter_random.Key(*(word[0, start:stop] for word in keys.words))
        parameter = declared[group[0]]
        kind, shape = parameter.initializer.kind, parameter.shape
        together = _DISTRIBUTIONS[kind](own.spread(len(shape)), shape)
        if mesh := active_mesh():
            together = mesh_split(
                together, mesh, ((), *mesh.partition(parameter.letters, group[0]))
            )
        for i, name in enumerate(group):
            values[name] = together[i] * declared[name].initializer.scale
        start = stop
    return {n: values[n] if n in values else _constant(p, key) for n, p in declared.items()}


def _groups(declared: Parameters) -> list[list[str]]:
    """Returns the names of random parameters, together if they differ in nothing but their scale.

    One computation draws a group, which takes a third of the time to trace and to lower. A group may be
    in memory twice, so it is small. A large parameter is alone.
    """
    mesh, groups = active_mesh(), dict[tuple, list[str]]()
    for name, p in declared.items():
        if p.initializer.kind != "constant":
            layout = mesh.partition(p.letters, name) if mesh else ()
            groups.setdefault((p.initializer.kind, p.shape, layout), []).append(name)
    small = []
    for names in groups.values():
        count = max(1, _GROUP_SIZE // declared[names[0]].size)
        small += [names[i : i + count] for i in range(0, len(names), count)]
    return small


_DISTRIBUTIONS: Mapping[str, Callable[[counter_random.Key, Sequence[int]], "tf.Tensor"]] = {
    "normal": counter_random.normal,
    "uniform": lambda key, shape: 2.0 * counter_random.uniform(key, shape) - 1.0,
}
"""How numbers of scale 1 are drawn, by the kind of the initializer."""


def _constant(parameter: Parameter, key: counter_random.Key) -> "tf.Tensor":
    # We add to a run-time zero, because TF2XLA would build a constant on the host at its global size.
    zero = tf.cast(key.word0 & tf.constant(0, tf.uint32), parameter.dtype)
    value = zero + tf.cast(parameter.initializer.scale, parameter.dtype)
    return tf.broadcast_to(value, parameter.shape)
