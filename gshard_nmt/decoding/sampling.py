"""Sampling: random translations, each token drawn from the decoder's distribution.

The K samples of a row are independent. They use the same decoder and the same flat cache as beam search,
with slot i * K + k for the token that sample k is fed at step i. A sample never leaves its slots.

Which token is drawn depends only on the row's random words, the number of the sample and the step. So a
sentence has the same samples in every batch. K changes its first samples by rounding only. Probabilities
are rounded to whole numbers first, because sums of whole numbers do not depend on their order.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gshard_nmt.decoding.beam_search import (
    MISSING,
    BeamSearch,
    DecoderStep,
    Hypotheses,
    exists,
    token_at,
)
from gshard_nmt.model import counter_random
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.settings.config import Decode

_ONE = 2**30
"""The whole number that stands for probability 1. A sum over a vocabulary must fit in an int32."""
_CHUNK = 64
"""The size of the chunks of a vocabulary in `draw`."""


class _State(NamedTuple):
    """The state of the loop."""

    i: Any  # int32[], the next step
    ids: Any  # int32[B, K], the tokens to feed
    tokens: Any  # int32[B, K, I], the tokens so far, EOS included, then 0
    lengths: Any  # int32[B, K], the number of tokens of a sample that has ended, and 0 of others
    log_probs: Any  # float32[B, K], the log-probability of each sample
    cache: Any  # the nest of tensors of the decoder


def random_words(ids: Sequence[int], seed: int) -> np.ndarray:
    """Returns the two random words of a sentence for `sample`, uint32[2], from its ids and the seed."""
    data = np.array([seed, *ids], "<i8").tobytes()
    return np.frombuffer(hashlib.blake2b(data, digest_size=8).digest(), "<u4")


def sample(
    step: DecoderStep,
    cache: Any,
    words: tuple["tf.Tensor", "tf.Tensor"],
    search: BeamSearch,
    settings: Decode,
    live: "tf.Tensor",
    max_lengths: "tf.Tensor",
    prefix: "tf.Tensor",
) -> Hypotheses:
    """Draws K translations of each row of a batch, in the order of their numbers, not of their scores.

    A sample that reaches the largest length of its row ends there: its last token is EOS. Its score is
    that of a translation in beam search, so it does not depend on the temperature, top_k or top_p.
    `words` are the random words of the rows, two arrays uint32[B]; see `random_words`. The other
    arguments are those of `flat_beam_search`.
    """
    rows, k = words[0].shape[0], search.beam
    limits = tf.where(live, tf.clip_by_value(max_lengths, 1, search.max_steps), 1)
    start = _State(
        i=tf.constant(0),
        ids=tf.fill([rows, k], search.bos),
        tokens=tf.zeros([rows, k, search.max_steps], tf.int32),
        lengths=tf.zeros([rows, k], tf.int32),
        log_probs=tf.zeros([rows, k]),
        cache=cache,
    )

    def condition(state):
        return (state.i < search.max_steps) & tf.reduce_any(state.lengths == 0)

    def body(state):
        slots, i = tf.range(k * search.max_steps), state.i
        own = (slots % k == tf.range(k)[:, tf.newaxis]) & (slots // k <= i)
        mask = tf.broadcast_to(tf.cast(own, tf.float32), [rows, *own.shape])
        log_probs, cache = step(state.ids, mask, i, state.cache)
        log_probs = search.counted(log_probs, i)
        drawn = draw(masses(search.allowed(log_probs), settings), _random(words, k, i))
        forced = token_at(prefix, i)
        last = tf.where(i + 1 >= limits, search.eos, 0)
        forced = tf.where(forced > 0, forced, last)[:, tf.newaxis]
        ids = tf.where(forced > 0, forced, drawn)
        return [_append(state, ids, log_probs, search.eos)._replace(cache=cache)]

    (state,) = tf.while_loop(condition, body, [start])
    has_score = exists(state.log_probs) & (state.lengths > 0)
    scores = state.log_probs / tf.gather(search.norms(), state.lengths)
    return Hypotheses(
        ids=state.tokens,
        lengths=tf.where(has_score, state.lengths, 0),
        scores=tf.where(has_score, scores, MISSING),
    )


def _append(state: _State, ids: "tf.Tensor", log_probs: "tf.Tensor", eos: int) -> _State:
    """Appends a token to each sample that has not ended: int32[B, K], float32[B, K, V]."""
    open_ = state.lengths == 0
    chosen = tf.range(log_probs.shape[-1]) == ids[..., tf.newaxis]
    added = tf.reduce_sum(tf.where(chosen, log_probs, 0.0), axis=-1)
    here = open_[..., tf.newaxis] & (tf.range(state.tokens.shape[-1]) == state.i)
    return state._replace(
        i=state.i + 1,
        ids=ids,
        tokens=tf.where(here, ids[..., tf.newaxis], state.tokens),
        lengths=tf.where(open_ & (ids == eos), state.i + 1, state.lengths),
        log_probs=state.log_probs + tf.where(open_, added, 0.0),
    )


def _random(words: tuple["tf.Tensor", "tf.Tensor"], k: int, i: "tf.Tensor") -> "tf.Tensor":
    """Returns the random word of each sample at step i, uint32[B, K]."""
    key = counter_random.Key(words[0][:, tf.newaxis], words[1][:, tf.newaxis])
    numbers = tf.cast(tf.range(k), tf.uint32)[tf.newaxis]
    word, _ = counter_random.threefry(key, numbers, tf.cast(i, tf.uint32))
    return word


def masses(log_probs: "tf.Tensor", settings: Decode) -> "tf.Tensor":
    """Returns the probabilities to draw from in multiples of 2**-30, int32[B, K, V].

    The temperature comes first, then top_k, then top_p. They need not add up to 1. Tokens that are as
    likely as the last one of the top_k or of the top_p stay too.
    """
    probabilities = tf.nn.softmax(log_probs / settings.temperature)
    # NaN is not greater than 0.
    scaled = tf.where(probabilities > 0, probabilities * _ONE + 0.5, 0.0)
    mass = tf.cast(scaled, tf.int32)
    if 0 < settings.top_k < log_probs.shape[-1]:
        mass = _cut(mass, tf.ones_like(mass), tf.constant(settings.top_k))
    if settings.top_p < 1:
        total = tf.cast(tf.reduce_sum(mass, axis=-1), tf.float32)
        mass = _cut(mass, mass, tf.cast(tf.math.ceil(settings.top_p * total), tf.int32))
    return mass


def _cut(mass: "tf.Tensor", weights: "tf.Tensor", least: "tf.Tensor") -> "tf.Tensor":
    """Returns the masses of the likeliest tokens whose weights add up to `least`, and 0 for others."""

    def enough(threshold):
        stays = mass >= threshold[..., tf.newaxis]
        return tf.reduce_sum(tf.where(stays, weights, 0), axis=-1) >= least

    threshold = _largest(enough, mass.shape[:-1], bits=31)
    return tf.where(mass >= threshold[..., tf.newaxis], mass, 0)


def draw(mass: "tf.Tensor", word: "tf.Tensor") -> "tf.Tensor":
    """Draws a token with a probability in proportion to its mass int32[B, K, V]: int32[B, K].

    The word, uint32[B, K], is uniform. We look for the chunk of the vocabulary first, then for the token
    in it. Without chunks, each step of the bisection would read the whole vocabulary.
    """
    *batch, size = mass.shape.as_list()
    chunks = -(-size // _CHUNK)
    mass = tf.pad(mass, [[0, 0]] * len(batch) + [[0, chunks * _CHUNK - size]])
    # [B, K, V] -> [B, K, V / 64, 64]
    mass = tf.reshape(mass, [*batch, chunks, _CHUNK])
    sums = tf.reduce_sum(mass, axis=-1)
    total = tf.cast(tf.reduce_sum(sums, axis=-1), tf.uint64)
    # A whole number that is uniform from 0 to total - 1.
    product = tf.cast(word, tf.uint64) * total
    point = tf.cast(tf.bitwise.right_shift(product, tf.constant(32, tf.uint64)), tf.int32)
    chunk, before = _place(sums, point)
    is_chunk = (tf.range(chunks) == chunk[..., tf.newaxis])[..., tf.newaxis]
    token, _ = _place(tf.reduce_sum(tf.where(is_chunk, mass, 0), axis=-2), point - before)
    return chunk * _CHUNK + token


def _place(mass: "tf.Tensor", point: "tf.Tensor") -> tuple["tf.Tensor", "tf.Tensor"]:
    """Returns the entry in which a point lies if masses [B, K, n] stand in a row, and the sum before."""
    places = tf.range(mass.shape[-1])

    def before(place):
        return tf.reduce_sum(tf.where(places < place[..., tf.newaxis], mass, 0), axis=-1)

    def is_left(place):
        return (place < mass.shape[-1]) & (before(place) <= point)

    place = _largest(is_left, mass.shape[:-1], bits=mass.shape[-1].bit_length())
    return place, before(place)


def _largest(test: Callable, shape: Sequence[int], bits: int) -> "tf.Tensor":
    """Returns the largest number below 2**bits that passes a test, int32[shape], by bisection.

    The test takes int32[shape] and returns bool[shape]. 0 passes, and so does every number below one that
    does. There are at most 31 bits.
    """

    def body(bit, largest):
        larger = largest + tf.bitwise.left_shift(1, bit)
        return bit - 1, tf.where(test(larger), larger, largest)

    start = (tf.constant(bits - 1), tf.zeros(shape, tf.int32))
    return tf.while_loop(lambda bit, _: bit >= 0, body, start)[1]
