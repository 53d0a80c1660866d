"""Decoding one token at a time, for all hypotheses of a flat beam (GShard section A.1).

Caches are never reordered: slot t * K + j holds beam j of step t, and a 0/1 mask says which slots a
hypothesis descends from. No token is dropped by an expert, so a sentence's translation does not depend
on its neighbours in the batch.
"""

import functools
from collections.abc import Mapping

from gshard_nmt.errors import UserError
from gshard_nmt.model import attention, transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode, rms_norm
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import within
from gshard_nmt.spmd.sharding import annotate

Values = Mapping[str, "tf.Tensor"]
Cache = dict[str, "tf.Tensor"]


def start(
    model: Model, p: Values, batch: Mapping[str, "tf.Tensor"], beam: int, max_steps: int
) -> Cache:
    """Encodes the sources and lays out the caches.

    Args:
      model: the shape.
      p: all parameters.
      batch: source ids, segments and positions, int32[B, L]; one sentence a row.
      beam: K.
      max_steps: T, target tokens at most.

    Returns:
      For each decoder layer the projected memory `cross_key`, `cross_value` float32[B, L, N, D] and
      empty `self_key`, `self_value` float32[B, K * T, N, D]; and `memory_bias` float32[B, 1, 1, L].
    """
    if not model.encoder_layers:
        raise UserError(
            "Model.encoder_layers is 0: a language model has no source to translate. It trains and "
            "evaluates; to decode, train a model with an encoder."
        )
    moe = model.moe_for_decoding() if model.experts else None
    memory, _ = transformer.encode(model, p, batch, Mode(), moe)
    b = memory.shape[0]
    real = batch["source_segments"]
    cache = {"memory_bias": attention.segment_bias(tf.ones([b, 1], tf.int32), real)}
    # A run-time zero: constants of the cache's size would be built on the host.
    zero = tf.zeros([], memory.dtype) * memory[0, 0, 0]
    empty = tf.broadcast_to(zero, [b, beam * max_steps, model.heads, model.head_dim])
    block = within(p, "decoder/block")
    for repeat in range(model.decoder_layers // model.block_layers):
        for name in transformer.sublayers(model, "decoder"):
            scope = f"{name}/{repeat}"
            if name.startswith("cross_attention"):
                values = {k: v[repeat] for k, v in within(block, name).items()}
                keys, vals = attention.project_memory(values, memory)
                cache |= {f"{scope}/key": keys, f"{scope}/value": vals}
            elif name.startswith("self_attention"):
                slots = annotate(empty, "BTND")
                cache |= {f"{scope}/key": slots, f"{scope}/value": slots}
    return cache


def step(
    model: Model,
    p: Values,
    ids: "tf.Tensor",
    mask: "tf.Tensor",
    t: "tf.Tensor",
    cache: Cache,
) -> tuple["tf.Tensor", Cache]:
    """Log-probabilities of the next token of every hypothesis.

    Args:
      model: the shape.
      p: all parameters.
      ids: int32[B, K], the last token of each hypothesis.
      mask: float32[B, K, K * T], 1 at the slots of each hypothesis, its own newest one included.
      t: int32[], the step, 0 for the first; also the position of `ids`.
      cache: as `start` made it; slots of steps before t are filled.

    Returns:
      float32[B, K, V], and the cache with the slots of step t filled.
    """
    b, k = ids.shape.as_list()
    slots = mask.shape[-1]
    moe = model.moe_for_decoding() if model.experts else None
    positions = tf.broadcast_to(t, [b, k])
    x = transformer.embed(model, p, "target", ids, positions)
    real = tf.ones([b, k], tf.bool)
    visible = attention.beam_bias(mask)
    new_cache = dict(cache)

    def sublayer(repeat: int, name: str, values: Values, x: "tf.Tensor") -> "tf.Tensor":
        scope = f"{name}/{repeat}"
        if name.startswith("cross_attention"):
            keys, vals = cache[f"{scope}/key"], cache[f"{scope}/value"]
            return attention.attend_cached(values, x, keys, vals, cache["memory_bias"])
        if name.startswith("self_attention"):
            keys, vals = attention.project_memory(values, x)
            keys = write_slots(cache[f"{scope}/key"], keys, t)
            vals = write_slots(cache[f"{scope}/value"], vals, t)
            new_cache.update({f"{scope}/key": keys, f"{scope}/value": vals})
            bias = visible
            if "relative_bias" in values:
                distances = (t - tf.range(slots) // k)[tf.newaxis]
                relative = attention.relative_bias(values["relative_bias"], distances, causal=True)
                bias = visible + relative[tf.newaxis]
            return attention.attend_cached(values, x, keys, vals, bias)
        return transformer.feed_forward_or_moe(values, x, real, moe, Mode(), [])

    keep = tf.ones([b, k, 1], x.dtype)
    names = transformer.sublayers(model, "decoder")
    block = within(p, "decoder/block")
    for repeat in range(model.decoder_layers // model.block_layers):
        values = {name: v[repeat] for name, v in block.items()}
        f = functools.partial(sublayer, repeat)
        layers = transformer.SubLayers(model, "decoder", keep, Mode(), f)
        x = layers.apply(names, repeat, values, x)
    x = rms_norm(within(p, "decoder/final_norm"), x)
    logits = transformer.output_logits(model, p, x)
    return tf.nn.log_softmax(logits), new_cache


def write_slots(cache: "tf.Tensor", new: "tf.Tensor", t: "tf.Tensor") -> "tf.Tensor":
    """The cache [B, K * T, N, D] with `new` [B, K, N, D] at slots t * K to t * K + K - 1."""
    k = new.shape[1]
    if tf.executing_eagerly():
        slots = tf.range(cache.shape[1])
        written = (slots // k == t)[tf.newaxis, :, tf.newaxis, tf.newaxis]
        return tf.where(written, tf.tile(new, [1, cache.shape[1] // k, 1, 1]), cache)
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    zero = tf.zeros([], tf.int32)
    starts = tf.stack([zero, t * k, zero, zero])
    return gen_xla_ops.xla_dynamic_update_slice(cache, new, starts)
