"""Sampling against toy decoders: its distribution, its seeds, and independence of the batch."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.decoding.beam_search import BeamSearch
from gshard_nmt.decoding.sampling import draw, masses, random_words, sample
from gshard_nmt.settings.config import Decode
from tests.decoding.beam_search_oracle import (
    EOS,
    VOCABULARY,
    WIDTH,
    attention_weights,
    flat_attention,
    plain_attention,
)

STEPS = 5
SEARCH = BeamSearch(beam=3, max_steps=STEPS)
WEIGHTS = attention_weights(3)
PLAIN = Decode()


@functools.cache
def program(rows: int, search: BeamSearch, sampling: Decode):
    """Returns compiled sampling from the decoder of WEIGHTS."""

    @tf.function(jit_compile=True, autograph=False)
    def run(words, live, limits, prefix):
        empty = tf.zeros([rows, search.beam * search.max_steps, WIDTH])
        cache = {"keys": empty, "values": empty}
        step = flat_attention(WEIGHTS)
        samples = sample(
            step, cache, (words[:, 0], words[:, 1]), search, sampling, live, limits, prefix
        )
        return samples.ids, samples.lengths, samples.scores

    return run


def draw_all(sentences, seed=1, search=SEARCH, sampling=PLAIN, limits=None, prefixes=None):
    """Returns the samples (ids, score) of each sentence."""
    rows = len(sentences)
    words = np.stack([random_words(ids, seed) for ids in sentences])
    prefix = np.zeros([rows, search.max_steps], np.int32)
    for row, ids in enumerate(prefixes or []):
        prefix[row, : len(ids)] = ids
    limits = np.full(rows, search.max_steps, np.int32) if limits is None else limits
    results = program(rows, search, sampling)(words, np.ones(rows, bool), np.int32(limits), prefix)
    ids, lengths, scores = (array.numpy() for array in results)
    return [
        [(ids[b, n, : lengths[b, n]].tolist(), float(scores[b, n])) for n in range(search.beam)]
        for b in range(rows)
    ]


def test_the_samples_of_a_sentence_depend_on_itself_and_the_seed_alone():
    sentences = [[5, 1], [6, 7, 1], [8, 1], [9, 9, 1]]
    samples = draw_all(sentences)
    assert draw_all(sentences) == samples
    assert draw_all(sentences[::-1]) == samples[::-1]
    assert draw_all([sentences[2]] * 4) == [samples[2]] * 4
    assert all(a != b for a, b in zip(samples, draw_all(sentences, seed=2), strict=True))
    assert len({str(one) for one in samples}) == 4
    assert len({str(one) for row in samples for one in row}) > 6


def test_the_first_samples_do_not_depend_on_the_number_of_samples():
    sentences = [[5, 1], [6, 7, 1]]
    few, more = draw_all(sentences, search=BeamSearch(beam=2, max_steps=STEPS)), draw_all(sentences)
    for row in range(2):
        assert [ids for ids, _ in few[row]] == [ids for ids, _ in more[row][:2]]


def test_the_score_of_a_sample_is_that_of_a_translation_in_beam_search():
    for row in draw_all([[5, 1], [6, 7, 1]], sampling=Decode(temperature=2.0, top_k=4, top_p=0.9)):
        for ids, score in row:
            decoder, cache = plain_attention(WEIGHTS), (np.zeros([0, WIDTH], "f"),) * 2
            total = 0.0
            for i, (previous, token) in enumerate(zip([3, *ids], ids, strict=False)):
                log_probs, cache = decoder(previous, i, cache)
                total += log_probs[token]
            assert score == pytest.approx(total / ((5 + len(ids)) / 6) ** 0.6, rel=1e-4)
            assert ids.index(EOS) == len(ids) - 1


def test_a_sample_ends_at_the_limit_of_its_row_and_starts_with_its_prefix():
    sentences = [[5, 1], [6, 7, 1], [8, 1], [9, 1]]
    prefixes = [[], [4, 2], [6, 5, EOS], []]
    samples = draw_all(sentences, limits=[1, STEPS, STEPS, 3], prefixes=prefixes)
    assert {tuple(ids) for ids, _ in samples[0]} == {(EOS,)}
    assert all(ids[:2] == [4, 2] and len(ids) > 2 for ids, _ in samples[1])
    assert {tuple(ids) for ids, _ in samples[2]} == {(6, 5, EOS)}
    assert max(len(ids) for ids, _ in samples[3]) <= 3


def test_rows_that_do_not_matter_hold_up_nothing_and_nan_is_no_sample():
    calls = []

    def step(ids, mask, i, cache):
        calls.append(int(i))
        value = np.nan if calls == [0] and nan else -1.0
        return tf.fill([*ids.shape, VOCABULARY], value), cache

    for nan in (False, True):
        calls.clear()
        words = (tf.zeros([2], tf.uint32),) * 2
        live, prefix = tf.constant([False, False]), tf.zeros([2, STEPS], tf.int32)
        limits = tf.constant([STEPS, STEPS])
        samples = sample(step, (), words, SEARCH, Decode(), live, limits, prefix)
        assert calls == [0]
        assert samples.lengths.numpy().tolist() == [[0 if nan else 1] * 3] * 2
        assert (samples.scores.numpy() == -1e9).all() == nan


def oracle(log_probs: np.ndarray, sampling: Decode) -> np.ndarray:
    """Returns the distribution to draw from, by sorting."""
    p = np.exp(log_probs.astype(np.float64) / sampling.temperature)
    p /= p.sum()
    order = np.argsort(-p)
    stays = np.zeros(len(p), bool)
    best = order[: sampling.top_k or len(p)]
    mass = np.cumsum(p[best]) / p[best].sum()
    stays[best[: np.searchsorted(mass, sampling.top_p - 1e-9) + 1]] = True
    p = np.where(stays, p, 0)
    return p / p.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        Decode(),
        Decode(temperature=0.3),
        Decode(temperature=3.0, top_k=5),
        Decode(top_p=0.7),
        Decode(temperature=1.5, top_k=40, top_p=0.9),
        Decode(top_k=1),
        Decode(top_p=1e-6),
        Decode(top_k=1000),
    ],
)
def test_the_distribution_equals_that_of_a_sorted_vocabulary(sampling):
    log_probs = tf.nn.log_softmax(3 * np.random.default_rng(0).normal(size=(2, 3, 150)).astype("f"))
    mass = tf.function(masses, jit_compile=True, autograph=False)(log_probs, sampling).numpy()
    assert mass.sum(-1).max() <= 2**30 + 2**10
    for b, k in np.ndindex(2, 3):
        expected = oracle(log_probs[b, k].numpy(), sampling)
        # A probability below 2**-31 is rounded to 0.
        clear = (expected == 0) | (expected > 2e-9)
        assert ((mass[b, k] > 0) == (expected > 0))[clear].all()
        np.testing.assert_allclose(mass[b, k] / mass[b, k].sum(), expected, rtol=1e-4, atol=1e-8)


def test_a_token_is_drawn_as_often_as_its_mass_says():
    """The chi-square statistic of 200 000 draws from 130 tokens, three chunks of a vocabulary."""
    rng = np.random.default_rng(1)
    mass = (rng.dirichlet(np.full(130, 0.3)) * 2**30).astype(np.int32)
    mass[[0, 63, 64, 129]] = [0, 0, 2**22, 2**23]
    words = rng.integers(0, 2**32, (1, 200_000), dtype=np.uint32)
    table = tf.broadcast_to(mass, [1, 1, 130])
    tokens = np.concatenate(
        [draw(tf.tile(table, [1, part.shape[1], 1]), part).numpy()[0] for part in split(words)]
    )
    counts = np.bincount(tokens, minlength=130)
    assert counts[mass == 0].sum() == 0
    expected = mass / mass.sum() * words.size
    often = expected > 5
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    freedom = often.sum() - 1
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


def split(words: np.ndarray) -> list[tf.Tensor]:
    return [tf.constant(part) for part in np.split(words, 10, axis=1)]


def test_the_first_and_the_last_random_word_draw_the_first_and_the_last_token():
    mass = tf.constant([[[0, 3, 0, 5, 0]] * 3])
    words = tf.constant([[0, 2**32 - 1, round(2**32 * 3 / 8)]], tf.uint32)
    assert draw(mass, words).numpy().tolist() == [[1, 3, 3]]


def test_first_tokens_follow_the_distribution_of_the_decoder():
    """Draws of 4000 sentences, so the random words of sentences and samples are tested too."""
    search = BeamSearch(beam=3, max_steps=1)
    first = np.log(np.array([0, 0.2, 0.1, 0, 0.4, 0.05, 0.25]) + 1e-30).astype("f")
    rows = 4000
    words = np.stack([random_words([7, n, 1], 1) for n in range(rows)])
    chosen = []

    def step(ids, mask, i, cache):
        if int(i) == 1:
            chosen.append(ids.numpy())
        return tf.broadcast_to(first, [*ids.shape, VOCABULARY]), cache

    two = BeamSearch(beam=search.beam, max_steps=2)
    everything = (tf.fill([rows], True), tf.fill([rows], 2), tf.zeros([rows, 2], tf.int32))
    sample(step, (), (words[:, 0], words[:, 1]), two, Decode(), *everything)
    (ids,) = chosen
    for column in (ids.ravel(), *ids.T):
        counts = np.bincount(column, minlength=VOCABULARY)
        expected = np.exp(first) * len(column)
        often = expected > 1
        statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
        assert counts[~often].sum() == 0
        assert statistic < 20  # 4 degrees of freedom: 1 in 2000 is larger
    assert abs(np.mean(ids[:, 0] == ids[:, 1]) - np.sum(np.exp(2 * first))) < 0.03


def test_an_id_that_is_never_drawn_keeps_its_probability_if_it_is_forced():
    banned = tuple(i for i in range(VOCABULARY) if i not in (EOS, 4, 5))
    search = BeamSearch(beam=3, max_steps=STEPS, never=banned)
    samples, forced = draw_all([[5, 1], [6, 1]], search=search, prefixes=[[], [2, EOS]])
    assert {token for ids, _ in samples for token in ids} <= {EOS, 4, 5}
    _, free = draw_all([[5, 1], [6, 1]], prefixes=[[], [2, EOS]])
    assert forced == free
