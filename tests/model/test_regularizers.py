"""Expert output masking, gating dropout and the shared expert, beside plain computations."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.errors import UserError
from gshard_nmt.model import counter_random, layers
from gshard_nmt.model.gating import MoE, route
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.moe import moe_layer
from gshard_nmt.model.parameters import within
from gshard_nmt.model.regularizers import homes, mask_expert_outputs
from tests.model.test_moe import layer, outputs_and_gradients

RULES = MoE(8, hidden_dim=8, second_expert="all", capacity_factor=8.0, num_groups=4)
MASKED = dataclasses.replace(RULES, expert_output_masking=0.5)
AT_HOME = dataclasses.replace(RULES, gating_dropout=1 - 1e-6)
KEY = counter_random.Key.from_seed(tf.constant([7, 1], tf.uint32))
TRAINING = Mode(key=KEY)


def test_each_choice_is_masked_on_its_own_and_keeps_its_mean():
    tokens = counter_random.normal(KEY.fold("tokens"), (2, 500, 5))
    gate, is_token = counter_random.normal(KEY.fold("gate"), (5, 8)), tf.ones([2, 500], tf.bool)
    routing = route(tokens, gate, is_token, RULES, Mode())
    masked = mask_expert_outputs(routing, 0.2, TRAINING)
    before, after = routing.weight.numpy(), masked.weight.numpy()
    assert (before > 0).all()
    np.testing.assert_allclose(after[after > 0], before[after > 0] / 0.8, rtol=1e-6)
    # Both experts, the first, the second, none: independent choices.
    counts = np.bincount(((after > 0) @ [1, 2]).reshape(-1), minlength=4) / 1000
    np.testing.assert_allclose(counts, [0.04, 0.16, 0.16, 0.64], atol=0.04)
    assert masked.aux_loss is routing.aux_loss
    assert mask_expert_outputs(routing, 0.2, Mode()).weight is routing.weight


@pytest.mark.parametrize("dispatch", ["einsum", "blocks"])
def test_every_dispatch_masks_the_same_outputs(dispatch):
    by_gather = outputs_and_gradients(MASKED, TRAINING)
    other = outputs_and_gradients(dataclasses.replace(MASKED, dispatch=dispatch), TRAINING)
    for expected, actual in zip(by_gather, other, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)
    assert np.abs(by_gather[0] - outputs_and_gradients(RULES, TRAINING)[0]).max() > 0.1


def test_tokens_that_stay_at_home_visit_the_expert_of_their_home_with_the_same_number():
    p, x, is_token = layer(AT_HOME)
    output, routing = moe_layer(p, x, is_token, AT_HOME, TRAINING)
    expected = np.zeros([4, 6, 5], np.float32)
    per_home = 8 // 4
    for g, s, a in np.ndindex(*routing.slot.shape):
        expert = int(routing.slot[g, s, a]) // routing.capacity
        local = g * per_home + expert % per_home
        hidden = np.maximum(x[g, s].numpy() @ p["wi"][local].numpy(), 0)
        expected[g, s] += routing.weight[g, s, a] * (hidden @ p["wo"][local].numpy())
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_groups_and_experts_without_a_common_home_are_refused():
    assert homes(12, 8) == 4
    with pytest.raises(UserError) as error:
        homes(9, 8)
    assert str(error.value) == (
        "Model.gating_dropout needs groups and experts that divide into homes, but 9 groups and 8 "
        "experts have no common divisor. Set both to multiples of one number above 1, or "
        "Model.gating_dropout to 0."
    )


@pytest.mark.parametrize("dispatch", ["gather", "blocks"])
def test_a_shared_expert_adds_a_dense_feed_forward(dispatch):
    rules = dataclasses.replace(RULES, shared_expert_dim=12, dispatch=dispatch)
    p, x, is_token = layer(rules)
    assert p["shared/wi"].shape == (5, 12)
    routed, _ = moe_layer(p, x, is_token, RULES, Mode())
    expected = routed + layers.feed_forward(within(p, "shared"), x)
    output, _ = moe_layer(p, x, is_token, rules, Mode())
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
