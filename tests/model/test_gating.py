"""Gating against Algorithm 1, its options one by one, and its invariants."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.model import counter_random, gating
from gshard_nmt.model.gating import MoE, Routing
from gshard_nmt.model.kept_results import reader, recorder
from gshard_nmt.model.layers import Mode
from gshard_nmt.spmd.lowering import ArraySpec, lower
from tests.model.algorithm_1 import top2_gating

# The worked group of the semantics: S = 4, E = 3, C = 2.
GATES = np.array([[0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.7, 0.2, 0.1], [0.2, 0.5, 0.3]])
DRAW = np.array([0.9, 0.1, 0.1, 0.1])
ALL = MoE(3, hidden_dim=8, second_expert="all", capacity=2)


def assign(rules: MoE, gates=GATES, draw=None, is_token=None) -> Routing:
    """Routes one group of these gates."""
    logits = tf.constant(np.log(gates), tf.float32)[tf.newaxis]
    is_token = np.ones(len(gates), bool) if is_token is None else is_token
    draw = None if draw is None else tf.constant(draw, tf.float32)[tf.newaxis]
    return gating.assign(logits, tf.constant(is_token)[tf.newaxis], rules, draw)


def triples(routing: Routing) -> list[list[tuple[int, int, float]]]:
    """Returns (expert, slot, weight) of the choices that each token of the only group keeps."""
    dropped = routing.load.shape[0] * routing.capacity
    return [
        [
            (*divmod(int(j), routing.capacity), float(w))
            for j, w in zip(slots, weights, strict=True)
            if j < dropped
        ]
        for slots, weights in zip(routing.slot.numpy()[0], routing.weight.numpy()[0], strict=True)
    ]


def assert_same(kept, expected):
    assert [[t[:2] for t in x] for x in kept] == [[t[:2] for t in x] for x in expected]
    for token, other in zip(kept, expected, strict=True):
        np.testing.assert_allclose([t[2] for t in token], [t[2] for t in other], rtol=1e-5)


# The golden case.


def test_the_worked_group_with_every_second_choice():
    routing = assign(ALL)
    expected = [
        [(0, 0, 2 / 3), (1, 1, 1 / 3)],
        [(0, 1, 5 / 9), (2, 0, 4 / 9)],
        [],
        [(1, 0, 5 / 8), (2, 1, 3 / 8)],
    ]
    assert_same(triples(routing), expected)
    assert_same(top2_gating(GATES, 2).triples, expected)
    assert float(routing.overflow_fraction) == pytest.approx(2 / 8)
    np.testing.assert_allclose(routing.load, [3 / 4, 1 / 4, 0])


def test_a_randomly_dropped_second_choice_takes_no_slot():
    kept = triples(assign(dataclasses.replace(ALL, second_expert="random"), draw=DRAW))
    assert [t[:2] for t in kept[0]] == [(0, 0)]
    assert_same([kept[2]], [[(1, 1, 2 / 9)]])
    literal = top2_gating(GATES, 2, DRAW).triples
    assert literal[2] == []  # as printed, the dropped choice of token 0 keeps the slot


def test_the_auxiliary_loss_in_both_scales():
    assert float(assign(ALL).aux_loss) == pytest.approx(1.33125)
    paper = assign(dataclasses.replace(ALL, aux_loss_scale="paper"))
    assert float(paper.aux_loss) == pytest.approx(0.14791667)
    assert top2_gating(GATES, 2).aux_loss == pytest.approx(0.14791667)


# The options.


def seconds(rules: MoE) -> list[bool]:
    """Says which tokens of the worked group got their second expert, with room for all."""
    roomy = dataclasses.replace(rules, capacity=4)
    return [len(token) == 2 for token in triples(assign(roomy, draw=DRAW))]


def test_each_policy_keeps_its_second_choices():
    assert {p: seconds(dataclasses.replace(ALL, second_expert=p)) for p in gating.POLICIES} == {
        "random": [False, True, True, True],  # 2 w2 = 2/3, 8/9, 4/9, 3/4 against the draw
        "all": [True] * 4,
        "none": [False] * 4,
        "threshold": [True] * 4,  # w2 > 0.2
    }
    higher = dataclasses.replace(ALL, second_expert="threshold", second_expert_threshold=0.35)
    assert seconds(higher) == [False, True, False, True]


def test_without_second_choices_the_first_keeps_its_weight():
    kept = triples(assign(dataclasses.replace(ALL, second_expert="none", capacity=4)))
    np.testing.assert_allclose([t[0][2] for t in kept], [2 / 3, 5 / 9, 7 / 9, 5 / 8], rtol=1e-5)


def test_switch_routing_takes_the_best_expert_at_its_raw_gate():
    routing = assign(MoE(3, hidden_dim=8, routing="switch", capacity=2))
    assert_same(triples(routing), [[(0, 0, 0.6)], [(0, 1, 0.5)], [], [(1, 0, 0.5)]])
    assert float(routing.aux_loss) == pytest.approx(1.33125)
    assert float(routing.overflow_fraction) == pytest.approx(1 / 4)


def test_jitter_moves_the_gate_in_training_only():
    rules = MoE(4, hidden_dim=8, routing="switch", capacity=8, router_jitter=0.5)
    key = counter_random.Key.from_seed(tf.constant([3, 4], tf.uint32))
    tokens, gate = (
        counter_random.normal(key, (1, 8, 5)),
        counter_random.normal(key.fold("gate"), (5, 4)),
    )
    is_token = tf.ones([1, 8], tf.bool)

    def weights(rules, mode):
        return gating.route(tokens, gate, is_token, rules, mode).weight.numpy()

    steady = weights(dataclasses.replace(rules, router_jitter=0.0), Mode(key))
    np.testing.assert_array_equal(weights(rules, Mode()), steady)
    assert np.abs(weights(rules, Mode(key)) - steady).max() > 1e-3


ROUNDED = {
    # S, E, factor: exact and up; the authors'; Mesh TensorFlow; Flaxformer
    (1024, 512, 2.0): (4, 4, 4, 4),
    (1024, 128, 2.0): (16, 16, 16, 16),
    (2048, 2048, 2.0): (2, 4, 4, 4),
    (1024, 2048, 2.0): (1, 4, 4, 4),
    (100, 8, 2.0): (25, 28, 25, 25),
    (6, 4, 2.0): (3, 4, 4, 4),
    (8, 512, 2.0): (1, 4, 4, 4),
    (4, 3, 2.0): (3, 4, 4, 4),
    (1024, 16, 1.25): (80, 80, 80, 80),
}


@pytest.mark.parametrize(("case", "expected"), ROUNDED.items(), ids=str)
def test_capacity_rounds_as_the_public_implementations_do(case, expected):
    group, experts, factor = case
    rules = MoE(experts, hidden_dim=8, capacity_factor=factor)
    ways = (
        rules,
        dataclasses.replace(rules, capacity_rounding="multiple_of_4"),
        dataclasses.replace(rules, capacity_rounding="down", minimum_capacity=4),
        dataclasses.replace(rules, capacity_rounding="nearest", minimum_capacity=4),
    )
    assert tuple(way.slots(group) for way in ways) == expected
    assert dataclasses.replace(rules, capacity=3).slots(group) == 3


# The invariants, over random groups.


@st.composite
def groups(draw):
    """Random gates, some with crowded experts; a capacity, draws and padding."""
    tokens, experts = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    gates = rng.dirichlet(np.full(experts, draw(st.sampled_from([0.1, 1.0, 5.0]))), tokens)
    gates = np.clip(gates, 1e-6, None) + rng.random(gates.shape) * 1e-5
    gates /= gates.sum(1, keepdims=True)
    is_token = rng.random(tokens) < draw(st.sampled_from([1.0, 0.6]))
    drawn = rng.random(tokens) if draw(st.booleans()) else None
    return gates, draw(st.integers(1, tokens)), drawn, is_token


def rules_of(gates, capacity, draw) -> MoE:
    policy = "all" if draw is None else "random"
    return MoE(gates.shape[1], hidden_dim=8, second_expert=policy, capacity=capacity)


def numbered(compared: int):
    """Chooses how requests are numbered: 0 sums them up, 600 compares all tokens with each other."""
    return mock.patch.object(gating, "COMPARED_TOKENS_PER_EXPERT", compared)


@pytest.mark.parametrize("compared", [0, 600])
@settings(deadline=None, max_examples=30)
@given(group=groups())
def test_gating_equals_algorithm_1(compared, group):
    """So the capacity is never exceeded, slots are unique and without holes, and padding has no slot."""
    gates, capacity, draw, is_token = group
    with numbered(compared):
        routing = assign(rules_of(gates, capacity, draw), gates, draw, is_token)
    expected = top2_gating(gates, capacity, draw, is_token, dropped_takes_slot=False)
    kept = triples(routing)
    assert_same(kept, expected.triples)
    assert float(routing.aux_loss) == pytest.approx(
        expected.aux_loss * gates.shape[1] ** 2, rel=1e-4, abs=1e-6
    )
    slots = [t[:2] for token in kept for t in token]
    assert len(set(slots)) == len(slots), "two tokens in one slot"
    assert all(slot < capacity for _, slot in slots)
    for expert in range(gates.shape[1]):
        taken = sorted(slot for e, slot in slots if e == expert)
        assert taken == list(range(len(taken))), "a hole among the slots"
    for token, has_text in zip(kept, is_token, strict=True):
        assert has_text or not token
        assert len({e for e, _, _ in token}) == len(token)


@settings(deadline=None, max_examples=20)
@given(groups(), st.floats(-50, 50))
def test_a_constant_added_to_all_logits_changes_only_the_z_loss(group, constant):
    gates, capacity, draw, is_token = group
    rules = rules_of(gates, capacity, draw)
    logits = tf.constant(np.log(gates)[np.newaxis])  # float64: the shift must not round
    drawn = None if draw is None else tf.constant(draw[np.newaxis])
    routing = gating.assign(logits, tf.constant(is_token[np.newaxis]), rules, drawn)
    shifted = gating.assign(logits + constant, tf.constant(is_token[np.newaxis]), rules, drawn)
    np.testing.assert_array_equal(routing.slot, shifted.slot)
    np.testing.assert_allclose(routing.weight, shifted.weight, atol=1e-9)
    np.testing.assert_allclose(shifted.z_loss, constant**2 if is_token.any() else 0, atol=1e-6)


def test_the_auxiliary_loss_at_balance_at_collapse_and_below_one():
    rules = MoE(3, hidden_dim=8, second_expert="all", capacity=6)
    balanced = assign(rules, np.full((6, 3), 1 / 3) + np.tile(np.eye(3) * 1e-6, (2, 1)))
    assert float(balanced.aux_loss) == pytest.approx(1.0, abs=1e-4)
    collapsed = assign(rules, np.tile([1 - 2e-7, 1e-7, 1e-7], (4, 1)))
    assert float(collapsed.aux_loss) == pytest.approx(3.0, abs=1e-4)
    skewed = assign(rules, np.array([[0.34, 0.33, 0.33], [1e-9, 0.51, 0.49]]))
    assert float(skewed.aux_loss) == pytest.approx(0.885, abs=1e-3)


def test_the_auxiliary_losss_gradient_is_the_load():
    """d aux / d g = E f / (S G); the counts have no gradient."""
    logits = tf.constant(np.log(GATES))[tf.newaxis]
    with tf.GradientTape() as tape:
        tape.watch(logits)
        aux = gating.assign(logits, tf.ones([1, 4], tf.bool), ALL).aux_loss
    d_gates = np.tile(3 * np.array([3, 1, 0]) / 4 / 4, (4, 1))
    softmax = GATES / GATES.sum(1, keepdims=True)
    expected = softmax * (d_gates - (softmax * d_gates).sum(1, keepdims=True))
    np.testing.assert_allclose(tape.gradient(aux, logits)[0], expected, atol=1e-12)


def test_extreme_and_equal_logits_stay_finite_and_choose_two_experts():
    logits = tf.constant([[[1e4, -1e4, -1e4], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0]]])
    routing = gating.assign(logits, tf.ones([1, 3], tf.bool), dataclasses.replace(ALL, capacity=3))
    for value in (routing.weight, routing.aux_loss, routing.z_loss, routing.entropy):
        assert np.isfinite(value.numpy()).all()
    experts = routing.slot.numpy()[0] // 3
    assert (experts[:, 0] != experts[:, 1]).all()
    np.testing.assert_allclose(routing.weight[0, 0], [1, 0], atol=1e-6)  # one-hot to rounding


@settings(deadline=None, max_examples=20)
@given(group=groups())
def test_kept_results_have_the_gradients_of_computed_ones(group):
    gates, capacity, draw, is_token = group
    rules = rules_of(gates, capacity, draw)
    logits = tf.constant(np.log(gates), tf.float32)[tf.newaxis]
    draw = None if draw is None else tf.constant(draw, tf.float32)[tf.newaxis]
    keep, results = recorder("experts")

    def value_and_gradient(keep, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            routing = gating.assign(logits, tf.constant(is_token)[tf.newaxis], rules, draw, keep)
            total = tf.reduce_sum(routing.weight**2) + routing.aux_loss + routing.z_loss
        return total, tape.gradient(total, logits)

    value, gradient = value_and_gradient(keep, logits)
    kept = [result for result, _ in results]
    kept_value, kept_gradient = value_and_gradient(reader("experts", kept), logits)
    assert float(kept_value) == float(value)
    np.testing.assert_array_equal(kept_gradient, gradient)
    # The results are read: a kept sum that is wrong makes the value wrong.
    peak, total, *others = kept
    wrong, _ = value_and_gradient(reader("experts", [peak, 2 * total, *others]), logits)
    assert not is_token.any() or float(wrong) != float(value)


@pytest.mark.parametrize("compared", [0, 600])
def test_counts_beyond_256_are_exact(compared):
    """They would stop at 256 in bfloat16."""
    rules = MoE(2, hidden_dim=8, second_expert="none", capacity=600)
    logits = tf.tile(tf.constant([[[1.0, 0.0]]]), [1, 600, 1])
    with numbered(compared):
        routing = gating.assign(logits, tf.ones([1, 600], tf.bool), rules)
    assert routing.slot.dtype == tf.int32
    np.testing.assert_array_equal(routing.slot[0, :, 0], np.arange(600))


# Precision.


def test_the_logits_of_the_gate_are_multiplied_at_the_highest_precision():
    """A TPU multiplies float32 in bfloat16 unless the program says otherwise."""

    def gate_and_gradients(arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            x, gate = tf.cast(arrays["tokens"], tf.bfloat16), arrays["gate"]
            routing = gating.route(x, gate, tf.ones([2, 8], tf.bool), MoE(4, hidden_dim=8), Mode())
        return [tape.gradient(routing.z_loss, arrays)]

    specs = {
        "tokens": ArraySpec((2, 8, 6), np.dtype(np.float32)),
        "gate": ArraySpec((6, 4), np.dtype(np.float32)),
    }
    program = lower(gate_and_gradients, [specs], [{}], None)
    products = [line for line in text_of(program.stablehlo) if "dot_general" in line]
    assert len(products) == 3, "the logits and their two gradients"
    exact = ["precision = [HIGHEST, HIGHEST]" in line for line in products]
    assert sorted(exact) == [False, False, True]
    # Tokens and weights, and not a gradient, are multiplied exactly.
    (logits,) = [line for line, is_exact in zip(products, exact, strict=True) if is_exact]
    assert "(tensor<2x8x6xf32>, tensor<6x4xf32>) -> tensor<2x8x4xf32>" in logits


def text_of(stablehlo: bytes) -> list[str]:
    """The lines of a program as MLIR text."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        return str(ir.Module.parse(stablehlo)).splitlines()
