"""The Mixture-of-Experts layer: gate, dispatch, experts, combine (GShard section 2.2, Algorithm 2)."""

import dataclasses
from collections.abc import Mapping

from gshard_nmt.errors import UserError
from gshard_nmt.model import dispatch, layers
from gshard_nmt.model.gating import Gating, Routing, route
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import Parameter, fan_in_uniform
from gshard_nmt.spmd.sharding import annotate


@dataclasses.dataclass(frozen=True)
class MoE:
    """The shape and the rules of one Mixture-of-Experts layer.

    Attributes:
      gating: how tokens choose experts.
      hidden_dim: H of an expert.
      num_groups: G; tokens are divided into as many groups, and each is gated on its own. 0 makes
        each row a group.
      group_size: S; where it is not 0 it decides, and the number of groups follows from the tokens.
      dispatch: "gather" (indices, fast on a CPU and for large groups), "einsum" (one-hot products,
        Algorithm 2, fast on a TPU), or "dense" (every expert on every token; drops nothing).
      activation: "relu" or "geglu".
      dropout: rate inside experts, after the activation.
    """

    gating: Gating
    hidden_dim: int
    num_groups: int
    group_size: int = 0
    dispatch: str = "gather"
    activation: str = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        allowed = list(dispatch.DISPATCHES)
        if self.dispatch not in allowed:
            raise UserError(f"dispatch is {self.dispatch!r}; it must be one of {allowed}.")

    def groups(self, rows: int, length: int) -> int:
        """G for a batch of so many rows of so many tokens.

        Raises:
          UserError: the tokens do not divide; the message names the nearest numbers that do.
        """
        divisor, tokens = self.group_size or self.num_groups or rows, rows * length
        if tokens % divisor == 0:
            return tokens // self.group_size if self.group_size else divisor
        name, plural = ("group_size", "group sizes")
        if not self.group_size:
            name, plural = ("num_groups", "numbers of groups")
        raise UserError(
            f"{rows} rows of {length} tokens do not divide into {name} = {divisor}; "
            f"the nearest legal {plural} are {nearest_divisors(tokens, divisor)}."
        )


def declare_moe(model_dim: int, moe: MoE) -> dict[str, Parameter]:
    """The gate ME and two or three matrices an expert, EMH and EHM, variance 1 / fan-in of one expert.

    The gate stays whole on every device (Algorithm 2, `replicate(wg)`): its E is named `_`, which no
    rule splits.
    """
    gate = Parameter(
        (model_dim, moe.gating.experts), "M_", fan_in_uniform(model_dim), keep_float32=True
    )
    expert = layers.declare_feed_forward(model_dim, moe.hidden_dim, moe.activation)
    return {"gate": gate} | {
        name: dataclasses.replace(p, shape=(moe.gating.experts, *p.shape), letters="E" + p.letters)
        for name, p in expert.items()
    }


def moe_layer(
    p: Mapping[str, "tf.Tensor"], x: "tf.Tensor", real: "tf.Tensor", moe: MoE, mode: Mode
) -> tuple["tf.Tensor", Routing]:
    """Each token through its experts (Algorithm 2).

    Args:
      p: gate, wi, wo, and for GEGLU wi_linear.
      x: float32 or bfloat16[B, L, M].
      real: bool[B, L], False for padding, which takes no slot and enters no loss.
      moe: the layer's shape and rules.
      mode: training or not, and random numbers.

    Returns:
      [B, L, M], 0 for a token that lost all its choices, and the routing.
    """
    b, l, m = x.shape.as_list()
    g = moe.groups(b, l)
    # [B, L, M] -> [G, S, M]: a group is S consecutive tokens of the row-major batch.
    tokens = annotate(tf.reshape(x, [g, b * l // g, m]), "GSM")
    real = tf.reshape(real, [g, b * l // g])
    if moe.dispatch == "dense":
        combined, routing = _dense(p, tokens, real, moe, mode)
    else:
        combined, routing = _by_slots(p, tokens, real, moe, mode)
    return annotate(tf.reshape(annotate(combined, "GSM"), [b, l, m]), "BLM"), routing


def _by_slots(p, tokens, real, moe: MoE, mode: Mode) -> tuple["tf.Tensor", Routing]:
    # The scopes reach the compiled program: gshard-inspect tells these four kinds of work apart.
    with tf.name_scope("gating"):
        routing = route(tokens, p["gate"], real, moe.gating, mode)
        make = dispatch.BY_SLOTS[moe.dispatch]
        to_experts, to_tokens = make(routing, moe.gating.experts, tokens.dtype)
    with tf.name_scope("dispatch"):
        # GECM -> EGCM on other devices: the first all-to-all.
        inputs = annotate(tf.transpose(to_experts(tokens), [1, 0, 2, 3]), "EGCM")
    with tf.name_scope("experts"):
        hidden = annotate(layers.activated(p, "EGCM,EMH->EGCH", inputs), "EGCH")
        hidden = layers.dropout(hidden, moe.dropout, mode, "expert")
        outputs = annotate(layers.project("EGCH,EHM->EGCM", hidden, p, "wo"), "EGCM")
    with tf.name_scope("combine"):
        # EGCM -> GECM, back where the tokens live: the second all-to-all.
        return to_tokens(annotate(tf.transpose(outputs, [1, 0, 2, 3]), "GECM")), routing


def _dense(p, tokens, real, moe: MoE, mode: Mode) -> tuple["tf.Tensor", Routing]:
    whole_group = dataclasses.replace(moe.gating, capacity=tokens.shape[1])
    with tf.name_scope("gating"):
        routing = route(tokens, p["gate"], real, whole_group, mode)
        to_experts, to_tokens = dispatch.dense(routing, moe.gating.experts, tokens.dtype)
    with tf.name_scope("experts"):
        hidden = layers.activated(p, "EGSM,EMH->EGSH", to_experts(tokens))
        hidden = layers.dropout(annotate(hidden, "EGSH"), moe.dropout, mode, "expert")
        outputs = annotate(layers.project("EGSH,EHM->EGSM", hidden, p, "wo"), "EGSM")
    with tf.name_scope("combine"):
        return to_tokens(outputs), routing


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of `number` on either side of `wanted`, itself included."""
    below = next((n for n in range(min(wanted, number), 0, -1) if number % n == 0), None)
    # The smallest divisor from `wanted` on is `number` by the largest up to number / wanted.
    quotient = next((n for n in range(number // wanted, 0, -1) if number % n == 0), None)
    above = number // quotient if quotient else None
    return sorted({n for n in (below, above) if n})
