"""Multi-head attention over packed rows, and over the cache of a beam search.

In the cache all beams of a sentence share one sequence of slots, called a flat beam (GShard section A.1).

The logits are not multiplied by 1/sqrt(D): the initializer of the query contains this scale, as in the
authors' code. A mask adds -1e9 to a logit. If all keys of a query are masked, its softmax is therefore
uniform and not NaN, and the caller masks its output. Logits and softmax are float32 for activations of
either dtype.
"""

import functools
import math
from collections.abc import Mapping, Sequence

from gshard_nmt.model import last_dimension
from gshard_nmt.model.layers import Mode, declare_biases, dropout, project, to_float32
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import Parameter, normal
from gshard_nmt.model.products import einsum, product_of_activations
from gshard_nmt.spmd.sharding import annotate

BUCKETS = 32
MAX_DISTANCE = 128
_MASKED = -1e9


def declare_attention(
    model_dim: int, heads: int, head_dim: int, relative: bool, biases: bool = False
) -> dict[str, Parameter]:
    """Declares the query, key, value and output projections, and T5's bias NU if `relative`.

    If `biases`, each projection has a bias vector.
    """
    m, n, d = model_dim, heads, head_dim
    declared = {
        "query": Parameter((m, n, d), "MND", normal(1 / math.sqrt(m * d))),
        "key": Parameter((m, n, d), "MND", normal(1 / math.sqrt(m))),
        "value": Parameter((m, n, d), "MND", normal(1 / math.sqrt(m))),
        "output": Parameter((n, d, m), "NDM", normal(1 / math.sqrt(n * d))),
    }
    if biases:
        declared |= declare_biases(declared)
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
    """Computes the attention from x to memory.

    Args:
      x: float32 or bfloat16[B, L, M], from which the queries are made.
      memory: float32 or bfloat16[B, T, M], from which keys and values are made. In self-attention it
        is x.
      bias: float32[B or 1, N or 1, L, T], added to the logits: mask and relative bias.
      mode: training or evaluation, and the random numbers.
      dropout_rate: the dropout rate of the attention probabilities.

    Returns:
      [B, L, M], in the dtype of x.
    """
    query = annotate(project("BLM,MND->BLND", x, p, "query"), "BLND")
    query = mode.keep("projections", query, "BLND")
    keys, values = (mode.keep("projections", t, "BTND") for t in project_memory(p, memory))
    queries, keys = to_float32(query), to_float32(keys)
    logits = product_of_activations("BLND,BTND->BNLT", queries, keys) + bias
    probabilities = dropout(tf.nn.softmax(logits), dropout_rate, mode, "attention")
    probabilities = tf.cast(probabilities, x.dtype)
    context = product_of_activations("BNLT,BTND->BLND", probabilities, values)
    context = annotate(context, "BLND")
    return mode.keep("attention", project("BLND,NDM->BLM", context, p, "output"), "BLM")


def project_memory(
    p: Mapping[str, "tf.Tensor"], memory: "tf.Tensor"
) -> tuple["tf.Tensor", "tf.Tensor"]:
    """Returns keys and values, [B, T, N, D] each, of memory[B, T, M]."""
    keys = annotate(project("BTM,MND->BTND", memory, p, "key"), "BTND")
    values = annotate(project("BTM,MND->BTND", memory, p, "value"), "BTND")
    return keys, values


def for_cache(keys: "tf.Tensor", values: "tf.Tensor") -> tuple["tf.Tensor", "tf.Tensor"]:
    """Transposes keys and values to the order of caches: [B, T, N, D] -> [B, N, D, T] and [B, N, T, D].

    The products of `attend_cached` need this order. If the caches had another one, each step of a search
    would transpose all of them.
    """
    cached_keys = annotate(tf.transpose(keys, [0, 2, 3, 1]), "BNDT")
    return cached_keys, annotate(tf.transpose(values, [0, 2, 1, 3]), "BNTD")


def attend_cached(
    p: Mapping[str, "tf.Tensor"],
    x: "tf.Tensor",
    keys: "tf.Tensor",
    values: "tf.Tensor",
    bias: "tf.Tensor",
    stages: Sequence[int] = (),
    stage: "tf.Tensor | None" = None,
) -> "tf.Tensor":
    """Computes the attention from K beams to cached keys and values.

    Args:
      x: float32 or bfloat16[B, K, M], one token of each beam.
      keys: [B, N, D, T], where T are the slots of the flat beam, or the source tokens.
      values: [B, N, T, D].
      bias: float32[B, N or 1, K, T], added to the logits: mask and relative bias.
      stages: the numbers of slots, in increasing order, that may be enough. Empty reads all slots.
      stage: int32[], the index in `stages` of the number of slots that hold a token now.

    Returns:
      [B, K, M], in the dtype of x.
    """
    # Shape: [B, K, N, D] -> [B, N, K, D]
    query = to_float32(tf.transpose(project("BKM,MND->BKND", x, p, "query"), [0, 2, 1, 3]))

    def context_of(slots: int) -> "tf.Tensor":
        seen_keys, seen_values = keys[:, :, :, :slots], values[:, :, :slots]
        logits = einsum("BNKD,BNDT->BNKT", query, to_float32(seen_keys)) + bias[..., :slots]
        probabilities = tf.cast(last_dimension.softmax(logits), x.dtype)
        return einsum("BNKT,BNTD->BNKD", probabilities, seen_values)

    if len(stages) > 1:
        branches = [functools.partial(context_of, slots) for slots in stages]
        context = tf.switch_case(stage, branches)
    else:
        context = context_of(keys.shape[-1])
    return project("BKND,NDM->BKM", tf.transpose(context, [0, 2, 1, 3]), p, "output")


def segment_bias(query_segments: "tf.Tensor", key_segments: "tf.Tensor") -> "tf.Tensor":
    """Returns 0 for two tokens of one segment and -1e9 otherwise: int32[B, L], [B, T] -> [B, 1, L, T].

    Segment 0 is padding and sees nothing.
    """
    same = query_segments[:, :, tf.newaxis] == key_segments[:, tf.newaxis, :]
    is_token = (query_segments > 0)[:, :, tf.newaxis]
    # Shape: [B, L, T] -> [B, 1, L, T]
    return _mask_to_bias(same & is_token)[:, tf.newaxis]


def causal_bias(positions: "tf.Tensor") -> "tf.Tensor":
    """Returns 0 if the key is not later than the query and -1e9 otherwise: int32[B, L] -> [B, 1, L, L].

    Always add `segment_bias` to this bias. Positions restart at 0 in each segment, so the causal bias
    alone would let a token see other segments of its row, even later ones.
    """
    return _mask_to_bias(positions[:, :, tf.newaxis] >= positions[:, tf.newaxis, :])[:, tf.newaxis]


def beam_bias(mask: "tf.Tensor") -> "tf.Tensor":
    """Returns the 0/1 mask of a flat beam as a bias: float32[B, K, T] -> [B, 1, K, T] (GShard A.1)."""
    return ((mask - 1.0) * -_MASKED)[:, tf.newaxis]


def relative_bias(table: "tf.Tensor", distances: "tf.Tensor", causal: bool) -> "tf.Tensor":
    """Returns T5's learned bias of each head and distance: [N, U], int32[L, T] -> float32[N, L, T].

    A distance is the query's position minus the key's. The table is read by a one-hot product, because
    the gradient of a gather is a scatter.
    """
    one_hot = tf.one_hot(buckets(distances, causal), BUCKETS, dtype=table.dtype)
    return einsum("NU,LTU->NLT", table, one_hot)


def relative_bias_of_row(table: "tf.Tensor", length: int, causal: bool) -> "tf.Tensor":
    """Returns `relative_bias` for every query and key of a row: [N, U] -> float32[N, L, L].

    The bias depends only on the position of the key minus that of the query, so each head needs only
    2 L values. They are repeated L times, and each copy is shifted by one position. A one-hot array
    [L, T, U] would be 32 times as large as [L, T], and TF2XLA would fold it to a constant.
    """
    # The order is key - query = 0, 1, ..., L - 1, (L, never read), 1 - L, ..., -1.
    ahead = tf.concat([tf.range(length + 1), tf.range(1 - length, 0)], axis=0)
    by_distance = relative_bias(table, -ahead[tf.newaxis], causal)[:, 0]  # [N, 2L]
    heads, row = table.shape[0], 2 * length - 1
    # The 2L values are repeated and cut into rows of 2L - 1. Row l then begins at the value for
    # key - query = -l.
    # Shape: [N, 2L] -> [N, L * (2L - 1)] -> [N, L, 2L - 1] -> [N, L, L]
    repeated = tf.tile(by_distance, [1, length])[:, : length * row]
    return tf.reshape(repeated, [heads, length, row])[:, :, :length]


def buckets(distances: "tf.Tensor", causal: bool) -> "tf.Tensor":
    """Returns the bucket of each distance, int32 (Raffel et al. 2020, section 2.1).

    Each near distance has its own bucket. Far distances share buckets with logarithmic spacing.
    Causal attention has 32 buckets for keys at or before the query. Otherwise there are 16 for these
    keys and 16 more for later keys.
    """
    count = BUCKETS if causal else BUCKETS // 2
    later = tf.zeros_like(distances)
    if not causal:
        later = tf.where(distances < 0, count, later)
        distances = tf.abs(distances)
    distances = tf.maximum(distances, 0)
    exact = count // 2
    ratio = tf.cast(tf.maximum(distances, 1), tf.float32) / exact
    # If a distance is at the lower edge of a bucket, rounding could put it into the bucket below. We
    # add 1e-5 to prevent this.
    log = tf.math.log(ratio) / math.log(MAX_DISTANCE / exact) * (count - exact) + 1e-5
    far = tf.minimum(exact + tf.cast(log, tf.int32), count - 1)
    return later + tf.where(distances < exact, distances, far)


def _mask_to_bias(visible: "tf.Tensor") -> "tf.Tensor":
    return tf.where(visible, 0.0, _MASKED)
