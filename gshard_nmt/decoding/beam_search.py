"""Flat beam search: a beam in one loop whose caches are never reordered (GShard section A.1).

All hypotheses of a row are interleaved in one flat sequence of K * T slots: slot t * K + j belongs to
beam j of step t. A hypothesis is the set of slots that it descends from, a 0/1 mask over all slots, and
selecting beams moves masks, not caches. Its tokens are read back from its mask and a history of what was
fed at each slot. The search knows no model: `step` is called with the newest tokens and the masks, and
gives log-probabilities.

Every shape is constant and rows are independent, so the loop compiles as it is and partitions over B; the
rows meet only in the question whether any of them goes on.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

LENGTH_NORMS = ("gnmt", "lingvo", "none")
_NONE = -1e9
"""The log-probability and the score of a hypothesis that does not exist."""
_CHUNK = 64
"""Entries of a vocabulary of which `_top` looks at the largest first."""

Step = Callable[..., tuple["tf.Tensor", Any]]
"""(ids int32[B, K], positions int32[B, K], mask float32[B, K, K * T], t int32[], cache) ->
(log_probs float32[B, K, V], the cache with the slots of step t filled).

`ids` are the newest tokens (BOS at step 0), `positions` their places (t), and `mask` is 1 at the slots
that each hypothesis may see, its own newest one included, so `step` first writes what it keeps of `ids`
to slots t * K to t * K + K - 1 and then attends. In a compiled program the write is one
`XlaDynamicUpdateSlice` of K entries at t * K, which happens in place; `tf.where` over the slots does the
same anywhere. What other slots hold must not matter. Log-probabilities are 0 or less; -inf (or a value
that is not a number) forbids a token."""


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """The rules of a search.

    Attributes:
      beam: K, the hypotheses that go on at each step.
      max_steps: T, the tokens of a translation at most, EOS included.
      nbest: translations returned for each row; may exceed the beam.
      length_norm: a score is the log-probability divided by, with |Y| tokens EOS included,
        "gnmt": ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, equation 14, which GShard section A.1 cites);
        "lingvo": ((4 + |Y|) / 5) ** alpha, what the authors' code computes; "none": 1.
      alpha: the exponent. 0.6 is the usual one with "gnmt"; the authors decoded with 0.8 and "lingvo".
      eos, bos: token ids.

    Raises:
      UserError: a value is out of range.
    """

    beam: int = 4
    max_steps: int = 64
    nbest: int = 1
    length_norm: str = "gnmt"
    alpha: float = 0.6
    eos: int = 1
    bos: int = 3

    def __post_init__(self) -> None:
        for name in ("beam", "max_steps", "nbest"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 1 or more.")
        if self.length_norm not in LENGTH_NORMS:
            raise UserError(
                f"length_norm is {self.length_norm!r}; it must be one of {list(LENGTH_NORMS)}."
            )
        if self.alpha < 0:
            raise UserError(f"alpha is {self.alpha}; it must be 0 or more.")

    def norms(self) -> np.ndarray:
        """float32[T + 1]: what a log-probability is divided by, for each length, EOS included.

        A table, so that one length has one divisor to the last digit wherever it is used.
        """
        lengths = np.arange(self.max_steps + 1, dtype=np.float64)
        bases = {"gnmt": (5 + lengths) / 6, "lingvo": (4 + lengths) / 5, "none": lengths**0}
        return (bases[self.length_norm] ** self.alpha).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """The n-best of each row, best first; equals in the order in which they were found.

    Attributes:
      ids: int32[B, nbest, T], ending in EOS, then 0.
      lengths: int32[B, nbest], EOS included; 0 where there is no such hypothesis.
      scores: float32[B, nbest], normalised; -1e9 where there is no such hypothesis.
      log_probs: float32[B, nbest], not normalised, that of EOS included; -1e9 likewise.
    """

    ids: "tf.Tensor"
    lengths: "tf.Tensor"
    scores: "tf.Tensor"
    log_probs: "tf.Tensor"


class _Finished(NamedTuple):
    """The n-best so far.

    mask float32[B, nbest, K * T], the slots of all tokens but EOS; scores and log_probs
    float32[B, nbest]; lengths int32[B, nbest].
    """

    mask: Any
    scores: Any
    log_probs: Any
    lengths: Any


class _State(NamedTuple):
    """What the loop carries.

    t int32[]; of the live hypotheses ids int32[B, K], the tokens to feed, mask float32[B, K, K * T],
    the slots of the tokens before those, and log_probs float32[B, K]; history int32[B, K * T], the
    token fed at each slot; finished; and the cache.
    """

    t: Any
    ids: Any
    mask: Any
    log_probs: Any
    history: Any
    finished: _Finished
    cache: Any


def flat_beam_search(
    step: Step,
    cache: Any,
    rows: int,
    search: BeamSearch,
    live: "tf.Tensor | None" = None,
    max_lengths: "tf.Tensor | None" = None,
    early_stop: bool = True,
) -> Hypotheses:
    """Searches the best translations of a batch.

    At every step each live hypothesis offers its EOS to the n-best, and then the K best of all K * V
    continuations without EOS live on; of equals the one of the lower beam, then of the lower id. EOS so
    never takes a place among the K. (The authors' code takes the top K with EOS among them.)

    Args:
      step: the decoder.
      cache: whatever `step` needs; any nest of tensors of constant shapes.
      rows: B.
      search: the rules.
      live: bool[B], False for rows whose result does not matter, which then end after one token.
      max_lengths: int32[B], tokens of each row at most, EOS included: from 1 to max_steps, what is
        beyond counts as the nearest. None = max_steps.
      early_stop: leave the loop once no row can improve; it never changes a result.
    """
    import tensorflow as tf

    limits = tf.fill([rows], search.max_steps) if max_lengths is None else max_lengths
    limits = tf.clip_by_value(limits, 1, search.max_steps)
    if live is not None:
        limits = tf.where(live, limits, 1)

    def condition(state):
        more = state.t < search.max_steps
        return more & tf.reduce_any(_can_improve(state, limits, search)) if early_stop else more

    def body(state):
        return [_advance(state, step, limits, search)]

    (state,) = tf.while_loop(condition, body, [_start(cache, rows, search)])
    return _read(state, search)


def _start(cache: Any, rows: int, search: BeamSearch) -> _State:
    import tensorflow as tf

    k, n, slots = search.beam, search.nbest, search.beam * search.max_steps
    finished = _Finished(
        mask=tf.zeros([rows, n, slots]),
        scores=tf.fill([rows, n], _NONE),
        log_probs=tf.fill([rows, n], _NONE),
        lengths=tf.zeros([rows, n], tf.int32),
    )
    return _State(
        t=tf.constant(0),
        ids=tf.fill([rows, k], search.bos),
        mask=tf.zeros([rows, k, slots]),
        # All K would be the same hypothesis; only the first exists.
        log_probs=tf.tile(tf.constant([[0.0] + [_NONE] * (k - 1)]), [rows, 1]),
        history=tf.zeros([rows, slots], tf.int32),
        finished=finished,
        cache=cache,
    )


def _exists(log_probs: "tf.Tensor") -> "tf.Tensor":
    return log_probs > _NONE / 2


def _can_improve(state: _State, limits: "tf.Tensor", search: BeamSearch) -> "tf.Tensor":
    """bool[B]: whether a live hypothesis may yet enter the n-best.

    Log-probabilities only fall, and a longer translation divides by more: the best that a live
    hypothesis can reach is its own log-probability over the norm of the longest length allowed. To
    reach the score of the worst of the n-best is not enough: of equals the earlier stays.
    """
    import tensorflow as tf

    best = tf.reduce_max(state.log_probs, axis=1)
    bound = best / tf.gather(search.norms(), limits)
    return _exists(best) & (bound > tf.reduce_min(state.finished.scores, axis=1))


def _advance(state: _State, step: Step, limits: "tf.Tensor", search: BeamSearch) -> _State:
    """One step: feeds the newest tokens, offers every EOS, and selects who lives on."""
    import tensorflow as tf

    k, t = search.beam, state.t
    slots = tf.range(k * search.max_steps)
    newest = tf.cast(slots == t * k + tf.range(k)[:, tf.newaxis], tf.float32)
    mask = state.mask + newest
    fed = tf.tile(state.ids, [1, search.max_steps])
    history = tf.where(slots // k == t, fed, state.history)
    positions = tf.broadcast_to(t, state.ids.shape)
    log_probs, cache = step(state.ids, positions, mask, t, state.cache)

    length = t + 1
    ended = state.log_probs + log_probs[:, :, search.eos]
    finished = _finish(state.finished, mask, ended, length, search)
    ids, parents, best = _continue(state.log_probs, log_probs, search)
    return _State(
        t=length,
        ids=ids,
        mask=tf.matmul(parents, mask),
        log_probs=tf.where((length < limits)[:, tf.newaxis], best, _NONE),
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
    """The n-best of those finished before and those that end now, `length` tokens long.

    Args:
      finished: the n-best before.
      mask: float32[B, K, K * T] of the live hypotheses.
      log_probs: float32[B, K] of the live hypotheses with EOS.
      length: int32[].
      search: the rules.
    """
    import tensorflow as tf

    exists = _exists(log_probs)
    log_probs = tf.where(exists, log_probs, _NONE)
    scores = tf.where(exists, log_probs / tf.gather(search.norms(), length), _NONE)
    lengths = tf.where(exists, length, 0)
    scores, kept = _top(tf.concat([finished.scores, scores], axis=1), search.nbest)
    masks = tf.concat([finished.mask, mask], axis=1)
    pick = tf.one_hot(kept, masks.shape[1])  # a product with it partitions over rows
    return _Finished(
        mask=tf.matmul(pick, masks),
        scores=scores,
        log_probs=_take(tf.concat([finished.log_probs, log_probs], axis=1), kept),
        lengths=_take(tf.concat([finished.lengths, lengths], axis=1), kept),
    )


def _continue(
    totals: "tf.Tensor", log_probs: "tf.Tensor", search: BeamSearch
) -> tuple["tf.Tensor", "tf.Tensor", "tf.Tensor"]:
    """The K best continuations, none of them EOS.

    Args:
      totals: float32[B, K], log-probabilities of the live hypotheses.
      log_probs: float32[B, K, V] of their next tokens.
      search: the rules.

    Returns:
      ids int32[B, K], the tokens; parents float32[B, K, K], one-hot, whom they continue; and
      float32[B, K], their log-probabilities.
    """
    import tensorflow as tf

    rows, k, vocabulary = log_probs.shape.as_list()
    totals = totals[:, :, tf.newaxis] + log_probs
    allowed = _exists(totals) & (tf.range(vocabulary) != search.eos)
    width = min(k, vocabulary)
    best, tokens = _top(tf.where(allowed, totals, _NONE), width)
    best, chosen = _top(tf.reshape(best, [rows, k * width]), k)
    ids = _take(tf.reshape(tokens, [rows, k * width]), chosen)
    return ids, tf.one_hot(chosen // width, k), best


def _top(values: "tf.Tensor", count: int) -> tuple["tf.Tensor", "tf.Tensor"]:
    """The largest values and int32 their places [..., count], descending, the first of equals first.

    `tf.math.top_k` may lower to a sort of the whole vocabulary, and passes over it are slow as well
    (137 and 9 ms a step for 256 hypotheses and 4000 tokens on two cores; 1.2 ms for this). So chunks
    are ranked by their largest value: the `count` best values lie in the `count` best chunks, or in
    the remainder, which makes no whole chunk.

    Args:
      values: [..., V], finite, V at least `count`.
      count: how many.
    """
    import tensorflow as tf

    *batch, size = values.shape.as_list()
    chunks = size // _CHUNK
    if chunks <= count:
        return _passes(values, tf.range(size), count)
    whole = chunks * _CHUNK
    chunked = tf.reshape(values[..., :whole], [*batch, chunks, _CHUNK])
    _, best = _passes(tf.reduce_max(chunked, axis=-1), tf.range(chunks), count)
    found = tf.gather(chunked, best, batch_dims=len(batch))
    places = best[..., tf.newaxis] * _CHUNK + tf.range(_CHUNK)
    remainder = tf.broadcast_to(tf.range(whole, size), [*batch, size - whole])
    candidates = tf.concat([tf.reshape(found, [*batch, -1]), values[..., whole:]], axis=-1)
    places = tf.concat([tf.reshape(places, [*batch, -1]), remainder], axis=-1)
    return _passes(candidates, places, count)


def _passes(
    values: "tf.Tensor", places: "tf.Tensor", count: int
) -> tuple["tf.Tensor", "tf.Tensor"]:
    """The `count` largest values and their places, of equals the lowest place first, pass by pass.

    A maximum, then the lowest place that holds it: two plain reductions are faster than one arg-max.
    """
    import tensorflow as tf

    largest, found = [], []
    for _ in range(count):
        value = tf.reduce_max(values, axis=-1, keepdims=True)
        place = tf.reduce_min(
            tf.where(values == value, places, tf.int32.max), axis=-1, keepdims=True
        )
        values = tf.where(places == place, -float("inf"), values)
        largest.append(value)
        found.append(place)
    return tf.concat(largest, axis=-1), tf.concat(found, axis=-1)


def _take(values: "tf.Tensor", places: "tf.Tensor") -> "tf.Tensor":
    """values[b, places[b, j]]: [B, n], int32[B, m] -> [B, m]; exact, and partitions over rows."""
    import tensorflow as tf

    picked = tf.range(values.shape[1]) == places[..., tf.newaxis]
    return tf.reduce_sum(tf.where(picked, values[:, tf.newaxis], 0), axis=-1)


def _read(state: _State, search: BeamSearch) -> Hypotheses:
    """Reads the finished hypotheses' tokens from their masks and the history."""
    import tensorflow as tf

    finished, steps = state.finished, search.max_steps
    rows, n = finished.scores.shape.as_list()
    fed = tf.cast(finished.mask, tf.int32) * state.history[:, tf.newaxis]
    # A hypothesis has one slot a step: [B, nbest, T, K] -> [B, nbest, T].
    fed = tf.reduce_sum(tf.reshape(fed, [rows, n, steps, search.beam]), axis=-1)
    # What is fed at step t + 1 is the translation's token t; step 0 was fed BOS.
    ids = tf.concat([fed[:, :, 1:], tf.zeros([rows, n, 1], tf.int32)], axis=-1)
    place, last = tf.range(steps), finished.lengths[:, :, tf.newaxis] - 1
    ids = tf.where(place < last, ids, tf.where(place == last, search.eos, 0))
    return Hypotheses(ids, finished.lengths, finished.scores, finished.log_probs)
