"""Finds an update that would damage the weights, inside the training step.

A loss, a gradient or an update that is not finite, or a gradient norm that jumps, gives the step a
status. The step then withholds the whole update. So a bad batch does not change the weights, and the step
never writes a value that is not finite into the training state.
"""

import dataclasses
import math
from collections.abc import Mapping

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import ZEROS, Parameter

FINE, BAD_LOSS, BAD_GRADIENT, BAD_UPDATE, JUMP = range(5)

REASONS: Mapping[int, str] = {
    BAD_LOSS: "the loss is not finite",
    BAD_GRADIENT: "the gradient is not finite",
    BAD_UPDATE: "the update is not finite",
    JUMP: "the gradient norm jumped",
}
"""The reason to withhold an update, for each status but FINE."""

ARMED_AFTER = 50
"""The number of gradient norms that must be known before a jump can be seen."""

_WEIGHT = 0.05
_LARGEST_MOVE = math.log(1.1)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The decision of the guard about a step."""

    status: "tf.Tensor"  # int32[], FINE or a key of REASONS
    is_fine: "tf.Tensor"  # bool[], whether the status is FINE
    # float32[], the usual gradient norm before this step; 0 if none is known
    usual_norm: "tf.Tensor"
    # the new state of the guard, with the names of `declare_reference`
    reference: dict[str, "tf.Tensor"]


def declare_reference() -> dict[str, Parameter]:
    """Declares the state of the guard.

    It is `log_norm` float32[], the logarithm of the usual gradient norm, and `norms` int32[], the number
    of gradient norms that it was computed from.
    """
    return {"log_norm": Parameter((), "", ZEROS), "norms": Parameter((), "", ZEROS, "int32")}


def judge(
    jump: float,
    reference: Mapping[str, "tf.Tensor"],
    loss: "tf.Tensor",
    gradient_norm: "tf.Tensor",
    bound: "tf.Tensor",
) -> Verdict:
    """Decides whether an update may be applied.

    The usual norm is a geometric mean: of all norms until ARMED_AFTER of them are known, then an
    exponential mean of about the last 20. Then it also moves by at most 10 % a step. So one bad step
    hardly changes it, and a norm that stays a thousand times higher is accepted after 25 steps.

    Args:
      jump: a gradient norm jumps if it is more than this factor above the usual norm; 0 turns this
        check off.
      loss: float32[].
      gradient_norm: float32[], the L2 norm of all gradients.
      bound: float32[], an upper bound of the absolute values of all new weights. If it is finite, so
        are all new weights.
    """
    log_norm, norms = reference["log_norm"], reference["norms"]
    # A norm of 0, of a batch without tokens, has no logarithm and says nothing about the next one.
    is_usable = tf.math.is_finite(gradient_norm) & (gradient_norm > 0.0)
    is_usable &= tf.math.is_finite(loss) & tf.math.is_finite(bound)
    new_log = tf.math.log(tf.where(is_usable, gradient_norm, 1.0))
    is_armed = norms >= ARMED_AFTER
    difference = new_log - log_norm
    mean_move = difference / tf.cast(norms + 1, tf.float32)
    later_move = tf.clip_by_value(difference * _WEIGHT, -_LARGEST_MOVE, _LARGEST_MOVE)
    move = tf.where(is_armed, later_move, mean_move)
    new_reference = {
        "log_norm": tf.where(is_usable, log_norm + move, log_norm),
        "norms": tf.where(is_usable, tf.minimum(norms, ARMED_AFTER) + 1, norms),
    }
    jumps = tf.zeros([], tf.bool)
    if jump:
        jumps = is_usable & is_armed & (difference > math.log(jump))
    status = tf.where(jumps, JUMP, FINE)
    # The cause replaces its effects: if the loss is not finite, neither are gradient and update.
    for value, reason in ((bound, BAD_UPDATE), (gradient_norm, BAD_GRADIENT), (loss, BAD_LOSS)):
        status = tf.where(tf.math.is_finite(value), status, reason)
    usual_norm = tf.where(norms > 0, tf.exp(log_norm), 0.0)
    return Verdict(status, tf.equal(status, FINE), usual_norm, new_reference)


def applied(
    is_fine: "tf.Tensor", new: Mapping[str, "tf.Tensor"], old: Mapping[str, "tf.Tensor"]
) -> dict[str, "tf.Tensor"]:
    """Returns the new arrays if `is_fine` is true, otherwise the old ones with the same names."""
    return {name: tf.where(is_fine, value, old[name]) for name, value in new.items()}
