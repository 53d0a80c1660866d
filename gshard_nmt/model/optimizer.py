"""Adafactor (Shazeer and Stern 2018), as GShard section A.2 sets it.

beta1 = 0, so no momentum; the second moment of a matrix is kept as its row and column means. R
(repeats) and E (experts) are batch dimensions: each expert's matrix is factored on its own, and the
moments are sharded as their parameter is.
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
RMS_OVER = {"tensor": "R", "expert": "RE"}
"""The letters whose indices have a root mean square of their own."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Adafactor and its schedule.

    Attributes:
      learning_rate: multiplies the schedule; with `scale_by_parameter` a relative step size.
      warmup_steps: the schedule is 1 / sqrt(max(step, warmup_steps)).
      linear_warmup_steps: the step size also rises linearly from 0 over so many steps; 0 = none.
      cooldown_steps: over the last so many steps of the run it falls linearly to 0; 0 = none, as in
        the paper.
      decay_exponent: beta2 of step t is 1 - t ** -decay_exponent. The paper's beta2 = 0.99 is dead in
        the authors' code, which uses this schedule instead of it.
      maximum_beta2: an upper bound of beta2; 0.99 would be the other reading of the paper, and binds
        from step 317 on.
      clip_threshold: the root mean square of an update is at most this, before the step size.
      scale_by_parameter: multiply by max(epsilon2, RMS of the parameter).
      rms_over: what a root mean square, of a parameter or of an update, is taken over: "tensor", all
        experts of a layer together, as in the authors' code; "expert", each alone, as in T5X, which
        takes larger steps where an expert is rarely used.
      min_factored_size: a matrix is factored where both sides have at least this size.
      epsilon1, epsilon2: added to the squared gradient; least parameter scale.
    """

    learning_rate: float = 1.0
    warmup_steps: int = 10_000
    linear_warmup_steps: int = 0
    cooldown_steps: int = 0
    decay_exponent: float = 0.8
    clip_threshold: float = 1.0
    scale_by_parameter: bool = True
    min_factored_size: int = 128
    epsilon1: float = 1e-30
    epsilon2: float = 1e-3
    maximum_beta2: float = 1.0
    rms_over: str = "tensor"

    RULES: ClassVar[Sequence[Rule]] = (
        above(0, "learning_rate", "decay_exponent", "clip_threshold", "epsilon1"),
        at_least(0, "linear_warmup_steps", "cooldown_steps", "epsilon2"),
        at_least(1, "warmup_steps", "min_factored_size"),
        above(0, "maximum_beta2", most=1),
        one_of(RMS_OVER, "rms_over"),
    )

    def __post_init__(self) -> None:
        check(self, self.RULES)


@dataclasses.dataclass(frozen=True)
class _Factors:
    """The dimensions over which a parameter's moments are means."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]


def declare_moments(optimizer: Optimizer, declared: Parameters) -> dict[str, Parameter]:
    """The optimiser's state: `row/NAME` and `column/NAME`, or `full/NAME` where not factored."""
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
    """The step size of step 1, 2, ... (int32[]) in a run of `last_step` steps (int32[])."""
    t = tf.cast(step, tf.float32)
    rate = optimizer.learning_rate * tf.math.rsqrt(tf.maximum(t, float(optimizer.warmup_steps)))
    if optimizer.linear_warmup_steps:
        rate *= tf.minimum(1.0, t / optimizer.linear_warmup_steps)
    if optimizer.cooldown_steps:
        left = tf.cast(last_step, tf.float32) - t + 1.0
        rate *= tf.clip_by_value(left / optimizer.cooldown_steps, 0.0, 1.0)
    return rate


def update(
    optimizer: Optimizer,
    declared: Parameters,
    values: Mapping[str, "tf.Tensor"],
    gradients: Mapping[str, "tf.Tensor"],
    moments: Mapping[str, "tf.Tensor"],
    step: "tf.Tensor",
    rate: "tf.Tensor",
) -> tuple[dict[str, "tf.Tensor"], dict[str, "tf.Tensor"]]:
    """One step of Adafactor (A.2).

    Args:
      optimizer: the rules.
      declared: every parameter.
      values: the parameters, float32.
      gradients: of the same names and shapes.
      moments: as `declare_moments` names them.
      step: int32[], 1 for the first.
      rate: float32[], the step size.

    Returns:
      The new values and the new moments.
    """
    new_values, new_moments = {}, {}
    for name, parameter in declared.items():
        gradient = annotate(gradients[name], parameter.letters, name)
        factors = _factors(optimizer, parameter)
        square = tf.square(gradient) + optimizer.epsilon1
        beta2 = _beta2(optimizer, tf.cast(step, gradient.dtype))
        if factors is None:
            full = beta2 * moments[f"full/{name}"] + (1.0 - beta2) * square
            direction = gradient * tf.math.rsqrt(full)
            new_moments[f"full/{name}"] = full
        else:
            row = beta2 * moments[f"row/{name}"] + (1.0 - beta2) * tf.reduce_mean(
                square, factors.columns
            )
            column = beta2 * moments[f"column/{name}"] + (1.0 - beta2) * tf.reduce_mean(
                square, factors.rows
            )
            new_moments[f"row/{name}"], new_moments[f"column/{name}"] = row, column
            direction = gradient * _inverse_root(parameter, factors, row, column)
        rms = _rms(direction, parameter, optimizer.rms_over)
        direction /= tf.maximum(1.0, rms / optimizer.clip_threshold)
        scale = tf.cast(rate, gradient.dtype)
        if optimizer.scale_by_parameter:
            size = _rms(values[name], parameter, optimizer.rms_over)
            scale *= tf.maximum(optimizer.epsilon2, size)
        new_values[name] = values[name] - scale * direction
    return new_values, new_moments


def _beta2(optimizer: Optimizer, step: "tf.Tensor") -> "tf.Tensor":
    """The decay of the second moments; 0 in step 1."""
    beta2 = 1.0 - tf.pow(step, -optimizer.decay_exponent)
    return beta2 if optimizer.maximum_beta2 == 1.0 else tf.minimum(beta2, optimizer.maximum_beta2)


def _inverse_root(
    parameter: Parameter, factors: _Factors, row: "tf.Tensor", column: "tf.Tensor"
) -> "tf.Tensor":
    """1 / sqrt(row column / mean(row)), broadcastable to the parameter's shape."""
    rows_left = _without(parameter, factors.columns)
    row_dims = [i for i, letter in enumerate(rows_left.letters) if letter not in BATCH_LETTERS]
    scaled = tf.math.rsqrt(row / tf.reduce_mean(row, row_dims, keepdims=True))
    return _expanded(scaled, factors.columns) * _expanded(tf.math.rsqrt(column), factors.rows)


def _expanded(x: "tf.Tensor", dims: tuple[int, ...]) -> "tf.Tensor":
    for dim in sorted(dims):
        x = tf.expand_dims(x, dim)
    return x


def _factors(optimizer: Optimizer, parameter: Parameter) -> _Factors | None:
    """M against all other dimensions that are no batch; None where that is not a matrix.

    A projection MND is the matrix M x (N D), as it is used; taking the two largest dimensions, as the
    authors' code does, would depend on the number of experts and mix them at E >= 1024.
    """
    matrix = [i for i, letter in enumerate(parameter.letters) if letter not in BATCH_LETTERS]
    rows = tuple(i for i in matrix if parameter.letters[i] == "M")
    columns = tuple(i for i in matrix if parameter.letters[i] != "M")
    if not rows or not columns:
        return None
    sizes = [math.prod(parameter.shape[i] for i in dims) for dims in (rows, columns)]
    return _Factors(rows, columns) if min(sizes) >= optimizer.min_factored_size else None


def _without(parameter: Parameter, dims: tuple[int, ...]) -> Parameter:
    kept = [i for i in range(len(parameter.shape)) if i not in dims]
    return dataclasses.replace(
        parameter,
        shape=tuple(parameter.shape[i] for i in kept),
        letters="".join(parameter.letters[i] for i in kept),
    )


def _rms(x: "tf.Tensor", parameter: Parameter, over: str) -> "tf.Tensor":
    """Of each layer's tensor, or of each expert's; broadcastable to x."""
    dims = [i for i, letter in enumerate(parameter.letters) if letter not in RMS_OVER[over]]
    return tf.sqrt(tf.reduce_mean(tf.square(x), dims, keepdims=True))
