"""Gating: which experts each token visits, and which of their slots it takes.

GShard section 2.2, Algorithm 1: top-2 gating in local groups, with expert capacity, a random second
expert and an auxiliary loss. Where the paper's pseudo-code and its authors' code differ, this follows
the code, and says so at the line. Switch routing (Fedus et al. 2021, section 2) is the same with one
choice.
"""

import dataclasses
import math

from gshard_nmt.errors import UserError
from gshard_nmt.model import counter_random, layers
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd.sharding import annotate

ROUTINGS = {"top2": 2, "switch": 1}
"""Experts that a token visits under each routing."""

POLICIES = ("random", "all", "none", "threshold")
ROUNDINGS = ("up", "down", "nearest", "multiple_of_4")
AUX_LOSS_SCALES = ("authors", "paper")


@dataclasses.dataclass(frozen=True)
class Gating:
    """The rules by which tokens choose experts.

    Attributes:
      experts: E.
      routing: "top2" (GShard), or "switch": the first choice alone, weighted by its raw gate.
      second_expert: whether a token goes to its second expert: "random", with probability
        min(1, 2 w2), as the paper; "all"; "none"; "threshold", where w2 > second_expert_threshold.
      second_expert_threshold: see second_expert; w2 is at most 1/2.
      capacity: C, the slots of an expert in a group; 0 takes it from the factor.
      capacity_factor: slots of all experts together for each token: C = factor S / E, rounded. The
        paper's is 2.
      capacity_rounding: "up", "down", "nearest", or "multiple_of_4": down, 0 becoming 4, then up to a
        multiple of 4, as the authors' code.
      minimum_capacity: the least C that the factor gives; Mesh TensorFlow and Flaxformer have 4.
      aux_loss_scale: "authors", E sum_e f_e m_e, 1 at balance; "paper", (1 / E) sum_e f_e m_e.
      jitter: in training the gate's input is multiplied by U(1 - jitter, 1 + jitter) (Switch
        Transformer, section 2.4: 0.01).
    """

    experts: int
    routing: str = "top2"
    second_expert: str = "random"
    second_expert_threshold: float = 0.2
    capacity: int = 0
    capacity_factor: float = 2.0
    capacity_rounding: str = "up"
    minimum_capacity: int = 1
    aux_loss_scale: str = "authors"
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("routing", ROUTINGS),
            ("second_expert", POLICIES),
            ("capacity_rounding", ROUNDINGS),
            ("aux_loss_scale", AUX_LOSS_SCALES),
        ):
            if getattr(self, name) not in allowed:
                raise UserError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {list(allowed)}."
                )
        if self.experts < 2:
            raise UserError(f"{self.experts} experts; gating needs at least 2.")
        if self.capacity < 0 or self.minimum_capacity < 1 or self.capacity_factor <= 0:
            raise UserError(
                f"capacity {self.capacity} must be 1 or more, or 0 to take it from the factor; "
                f"capacity_factor {self.capacity_factor} must be above 0 and minimum_capacity "
                f"{self.minimum_capacity} at least 1."
            )
        if not 0 <= self.second_expert_threshold <= 0.5 or not 0 <= self.jitter < 1:
            raise UserError(
                f"second_expert_threshold {self.second_expert_threshold} must be between 0 and 0.5 "
                f"(a second expert's weight is at most 0.5), and jitter {self.jitter} from 0 to "
                "below 1."
            )

    @property
    def choices(self) -> int:
        """K, the experts that a token visits at most."""
        return ROUTINGS[self.routing]

    def slots(self, group_size: int) -> int:
        """C, the slots of an expert in a group of S tokens; never more than S, which all fit."""
        if self.capacity:
            return min(group_size, self.capacity)
        exact = self.capacity_factor * group_size / self.experts
        if self.capacity_rounding == "up":
            slots = math.ceil(exact - 1e-9)  # 1.1 * 100 / 11 is a hair above 10
        elif self.capacity_rounding == "nearest":
            slots = round(exact)
        else:
            slots = math.floor(exact + 1e-9)
        if self.capacity_rounding == "multiple_of_4":
            slots = -(-(slots or 4) // 4) * 4
        return min(group_size, max(self.minimum_capacity, slots))


@dataclasses.dataclass(frozen=True)
class Routing:
    """Where each token goes. Of the K choices of a token, the first is k = 0.

    Attributes:
      slot: int32[G, S, K], expert * C + position in the expert; E * C where the choice is dropped.
      weight: float32[G, S, K], the gate's weight; 0 where the choice is dropped.
      capacity: C.
      aux_loss: float32[], the load-balancing loss, averaged over groups.
      z_loss: float32[], mean over real tokens of logsumexp(logits)**2.
      overflow_fraction: float32[], the share of wanted choices that found their expert full.
      entropy: float32[], mean over real tokens of the entropy of their gates, in nats; ln E at most.
      load: float32[E], the share of first choices that each expert got, overflow included.
    """

    slot: "tf.Tensor"
    weight: "tf.Tensor"
    capacity: int
    aux_loss: "tf.Tensor"
    z_loss: "tf.Tensor"
    overflow_fraction: "tf.Tensor"
    entropy: "tf.Tensor"
    load: "tf.Tensor"


def route(
    tokens: "tf.Tensor", gate: "tf.Tensor", real: "tf.Tensor", rules: Gating, mode: Mode
) -> Routing:
    """Gates the tokens of each group.

    The gate is computed in float32 whatever the dtype of the tokens: in bfloat16 it costs quality
    (Switch Transformer, section 2.4).

    Args:
      tokens: float32 or bfloat16[G, S, M].
      gate: float32[M, E].
      real: bool[G, S], False for padding, which takes no slot and enters no loss.
      rules: how tokens choose.
      mode: training draws the jitter, and the random second expert where the policy asks for it.
    """
    x = layers.to_float32(tokens)
    key = mode.key_of("jitter") if rules.jitter else None
    if key is not None:
        noise = counter_random.uniform(key, x.shape.as_list())
        x *= tf.cast(1.0 + rules.jitter * (2.0 * noise - 1.0), x.dtype)
    logits = annotate(layers.exact_product(x, gate), "GSE")
    key = mode.key_of("second_expert") if rules.second_expert == "random" else None
    draw = None if key is None else counter_random.uniform(key, real.shape.as_list())
    return assign(logits, real, rules, draw)


def assign(
    logits: "tf.Tensor", real: "tf.Tensor", rules: Gating, draw: "tf.Tensor | None" = None
) -> Routing:
    """Algorithm 1 on the gate's logits.

    All first choices of a group come before all second choices, and within a pass earlier tokens come
    first. Weights are normalised over the pair before anything is dropped, and never again.

    Args:
      logits: float32[G, S, E].
      real: bool[G, S].
      rules: how tokens choose.
      draw: float32[G, S] in [0, 1) for the policy "random"; None keeps every second choice.
    """
    capacity = rules.slots(real.shape[1])
    gates = tf.nn.softmax(logits)
    choices = _choices(logits, gates, real, rules, draw)
    slots, weights, kept_choices = [], [], []
    taken = tf.zeros([1, 1, rules.experts], tf.int32)
    for choice in choices:
        # Counts are int32: bfloat16 cannot count beyond 256.
        mask = tf.where(choice.wanted[..., tf.newaxis], tf.cast(choice.one_hot, tf.int32), 0)
        earlier = tf.cumsum(mask, axis=1, exclusive=True) + taken
        position = tf.reduce_sum(earlier * mask, axis=-1)
        kept = choice.wanted & (position < capacity)
        slots.append(tf.where(kept, choice.expert * capacity + position, rules.experts * capacity))
        weights.append(tf.where(kept, choice.weight, tf.zeros([], logits.dtype)))
        kept_choices.append(kept)
        # Second choices come after the admitted firsts. Counting those that overflowed as well, as
        # Algorithm 1 does, admits the same: where a first overflowed no second fits either way.
        taken = tf.minimum(tf.reduce_sum(mask, axis=1, keepdims=True) + taken, capacity)

    first = choices[0]
    real_share = tf.cast(real, logits.dtype)[..., tf.newaxis]
    # Means over all S tokens, padding included, as in the authors' code.
    density = tf.reduce_mean(first.one_hot * real_share, axis=1)  # GE
    mean_gate = tf.reduce_mean(gates * real_share, axis=1)  # GE
    # Only the gates carry a gradient; the densities are counts.
    balance = tf.reduce_mean(tf.reduce_sum(density * mean_gate, axis=-1))
    scale = rules.experts if rules.aux_loss_scale == "authors" else 1 / rules.experts
    log_z = tf.reduce_logsumexp(logits, axis=-1)
    entropy = log_z - tf.reduce_sum(gates * logits, axis=-1)
    wanted = tf.add_n([_count(c.wanted, logits.dtype) for c in choices])
    admitted = tf.add_n([_count(kept, logits.dtype) for kept in kept_choices])
    return Routing(
        slot=tf.stack(slots, axis=-1),
        weight=tf.stack(weights, axis=-1),
        capacity=capacity,
        aux_loss=scale * balance,
        z_loss=_mean_over_real(tf.square(log_z), real),
        overflow_fraction=(wanted - admitted) / tf.maximum(wanted, 1.0),
        entropy=tf.stop_gradient(_mean_over_real(entropy, real)),
        load=tf.reduce_sum(density, axis=0) / tf.maximum(tf.reduce_sum(density), 1e-9),
    )


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The k-th expert of every token.

    Attributes:
      expert: int32[G, S].
      one_hot: float32[G, S, E].
      weight: float32[G, S], what its output is multiplied by if it is kept.
      wanted: bool[G, S], whether the token asks for a slot.
    """

    expert: "tf.Tensor"
    one_hot: "tf.Tensor"
    weight: "tf.Tensor"
    wanted: "tf.Tensor"


def _choices(
    logits: "tf.Tensor",
    gates: "tf.Tensor",
    real: "tf.Tensor",
    rules: Gating,
    draw: "tf.Tensor | None",
) -> list[_Choice]:
    """Of each token the first choice and, but for Switch routing, the second."""
    # Two arg-max passes: tf.math.top_k lowers to a full sort.
    expert1 = tf.argmax(logits, axis=-1, output_type=tf.int32)
    hot1 = tf.one_hot(expert1, rules.experts, dtype=logits.dtype)
    gate1 = tf.reduce_sum(gates * hot1, axis=-1)
    if rules.choices == 1:
        return [_Choice(expert1, hot1, gate1, real)]
    # Masked with -inf rather than multiplied: with one-hot gates the second must still differ.
    others = tf.where(hot1 > 0, tf.constant(-math.inf, logits.dtype), logits)
    expert2 = tf.argmax(others, axis=-1, output_type=tf.int32)
    hot2 = tf.one_hot(expert2, rules.experts, dtype=logits.dtype)
    gate2 = tf.reduce_sum(gates * hot2, axis=-1)
    total = gate1 + gate2 + 1e-9
    weight1, weight2 = gate1 / total, gate2 / total
    # A second choice that the policy drops takes no slot: the authors' code. Algorithm 1 as printed
    # counts it all the same, against the text's aim of saving capacity.
    wanted2 = real
    if rules.second_expert == "none":
        wanted2 = tf.zeros_like(real)
    elif rules.second_expert == "threshold":
        wanted2 = real & (weight2 > rules.second_expert_threshold)
    elif rules.second_expert == "random" and draw is not None:
        wanted2 = real & (2.0 * weight2 > tf.cast(draw, logits.dtype))
    return [_Choice(expert1, hot1, weight1, real), _Choice(expert2, hot2, weight2, wanted2)]


def _count(mask: "tf.Tensor", dtype: "tf.DType") -> "tf.Tensor":
    return tf.reduce_sum(tf.cast(mask, dtype))


def _mean_over_real(x: "tf.Tensor", real: "tf.Tensor") -> "tf.Tensor":
    """Mean of x[G, S] over the tokens that are no padding; 0 where all are."""
    total = tf.reduce_sum(tf.where(real, x, tf.zeros([], x.dtype)))
    return total / tf.maximum(_count(real, x.dtype), 1.0)
