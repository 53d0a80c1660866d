"""Top-2 gating against Algorithm 1, its invariants, and the two ways of dispatch."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.errors import UserError
from gshard_nmt.model import moe, random
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.parameters import initial_values

GATES = np.array([[0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.7, 0.2, 0.1], [0.2, 0.5, 0.3]], "f")
DRAW = np.array([0.9, 0.1, 0.1, 0.1], "f")
RULES = moe.MoE(4, 8, 2, 2.0, "all", "gather")


def top2_gating(
    gates: np.ndarray,
    capacity: int,
    draw: np.ndarray | None = None,
    real: np.ndarray | None = None,
    random_drop_takes_slot: bool = False,
) -> list[list[tuple[int, int, float]]]:
    """Algorithm 1, one token after another: the (expert, slot, weight) triples of each token.

    Args:
      gates: float[S, E], softmax of the logits.
      capacity: C.
      draw: float[S] in [0, 1): the second choice is kept where 2 w2 > draw; None keeps all.
      real: bool[S], False for padding.
      random_drop_takes_slot: as Algorithm 1 is printed; the authors' code does not.
    """
    tokens, experts = gates.shape
    real = np.ones(tokens, bool) if real is None else real
    counts = np.zeros(experts, int)
    taken: list[list[tuple[int, int, float]]] = [[] for _ in range(tokens)]
    order = np.argsort(-gates, axis=1, kind="stable")[:, :2]
    for choice in range(2):
        if choice == 1:
            counts = np.minimum(counts, capacity)
        for s in range(tokens):
            if not real[s]:
                continue
            expert = order[s, choice]
            weight = gates[s, expert] / gates[s, order[s]].sum()
            wanted = choice == 0 or draw is None or 2 * weight > draw[s]
            if wanted and counts[expert] < capacity:
                taken[s].append((int(expert), int(counts[expert]), float(weight)))
            if wanted or random_drop_takes_slot:
                counts[expert] += 1
    return taken


def route(gates, capacity, draw=None, real=None) -> moe.Routing:
    """Routes one group."""
    logits = tf.math.log(tf.constant(gates, tf.float32))[tf.newaxis]
    real = np.ones(len(gates), bool) if real is None else real
    draw = None if draw is None else tf.constant(draw, tf.float32)[tf.newaxis]
    return moe.top2(logits, tf.constant(real)[tf.newaxis], capacity, draw)


def triples(routing: moe.Routing) -> list[list[tuple[int, int, float]]]:
    """(expert, slot, weight) of each token of the only group."""
    found = []
    for slots, weights in zip(routing.slot.numpy()[0], routing.weight.numpy()[0], strict=True):
        found.append(
            [
                (*divmod(int(j), routing.capacity), w)
                for j, w in zip(slots, weights, strict=True)
                if w
            ]
        )
    return found


def assert_same(found, expected):
    assert [[t[:2] for t in token] for token in found] == [
        [t[:2] for t in token] for token in expected
    ]
    for token, other in zip(found, expected, strict=True):
        np.testing.assert_allclose([t[2] for t in token], [t[2] for t in other], rtol=1e-5)


def test_the_worked_group_with_every_second_choice():
    routing = route(GATES, 2)
    expected = [
        [(0, 0, 2 / 3), (1, 1, 1 / 3)],
        [(0, 1, 5 / 9), (2, 0, 4 / 9)],
        [],
        [(1, 0, 5 / 8), (2, 1, 3 / 8)],
    ]
    assert_same(triples(routing), expected)
    assert float(routing.aux_loss) == pytest.approx(1.33125)
    assert float(routing.overflow_fraction) == pytest.approx(2 / 8)


def test_a_randomly_dropped_second_choice_takes_no_slot():
    found = triples(route(GATES, 2, DRAW))
    assert [t[:2] for t in found[0]] == [(0, 0)]
    assert_same([found[2]], [[(1, 1, 2 / 9)]])
    literal = top2_gating(GATES, 2, DRAW, random_drop_takes_slot=True)
    assert literal[2] == []  # as printed, the dropped choice of token 0 keeps the slot


@st.composite
def groups(draw):
    """Random gates with repeated values, so that experts fill up."""
    tokens, experts = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    gates = rng.dirichlet(np.full(experts, draw(st.sampled_from([0.1, 1.0, 5.0]))), tokens)
    gates = np.clip(gates, 1e-6, None) + rng.random(gates.shape) * 1e-7
    gates /= gates.sum(1, keepdims=True)
    real = rng.random(tokens) < draw(st.sampled_from([1.0, 0.6]))
    random_policy = rng.random(tokens) if draw(st.booleans()) else None
    return gates.astype("f"), draw(st.integers(1, tokens)), random_policy, real


@settings(deadline=None, max_examples=60)
@given(groups())
def test_gating_equals_algorithm_1(group):
    gates, capacity, draw, real = group
    routing = route(gates, capacity, draw, real)
    found = triples(routing)
    assert_same(found, top2_gating(gates, capacity, draw, real))
    slots = [t[:2] for token in found for t in token]
    assert len(set(slots)) == len(slots), "two tokens in one slot"
    assert all(slot < capacity for _, slot in slots)
    assert all(not token for token, is_real in zip(found, real, strict=True) if not is_real)


def test_the_auxiliary_loss_at_balance_at_collapse_and_below_one():
    balanced = route(np.full((6, 3), 1 / 3) + np.tile(np.eye(3) * 1e-6, (2, 1)), 6)
    assert float(balanced.aux_loss) == pytest.approx(1.0, abs=1e-4)
    collapsed = route(np.tile([1 - 2e-7, 1e-7, 1e-7], (4, 1)), 4)
    assert float(collapsed.aux_loss) == pytest.approx(3.0, abs=1e-4)
    skewed = route(np.array([[0.34, 0.33, 0.33], [1e-9, 0.51, 0.49]]), 2)
    assert float(skewed.aux_loss) == pytest.approx(0.885, abs=1e-3)


def test_extreme_and_equal_logits_stay_finite_and_choose_two_experts():
    logits = tf.constant([[[1e4, -1e4, -1e4], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0]]])
    routing = moe.top2(logits, tf.ones([1, 3], tf.bool), 3, None)
    assert np.isfinite(routing.weight.numpy()).all()
    assert np.isfinite(float(routing.aux_loss))
    experts = routing.slot.numpy()[0] // 3
    assert (experts[:, 0] != experts[:, 1]).all()


def test_a_group_of_padding_routes_nothing():
    routing = moe.top2(tf.zeros([1, 4, 3]), tf.zeros([1, 4], tf.bool), 2, None)
    assert (routing.slot.numpy() == 6).all()
    assert not routing.weight.numpy().any()
    assert float(routing.aux_loss) == 0
    assert float(routing.overflow_fraction) == 0


def layer(rules: moe.MoE, seed: int = 0, rows: int = 4, length: int = 6, dim: int = 5):
    key = random.Key.from_seed(tf.constant([seed, 1], tf.uint32))
    p = initial_values(moe.declare_moe(dim, rules), key)
    x = random.normal(key.fold("x"), (rows, length, dim))
    real = tf.constant(np.random.default_rng(seed).random((rows, length)) < 0.8)
    return p, x, real


def outputs_and_gradients(rules: moe.MoE, seed: int):
    p, x, real = layer(rules, seed)
    with tf.GradientTape() as tape:
        tape.watch([x, *p.values()])
        y, routing = moe.moe_layer(p, x, real, rules, Mode())
        loss = tf.reduce_sum(tf.square(y)) + routing.aux_loss
    return [y, *tape.gradient(loss, [x, *p.values()])]


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_gather_and_einsum_dispatch_agree_in_outputs_and_gradients(factor):
    rules = dataclasses.replace(RULES, capacity_factor=factor)
    by_einsum = dataclasses.replace(rules, dispatch="einsum")
    for one, other in zip(
        outputs_and_gradients(rules, 3), outputs_and_gradients(by_einsum, 3), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_without_a_capacity_limit_the_layer_is_the_dense_mixture_of_two_experts():
    rules = dataclasses.replace(RULES, capacity_factor=float(RULES.experts))
    p, x, _ = layer(rules)
    real = tf.ones(x.shape[:2], tf.bool)
    found, _ = moe.moe_layer(p, x, real, rules, Mode())
    gates = tf.nn.softmax(tf.einsum("BLM,ME->BLE", x, p["gate"])).numpy()
    order = np.argsort(-gates, axis=-1)[..., :2]
    weights = np.take_along_axis(gates, order, -1)
    weights /= weights.sum(-1, keepdims=True)
    hidden = np.maximum(np.einsum("blm,emh->bleh", x, p["wi"]), 0)
    every = np.einsum("bleh,ehm->blem", hidden, p["wo"])
    chosen = np.take_along_axis(every, order[..., np.newaxis], 2)
    np.testing.assert_allclose(
        found, (chosen * weights[..., np.newaxis]).sum(2), rtol=1e-4, atol=1e-5
    )


def test_groups_do_not_see_each_other():
    p, x, real = layer(RULES)
    whole, _ = moe.moe_layer(p, x, real, RULES, Mode())
    changed = tf.concat([x[:2], x[2:] * -3.0], axis=0)
    other, _ = moe.moe_layer(p, changed, real, RULES, Mode())
    np.testing.assert_array_equal(whole[:2], other[:2])


def test_random_second_experts_are_kept_at_twice_their_weight():
    rules = dataclasses.replace(RULES, second_expert="random", capacity_factor=4.0)
    key = random.Key.from_seed(tf.constant([9, 9], tf.uint32))
    logits = tf.math.log(tf.tile([[[0.6, 0.2, 0.15, 0.05]]], [1, 4000, 1]))
    draw = random.uniform(Mode(True, key).named("second_expert").key, (1, 4000))
    routing = moe.top2(logits, tf.ones([1, 4000], tf.bool), rules.capacity(4000), draw)
    kept = (routing.weight.numpy()[0, :, 1] > 0).mean()
    assert kept == pytest.approx(0.5, abs=0.04)  # 2 w2 = 2 * 0.2 / 0.8


def test_tokens_that_do_not_divide_name_the_nearest_numbers_of_groups():
    rules = dataclasses.replace(RULES, num_groups=5)
    p, x, real = layer(rules)
    with pytest.raises(UserError) as error:
        moe.moe_layer(p, x, real, rules, Mode())
    assert str(error.value) == (
        "4 rows of 6 tokens do not divide into num_groups = 5; "
        "the nearest legal numbers of groups are [4, 6]."
    )


@pytest.mark.parametrize(
    ("group", "experts", "capacity"), [(1024, 512, 4), (2048, 2048, 2), (100, 8, 25), (6, 4, 3)]
)
def test_capacity_is_two_slots_a_token_over_all_experts(group, experts, capacity):
    rules = dataclasses.replace(RULES, experts=experts)
    assert rules.capacity(group) == capacity
