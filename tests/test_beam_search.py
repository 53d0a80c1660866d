"""Flat beam search against scripted decoders, worked cases and a plain beam search."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.beam_search import BeamSearch, Hypotheses, flat_beam_search

VOCABULARY, STEPS = 7, 6


def texts(found: Hypotheses, row: int = 0) -> list[list[int]]:
    return [
        found.ids.numpy()[row, n, :length].tolist()
        for n, length in enumerate(found.lengths.numpy()[row])
    ]


def scripted(rule, vocabulary: int = 100, slots: int = 80):
    """A decoder that sees its prefix through the mask only and prefers what `rule` says."""

    def step(ids, positions, mask, t, cache):
        rows, beam = ids.shape
        at = tf.range(slots) // beam == t
        cache = tf.where(at, tf.tile(ids, [1, slots // beam]), cache)
        fed, visible = cache.numpy(), mask.numpy() > 0
        logits = [
            rule(fed[row, visible[row, j]].tolist()) for row in range(rows) for j in range(beam)
        ]
        log_probs = tf.nn.log_softmax(tf.constant(np.array(logits, "f")))
        return tf.reshape(log_probs, [rows, beam, vocabulary]), cache

    return step


def prefer(token: int, second: int | None = None) -> np.ndarray:
    logits = np.zeros(100)
    logits[token] = 10.0
    if second is not None:
        logits[second] = 5.0
    return logits


def plus_one(seen):
    return prefer(0 if seen[-1] >= 9 else seen[-1] + 1, seen[-1] + 2 if seen[-1] < 8 else None)


def sums(seen):
    total = sum(seen)
    return prefer(total if total < 9 else 9 if seen[-1] < 9 else 0)


def fibonacci(seen):
    following = [1, 2, 3, 5, 9, 0]
    return prefer(following[min(len(seen) - 1, 5)])


@pytest.mark.parametrize(
    ("rule", "best"),
    [
        (plus_one, [2, 3, 4, 5, 6, 7, 8, 9, 0]),
        (sums, [1, 2, 4, 8, 9, 0]),
        (fibonacci, [1, 2, 3, 5, 9, 0]),
    ],
)
def test_the_best_output_of_a_scripted_decoder_follows_its_rule(rule, best):
    search = BeamSearch(beam=4, max_steps=20, nbest=4, eos=0, bos=1)
    cache = tf.zeros([1, 80], tf.int32)
    found = flat_beam_search(scripted(rule), cache, 1, search)
    assert texts(found)[0] == best
    scores = found.scores.numpy()[0]
    assert (np.diff(scores) <= 0).all()
    outputs = [tuple(ids) for ids in texts(found)]
    assert len(set(outputs)) == len(outputs)


def two_step(first: dict[int, float], second: dict[int, float]):
    """Log-probabilities of the first token, and of every later one."""

    def row(values):
        return np.log([values.get(i, 1e-9) for i in range(5)]).astype("f")

    def step(ids, positions, mask, t, cache):
        table = tf.where(t == 0, row(first), row(second))
        return tf.broadcast_to(table, [*ids.shape, 5]), cache

    return step


@pytest.mark.parametrize(("norm", "best"), [("lingvo", [2, 1]), ("gnmt", [1])])
def test_the_two_length_norms_order_this_pair_differently(norm, best):
    search = BeamSearch(beam=2, max_steps=2, nbest=2, length_norm=norm, alpha=0.8)
    step = two_step({1: 0.2, 2: 0.5, 4: 0.3}, {1: 0.3176, 4: 0.6824})
    found = flat_beam_search(step, tf.zeros([1]), 1, search)
    assert texts(found)[0] == best
    scores = dict(zip(map(tuple, texts(found)), found.scores.numpy()[0], strict=True))
    expected = {"lingvo": -1.590372, "gnmt": -1.626621}[norm]
    assert scores[(2, 1)] == pytest.approx(expected, abs=1e-5)
    assert scores[(1,)] == pytest.approx(-1.609438, abs=1e-5)


@functools.cache
def random_decoder():
    """A causal decoder with a cache: weights in, so that one trace serves every example."""

    def step_of(table, mixing):
        def step(ids, positions, mask, t, cache):
            beam = ids.shape[1]
            at = (tf.range(cache.shape[1]) // beam == t)[tf.newaxis, :, tf.newaxis]
            new = tf.tile(tf.gather(table, ids), [1, cache.shape[1] // beam, 1])
            cache = tf.where(at, new, cache)
            summary = tf.einsum("BKS,BSM->BKM", mask, cache)
            position = tf.cast(positions, tf.float32)[..., tf.newaxis] * 0.1
            logits = tf.einsum("BKM,MV->BKV", tf.sin(summary + position), mixing)
            return tf.nn.log_softmax(logits), cache

        return step

    return step_of


@functools.cache
def compiled(search: BeamSearch, early_stop: bool):
    @tf.function(jit_compile=True, autograph=False)
    def run(table, mixing, limits):
        step = random_decoder()(table, mixing)
        cache = tf.zeros([2, search.beam * search.max_steps, 4])
        found = flat_beam_search(step, cache, 2, search, None, limits, early_stop)
        return found.ids, found.lengths, found.scores, found.log_probs

    return run


def plain_beam_search(table, mixing, search: BeamSearch, limit: int):
    """One row, prefixes as lists, the same expansion rule."""

    def next_log_probs(prefix):
        summary = np.sin(table[prefix].sum(0) + 0.1 * (len(prefix) - 1))
        logits = summary @ mixing
        return logits - np.log(np.exp(logits).sum())

    def norm(length):
        base = {"gnmt": (5 + length) / 6, "lingvo": (4 + length) / 5, "none": 1.0}
        return base[search.length_norm] ** search.alpha

    live, done = [([search.bos], 0.0)], []
    for _ in range(limit):
        options = []
        for prefix, total in live:
            log_probs = next_log_probs(prefix)
            ended = total + log_probs[search.eos]
            done.append((ended / norm(len(prefix)), [*prefix[1:], search.eos]))
            options += [
                (total + log_probs[v], [*prefix, v]) for v in range(VOCABULARY) if v != search.eos
            ]
        options.sort(key=lambda option: -option[0])
        live = [(prefix, total) for total, prefix in options[: search.beam]]
    done.sort(key=lambda item: -item[0])
    return done[: search.nbest]


def weights(seed: int):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(VOCABULARY, 4)).astype("f"),
        (2 * rng.normal(size=(4, VOCABULARY))).astype("f"),
    )


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**16),
    rules=st.sampled_from([(1, 1, "gnmt"), (3, 3, "lingvo"), (4, 2, "gnmt"), (2, 2, "none")]),
)
def test_it_equals_a_plain_beam_search_hypothesis_by_hypothesis(seed, rules):
    beam, nbest, norm = rules
    search = BeamSearch(beam=beam, max_steps=STEPS, nbest=nbest, length_norm=norm)
    table, mixing = weights(seed)
    limits = np.array([STEPS, 3], np.int32)
    found = Hypotheses(*compiled(search, True)(table, mixing, tf.constant(limits)))
    patient = Hypotheses(*compiled(search, False)(table, mixing, tf.constant(limits)))
    for row, limit in enumerate(limits):
        expected = plain_beam_search(table, mixing, search, limit)
        got = found.scores.numpy()[row][: len(expected)]
        np.testing.assert_allclose(got, [score for score, _ in expected], rtol=2e-4, atol=2e-4)
        gaps = np.diff([score for score, _ in expected])
        if (np.abs(gaps) > 1e-3).all():
            assert texts(found, row)[: len(expected)] == [ids for _, ids in expected]
    for field in dataclasses.fields(Hypotheses):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(patient, field.name))


def test_rows_that_do_not_matter_end_at_once():
    def step(ids, positions, mask, t, cache):
        return tf.math.log(tf.fill([2, 2, 5], 0.2)), cache + 1

    search = BeamSearch(beam=2, max_steps=5)
    found = flat_beam_search(step, tf.constant(0), 2, search, live=tf.constant([False, True]))
    assert found.lengths.numpy()[0, 0] == 1
    assert found.lengths.numpy()[1, 0] >= 1


def test_a_limit_forces_the_end():
    def step(ids, positions, mask, t, cache):
        never = tf.constant([1e-9, 1e-6, 0.3, 0.3, 0.4])
        return tf.broadcast_to(tf.math.log(never), [1, 2, 5]), cache

    search = BeamSearch(beam=2, max_steps=6, length_norm="none")
    found = flat_beam_search(step, tf.zeros([]), 1, search, max_lengths=tf.constant([4]))
    assert found.lengths.numpy()[0, 0] <= 4
    assert texts(found)[0][-1] == search.eos
