"""Decodes one token at a time for all hypotheses of a flat beam (GShard section A.1).

The search makes at most I steps with K beams. The caches of the decoder's self-attention have T = K * I
slots. Slot i * K + k holds the key and the value of the token that beam k reads at step i. Caches are
never reordered: a 0/1 mask says which slots belong to the past of a hypothesis. No expert drops a token,
so the translation of a sentence does not depend on the other sentences of its batch.
"""

import functools
from collections.abc import Mapping

from gshard_nmt.errors import UserError
from gshard_nmt.model import attention, last_dimension, layer_stack, transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import within
from gshard_nmt.model.stack import Values, run_time_zeros, write
from gshard_nmt.spmd.sharding import annotate

Cache = dict[str, "tf.Tensor"]

_FEWEST_STEPS = 8
"""The steps of the first stage of attention, see `stages`."""


def start(
    model: Model, p: Values, batch: Mapping[str, "tf.Tensor"], beam: int, max_steps: int
) -> Cache:
    """Encodes the sources and makes the caches.

    Args:
      batch: source ids, segments and positions, int32[B, L], with one sentence in each row.
      beam: K.
      max_steps: I, the largest number of tokens of a translation.

    Returns:
      The caches, in the dtype of activations. Each attention has a `key` [B, N, D, T] and a `value`
      [B, N, T, D]. In cross-attention T are the source tokens, computed from the encoder's output. In
      self-attention T are the slots, which are still zero. `memory_bias` is float32[B, 1, 1, L].
    """
    if not model.encoder_layers:
        raise UserError(
            "Model.encoder_layers is 0, and a language model has no source to translate. To decode, "
            "train a model that has an encoder."
        )
    memory, _ = transformer.encode(model, p, batch, Mode())
    b = memory.shape[0]
    # With one sentence in each row, its segment is 1 and padding is 0.
    segments = batch["source_segments"]
    cache = {"memory_bias": attention.segment_bias(tf.ones([b, 1], tf.int32), segments)}
    slots = beam * max_steps
    empty_keys = run_time_zeros([b, model.heads, model.head_dim, slots], memory.dtype)
    empty_values = run_time_zeros([b, model.heads, slots, model.head_dim], memory.dtype)
    block = within(p, "decoder/block")
    for repeat in range(model.repeats("decoder")):
        for name in layer_stack.sublayers(model, "decoder"):
            scope = f"{name}/{repeat}"
            if name.startswith("cross_attention"):
                values = {k: v[repeat] for k, v in within(block, name).items()}
                key, value = attention.for_cache(*attention.project_memory(values, memory))
                cache |= {f"{scope}/key": key, f"{scope}/value": value}
            elif name.startswith("self_attention"):
                cache[f"{scope}/key"] = annotate(empty_keys, "BNDT")
                cache[f"{scope}/value"] = annotate(empty_values, "BNTD")
    return cache


def step(
    model: Model, p: Values, ids: "tf.Tensor", mask: "tf.Tensor", i: "tf.Tensor", cache: Cache
) -> tuple["tf.Tensor", Cache]:
    """Computes the log-probabilities of the next token of every hypothesis: float32[B, K, V].

    It is the `DecoderStep` of the searches (decoding/beam_search.py), which says what it takes and
    returns. Its caches are those of `start`.
    """
    b, k = ids.shape.as_list()
    slots = mask.shape[-1]
    moe = model.moe(training=False) if model.experts else None
    positions = tf.broadcast_to(i, [b, k])
    x = transformer.embed(model, p, "target", ids, positions)
    is_token = tf.ones([b, k], tf.bool)
    past_bias = attention.beam_bias(mask)
    new_cache = dict(cache)
    slots_read = stages(slots, k)
    stage = tf.reduce_sum(tf.cast(i * k >= tf.constant(slots_read), tf.int32))

    def sublayer(repeat: int, name: str, values: Values, x: "tf.Tensor") -> "tf.Tensor":
        scope = f"{name}/{repeat}"
        if name.startswith("cross_attention"):
            key, value = cache[f"{scope}/key"], cache[f"{scope}/value"]
            return attention.attend_cached(values, x, key, value, cache["memory_bias"])
        if name.startswith("self_attention"):
            key, value = attention.for_cache(*attention.project_memory(values, x))
            key = write(cache[f"{scope}/key"], i * k, key, axis=3)
            value = write(cache[f"{scope}/value"], i * k, value, axis=2)
            new_cache.update({f"{scope}/key": key, f"{scope}/value": value})
            bias = past_bias
            if "relative_bias" in values:
                distances = (i - tf.range(slots) // k)[tf.newaxis]
                relative = attention.relative_bias(values["relative_bias"], distances, causal=True)
                bias = past_bias + relative[tf.newaxis]
            return attention.attend_cached(values, x, key, value, bias, slots_read, stage)
        return layer_stack.feed_forward_or_moe(model, values, x, is_token, moe, Mode(), [])

    token_mask = tf.ones([b, k, 1], x.dtype)
    names = layer_stack.sublayers(model, "decoder")
    block = within(p, "decoder/block")
    for repeat in range(model.repeats("decoder")):
        values = {name: v[repeat] for name, v in block.items()}
        x = layer_stack.apply_sublayers(
            *(model, names, f"decoder_{repeat}_", values, x, token_mask, Mode()),
            functools.partial(sublayer, repeat),
        )
    x = layer_stack.final_norm(model, p, "decoder", x)
    logits = transformer.output_logits(model, p, x)
    return last_dimension.log_softmax(logits), new_cache


def stages(slots: int, beam: int) -> list[int]:
    """Returns the numbers of slots that attention may read: those of 8, 16, 32, ... steps, then all.

    A step reads the smallest of them that holds its past. So a translation costs what its own length
    needs, and not what the longest needs.
    """
    sizes, steps = [], _FEWEST_STEPS
    while steps * beam < slots:
        sizes.append(steps * beam)
        steps *= 2
    return [*sizes, slots]
