"""Regularizers of the MoE layer: expert output masking, and gating dropout.

Both act in training only, so that a trained model decodes as it would without them.
"""

import dataclasses
import math

from gshard_nmt.errors import UserError
from gshard_nmt.model import counter_random, layers
from gshard_nmt.model.gating import Routing
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd.sharding import annotate


def mask_expert_outputs(routing: Routing, rate: float, mode: Mode) -> Routing:
    """Masks the output of each expert for random tokens (NLLB team 2022, arXiv 2207.04672).

    Each choice of a token is masked on its own, so that a token may lose one expert, both or none. The
    load-balancing loss does not change. The authors keep the other outputs as they are and multiply all
    outputs by 1 - rate after training. We divide by 1 - rate in training, as every dropout here does,
    and then decoding needs no factor.
    """
    weight = layers.dropout(routing.weight, rate, mode, "expert_output")
    return dataclasses.replace(routing, weight=weight)


def homes(num_groups: int, experts: int) -> int:
    """Returns the number of homes, the greatest common divisor of G and E.

    A home is G / homes consecutive groups and E / homes consecutive experts. If a mesh splits G and E
    over the same axes, a home never spans two devices, so its groups need no communication to reach its
    experts. The homes belong to the model and not to the mesh, so every mesh gives the same result.

    Raises:
      UserError: there is only one home, so that gating dropout would do nothing.
    """
    number = math.gcd(num_groups, experts)
    if number == 1:
        raise UserError(
            f"Model.gating_dropout needs groups and experts that divide into homes, but {num_groups} "
            f"groups and {experts} experts have no common divisor. Set both to multiples of one "
            "number above 1, or Model.gating_dropout to 0.",
            ["Model.gating_dropout", "Model.num_groups", "Model.experts"],
        )
    return number


def stays_at_home(
    rate: float, num_groups: int, experts: int, mode: Mode
) -> tuple["tf.Tensor | None", int]:
    """Draws whether the slots of a step stay at home: one number for all MoE layers.

    Gating dropout (Liu et al. 2022, arXiv 2205.14336) skips both all-to-alls of a step at random: the
    experts of each device then work on the slots of its own groups, whichever experts these slots are
    for. The slot for expert e of a group goes to the expert of its home with the same number, e modulo
    E / homes. The gate, its weights and its losses do not change.

    Returns:
      bool[], or None if slots never stay; and the number of homes.
    """
    if not rate or mode.key is None:
        return None, 1
    number = homes(num_groups, experts)
    (draw,) = tf.unstack(counter_random.uniform(mode.key.fold("gating_dropout"), [1]))
    return draw < rate, number


def exchange(
    slots: "tf.Tensor", letters: str, stays: "tf.Tensor | None" = None, homes: int = 1
) -> "tf.Tensor":
    """Moves slots between groups and experts, or leaves them at home.

    Args:
      slots: [G, E, C, M] on the way to the experts, or [E, G, C, M] on the way back. The result has the
        first two dimensions swapped.
      letters: "EGCM" or "GECM", for the annotation of the result.
      stays: bool[], whether the slots stay at home; None if they never do.
    """

    def exchanged() -> "tf.Tensor":
        return annotate(tf.transpose(slots, [1, 0, 2, 3]), letters)

    def at_home() -> "tf.Tensor":
        first, second, *others = slots.shape.as_list()
        # Shape: [G, E, C, M] -> [homes, G / homes, homes, E / homes, C, M]
        divided = tf.reshape(slots, [homes, first // homes, homes, second // homes, *others])
        # Shape: [homes, E / homes, homes, G / homes, C, M] -> [E, G, C, M]
        swapped = tf.transpose(divided, [0, 3, 2, 1, 4, 5])
        return annotate(tf.reshape(swapped, [second, first, *others]), letters)

    if stays is None:
        return exchanged()
    return annotate(tf.cond(stays, at_home, exchanged), letters)
