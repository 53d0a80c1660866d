"""Counts of tokens in 64 bits, and the step at which a run ends."""

import math

import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.model import token_counts
from tests.model.examples import ONE, TWO, rows


def last_step(step: int, tokens: int, max_steps: int, max_tokens: int) -> int:
    return int(
        token_counts.last_step(
            tf.constant(step),
            tf.constant(tokens, tf.int64),
            tf.constant(max_steps),
            tf.constant(max_tokens, tf.int64),
        )
    )


def test_the_tokens_of_both_sides_are_counted_by_language():
    batch = rows([ONE, TWO], [TWO], length=8)
    first = len(ONE[0]) + len(ONE[1]) + len(TWO[0]) + len(TWO[1])
    second = len(TWO[0]) + len(TWO[1])
    assert token_counts.count(batch, 3).numpy().tolist() == [first, second, 0]
    sums = token_counts.to_numbers(tf.constant([[2**32 - 1, 7]], tf.uint32)) + 2
    assert token_counts.to_words(sums).numpy().tolist() == [[1, 8]]


@settings(deadline=None, max_examples=200)
@given(
    step=st.integers(1, 100_000),
    per_step=st.integers(1, 5_000_000),
    max_steps=st.integers(1, 200_000),
    max_tokens=st.integers(1, 10**12),
)
def test_at_a_constant_number_of_tokens_per_step_the_last_step_is_exact(
    step, per_step, max_steps, max_tokens
):
    last = last_step(step, step * per_step, max_steps, max_tokens)
    exact = min(max_steps, max(step, math.ceil(max_tokens / per_step)))
    # A fraction of a step that is below the rounding of float32 may be left out.
    assert last == exact or (last == exact - 1 and max_tokens % per_step < per_step / 5)


def test_a_limit_far_away_does_not_overflow():
    assert last_step(1, 1, max_steps=2**31 - 1, max_tokens=2**63 - 1) >= 2**30
    assert last_step(1000, 2**62, max_steps=2**31 - 1, max_tokens=2**63 - 1) == 2000
