"""Masks, relative buckets and attention over packed rows."""

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import attention

CAUSAL = {0: 0, 1: 1, 15: 15, 16: 16, 20: 17, 24: 19, 32: 21, 48: 24, 64: 26, 96: 29, 127: 31}
CAUSAL |= {128: 31, -3: 0}
BIDIRECTIONAL = {0: 0, 1: 1, 7: 7, 8: 8, 12: 9, 16: 10, 32: 12, 64: 14, 128: 15}
BIDIRECTIONAL |= {-1: 17, -7: 23, -8: 24, -16: 26, -64: 30, -128: 31}


@pytest.mark.parametrize(("causal", "golden"), [(True, CAUSAL), (False, BIDIRECTIONAL)])
def test_buckets_are_t5s(causal, golden):
    buckets = attention.buckets(tf.constant(list(golden)), causal).numpy()
    assert dict(zip(golden, buckets.tolist(), strict=True)) == golden


def visible(bias) -> list:
    return (bias.numpy()[0, 0] == 0).astype(int).tolist()


def test_a_token_sees_its_own_segment_and_padding_sees_nothing():
    segments = tf.constant([[1, 1, 2, 0]])
    bias = attention.segment_bias(segments, segments)
    assert visible(bias) == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


def test_the_decoder_sees_earlier_positions_of_its_segment():
    segments, positions = tf.constant([[1, 1, 2]]), tf.constant([[0, 1, 0]])
    bias = attention.segment_bias(segments, segments) + attention.causal_bias(positions)
    assert visible(bias) == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_attention_equals_its_definition():
    rng = np.random.default_rng(0)
    declared = attention.declare_attention(6, 2, 3, relative=False)
    p = {name: rng.normal(size=d.shape).astype("f") for name, d in declared.items()}
    x, memory = rng.normal(size=(2, 4, 6)).astype("f"), rng.normal(size=(2, 5, 6)).astype("f")
    keys, values = attention.project_memory(p, tf.constant(memory))
    bias = np.where(rng.random((2, 1, 4, 5)) < 0.7, 0, -1e9).astype("f")
    cache = attention.for_cache(keys, values)
    output = attention.attend_cached(p, tf.constant(x), *cache, tf.constant(bias))
    query = np.einsum("blm,mnd->blnd", x, p["query"])
    logits = np.einsum("blnd,btnd->bnlt", query, keys.numpy()) + bias
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    context = np.einsum("bnlt,btnd->blnd", weights, values.numpy())
    np.testing.assert_allclose(
        output, np.einsum("blnd,ndm->blm", context, p["output"]), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("stage", "read"), [(0, 2), (1, 6)])
def test_cached_attention_reads_only_the_slots_of_its_stage(stage, read):
    """Slots beyond the stage hold NaN, which any use of them would spread."""
    rng = np.random.default_rng(0)
    declared = attention.declare_attention(6, 2, 3, relative=False)
    p = {name: rng.normal(size=d.shape).astype("f") for name, d in declared.items()}
    x, memory = rng.normal(size=(2, 4, 6)).astype("f"), rng.normal(size=(2, 6, 6)).astype("f")
    cache = attention.for_cache(*attention.project_memory(p, tf.constant(memory)))
    bias = np.where(np.arange(6) < read, 0, -1e9).astype("f") * np.ones((2, 1, 4, 1), "f")
    whole = attention.attend_cached(p, tf.constant(x), *cache, tf.constant(bias))
    memory[:, read:] = np.nan
    cache = attention.for_cache(*attention.project_memory(p, tf.constant(memory)))
    part = attention.attend_cached(
        p, tf.constant(x), *cache, tf.constant(bias), [2, 6], tf.constant(stage)
    )
    np.testing.assert_allclose(part, whole, rtol=1e-6)
