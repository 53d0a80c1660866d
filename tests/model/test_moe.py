"""The MoE layer: ways of dispatch, the oracle, groups, and derivatives in float64."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.errors import UserError
from gshard_nmt.model import counter_random
from gshard_nmt.model.gating import MoE
from gshard_nmt.model.kept_results import recorder
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.moe import declare_moe, moe_layer
from gshard_nmt.model.parameters import initial_values
from tests.model.algorithm_1 import top2_gating

RULES = MoE(4, hidden_dim=8, second_expert="all", num_groups=2)
ROOM = dataclasses.replace(RULES, capacity_factor=4.0)
SWITCH = dataclasses.replace(RULES, routing="switch", capacity_factor=1.25)
GEGLU = dataclasses.replace(RULES, activation="geglu")
BIASED = dataclasses.replace(RULES, activation="swish", biases=True)
KEY = counter_random.Key.from_seed(tf.constant([7, 1], tf.uint32))


def with_factor(rules: MoE, factor: float) -> MoE:
    return dataclasses.replace(rules, capacity_factor=factor)


def layer(rules: MoE, seed: int = 0, rows: int = 4, length: int = 6, dim: int = 5):
    """Parameters, inputs and a padding mask."""
    key = counter_random.Key.from_seed(tf.constant([seed, 1], tf.uint32))
    p = initial_values(declare_moe(dim, rules), key)
    for name in [name for name in p if name.endswith("_bias")]:
        p[name] += counter_random.normal(key.fold(name), p[name].shape)
    x = counter_random.normal(key.fold("x"), (rows, length, dim))
    return p, x, tf.constant(np.random.default_rng(seed).random((rows, length)) < 0.8)


def outputs_and_gradients(rules: MoE, mode: Mode = Mode()):  # noqa: B008
    p, x, is_token = layer(rules, seed=3)
    with tf.GradientTape() as tape:
        tape.watch([x, *p.values()])
        y, routing = moe_layer(p, x, is_token, rules, mode)
        loss = tf.reduce_sum(tf.square(y)) + routing.aux_loss + routing.z_loss
    return [y, *tape.gradient(loss, [x, *p.values()])]


def by_oracle(p, x, is_token, rules: MoE) -> np.ndarray:
    """Algorithm 1 token by token, then each token through its experts."""
    p = {name: np.asarray(value, np.float64) for name, value in p.items()}
    groups = np.asarray(x, np.float64).reshape(rules.num_groups, -1, x.shape[-1])
    masks = is_token.numpy().reshape(rules.num_groups, -1)
    out = np.zeros_like(groups)
    for g, (tokens, mask) in enumerate(zip(groups, masks, strict=True)):
        gates = np.exp(tokens @ p["gate"])
        gates /= gates.sum(1, keepdims=True)
        kept = top2_gating(gates, rules.slots(len(tokens)), None, mask).triples
        for s, triples in enumerate(kept):
            for e, _, weight in triples:
                out[g, s] += weight * np.maximum(tokens[s] @ p["wi"][e], 0) @ p["wo"][e]
    return out.reshape(x.shape)


@pytest.mark.parametrize("dispatch", ["gather", "einsum", "dense", "blocks"])
def test_slots_are_kept_unless_every_token_has_one_in_every_expert(dispatch):
    rules = dataclasses.replace(RULES, dispatch=dispatch)
    keep, results = recorder("experts")
    moe_layer(*layer(rules), rules, Mode(KEY, keep=keep))
    slots = ["EGM", "GEM"] if dispatch in ("gather", "einsum") else []
    assert [letters for _, letters in results if letters in ("EGM", "GEM")] == slots


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("dispatch", ["gather", "einsum"])
def test_the_layer_equals_algorithm_1_and_its_experts(dispatch, factor):
    rules = with_factor(dataclasses.replace(RULES, dispatch=dispatch), factor)
    p, x, is_token = layer(rules, seed=2)
    output, _ = moe_layer(p, x, is_token, rules, Mode())
    np.testing.assert_allclose(output, by_oracle(p, x, is_token, rules), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("rules", [RULES, SWITCH, GEGLU], ids=["top2", "switch", "geglu"])
def test_gather_and_einsum_agree_in_outputs_and_gradients(rules, factor):
    rules = with_factor(rules, factor)
    by_einsum = dataclasses.replace(rules, dispatch="einsum")
    for gather, einsum in zip(
        outputs_and_gradients(rules), outputs_and_gradients(by_einsum), strict=True
    ):
        np.testing.assert_allclose(gather, einsum, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "rules",
    [ROOM, with_factor(SWITCH, 4.0), with_factor(GEGLU, 4.0), with_factor(BIASED, 4.0)],
    ids=["top2", "switch", "geglu", "biases"],
)
@pytest.mark.parametrize("dispatch", ["dense", "blocks"])
def test_dense_and_blocks_agree_with_gather_if_nothing_is_dropped(rules, dispatch):
    # The capacity would drop something, but every token has room.
    dense = with_factor(dataclasses.replace(rules, dispatch=dispatch), 0.5)
    training = outputs_and_gradients(dense, Mode(KEY))
    for by_gather, by_dense in zip(outputs_and_gradients(rules), training, strict=True):
        np.testing.assert_allclose(by_gather, by_dense, rtol=2e-5, atol=2e-6)


def test_random_second_choices_agree_between_gather_and_einsum():
    random_rules = dataclasses.replace(RULES, second_expert="random")
    by_einsum = dataclasses.replace(random_rules, dispatch="einsum")
    mode = Mode(key=KEY)
    by_gather = outputs_and_gradients(random_rules, mode)
    for gather, einsum in zip(by_gather, outputs_and_gradients(by_einsum, mode), strict=True):
        np.testing.assert_allclose(gather, einsum, rtol=2e-5, atol=2e-6)
    assert np.abs(by_gather[0] - outputs_and_gradients(RULES)[0]).max() > 1e-3


def test_dropout_inside_experts_is_drawn_in_training_only():
    p, x, is_token = layer(ROOM)
    rules = dataclasses.replace(ROOM, expert_dropout=0.5)
    plain, _ = moe_layer(p, x, is_token, ROOM, Mode(KEY))
    dropped, _ = moe_layer(p, x, is_token, rules, Mode(KEY))
    evaluated, _ = moe_layer(p, x, is_token, rules, Mode())
    assert np.abs(dropped - plain).max() > 1e-2
    np.testing.assert_array_equal(evaluated, plain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_groups": 5},
            "4 rows of 6 tokens do not divide into num_groups = 5; "
            "the nearest legal numbers of groups are [4, 6].",
        ),
        (
            {"group_size": 7},
            "4 rows of 6 tokens do not divide into group_size = 7; "
            "the nearest legal group sizes are [6, 8].",
        ),
    ],
)
def test_tokens_that_do_not_divide_name_the_nearest_legal_values(change, message):
    rules = dataclasses.replace(RULES, **change)
    p, x, is_token = layer(rules)
    with pytest.raises(UserError) as error:
        moe_layer(p, x, is_token, rules, Mode())
    assert str(error.value) == message


@pytest.mark.parametrize("dispatch", ["gather", "einsum"])
@pytest.mark.parametrize("rules", [RULES, SWITCH], ids=["top2", "switch"])
def test_gradients_equal_finite_differences_in_float64(rules, dispatch):
    rules = dataclasses.replace(rules, dispatch=dispatch)
    p, x, is_token = layer(rules, seed=5)
    inputs = {name: tf.cast(value, tf.float64) for name, value in {**p, "x": x}.items()}
    rng = np.random.default_rng(0)
    seed = tf.constant(rng.normal(size=x.shape))

    def loss(inputs):
        y, routing = moe_layer(inputs, inputs["x"], is_token, rules, Mode())
        return tf.reduce_sum(y * seed) + routing.aux_loss + 0.1 * routing.z_loss

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = loss(inputs)
    gradients = tape.gradient(value, inputs)
    assert value.dtype == tf.float64
    for name, gradient in gradients.items():
        direction = tf.constant(rng.normal(size=gradient.shape))
        up, down = (loss({**inputs, name: inputs[name] + s * 1e-6 * direction}) for s in (1, -1))
        expected = float(up - down) / 2e-6
        slope = float(tf.reduce_sum(gradient * direction))
        assert slope == pytest.approx(expected, rel=1e-6, abs=1e-7), name


def test_groups_do_not_see_each_other():
    p, x, is_token = layer(RULES)
    whole, _ = moe_layer(p, x, is_token, RULES, Mode())
    other, _ = moe_layer(p, tf.concat([x[:2], x[2:] * -3.0], axis=0), is_token, RULES, Mode())
    np.testing.assert_array_equal(whole[:2], other[:2])
    swapped, _ = moe_layer(
        p, tf.roll(x, 2, axis=0), tf.roll(tf.cast(is_token, tf.int32), 2, axis=0) > 0, RULES, Mode()
    )
    np.testing.assert_array_equal(tf.roll(swapped, 2, axis=0), whole)
