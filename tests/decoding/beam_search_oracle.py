"""A plain beam search, the oracle of the flat one; decoders with one flat cache, or one each in NumPy."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from gshard_nmt.decoding.beam_search import BeamSearch

EOS, BOS = 1, 3
WIDTH, VOCABULARY = 4, 7
STATES, LARGE = 11, 330


@dataclasses.dataclass
class Plain:
    """A finished hypothesis of the plain search."""

    ids: list[int]
    log_prob: np.float32
    score: np.float32


def plain_beam_search(
    decoder, cache, search: BeamSearch, limit: int, prefix: Sequence[int] = ()
) -> tuple[list[Plain], float]:
    """Returns the n-best of one sentence, and the smallest gap that decided between two hypotheses."""
    base = {"gnmt": lambda n: (5 + n) / 6, "lingvo": lambda n: (4 + n) / 5, "none": lambda _: 1.0}
    live, finished, closest = [([search.bos], np.float32(0), cache)], [], np.inf
    for i in range(limit):
        norm = np.float32(base[search.length_norm](i + 1) ** search.alpha)
        forced = prefix[i] if i < len(prefix) else None
        options = []
        for prefix_ids, total, cache in live:
            log_probs, cache = decoder(prefix_ids[-1], i, cache)
            totals = total + log_probs
            if forced in (None, search.eos):
                finished.append(
                    Plain([*prefix_ids[1:], search.eos], totals[search.eos], np.float32(0))
                )
                finished[-1].score = finished[-1].log_prob / norm
            tokens = np.argsort(-log_probs, kind="stable") if forced is None else [forced]
            if search.expansion == "lingvo":
                if len(tokens) > search.beam:
                    edge = log_probs[tokens[search.beam - 1]] - log_probs[tokens[search.beam]]
                    closest = min(closest, edge)
                tokens = tokens[: search.beam]
            options += [([*prefix_ids, v], totals[v], cache) for v in tokens if v != search.eos]
        options.sort(key=lambda option: -option[1])
        live = options[: search.beam]
        if len(options) > search.beam:
            closest = min(closest, live[-1][1] - options[search.beam][1])
    finished.sort(key=lambda hypothesis: -hypothesis.score)
    gaps = np.diff([-hypothesis.score for hypothesis in finished[: search.nbest + 1]])
    return finished[: search.nbest], min(closest, *gaps, np.inf)


def write(cache, new, i):
    """Returns the flat cache [B, T, ...] with `new` [B, K, ...] in the slots of step i."""
    beam, slots = new.shape[1], cache.shape[1]
    at = tf.reshape(tf.range(slots) // beam == i, [slots] + [1] * (len(cache.shape) - 2))
    return tf.where(at, tf.tile(new, [1, slots // beam] + [1] * (len(new.shape) - 2)), cache)


def attention_weights(seed: int) -> dict[str, np.ndarray]:
    """Draws the weights of a decoder that attends to its own past."""
    rng = np.random.default_rng(seed)
    shapes = dict.fromkeys(("query", "key", "value"), (WIDTH, WIDTH))
    shapes |= {"embedding": (VOCABULARY, WIDTH), "output": (WIDTH, VOCABULARY)}
    return {name: rng.normal(size=shape).astype("f") for name, shape in shapes.items()}


def flat_attention(weights):
    def step(ids, mask, i, cache):
        x = tf.gather(weights["embedding"], ids) + tf.sin(tf.cast(i, tf.float32))
        keys = write(cache["keys"], x @ weights["key"], i)
        values = write(cache["values"], x @ weights["value"], i)
        scores = tf.einsum("BKM,BTM->BKT", x @ weights["query"], keys) + (mask - 1) * 1e9
        context = tf.einsum("BKT,BTM->BKM", tf.nn.softmax(scores), values)
        log_probs = tf.nn.log_softmax(tf.tanh(x + context) @ weights["output"])
        return log_probs, {"keys": keys, "values": values}

    return step


def plain_attention(weights):
    def decoder(token, position, cache):
        x = weights["embedding"][token] + np.sin(np.float32(position))
        keys = np.vstack([cache[0], x @ weights["key"]])
        values = np.vstack([cache[1], x @ weights["value"]])
        scores = keys @ (x @ weights["query"])
        scores = np.exp(scores - scores.max())
        logits = np.tanh(x + scores @ values / scores.sum()) @ weights["output"]
        return logits - np.log(np.exp(logits).sum()), (keys, values)

    return decoder


def table_of(seed: int, vocabulary: int = LARGE) -> np.ndarray:
    """Returns log-probabilities float32[STATES, V] in steps of 1/8: sums are exact and many are equal."""
    rng = np.random.default_rng(seed)
    table = -rng.integers(4, 40, size=(STATES, vocabulary)) / 8
    table[:, rng.integers(0, vocabulary, 5)] += 0.5
    table[:, EOS] = -rng.integers(0, 40, size=STATES) / 8
    return table.astype("f")


def flat_table(table):
    def step(ids, mask, i, cache):
        codes = (ids * 5 + 2) * (i + 1) % STATES
        cache = write(cache, tf.cast(codes, tf.float32), i)
        state = tf.cast(tf.einsum("BKT,BT->BK", mask, cache), tf.int32) % STATES
        return tf.einsum("BKS,SV->BKV", tf.one_hot(state, STATES), table), cache

    return step


def plain_table(table):
    def decoder(token, position, state):
        state = (state + (token * 5 + 2) * (position + 1)) % STATES
        return table[state], state

    return decoder
