"""Adafactor (Shazeer and Stern 2018, Algorithm 4) with the settings of GShard section A.2.

beta1 is 0, so there is no momentum. The second moment of a matrix is stored as the means of its rows
and of its columns. R (repeats) and E (experts) are batch dimensions: each expert's matrix is factored
separately. The moments are sharded like their parameter.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import Parameter, Parameters
from gshard_nmt.ranges import Rule, above, at_least, check, one_of
from gshard_nmt.spmd.sharding import annotate

BATCH_LETTERS = "RE"
RMS_BATCH_LETTERS = {"tensor": "R", "expert": "RE"}
"""The dimensions that a root mean square does not reduce, for each value of `Optimizer.rms_over`."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Adafactor and its learning rate schedule."""

    # Learning rate
    learning_rate: float = 1.0
    """The factor that multiplies the whole schedule. With `scale_by_parameter` it is a relative
    step size."""

    warmup_steps: int = 10_000
    """The learning rate of step t is proportional to 1 / sqrt(max(t, warmup_steps))."""

    linear_warmup_steps: int = 0
    """The number of first steps in which the learning rate is also multiplied by a factor that rises
    linearly from 0 to 1. 0 turns this off."""

    cooldown_steps: float = 0.0
    """The number of last steps of the run in which the learning rate falls linearly to 0; below 1, a
    share of the run. 0 turns this off, as in the paper."""

    # Second moments
    decay_exponent: float = 0.8
    """beta2 of step t is 1 - t ** -decay_exponent. GShard section A.2 prints beta2 = 0.99, but the
    authors' code never reads it and uses this schedule."""

    maximum_beta2: float = 1.0
    """The largest beta2. With 0.99, the value in the paper, beta2 is constant from step 317 on."""

    min_factored_size: int = 128
    """A matrix is factored if both of its sides have at least this size."""

    epsilon1: float = 1e-30
    """This is added to the squared gradient."""

    # Size of an update
    clip_threshold: float = 1.0
    """The largest root mean square of an update, before the learning rate multiplies it (Shazeer and
    Stern, section 6)."""

    scale_by_parameter: bool = True
    """Whether max(epsilon2, root mean square of the parameter) also multiplies the update (section 8)."""

    epsilon2: float = 1e-3
    """The smallest scale of a parameter for `scale_by_parameter`."""

    rms_over: str = "tensor"
    """What a root mean square of a parameter or of an update covers. "tensor" takes all experts of a
    layer together, as in the authors' code. "expert" takes each expert separately, as in T5X; an
    expert that is rarely used then takes larger steps."""

    RULES: ClassVar[Sequence[Rule]] = (
        above(0, "learning_rate", "decay_exponent", "clip_threshold"),
        at_least(0, "linear_warmup_steps", "cooldown_steps", "epsilon2"),
        # Its product with 1 - beta2, which is 2 ** -24 or more, must not be 0 in float32.
        at_least(2e-31, "epsilon1"),
        at_least(1, "warmup_steps", "min_factored_size"),
        above(0, "maximum_beta2", most=1),
        one_of(RMS_BATCH_LETTERS, "rms_over"),
    )

    def __post_init__(self) -> None:
        check(self, self.RULES)


@dataclasses.dataclass(frozen=True)
class Update:
    """One step of the optimizer."""

    values: dict[str, "tf.Tensor"]  # the new parameters, by name
    moments: dict[str, "tf.Tensor"]  # the new state of the optimizer, by name
    # float32[]. No new value is larger than this, and no smaller than its negative. It is not
    # finite if a value may not be finite.
    bound: "tf.Tensor"
    gradient_norm: "tf.Tensor"  # float32[], the L2 norm of all gradients


@dataclasses.dataclass(frozen=True)
class _Factors:
    """The dimensions that form the rows and those that form the columns of a factored matrix."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]


def declare_moments(optimizer: Optimizer, declared: Parameters) -> dict[str, Parameter]:
    """Returns the optimizer's state for each parameter.

    It is `row/NAME` and `column/NAME` if the parameter is factored, and `full/NAME` if it is not.
    """
    moments = {}
    for name, parameter in declared.items():
        factors = _factors(optimizer, parameter)
        if factors is None:
            moments[f"full/{name}"] = parameter
        else:
            moments[f"row/{name}"] = _without(parameter, factors.columns)
            moments[f"column/{name}"] = _without(parameter, factors.rows)
    return moments


def learning_rate(optimizer: Optimizer, step: "tf.Tensor", last_step: "tf.Tensor") -> "tf.Tensor":
    """Returns the learning rate float32[] of a step.

    Args:
      step: int32[], 1 for the first.
      last_step: int32[], the number of steps of the run.
    """
    t = tf.cast(step, tf.float32)
    rate = optimizer.learning_rate * tf.math.rsqrt(tf.maximum(t, float(optimizer.warmup_steps)))
    if optimizer.linear_warmup_steps:
        rate *= tf.minimum(1.0, t / optimizer.linear_warmup_steps)
    if optimizer.cooldown_steps:
        last = tf.cast(last_step, tf.float32)
        cooldown = optimizer.cooldown_steps * (last if optimizer.cooldown_steps < 1 else 1.0)
        rate *= tf.clip_by_value((last - t + 1.0) / cooldown, 0.0, 1.0)
    return rate


def update(
    optimizer: Optimizer,
    declared: Parameters,
    values: Mapping[str, "tf.Tensor"],
    gradients: Mapping[str, "tf.Tensor"],
    moments: Mapping[str, "tf.Tensor"],
    step: "tf.Tensor",
    rate: "tf.Tensor",
) -> Update:
    """Computes one step of Adafactor (Shazeer and Stern 2018, Algorithm 4; GShard section A.2).

    Args:
      declared: every parameter that is trained.
      values: the parameters, float32.
      gradients: the gradients, with the names and shapes of the parameters, split like `values`.
      moments: the optimizer's state, with the names that `declare_moments` gives.
      step: int32[], the number of updates that the moments will have seen, 1 for the first.
      rate: float32[], the learning rate.
    """
    new_values, new_moments, bounds, squares = {}, {}, [], []
    # What all parameters share stands before the loop: each operation costs a start a millisecond.
    dtype = next(iter(gradients.values())).dtype
    constants = 1.0, 1e-30, optimizer.epsilon1, optimizer.epsilon2, optimizer.clip_threshold
    one, tiny, epsilon1, epsilon2, threshold = (tf.constant(value, dtype) for value in constants)
    rate, beta2 = tf.cast(rate, dtype), _beta2(optimizer, tf.cast(step, dtype))
    weight_of_new = one - beta2

    def decayed(old: "tf.Tensor", new: "tf.Tensor") -> "tf.Tensor":
        return beta2 * old + weight_of_new * new

    for name, parameter in declared.items():
        gradient = gradients[name]
        factors = _factors(optimizer, parameter)
        square = tf.square(gradient)
        if factors is None:
            squares.append(tf.reduce_sum(square))
            full = decayed(moments[f"full/{name}"], square + epsilon1)
            # XLA would replace a division by a root with a product with an inverse root, which takes
            # XLA:CPU five times as long. The maximum, which changes no value, prevents this.
            direction = gradient / tf.maximum(tf.sqrt(full), tiny)
            new_moments[f"full/{name}"] = full
        else:
            # The norm is computed from the means of the rows, so nothing reads the gradient once more.
            means = tf.reduce_mean(square, factors.columns)
            squares.append(tf.reduce_sum(means) * (parameter.size / math.prod(means.shape)))
            row = decayed(moments[f"row/{name}"], means + epsilon1)
            column_means = tf.reduce_mean(square, factors.rows)
            column = decayed(moments[f"column/{name}"], column_means + epsilon1)
            # Without this annotation, the partitioner may split the column of a replicated gate, and then
            # gather the whole gate.
            column = annotate(column, _without(parameter, factors.rows).letters, f"column/{name}")
            new_moments[f"row/{name}"], new_moments[f"column/{name}"] = row, column
            direction = gradient * _inverse_root(parameter, factors, row, column)
        rms = _rms(direction, parameter, optimizer.rms_over)
        direction /= tf.maximum(one, rms / threshold)
        size = _rms(values[name], parameter, optimizer.rms_over)
        scale = rate * tf.maximum(epsilon2, size) if optimizer.scale_by_parameter else rate
        new_values[name] = values[name] - scale * direction
        bounds.append(tf.reduce_sum(size + scale * rms))
    # No value of n values is larger than sqrt(n) times their root mean square. So a few scalars tell
    # whether all tensors are finite, and nothing has to read them again. We add, because a sum keeps NaN.
    most = math.sqrt(max(parameter.size for parameter in declared.values()))
    bound, total = (tf.cast(tf.add_n(terms), tf.float32) for terms in (bounds, squares))
    return Update(new_values, new_moments, most * bound, tf.sqrt(total))


def _beta2(optimizer: Optimizer, step: "tf.Tensor") -> "tf.Tensor":
    """Returns the decay of the second moments, which is 0 in step 1 (Algorithm 4; section 7.2)."""
    beta2 = 1.0 - tf.pow(step, -optimizer.decay_exponent)
    return beta2 if optimizer.maximum_beta2 == 1.0 else tf.minimum(beta2, optimizer.maximum_beta2)


def _inverse_root(
    parameter: Parameter, factors: _Factors, row: "tf.Tensor", column: "tf.Tensor"
) -> "tf.Tensor":
    """Returns 1 / sqrt(row column / mean(row)) (Algorithm 4), broadcastable to the parameter's shape.

    Here and in `_rms` a root is a power, which TF2XLA lowers thirty times as fast (see
    `products.einsum`). For a whole matrix it would be slower than tf.math.rsqrt.
    """
    rows_left = _without(parameter, factors.columns)
    row_dims = [i for i, letter in enumerate(rows_left.letters) if letter not in BATCH_LETTERS]
    scaled = tf.pow(row / tf.reduce_mean(row, row_dims, keepdims=True), -0.5)
    return _expanded(scaled, factors.columns) * _expanded(tf.pow(column, -0.5), factors.rows)


def _expanded(x: "tf.Tensor", dims: tuple[int, ...]) -> "tf.Tensor":
    for dim in sorted(dims):
        x = tf.expand_dims(x, dim)
    return x


def _factors(optimizer: Optimizer, parameter: Parameter) -> _Factors | None:
    """Returns the rows and columns of a parameter as a matrix, or None if it is not factored.

    The rows are M, and the columns are all other dimensions except R and E. A projection MND is the
    matrix M x (N D), because it is used as one. We depart from the authors' code here: it factors the
    two largest dimensions. In the paper M is 1024, so with 1024 experts or more E would be one of these
    dimensions, and the factors would mix the experts.
    """
    matrix = [i for i, letter in enumerate(parameter.letters) if letter not in BATCH_LETTERS]
    rows = tuple(i for i in matrix if parameter.letters[i] == "M")
    columns = tuple(i for i in matrix if parameter.letters[i] != "M")
    if not rows or not columns:
        return None
    sizes = [math.prod(parameter.shape[i] for i in dims) for dims in (rows, columns)]
    return _Factors(rows, columns) if min(sizes) >= optimizer.min_factored_size else None


def _without(parameter: Parameter, dims: tuple[int, ...]) -> Parameter:
    others = [i for i in range(len(parameter.shape)) if i not in dims]
    return dataclasses.replace(
        parameter,
        shape=tuple(parameter.shape[i] for i in others),
        letters="".join(parameter.letters[i] for i in others),
    )


def _rms(x: "tf.Tensor", parameter: Parameter, over: str) -> "tf.Tensor":
    """Returns the root mean square over all dimensions but RMS_BATCH_LETTERS[over].

    The result is broadcastable to x.
    """
    dims = [i for i, each in enumerate(parameter.letters) if each not in RMS_BATCH_LETTERS[over]]
    return tf.pow(tf.reduce_mean(tf.square(x), dims, keepdims=True), 0.5)


def moving_average(
    average: Mapping[str, "tf.Tensor"],
    weights: Mapping[str, "tf.Tensor"],
    decay: float,
    step: "tf.Tensor",
) -> dict[str, "tf.Tensor"]:
    """Returns the moving average of the weights after a step: d average + (1 - d) weights.

    The decay d of step t is min(decay, (1 + t) / (10 + t)), the rule of TensorFlow's
    tf.train.ExponentialMovingAverage with `num_updates`. So the average of an early step t covers about
    the last t / 9 steps, and the random weights of the beginning are soon forgotten.

    Args:
      average: the average before the step, with the names of the weights.
      decay: the decay of the settings, above 0 and below 1.
      step: int32[], 1 for the first.
    """
    # 1 - (1 + t) / (10 + t) is 9 / (10 + t). This form is exact also if d is close to 1.
    share = tf.maximum(1.0 - decay, 9.0 / (10.0 + tf.cast(step, tf.float32)))
    return {name: value + share * (weights[name] - value) for name, value in average.items()}
