"""The plan of the rows, and the experts on blocks: against the dense mixture, and bit by bit."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import blocks
from gshard_nmt.model.gating import MoE
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.moe import moe_layer
from gshard_nmt.spmd import sharding
from tests.model.test_moe import layer

BY_ROW = MoE(5, hidden_dim=8, second_expert="all", dispatch="blocks")
POLICIES = {
    "top2": BY_ROW,
    "first only": dataclasses.replace(BY_ROW, second_expert="none"),
    "threshold": dataclasses.replace(
        BY_ROW, second_expert="threshold", second_expert_threshold=0.4
    ),
    "switch": dataclasses.replace(BY_ROW, routing="switch"),
    "geglu": dataclasses.replace(BY_ROW, activation="geglu"),
    "biases": dataclasses.replace(BY_ROW, activation="swish", biases=True),
}


def rows_of(expert: np.ndarray, experts: int) -> list[list[int]]:
    """The choices in the rows of each expert, by a loop over the choices."""
    rows: list[list[int]] = [[] for _ in range(experts)]
    for choice, e in enumerate(expert.ravel()):
        if 0 <= e < experts:
            rows[e].append(choice)
    return rows


@pytest.mark.parametrize(("assignments", "sizes"), [(1, (64, 3)), (2, blocks.ONE_BLOCK)])
@pytest.mark.parametrize("busiest", [0.0, 0.5, 1.0])
def test_each_choice_has_a_row_in_a_block_of_its_expert(assignments, sizes, busiest):
    """Experts -1 and 4 of 4 are on another device. A share of the choices goes to one expert."""
    rng = np.random.default_rng(3)
    expert = rng.integers(-1, 5, (75, assignments)).astype("i")
    expert[rng.random(expert.shape) < busiest] = 2
    weight = rng.random(expert.shape).astype("f")
    plan = blocks.plan(tf.constant(expert), tf.constant(weight), 4, sizes)
    first, counts = plan.first_block.numpy(), plan.num_blocks.numpy()
    token_of_row, weight_of_row = plan.token_of_row.numpy(), plan.weight_of_row.numpy()
    row_of_choice = plan.row_of_choice.numpy().ravel()
    choices = rows_of(expert, 4)
    np.testing.assert_array_equal(counts, [-(-len(own) // sizes[0]) for own in choices])
    np.testing.assert_array_equal(first, np.cumsum(counts) - counts)
    for e, own in enumerate(choices):
        start, end = sizes[0] * first[e], sizes[0] * (first[e] + counts[e])
        rows = slice(start, start + len(own))
        np.testing.assert_array_equal(token_of_row[rows], np.array(own, int) // assignments)
        np.testing.assert_array_equal(weight_of_row[rows], weight.ravel()[own])
        np.testing.assert_array_equal(row_of_choice[own], np.arange(start, start + len(own)))
        assert not weight_of_row[start + len(own) : end].any()
    calls = []  # of the batched product; the loop ends after the last block
    blocks.mixture(lambda _, x: calls.append(x) or x, {}, tf.zeros([75, 8]), plan)
    assert len(calls) == -(-counts.sum() // sizes[1])
    assert (row_of_choice[((expert < 0) | (expert >= 4)).ravel()] == len(token_of_row)).all()


@pytest.mark.parametrize(("choices", "experts"), [(1, 8), (64, 2), (7, 7), (200, 3), (3000, 1)])
def test_the_blocks_are_enough_for_every_router_and_one_less_is_not(choices, experts):
    """The worst router gives each expert one choice, and the rest to one of them."""
    one_each = min(choices, experts)
    counts = np.ones(one_each, int)
    # The last block of the busiest expert is as empty as can be.
    counts[0] += (choices - one_each) // blocks.BLOCK_ROWS * blocks.BLOCK_ROWS
    assert -(-counts // blocks.BLOCK_ROWS).sum() == blocks.most_blocks(choices, experts)
    rng = np.random.default_rng(0)
    for _ in range(50):
        random = np.bincount(rng.integers(0, experts, choices) ** 2 % experts, minlength=experts)
        assert -(-random // blocks.BLOCK_ROWS).sum() <= blocks.most_blocks(choices, experts)
    rows, size = blocks.many_blocks(choices, experts, 1000)  # for accelerators
    assert size == blocks.most_blocks(choices, experts, rows) <= 2 * experts
    assert rows == blocks.BLOCK_ROWS or rows // 2 < choices / experts
    assert blocks.many_blocks(choices, experts, blocks.MOST_BYTES)[1] == 1


@pytest.mark.parametrize("for_cpu", [True, False])
@pytest.mark.parametrize("rules", POLICIES.values(), ids=POLICIES)
def test_blocks_equal_the_dense_mixture(rules, for_cpu):
    """With two choices a token, 5 experts get 320, so an accelerator has blocks of 64 rows."""
    p, x, is_token = layer(rules, rows=20, length=8)
    with sharding.rules(None, for_cpu):
        output, routing = moe_layer(p, x, is_token, rules, Mode())
    expected, _ = moe_layer(p, x, is_token, dataclasses.replace(rules, dispatch="dense"), Mode())
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(output.numpy()[~is_token.numpy()], 0)
    assert routing.overflow_fraction == 0
    # Weights that were rounded for decoding stay so. If not, the other operand would not be rounded.
    p |= {n: tf.cast(w, tf.bfloat16) for n, w in p.items() if n in ("wi", "wi_linear", "wo")}
    expected, _ = moe_layer(p, x, is_token, rules, Mode())
    with sharding.rules(None, for_cpu):
        output, _ = moe_layer(p, x, is_token, rules, Mode())
    np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-6)
