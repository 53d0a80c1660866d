"""Flat beam search: a beam in one loop whose caches are never reordered (GShard section A.1).

Slot t * K + j of a cache belongs to beam j of step t. A hypothesis is the set of slots that it
descends from, a 0/1 mask over all slots, and selecting beams moves masks, not caches. The search knows
no model: `step` is called with the newest tokens and the masks, and gives log-probabilities.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

LENGTH_NORMS = ("gnmt", "lingvo", "none")
_DEAD = -1e9
"""The score of a beam that does not exist; real ones stay far above."""

Step = Callable[..., tuple["tf.Tensor", Any]]
"""(ids int32[B, K], positions int32[B, K], mask float32[B, K, K * T], t int32[], cache) ->
(log_probs float32[B, K, V], cache with the slots of step t filled)."""


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """The rules of a search.

    Attributes:
      beam: K.
      max_steps: T, the tokens of a translation at most, EOS included.
      nbest: N, translations returned for each row.
      length_norm: a score is the log-probability divided by, with |Y| tokens EOS included,
        "gnmt": ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, equation 14); "lingvo": ((4 + |Y|) / 5) **
        alpha, the authors' code; "none": 1.
      alpha: the exponent.
      eos, bos: token ids.
    """

    beam: int = 4
    max_steps: int = 64
    nbest: int = 1
    length_norm: str = "gnmt"
    alpha: float = 0.6
    eos: int = 1
    bos: int = 3

    def __post_init__(self) -> None:
        if self.length_norm not in LENGTH_NORMS:
            raise UserError(
                f"length_norm is {self.length_norm!r}; it must be one of {list(LENGTH_NORMS)}."
            )
        if self.alpha < 0:
            raise UserError(f"alpha is {self.alpha}; it must be 0 or more.")

    def norm(self, lengths: "tf.Tensor") -> "tf.Tensor":
        """float32 divisor of a log-probability for translations of these lengths, EOS included."""
        import tensorflow as tf

        lengths = tf.cast(lengths, tf.float32)
        if self.length_norm == "gnmt":
            return tf.pow((5.0 + lengths) / 6.0, self.alpha)
        if self.length_norm == "lingvo":
            return tf.pow((4.0 + lengths) / 5.0, self.alpha)
        return tf.ones_like(lengths)


@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """The n-best of each row, best first.

    Attributes:
      ids: int32[B, N, T], ending in EOS, then 0.
      lengths: int32[B, N], EOS included; 0 where there is no such hypothesis.
      scores: float32[B, N], normalised.
      log_probs: float32[B, N], not normalised.
    """

    ids: "tf.Tensor"
    lengths: "tf.Tensor"
    scores: "tf.Tensor"
    log_probs: "tf.Tensor"


@dataclasses.dataclass
class _State:
    """What the loop carries.

    t int32[]; ids int32[B, K], the tokens to feed; mask float32[B, K, J] and log_probs float32[B, K]
    of the live hypotheses; history int32[B, J], the token fed at each slot; and of the finished ones
    done_mask float32[B, N, J], done_scores, done_log_probs float32[B, N], done_lengths int32[B, N].
    """

    t: Any
    ids: Any
    mask: Any
    log_probs: Any
    history: Any
    done_mask: Any
    done_scores: Any
    done_log_probs: Any
    done_lengths: Any
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

    Every live hypothesis offers its EOS at every step, before the top K are taken: EOS never takes a
    place among the K that go on. (The authors' code takes the top K with EOS among them.)

    Args:
      step: the decoder.
      cache: whatever `step` needs; any nest of tensors of constant shapes.
      rows: B.
      search: the rules.
      live: bool[B], False for rows whose result does not matter, which then end at once.
      max_lengths: int32[B], tokens of each row at most, EOS included; None = max_steps.
      early_stop: leave the loop once no row can improve; it never changes a result.
    """
    import tensorflow as tf

    limits = tf.fill([rows], search.max_steps) if max_lengths is None else max_lengths
    if live is not None:
        limits = tf.where(live, limits, 1)
    names = [field.name for field in dataclasses.fields(_State)]

    def condition(*values):
        state = _State(*values)
        if not early_stop:
            return state.t < search.max_steps
        return (state.t < search.max_steps) & tf.reduce_any(_can_improve(state, limits, search))

    def body(*values):
        state = _advance(_State(*values), step, limits, search)
        return [getattr(state, name) for name in names]

    start = _start(cache, rows, search)
    values = tf.while_loop(condition, body, [getattr(start, name) for name in names])
    return _results(_State(*values), search)


def _start(cache: Any, rows: int, search: BeamSearch) -> _State:
    import tensorflow as tf

    k, n, slots = search.beam, search.nbest, search.beam * search.max_steps
    own = tf.eye(k, slots)  # beam j of step 0 is slot j
    return _State(
        t=tf.constant(0),
        ids=tf.fill([rows, k], search.bos),
        mask=tf.tile(own[tf.newaxis], [rows, 1, 1]),
        # All K are the same hypothesis; only the first counts.
        log_probs=tf.tile(tf.constant([[0.0] + [_DEAD] * (k - 1)]), [rows, 1]),
        history=tf.zeros([rows, slots], tf.int32),
        done_mask=tf.zeros([rows, n, slots]),
        done_scores=tf.fill([rows, n], 2 * _DEAD),
        done_log_probs=tf.fill([rows, n], 2 * _DEAD),
        done_lengths=tf.zeros([rows, n], tf.int32),
        cache=cache,
    )


def _can_improve(state: _State, limits: "tf.Tensor", search: BeamSearch) -> "tf.Tensor":
    """bool[B]: whether a live hypothesis may yet enter the n-best.

    Log-probabilities only fall, and a longer translation divides by more: the best that a live
    hypothesis can reach is its own log-probability over the norm of the longest length allowed.
    """
    import tensorflow as tf

    best = tf.reduce_max(state.log_probs, axis=1)
    bound = best / search.norm(tf.maximum(limits, 1))
    return (best > _DEAD / 2) & (bound > tf.reduce_min(state.done_scores, axis=1))


def _advance(state: _State, step: Step, limits: "tf.Tensor", search: BeamSearch) -> _State:
    import tensorflow as tf

    k, t = search.beam, state.t
    slots = state.history.shape[1]
    at_step = tf.range(slots) // k == t
    fed = tf.tile(state.ids, [1, search.max_steps])
    history = tf.where(at_step, fed, state.history)
    positions = tf.broadcast_to(t, state.ids.shape)
    next_log_probs, cache = step(state.ids, positions, state.mask, t, state.cache)

    # 1. Every hypothesis may end here.
    ended = state.log_probs + next_log_probs[:, :, search.eos]
    length = t + 1
    lengths = tf.broadcast_to(length, ended.shape)
    scores = tf.concat([state.done_scores, ended / search.norm(length)], axis=1)
    kept = _top(scores, search.nbest)
    pick = tf.one_hot(kept, scores.shape[1])
    done_lengths = tf.concat([state.done_lengths, lengths], axis=1)

    # 2. The K best continuations, none of them EOS.
    vocabulary = next_log_probs.shape[-1]
    is_eos = tf.range(vocabulary) == search.eos
    totals = tf.where(is_eos, 2 * _DEAD, state.log_probs[:, :, tf.newaxis] + next_log_probs)
    tokens = _top(totals, min(k, vocabulary))
    best = tf.gather(totals, tokens, batch_dims=2)
    width = tokens.shape[-1]
    flat = tf.reshape(best, [-1, k * width])
    chosen = _top(flat, k)
    parents = tf.one_hot(chosen // width, k)
    log_probs = tf.gather(flat, chosen, batch_dims=1)
    ids = tf.gather(tf.reshape(tokens, [-1, k * width]), chosen, batch_dims=1)
    own = tf.cast(tf.range(slots) == (t + 1) * k + tf.range(k)[:, tf.newaxis], tf.float32)
    # A row at its limit goes no further.
    over = (limits <= length)[:, tf.newaxis]
    return _State(
        t=t + 1,
        ids=ids,
        mask=tf.einsum("BKJ,BJS->BKS", parents, state.mask) + own,
        log_probs=tf.where(over, 2 * _DEAD, tf.maximum(log_probs, 2 * _DEAD)),
        history=history,
        done_mask=tf.einsum("BNJ,BJS->BNS", pick, tf.concat([state.done_mask, state.mask], axis=1)),
        done_scores=tf.gather(scores, kept, batch_dims=1),
        done_log_probs=tf.gather(
            tf.concat([state.done_log_probs, ended], axis=1), kept, batch_dims=1
        ),
        done_lengths=tf.gather(done_lengths, kept, batch_dims=1),
        cache=cache,
    )


def _top(values: "tf.Tensor", count: int) -> "tf.Tensor":
    """int32[..., count], the places of the largest values, descending, the first of equals first.

    By passes of arg-max: `tf.math.top_k` lowers to a sort of the whole vocabulary.
    """
    import tensorflow as tf

    places = []
    for _ in range(count):
        place = tf.argmax(values, axis=-1, output_type=tf.int32)
        places.append(place)
        taken = tf.range(values.shape[-1]) == place[..., tf.newaxis]
        values = tf.where(taken, -float("inf"), values)
    return tf.stack(places, axis=-1)


def _results(state: _State, search: BeamSearch) -> Hypotheses:
    """Reads the finished hypotheses' tokens from their masks and the history."""
    import tensorflow as tf

    rows, n, slots = state.done_mask.shape.as_list()
    steps = search.max_steps
    exists = state.done_scores > _DEAD / 2
    lengths = tf.where(exists, state.done_lengths, 0)
    fed = tf.cast(state.done_mask, tf.int32) * state.history[:, tf.newaxis]
    fed = tf.reduce_sum(tf.reshape(fed, [rows, n, steps, slots // steps]), axis=-1)
    # The token fed at step t + 1 is the translation's token t; step 0 was fed BOS.
    ids = tf.concat([fed[:, :, 1:], tf.zeros([rows, n, 1], tf.int32)], axis=-1)
    place, end = tf.range(steps), lengths[:, :, tf.newaxis] - 1
    ids = tf.where(place < end, ids, tf.where(place == end, search.eos, 0))
    return Hypotheses(ids, lengths, state.done_scores, state.done_log_probs)
