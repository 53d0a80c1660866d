"""Flat beam search: a loop over steps whose caches are never reordered (GShard section A.1).

A search has at most I steps with K beams. All hypotheses of a row are interleaved in one flat sequence
of T = K * I slots: slot i * K + k holds the token that beam k was fed at step i. A hypothesis is the set
of slots of its tokens, as a 0/1 mask over all slots. When the search selects beams it moves masks, not
caches. At the end it reads the tokens of a hypothesis from its mask and from the history, which is the
token fed at each slot.

The search knows no model: a `DecoderStep` gives the log-probabilities. Every shape is constant and rows
are independent, so the loop compiles as it is and partitions over B. The rows share only the condition
of the loop: it goes on while any row can improve.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gshard_nmt.decoding.ranking import lowest_of_best, take, top
from gshard_nmt.model.lazy_tensorflow import tf

MISSING = -1e9
"""The log-probability and the score of a missing hypothesis."""
_COPY = -1e5
"""What the authors' rule adds to the log-probability of beam k at the start, k times."""


DecoderStep = Callable[["tf.Tensor", "tf.Tensor", "tf.Tensor", Any], tuple["tf.Tensor", Any]]
"""The decoder, called once for each step of the search with (ids, mask, i, cache).

It returns log-probabilities float32[B, K, V] of the next tokens, and the cache after the step.

A decoder first writes the entries of `ids`, for example keys and values, to slots i * K to
i * K + K - 1 of its cache. Then it attends to the slots of `mask`. In a compiled program an
`XlaDynamicUpdateSlice` writes the slots in place; `tf.where` over all slots works everywhere. The result
must not depend on the contents of slots that `mask` hides. -inf forbids a token. If one is NaN, the
hypothesis ends without a translation.

Args:
  ids: int32[B, K], the newest token of each hypothesis, which is BOS at step 0.
  mask: float32[B, K, T], 1 at the slots that each hypothesis sees, including that of `ids`.
  i: int32[], the step, 0 for the first, and the position of each of these tokens.
  cache: any nest of tensors, with the slots of the steps before i filled.
"""


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """The settings of a search; the settings class `Decode` checks their ranges.

    A score is the log-probability of a translation divided by its length norm. The length norm depends
    on the number of tokens |Y|, EOS included. It is ((5 + |Y|) / 6) ** alpha for "gnmt" (Wu et al. 2016,
    equation 14, which GShard section A.1 cites), ((4 + |Y|) / 5) ** alpha for "lingvo" (the authors'
    code), or 1 for "none".
    """

    beam: int = 4  # K, the number of hypotheses that continue at each step
    max_steps: int = 64  # I, the largest number of tokens of a translation, EOS included
    nbest: int = 1  # the number of translations to return for each row; may be larger than the beam
    length_norm: str = "gnmt"
    alpha: float = 0.6  # usual with "gnmt". The authors decoded with 0.8 and "lingvo"
    expansion: str = "eos_aside"  # or "fairseq" or "lingvo", see `flat_beam_search`
    eos: int = 1
    bos: int = 3
    # the ids that a translation has only if its prefix has them. The probabilities of the other ids
    # stay as they are, as in fairseq and transformers
    never: tuple[int, ...] = ()
    # the number of tags that each prefix begins with. They are not in the log-probability, as in
    # transformers
    tags: int = 0

    def norms(self) -> np.ndarray:
        """Returns the divisor of a log-probability for each length |Y|: float32[I + 1].

        This is a table, so that a length has exactly the same divisor everywhere.
        """
        lengths = np.arange(self.max_steps + 1, dtype=np.float64)
        bases = {"gnmt": (5 + lengths) / 6, "lingvo": (4 + lengths) / 5, "none": lengths**0}
        return (bases[self.length_norm] ** self.alpha).astype(np.float32)

    def counted(self, log_probs: "tf.Tensor", i: "tf.Tensor") -> "tf.Tensor":
        """Returns the log-probabilities float32[B, K, V] of step i: 0 if the prefix has a tag there."""
        return tf.where(i < self.tags, 0.0, log_probs) if self.tags else log_probs

    def allowed(self, log_probs: "tf.Tensor") -> "tf.Tensor":
        """Returns the log-probabilities float32[B, K, V] without those of the ids of `never`."""
        if not self.never:
            return log_probs
        is_never = np.isin(np.arange(log_probs.shape[-1]), self.never)
        return log_probs + np.where(is_never, MISSING, 0).astype(np.float32)


class Hypotheses(NamedTuple):
    """The n-best translations of each row, best first.

    If two scores are equal, the shorter translation comes first. A missing hypothesis has length 0, and
    -1e9 as score.
    """

    ids: Any  # int32[B, nbest, I], the tokens with EOS as the last one, then 0
    lengths: Any  # int32[B, nbest], the number of tokens, EOS included
    scores: Any  # float32[B, nbest], normalized by length


class _Finished(NamedTuple):
    """The n-best translations so far."""

    mask: Any  # float32[B, nbest, T], the slots of all tokens except EOS
    scores: Any  # float32[B, nbest], normalized by length
    lengths: Any  # int32[B, nbest], EOS included


class _State(NamedTuple):
    """The state of the loop."""

    i: Any  # int32[], the next step
    ids: Any  # int32[B, K], the tokens to feed for each live hypothesis
    mask: Any  # float32[B, K, T], the slots of the tokens before `ids`
    log_probs: Any  # float32[B, K], the log-probability of each live hypothesis
    history: Any  # int32[B, T], the token that was fed at each slot
    finished: _Finished
    cache: Any  # the nest of tensors of the decoder


def flat_beam_search(
    step: DecoderStep,
    cache: Any,
    search: BeamSearch,
    live: "tf.Tensor",
    max_lengths: "tf.Tensor",
    prefix: "tf.Tensor | None" = None,
) -> Hypotheses:
    """Searches for the best translations of a batch (GShard section A.1).

    At every step the search appends EOS to a copy of each live hypothesis, and the copies compete for
    places in the n-best list. Then the search selects the next K beams. If two log-probabilities are
    equal, the lower beam comes first, then the token that is more probable after this beam, then the
    lower id. There are three rules for this selection:

    - "eos_aside" keeps the K best of all continuations that do not end.
    - "fairseq" does too, but EOS must be among the K best of all tokens, or the last that is allowed.
    - "lingvo" is the rule of the authors' code. Each hypothesis offers its K best tokens with EOS among
      them, and an EOS then counts as missing. So an EOS uses one of the K places. All K beams start with
      the same hypothesis, and beam k starts 1e5 * k lower. A copy continues only if the others offer
      fewer than K tokens. We depart from the authors' code in one point: a copy never ends, because it
      would only repeat a translation in the n-best list.

    A prefix forces the first tokens of the translations of a row. Only these tokens can continue a
    hypothesis, so there is a single one until the prefix ends. Its log-probability includes the prefix.
    If the prefix ends with EOS, the row has this one translation, which gets its score.

    Args:
      cache: the first cache for `step`, any nest of tensors of constant shapes.
      live: bool[B], False for rows whose result does not matter. They end after one token.
      max_lengths: int32[B], the largest number of tokens of each row, EOS included. A value below
        1 counts as 1, and a value above max_steps counts as max_steps.
      prefix: int32[B, I], the token that the translation must have at each position, or 0 if it is
        free. Free positions come after all others. None means that all are free.
    """
    limits = tf.where(live, tf.clip_by_value(max_lengths, 1, search.max_steps), 1)
    rows = limits.shape[0]
    if prefix is None:
        prefix = tf.zeros([rows, search.max_steps], tf.int32)

    def condition(state):
        return (state.i < search.max_steps) & tf.reduce_any(_can_improve(state, limits, search))

    def body(state):
        return [_advance(state, step, limits, prefix, search)]

    (state,) = tf.while_loop(condition, body, [_start(cache, rows, search)])
    return _read(state, search)


def _start(cache: Any, rows: int, search: BeamSearch) -> _State:
    k, n, slots = search.beam, search.nbest, search.beam * search.max_steps
    # All K beams hold the same hypothesis at first, so the others are missing or lower.
    first = [0.0] + [MISSING] * (k - 1)
    if search.expansion == "lingvo":
        first = [_COPY * beam for beam in range(k)]
    finished = _Finished(
        mask=tf.zeros([rows, n, slots]),
        scores=tf.fill([rows, n], MISSING),
        lengths=tf.zeros([rows, n], tf.int32),
    )
    return _State(
        i=tf.constant(0),
        ids=tf.fill([rows, k], search.bos),
        mask=tf.zeros([rows, k, slots]),
        log_probs=tf.tile(tf.constant([first]), [rows, 1]),
        history=tf.zeros([rows, slots], tf.int32),
        finished=finished,
        cache=cache,
    )


def exists(log_probs: "tf.Tensor") -> "tf.Tensor":
    """Returns whether each hypothesis exists, bool, from its log-probability."""
    return log_probs > MISSING / 2


def _can_improve(state: _State, limits: "tf.Tensor", search: BeamSearch) -> "tf.Tensor":
    """Returns whether a live hypothesis of each row may still enter the n-best, bool[B].

    Log-probabilities only fall, and longer translations have larger norms. So the best score that a live
    hypothesis can reach is its log-probability divided by the norm of the largest length. It must be
    greater than the worst score of the n-best, because the earlier one stays if two scores are
    equal.
    """
    best = tf.reduce_max(state.log_probs, axis=1)
    bound = best / tf.gather(search.norms(), limits)
    return exists(best) & (bound > tf.reduce_min(state.finished.scores, axis=1))


def _advance(
    state: _State, step: DecoderStep, limits: "tf.Tensor", prefix: "tf.Tensor", search: BeamSearch
) -> _State:
    """Makes one step: feeds the newest tokens, updates the n-best and selects the next beams."""
    k, i = search.beam, state.i
    slots = tf.range(k * search.max_steps)
    newest = tf.cast(slots == i * k + tf.range(k)[:, tf.newaxis], tf.float32)
    mask = state.mask + newest
    fed = tf.tile(state.ids, [1, search.max_steps])
    history = tf.where(slots // k == i, fed, state.history)
    log_probs, cache = step(state.ids, mask, i, state.cache)
    log_probs = search.counted(log_probs, i)

    length, forced = i + 1, token_at(prefix, i)
    ended = state.log_probs + log_probs[:, :, search.eos]
    may_end = ((forced == 0) | (forced == search.eos))[:, tf.newaxis]
    if search.expansion == "lingvo":
        may_end &= state.log_probs > _COPY
    elif search.expansion == "fairseq":
        must_end = ((forced == search.eos) | (length >= limits))[:, tf.newaxis]
        may_end &= must_end | (
            ended >= lowest_of_best(state.log_probs, search.allowed(log_probs), k)
        )
    ended = tf.where(may_end, ended, MISSING)
    finished = _finish(state.finished, mask, ended, length, search)
    ids, parents, best = _continue(state.log_probs, log_probs, forced, search)
    return _State(
        i=length,
        ids=ids,
        mask=tf.matmul(parents, mask),
        log_probs=tf.where((length < limits)[:, tf.newaxis], best, MISSING),
        history=history,
        finished=finished,
        cache=cache,
    )


def _finish(
    finished: _Finished,
    mask: "tf.Tensor",
    log_probs: "tf.Tensor",
    length: "tf.Tensor",
    search: BeamSearch,
) -> _Finished:
    """Returns the n-best of the finished hypotheses and of the live ones that end at this step.

    `mask` float32[B, K, T] has the slots of the live hypotheses, `log_probs` float32[B, K] theirs with
    EOS, and `length` int32[] their number of tokens, EOS included.
    """
    ends = exists(log_probs)
    scores = tf.where(ends, log_probs / tf.gather(search.norms(), length), MISSING)
    lengths = tf.where(ends, length, 0)
    scores, best = top(tf.concat([finished.scores, scores], axis=1), search.nbest)
    masks = tf.concat([finished.mask, mask], axis=1)
    # [B, nbest, nbest + K]. A product with a one-hot array partitions over rows; a gather does not.
    one_hot = tf.one_hot(best, masks.shape[1])
    return _Finished(
        mask=tf.matmul(one_hot, masks),
        scores=scores,
        lengths=take(tf.concat([finished.lengths, lengths], axis=1), best),
    )


def token_at(prefix: "tf.Tensor", i: "tf.Tensor") -> "tf.Tensor":
    """Returns the token of each row that the prefix [B, I] has at position i, int32[B]."""
    return tf.reduce_sum(tf.where(tf.range(prefix.shape[1]) == i, prefix, 0), axis=1)


def _continue(
    totals: "tf.Tensor", log_probs: "tf.Tensor", forced: "tf.Tensor", search: BeamSearch
) -> tuple["tf.Tensor", "tf.Tensor", "tf.Tensor"]:
    """Returns the K continuations of each row that the rule of expansion selects, without EOS.

    They are the next tokens int32[B, K], the beams that they continue, one-hot float32[B, K, K], and
    their log-probabilities float32[B, K]. Of the arguments, `totals` float32[B, K] and `log_probs`
    float32[B, K, V] are those of the live hypotheses and of their next tokens; `forced` int32[B] is the
    only token that may continue a hypothesis, or 0 if any may.
    """
    rows, k, vocabulary = log_probs.shape.as_list()
    # A mask over the vocabulary would make the selection slow. So EOS is left out after it, and
    # "eos_aside" selects one token more.
    width = min(k if search.expansion == "lingvo" else k + 1, vocabulary)
    best, tokens = top(search.allowed(log_probs), width)
    tokens = tf.minimum(tokens, vocabulary - 1)  # NaN has no place among the others
    allowed = exists(best) & (tokens != search.eos)
    best = tf.where(allowed, totals[:, :, tf.newaxis] + best, MISSING)
    # [B, K, width] -> [B, K * width]
    best, places = top(tf.reshape(best, [rows, k * width]), k)
    ids = take(tf.reshape(tokens, [rows, k * width]), places)
    parents = tf.one_hot(places // width, k)
    # Every beam of a row with a forced token continues itself. A mask over the vocabulary would be
    # simpler, but every step of ordinary decoding would pay for it.
    forced = tf.broadcast_to(forced[:, tf.newaxis], [rows, k])
    only = totals + tf.gather(log_probs, forced, batch_dims=2)
    only = tf.where(exists(only) & (forced != search.eos), only, MISSING)
    best = tf.where(forced > 0, only, tf.maximum(best, MISSING))
    parents = tf.where((forced > 0)[:, :, tf.newaxis], tf.eye(k), parents)
    return tf.where(forced > 0, forced, ids), parents, best


def _read(state: _State, search: BeamSearch) -> Hypotheses:
    """Reads the tokens of the finished hypotheses from their masks and the history."""
    finished, steps = state.finished, search.max_steps
    rows, n = finished.scores.shape.as_list()
    fed = tf.cast(finished.mask, tf.int32) * state.history[:, tf.newaxis]
    # A hypothesis has one slot in each step: [B, nbest, T] -> [B, nbest, I, K] -> [B, nbest, I]
    fed = tf.reduce_sum(tf.reshape(fed, [rows, n, steps, search.beam]), axis=-1)
    # Step 0 was fed BOS, so token i of the translation was fed at step i + 1.
    ids = tf.concat([fed[:, :, 1:], tf.zeros([rows, n, 1], tf.int32)], axis=-1)
    positions, last = tf.range(steps), finished.lengths[:, :, tf.newaxis] - 1
    ids = tf.where(positions < last, ids, tf.where(positions == last, search.eos, 0))
    return Hypotheses(ids, finished.lengths, finished.scores)
