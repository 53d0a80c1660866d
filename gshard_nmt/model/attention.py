"""Multi-head attention over packed rows, and over the slots of a flat beam.

No 1/sqrt(D) at run time and no biases: the scale is in the query's initialisation, as in the authors'
code. Masked logits get -1e9 (added), so a fully masked row is uniform and finite; its output is
zeroed by the caller. Logits and softmax are float32 with activations of either dtype.
"""

import math
from collections.abc import Mapping

from gshard_nmt.model.layers import Mode, dropout, project, to_float32
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import Parameter, normal
from gshard_nmt.spmd.sharding import annotate

BUCKETS = 32
_MAX_DISTANCE = 128
_MASKED = -1e9


def declare_attention(
    model_dim: int, heads: int, head_dim: int, relative: bool
) -> dict[str, Parameter]:
    """Query, key, value and output projections, and where asked T5's relative bias NU."""
    m, n, d = model_dim, heads, head_dim
    declared = {
        "query": Parameter((m, n, d), "MND", normal(1 / math.sqrt(m * d))),
        "key": Parameter((m, n, d), "MND", normal(1 / math.sqrt(m))),
        "value": Parameter((m, n, d), "MND", normal(1 / math.sqrt(m))),
        "output": Parameter((n, d, m), "NDM", normal(1 / math.sqrt(n * d))),
    }
    if relative:
        scale = 1 / math.sqrt(n * BUCKETS)
        declared["relative_bias"] = Parameter((n, BUCKETS), "NU", normal(scale), keep_float32=True)
    return declared


def attend(
    p: Mapping[str, "tf.Tensor"],
    x: "tf.Tensor",
    memory: "tf.Tensor",
    bias: "tf.Tensor",
    mode: Mode,
    dropout_rate: float,
) -> "tf.Tensor":
    """Attention from x to memory.

    Args:
      p: the projections.
      x: float32[B, L, M], the queries' side.
      memory: float32[B, T, M], the keys' side; x itself for self-attention.
      bias: float32[B or 1, N or 1, L, T], added to the logits: mask and relative bias.
      mode: training or not, and random numbers.
      dropout_rate: of the attention probabilities.

    Returns:
      float32[B, L, M].
    """
    query = annotate(project("BLM,MND->BLND", x, p, "query"), "BLND")
    keys, values = project_memory(p, memory)
    logits = tf.einsum("BLND,BTND->BNLT", to_float32(query), to_float32(keys)) + bias
    probabilities = dropout(tf.nn.softmax(logits), dropout_rate, mode, "attention")
    probabilities = tf.cast(probabilities, x.dtype)
    context = annotate(tf.einsum("BNLT,BTND->BLND", probabilities, values), "BLND")
    return project("BLND,NDM->BLM", context, p, "output")


def project_memory(
    p: Mapping[str, "tf.Tensor"], memory: "tf.Tensor"
) -> tuple["tf.Tensor", "tf.Tensor"]:
    """Keys and values, float32[B, T, N, D] each, of memory float32[B, T, M]."""
    keys = annotate(project("BTM,MND->BTND", memory, p, "key"), "BTND")
    values = annotate(project("BTM,MND->BTND", memory, p, "value"), "BTND")
    return keys, values


def attend_cached(
    p: Mapping[str, "tf.Tensor"],
    x: "tf.Tensor",
    keys: "tf.Tensor",
    values: "tf.Tensor",
    bias: "tf.Tensor",
) -> "tf.Tensor":
    """Attention from K beams to keys and values that are there already.

    Args:
      p: the projections.
      x: float32[B, K, M], one token of each beam.
      keys: float32[B, T, N, D]; T counts slots of the flat beam, or source positions.
      values: float32[B, T, N, D].
      bias: float32[B, N or 1, K, T].

    Returns:
      float32[B, K, M].
    """
    query = project("BKM,MND->BKND", x, p, "query")
    logits = tf.einsum("BKND,BTND->BNKT", to_float32(query), to_float32(keys)) + bias
    probabilities = tf.cast(tf.nn.softmax(logits), x.dtype)
    context = tf.einsum("BNKT,BTND->BKND", probabilities, values)
    return project("BKND,NDM->BKM", context, p, "output")


def segment_bias(query_segments: "tf.Tensor", key_segments: "tf.Tensor") -> "tf.Tensor":
    """0 where two tokens share a segment, -1e9 elsewhere: int32[B, L], [B, T] -> [B, 1, L, T].

    Segment 0 is padding and sees nothing.
    """
    same = query_segments[:, :, tf.newaxis] == key_segments[:, tf.newaxis, :]
    real = (query_segments > 0)[:, :, tf.newaxis]
    return _mask_to_bias(same & real)[:, tf.newaxis]


def causal_bias(positions: "tf.Tensor") -> "tf.Tensor":
    """0 where the key is not later than the query, -1e9 elsewhere: int32[B, L] -> [B, 1, L, L].

    Positions restart with each segment, so this is right only together with `segment_bias`.
    """
    return _mask_to_bias(positions[:, :, tf.newaxis] >= positions[:, tf.newaxis, :])[:, tf.newaxis]


def beam_bias(mask: "tf.Tensor") -> "tf.Tensor":
    """The flat beam's 0/1 mask float32[B, K, T] as a bias [B, 1, K, T] (GShard section A.1)."""
    return ((mask - 1.0) * -_MASKED)[:, tf.newaxis]


def relative_bias(table: "tf.Tensor", distances: "tf.Tensor", causal: bool) -> "tf.Tensor":
    """T5's learned bias of a head for each distance: [N, U], int32[...] -> float32[N, ...].

    `distances` are query position minus key position. The table is read by a one-hot product, which
    shards, where a gather's gradient would scatter.
    """
    one_hot = tf.one_hot(buckets(distances, causal), BUCKETS, dtype=table.dtype)
    return tf.einsum("NU,LTU->NLT", table, one_hot)


def relative_bias_of_row(table: "tf.Tensor", length: int, causal: bool) -> "tf.Tensor":
    """`relative_bias` of every query and key of a row: [N, U] -> float32[N, L, L].

    It depends on key minus query alone, so 2 L values are looked up and laid out L times, each row one
    place further: a one-hot LTU would be 32 times as large, and TF2XLA would fold it to a constant.
    """
    # For key - query = 0, 1, ..., L - 1, (L, never read), 1 - L, ..., -1.
    ahead = tf.concat([tf.range(length + 1), tf.range(1 - length, 0)], axis=0)
    by_distance = relative_bias(table, -ahead[tf.newaxis], causal)[:, 0]  # [N, 2L]
    heads, around = table.shape[0], 2 * length
    # Rows of 2L - 1 cut from repeats of 2L: row l begins at value -l.
    repeated = tf.tile(by_distance, [1, length])[:, : length * (around - 1)]
    return tf.reshape(repeated, [heads, length, around - 1])[:, :, :length]


def buckets(distances: "tf.Tensor", causal: bool) -> "tf.Tensor":
    """int32 bucket of each distance (Raffel et al. 2020, section 2.1): exact near, log-spaced far.

    Causal: 32 buckets for keys at or before the query. Otherwise 16 a side, +16 for later keys.
    """
    count = BUCKETS if causal else BUCKETS // 2
    later = tf.zeros_like(distances)
    if not causal:
        later = tf.where(distances < 0, count, later)
        distances = tf.abs(distances)
    distances = tf.maximum(distances, 0)
    exact = count // 2
    ratio = tf.cast(tf.maximum(distances, 1), tf.float32) / exact
    # A hair above, so that a distance on a bucket's edge does not fall below it by rounding.
    log = tf.math.log(ratio) / math.log(_MAX_DISTANCE / exact) * (count - exact) + 1e-5
    far = tf.minimum(exact + tf.cast(log, tf.int32), count - 1)
    return later + tf.where(distances < exact, distances, far)


def _mask_to_bias(visible: "tf.Tensor") -> "tf.Tensor":
    return tf.where(visible, 0.0, _MASKED)
