"""Gating: which experts each token visits, and which slots of these experts it takes.

GShard section 2.2, Algorithm 1: top-2 gating in local groups, with expert capacity, a random second
expert and an auxiliary loss. If the pseudo-code of the paper and its authors' code differ, this module
follows the code, and a comment at the line says so. Switch routing (Fedus et al. 2021, section 2) is the
same algorithm with one expert per token.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from gshard_nmt.errors import UserError
from gshard_nmt.model import counter_random, layers, products
from gshard_nmt.model.kept_results import Keep, not_kept
from gshard_nmt.model.last_dimension import running_total
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd.sharding import active_mesh, annotate

ROUTINGS = {"top2": 2, "switch": 1}
"""The number of experts that a token visits, for each routing."""

POLICIES = ("random", "all", "none", "threshold")
ROUNDINGS = ("up", "down", "nearest", "multiple_of_4")
AUX_LOSS_SCALES = ("authors", "paper")


@dataclasses.dataclass(frozen=True)
class MoE:
    """The settings of a Mixture-of-Experts layer: those of `Model` with the same names, explained there.

    Only `hidden_dim` is another: that of an expert. `Model.moe` makes one for training and one for
    evaluation.
    """

    experts: int  # E
    hidden_dim: int  # H of an expert
    # "top2" (GShard), or "switch": only the first choice, weighted by its softmax probability
    routing: str = "top2"
    # which tokens go to their second expert. Its weight w2 is its gate divided by the sum of the two
    # gates, so it is at most 1/2.
    second_expert: str = "random"
    second_expert_threshold: float = 0.2
    capacity: int = 0  # C, the slots of an expert in a group. 0 takes C from capacity_factor.
    capacity_factor: float = 2.0
    # "multiple_of_4" is the rounding of the authors' code: first down, then 0 is replaced by 4, then
    # up to a multiple of 4.
    capacity_rounding: str = "up"
    # the lower limit of a C that is computed from the factor. Mesh TensorFlow and Flaxformer have 4.
    minimum_capacity: int = 1
    # "authors" is E sum_e f_e m_e, which is 1 at balance; "paper" is (1 / E) sum_e f_e m_e. Here
    # f_e is the fraction of the tokens of a group whose first choice is expert e, and m_e is the
    # mean gate of e.
    aux_loss_scale: str = "authors"
    # in training the gate's input is multiplied by U(1 - router_jitter, 1 + router_jitter): Switch
    # Transformer, appendix C. Mesh TensorFlow has 0.01.
    router_jitter: float = 0.0
    num_groups: int = 0  # G; 0 makes each row a group
    group_size: int = 0  # S. If it is not 0, it replaces num_groups.
    dispatch: str = "gather"
    activation: str = "relu"
    expert_dropout: float = 0.0  # after the activation
    biases: bool = False  # of the experts' matrices. The gate has none.
    expert_output_masking: float = 0.0
    gating_dropout: float = 0.0
    # H of the shared expert, whose output is added to that of the others
    shared_expert_dim: int = 0

    @property
    def choices(self) -> int:
        return ROUTINGS[self.routing]

    @property
    def has_room(self) -> bool:
        """Whether every token has a slot in every expert, so that no choice is dropped."""
        return self.dispatch in ("dense", "blocks")

    def slots(self, group_size: int) -> int:
        """Returns C, the slots of an expert in a group of S tokens.

        C is never more than S, because S slots hold all tokens of the group.
        """
        if self.has_room:
            return group_size
        if self.capacity:
            return min(group_size, self.capacity)
        exact = self.capacity_factor * group_size / self.experts
        if self.capacity_rounding == "up":
            slots = math.ceil(exact - 1e-9)  # as floats, 1.1 * 100 / 11 is slightly above 10
        elif self.capacity_rounding == "nearest":
            slots = round(exact)
        else:
            slots = math.floor(exact + 1e-9)
        if self.capacity_rounding == "multiple_of_4":
            slots = -(-(slots or 4) // 4) * 4
        return min(group_size, max(self.minimum_capacity, slots))

    def groups(self, rows: int, length: int) -> int:
        """Returns G for a batch of `rows` rows of `length` tokens.

        Raises:
          UserError: the tokens do not divide into groups. The message gives the nearest legal
            numbers.
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


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """Returns the nearest divisors of `number` at or below `wanted`, and at or above it."""
    below = next((n for n in range(min(wanted, number), 0, -1) if number % n == 0), None)
    # The smallest divisor d >= wanted is number / q, with the largest divisor q <= number / wanted.
    quotient = next((n for n in range(number // wanted, 0, -1) if number % n == 0), None)
    above = number // quotient if quotient else None
    return sorted({n for n in (below, above) if n})


@dataclasses.dataclass(frozen=True)
class Routing:
    """The slots of each token. In the dimension A, index 0 is the first choice and 1 the second."""

    # int32[G, S, A], expert * C + position in the expert, or E * C if the choice is dropped
    slot: "tf.Tensor"
    weight: "tf.Tensor"  # float32[G, S, A], the weight of the gate, or 0 if the choice is dropped
    capacity: int  # C
    aux_loss: "tf.Tensor"  # float32[], the load-balancing loss, averaged over groups
    # float32[], the mean of logsumexp(logits)**2 over tokens that are not padding
    z_loss: "tf.Tensor"
    # float32[G, S], the number of experts that the token asked for and that were full: 0, 1 or 2
    lost: "tf.Tensor"
    requests: "tf.Tensor"  # float32[], the number of requests for a slot
    # float32[], the share of the requests for a slot that found their expert full
    overflow_fraction: "tf.Tensor"
    # float32[], the mean entropy of the gates over tokens that are not padding, in nats; at most ln E
    entropy: "tf.Tensor"
    # float32[E], the share of first choices that each expert got, overflow included
    load: "tf.Tensor"


def route(
    tokens: "tf.Tensor",
    gate: "tf.Tensor",
    is_token: "tf.Tensor",
    rules: MoE,
    mode: Mode,
    letters: str = "GSE",
) -> Routing:
    """Computes the gate of each token, and the slots that each token gets in its group.

    The gate is computed in float32 for tokens of any dtype, because bfloat16 costs quality here (Switch
    Transformer, section 2.4).

    Args:
      tokens: float32 or bfloat16[G, S, M].
      gate: float32[M, E].
      is_token: bool[G, S], False for padding, which takes no slot and enters no loss.
      mode: training draws the jitter, and the random second expert if the policy asks for it.
      letters: how the logits are split. "GS_" keeps all logits of a token on one device, so that no
        mesh changes the bits of the gates.
    """
    x = layers.to_float32(tokens)
    key = mode.key_of("jitter") if rules.router_jitter else None
    if key is not None:
        noise = counter_random.uniform(key, x.shape.as_list())
        x *= tf.cast(1.0 + rules.router_jitter * (2.0 * noise - 1.0), x.dtype)
    # Shape: [G, S, M] x [M, E] -> [G, S, E]. Without AVX-512, XLA's sums for CPUs have an order that
    # depends on the number of tokens, unless the columns are a multiple of 16.
    more = -rules.experts % 16 if letters == "GS_" else 0
    logits = products.exact_product(x, tf.pad(gate, [[0, 0], [0, more]]) if more else gate)
    logits = annotate(logits[..., : rules.experts] if more else logits, letters)
    logits = mode.keep("experts", logits, letters)
    key = mode.key_of("second_expert") if rules.second_expert == "random" else None
    draw = None if key is None else counter_random.uniform(key, is_token.shape.as_list())
    return assign(logits, is_token, rules, draw, mode.keep)


def assign(
    logits: "tf.Tensor",
    is_token: "tf.Tensor",
    rules: MoE,
    draw: "tf.Tensor | None" = None,
    keep: Keep = not_kept,
) -> Routing:
    """Computes Algorithm 1 from the logits of the gate.

    (1) Each token chooses its experts. Their weights are normalized over the pair before anything is
        dropped, and never again.
    (2) All first choices of a group ask for slots, earlier tokens first. Then all second choices do.
    (3) A choice that finds its expert full is dropped: its weight is 0 and it has no slot.
    (4) The auxiliary losses and the statistics are computed from the gates and the choices.

    Do not decode with a limited capacity. Which choices are dropped depends on all tokens of the group,
    later tokens included, so a translation would depend on its neighbors in the batch.

    Args:
      logits: float32[G, S, E].
      is_token: bool[G, S], False for padding.
      draw: float32[G, S] in [0, 1), for the policy "random". None keeps every second choice.
      keep: keeps results for the backward pass: numbers of a token, and the densities.
    """

    def kept(x: "tf.Tensor", letters: str = "GS") -> "tf.Tensor":
        return keep("experts", x, letters)

    capacity = rules.slots(is_token.shape[1])
    # The softmax, with its two sums over E kept: the backward pass then reads the logits once.
    # Shape: [G, S, E] -> [G, S]
    peak = kept(tf.stop_gradient(tf.reduce_max(logits, axis=-1)))
    powers = tf.exp(logits - peak[..., tf.newaxis])
    total = kept(tf.reduce_sum(powers, axis=-1))
    gates = powers / total[..., tf.newaxis]  # [G, S, E]
    log_z = peak + tf.math.log(total)  # [G, S]
    # (1) Choose.
    choices = _choices(logits, gates, is_token, rules, draw, kept)
    # (2) Number the tokens that ask for the same expert. (3) Drop those that find it full.
    no_slot = rules.experts * capacity
    slots, weights, lost = [], [], []
    for choice, position in zip(choices, _positions(choices, rules.experts, capacity), strict=True):
        has_slot = choice.wanted & (position < capacity)
        slots.append(kept(tf.where(has_slot, choice.expert * capacity + position, no_slot)))
        admitted = slots[-1] < no_slot
        weights.append(tf.where(admitted, choice.weight, tf.zeros([], logits.dtype)))
        lost.append(tf.cast(choice.wanted & ~admitted, logits.dtype))

    # (4) Losses and statistics.
    first = choices[0]
    # Shape: [G, S] -> [G, S, 1]
    token_weight = tf.cast(is_token, logits.dtype)[..., tf.newaxis]
    # Padding adds 0 to the sums of both means, but we divide by all S tokens, as in the authors' code.
    # Shape: [G, S, E] -> [G, E]
    density = kept(tf.reduce_mean(first.one_hot * token_weight, axis=1), "G_")
    mean_gate = tf.reduce_mean(gates * token_weight, axis=1)
    # Only the gates carry a gradient, because the densities are counts.
    balance = tf.reduce_mean(tf.reduce_sum(density * mean_gate, axis=-1))
    scale = rules.experts if rules.aux_loss_scale == "authors" else 1 / rules.experts
    entropy = log_z - tf.reduce_sum(gates * logits, axis=-1)  # [G, S]
    num_wanted = tf.add_n([_count(choice.wanted, logits.dtype) for choice in choices])
    lost_choices = tf.add_n(lost)
    return Routing(
        slot=tf.stack(slots, axis=-1),
        weight=tf.stack(weights, axis=-1),
        capacity=capacity,
        aux_loss=scale * balance,
        z_loss=_mean_over_tokens(tf.square(log_z), is_token),
        lost=lost_choices,
        requests=num_wanted,
        overflow_fraction=tf.reduce_sum(lost_choices) / tf.maximum(num_wanted, 1.0),
        entropy=tf.stop_gradient(_mean_over_tokens(entropy, is_token)),
        load=tf.reduce_sum(density, axis=0) / tf.maximum(tf.reduce_sum(density), 1e-9),
    )


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The first, or the second, choice of every token."""

    expert: "tf.Tensor"  # int32[G, S]
    one_hot: "tf.Tensor"  # float32[G, S, E], `expert` as a one-hot vector
    # float32[G, S], by which the expert's output is multiplied if the choice is admitted
    weight: "tf.Tensor"
    wanted: "tf.Tensor"  # bool[G, S], whether the token asks for a slot


def _choices(
    logits: "tf.Tensor",
    gates: "tf.Tensor",
    is_token: "tf.Tensor",
    rules: MoE,
    draw: "tf.Tensor | None",
    kept: "Callable[[tf.Tensor], tf.Tensor]",
) -> list[_Choice]:
    """Returns the first choice of each token and, unless the routing is "switch", the second."""
    # Two arg-max passes, because tf.math.top_k lowers to a full sort.
    expert1 = kept(tf.argmax(logits, axis=-1, output_type=tf.int32))
    one_hot1 = tf.one_hot(expert1, rules.experts, dtype=logits.dtype)
    gate1 = kept(tf.reduce_sum(gates * one_hot1, axis=-1))
    if rules.choices == 1:
        return [_Choice(expert1, one_hot1, gate1, is_token)]
    # We mask the logit of the first expert with -inf. If we multiplied its gate by 0 instead, and all
    # other gates were 0 too, the arg-max could choose it again.
    others = tf.where(one_hot1 > 0, tf.constant(-math.inf, logits.dtype), logits)
    expert2 = kept(tf.argmax(others, axis=-1, output_type=tf.int32))
    one_hot2 = tf.one_hot(expert2, rules.experts, dtype=logits.dtype)
    gate2 = kept(tf.reduce_sum(gates * one_hot2, axis=-1))
    total = gate1 + gate2 + 1e-9
    weight1, weight2 = gate1 / total, gate2 / total
    # A second choice that the policy drops takes no slot, as in the authors' code. Algorithm 1 as
    # printed counts it, although the text says that random routing saves capacity.
    wanted2 = is_token
    if rules.second_expert == "none":
        wanted2 = tf.zeros_like(is_token)
    elif rules.second_expert == "threshold":
        wanted2 = is_token & (weight2 > rules.second_expert_threshold)
    elif rules.second_expert == "random" and draw is not None:
        wanted2 = is_token & (2.0 * weight2 > tf.cast(draw, logits.dtype))
    return [
        _Choice(expert1, one_hot1, weight1, is_token),
        _Choice(expert2, one_hot2, weight2, wanted2),
    ]


def _positions(choices: Sequence[_Choice], experts: int, capacity: int) -> "Iterator[tf.Tensor]":
    """Returns, for one choice after another, the requests that come before its own: int32[G, S].

    Only requests for the same expert count.

    All first choices of a group come before the second choices, and earlier tokens before later ones.

    Second choices are numbered after the admitted first choices. Algorithm 1 also counts the first
    choices that overflowed. Both ways admit the same second choices, because an expert that overflowed is
    full.
    """
    group_size = choices[0].expert.shape[1]
    if _has_whole_groups() and group_size <= COMPARED_TOKENS_PER_EXPERT * experts:
        return _compared_positions(choices, capacity)
    return _summed_positions(choices, experts, capacity)


COMPARED_TOKENS_PER_EXPERT = 8
"""Up to this many tokens of a group for each expert, tokens are compared with each other. On a CPU
both ways take the same time at 16."""


def _compared_positions(choices: Sequence[_Choice], capacity: int) -> "Iterator[tf.Tensor]":
    """Compares each token with all tokens of its group: S * S comparisons.

    This is best with many experts. The compiler counts the results at once and stores none of them.
    """
    group_size = choices[0].expert.shape[1]
    asked: list[tf.Tensor] = []
    for choice in choices:
        # If two tokens ask for the same expert, the earlier one has the smaller key. The compiler does
        # not know the keys. It would compute the order of all pairs of token numbers as a constant.
        key = choice.expert * group_size + tf.range(group_size)
        # Shape: [G, S], -1 if the token asks for no expert.
        asked.append(tf.where(choice.wanted, choice.expert, -1))
        # Shape: [G, S, 1] and [G, 1, S] -> [G, S, S]
        *earlier_rounds, own = [
            choice.expert[:, :, tf.newaxis] == other[:, tf.newaxis] for other in asked
        ]
        is_before = own & (key[:, tf.newaxis] < key[:, :, tf.newaxis])
        # Shape: [G, S, S] -> [G, S]
        taken = tf.zeros([1, 1], tf.int32)
        for same in earlier_rounds:
            taken = tf.minimum(taken + _number_true(same), capacity)
        yield taken + _number_true(is_before)


def _summed_positions(
    choices: Sequence[_Choice], experts: int, capacity: int
) -> "Iterator[tf.Tensor]":
    """Counts the requests for each expert, token by token: S * E sums. This is best with few experts."""
    taken = tf.zeros([1, 1, experts], tf.int32)
    for choice in choices:
        # Counts are int32, because bfloat16 cannot count beyond 256.
        # Shape: [G, S, E], 1 if the token asks for the expert.
        asks = tf.where(choice.wanted[..., tf.newaxis], tf.cast(choice.one_hot, tf.int32), 0)
        # Shape: [G, S, E] -> [G, S]
        yield tf.reduce_sum((_earlier(asks) + taken) * asks, axis=-1)
        # Shape: [G, S, E] -> [G, 1, E]
        taken = tf.minimum(tf.reduce_sum(asks, axis=1, keepdims=True) + taken, capacity)


def _earlier(asks: "tf.Tensor") -> "tf.Tensor":
    """Returns how many earlier tokens of the group ask for each expert, int32[G, S, E].

    If the mesh spreads a group over several devices, the sum has two levels: each device counts its own
    tokens, and adds the totals of the devices before it. So only the totals are gathered. The compiler
    would gather the choices of the whole group instead.

    Args:
      asks: int32[G, S, E], 1 if the token asks for the expert.
    """
    num_groups, group_size, experts = asks.shape.as_list()
    # The mesh spreads the tokens of a group over these devices.
    devices = mesh.axis_size(mesh.partition("GSE")[1]) if (mesh := active_mesh()) else 1
    if devices == 1 or group_size % devices:
        return running_total(asks, axis=1, exclusive=True)
    # Shape: [G, S, E] -> [G, devices, S / devices, E]
    shape = [num_groups, devices, group_size // devices, experts]
    own = annotate(tf.reshape(asks, shape), "GS_E")
    totals = annotate(tf.reduce_sum(own, axis=2, keepdims=True), "G___")
    earlier_devices = annotate(tf.cumsum(totals, axis=1, exclusive=True), "G___")
    earlier = annotate(running_total(own, axis=2, exclusive=True) + earlier_devices, "GS_E")
    # Shape: [G, devices, S / devices, E] -> [G, S, E]
    return tf.reshape(earlier, asks.shape)


def _has_whole_groups() -> bool:
    """Returns whether each device has groups of its own, which no other device has.

    If several devices have the same tokens, the partitioner divides comparisons among them, and gathers
    the results.
    """
    mesh = active_mesh()
    return mesh is None or mesh.axis_size(mesh.partition("GSE")[0]) == mesh.num_devices


def _number_true(mask: "tf.Tensor") -> "tf.Tensor":
    """Returns how many elements of the last dimension are true: bool[..., n] -> int32[...]."""
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=-1)


def _count(mask: "tf.Tensor", dtype: "tf.DType") -> "tf.Tensor":
    return tf.reduce_sum(tf.cast(mask, dtype))


def _mean_over_tokens(x: "tf.Tensor", is_token: "tf.Tensor") -> "tf.Tensor":
    """Returns the mean of x[G, S] over the tokens that are not padding, or 0 if all are padding."""
    total = tf.reduce_sum(tf.where(is_token, x, tf.zeros([], x.dtype)))
    return total / tf.maximum(_count(is_token, x.dtype), 1.0)
