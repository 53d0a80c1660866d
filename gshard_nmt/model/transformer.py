"""The Transformer with a Mixture of Experts in every other layer (GShard section 2.1 and Figure 3).

It has an encoder and a decoder, or only a decoder as a language model. A stack is R equal blocks. A
block is `moe_every` layers, of which `moe_place` has the experts: by default the first. This is the
authors' order: attention, MoE, attention, dense feed-forward. Each parameter of a block is stored once,
with a leading dimension R. Sub-layers are pre-norm: x + dropout(f(norm(x))), and padding is set to 0
before each norm. `Model.norm_place` makes them post-norm: norm(x + dropout(f(x))).
"""

import math
from collections.abc import Sequence

from gshard_nmt.errors import UserError
from gshard_nmt.model import layers
from gshard_nmt.model.config import SINUSOIDS, Model
from gshard_nmt.model.figures import LayerCounter
from gshard_nmt.model.layer_stack import StackInputs, declare_block, run_stack
from gshard_nmt.model.layers import Mode, dropout
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import SUMMED, ZEROS, Parameter, normal, scoped, stacked
from gshard_nmt.model.stack import Totals, Values
from gshard_nmt.spmd.sharding import annotate


def declare(model: Model, source_vocabulary: int, target_vocabulary: int) -> dict[str, Parameter]:
    """Declares all parameters by name. The target embedding is also the output projection.

    Raises:
      UserError: the embedding is shared, and the vocabularies have different sizes.
    """
    if model.shared_embedding and model.encoder_layers and source_vocabulary != target_vocabulary:
        raise UserError(
            f"Model.shared_embedding is True, but the source vocabulary has {source_vocabulary} ids and "
            f"the target vocabulary {target_vocabulary}; both sides need the same ids. "
            "Prepare the data with --vocabulary_of the model you start from or with Data.vocabulary = "
            "'joint', or set Model.shared_embedding to False.",
            ["Model.shared_embedding", "Data.vocabulary"],
        )
    declared: dict[str, Parameter] = {}
    for side, stack, vocabulary in (
        ("source", "encoder", source_vocabulary),
        ("target", "decoder", target_vocabulary),
    ):
        if model.depth(stack):
            declared |= _declare_stack(model, side, stack, vocabulary)
    factor = math.sqrt(model.initial_scale)
    return {
        name: p.scaled(factor) if name.rpartition("/")[2] in (*SUMMED, "gate") else p
        for name, p in declared.items()
    }


def _declare_stack(model: Model, side: str, stack: str, vocabulary: int) -> dict[str, Parameter]:
    m = model.model_dim
    declared = {embedding_name(model, side): Parameter((vocabulary, m), "VM", normal(1.0))}
    if model.output_bias and side == "target":
        declared["output_bias"] = Parameter((vocabulary,), "V", ZEROS, keep_float32=True)
    if model.positions == "learned":
        shape = (model.max_positions, m)
        declared[f"{side}_position_embedding"] = Parameter(shape, "LM", normal(1.0))
    block = stacked("R", model.repeats(stack), declare_block(model, stack))
    declared |= scoped(f"{stack}/block", block)
    if model.norm_place == "after":
        return declared
    return declared | scoped(f"{stack}/final_norm", layers.declare_norm(m, model.norm))


_EOS, _BOS = 1, 3
"""The ids of each vocabulary; see `data/text/vocabulary.py`."""


def embedding_name(model: Model, side: str) -> str:
    return "target_embedding" if model.shared_embedding else f"{side}_embedding"


def embed(model: Model, p: Values, side: str, ids: "tf.Tensor", positions: "tf.Tensor"):
    """Returns the embeddings [B, L, M] of tokens and their positions, in the dtype of activations.

    Args:
      ids: int32[B, L].
      positions: int32[B, L], the position of each token in its segment.
    """
    if side == "target" and model.start_token == "eos":
        ids = tf.where(ids == _BOS, _EOS, ids)
    x = layers.lookup(p, embedding_name(model, side), ids)
    if model.positions in SINUSOIDS:
        if model.position_offset:
            positions = positions + model.position_offset
        waves = layers.sinusoids(positions, model.model_dim, model.positions == "sinusoidal")
        x = x + tf.cast(waves, x.dtype)
    elif model.positions == "learned":
        x = x + tf.gather(p[f"{side}_position_embedding"], positions)
    return x if x.dtype == tf.float64 else tf.cast(x, model.activation_dtype)


def _check_length(model: Model, ids: "tf.Tensor") -> None:
    if model.positions == "learned" and ids.shape[1] > model.max_positions:
        raise UserError(
            f"rows have {ids.shape[1]} tokens, but Model.max_positions is {model.max_positions}. Set "
            f"Model.max_positions to {ids.shape[1]} or more, or use shorter rows."
        )


def encode(
    model: Model,
    p: Values,
    batch: Values,
    mode: Mode,
    counter: LayerCounter | None = None,
    microbatches: int = 0,
) -> tuple["tf.Tensor", Totals]:
    """Returns two results: the encoder's output [B, L, M] and the routing totals.

    `batch` has source ids, segments and positions int32[B, L].
    """
    segments = batch["source_segments"]
    _check_length(model, segments)
    x = embed(model, p, "source", batch["source_ids"], batch["source_positions"])
    x = dropout(annotate(x, "BLM"), model.input_dropout, mode, "source_input")
    inputs = StackInputs(segments, counter=counter, microbatches=microbatches)
    x, totals = run_stack(model, "encoder", p, x, inputs, mode)
    return annotate(x, "BLM"), totals


def decode(
    model: Model,
    p: Values,
    memory: "tf.Tensor | None",
    batch: Values,
    mode: Mode,
    counter: LayerCounter | None = None,
    microbatches: int = 0,
) -> tuple["tf.Tensor", Totals]:
    """Returns the logits float32[B, L, V] with teacher forcing, and the routing totals.

    `batch` has target inputs, segments and positions int32[B, L]. `memory` is the encoder's output
    [B, T, M], or None in a decoder-only model.
    """
    segments, positions = batch["target_segments"], batch["target_positions"]
    _check_length(model, segments)
    x = embed(model, p, "target", batch["target_inputs"], positions)
    x = dropout(annotate(x, "BLM"), model.input_dropout, mode, "target_input")
    source_segments = None if memory is None else batch["source_segments"]
    inputs = StackInputs(
        segments, positions, source_segments, counter=counter, microbatches=microbatches
    )
    shared = [] if memory is None else [memory]
    x, totals = run_stack(model, "decoder", p, x, inputs, mode, shared)
    return output_logits(model, p, annotate(x, "BLM")), totals


def encode_and_decode(
    model: Model,
    p: Values,
    batch: Values,
    mode: Mode,
    counters: Sequence[LayerCounter | None] = (None, None),
    microbatches: int = 0,
) -> tuple["tf.Tensor", Totals, Totals]:
    """Returns the logits float32[B, L, V], and the totals of the encoder and of the decoder.

    `batch` has the arrays of `encode` and `decode`. A decoder-only model has no totals of an encoder: {}.
    """
    memory: tf.Tensor | None = None
    encoder: Totals = {}
    if model.encoder_layers:
        memory, encoder = encode(model, p, batch, mode, counters[0], microbatches)
    logits, decoder = decode(model, p, memory, batch, mode, counters[1], microbatches)
    return logits, encoder, decoder


def output_logits(model: Model, p: Values, x: "tf.Tensor") -> "tf.Tensor":
    """Returns the logits float32[B, L, V] of x[B, L, M].

    They are the products of x * M**-0.5 with the target embedding, plus the output bias if the model has
    one. The operands and the result are float32. A TPU multiplies them in bfloat16, as in the paper's
    runs, and adds in float32.
    """
    scaled = layers.to_float32(x) * model.model_dim**-0.5
    name = "output_embedding" if "output_embedding" in p else "target_embedding"
    logits = annotate(layers.project("BLM,VM->BLV", scaled, p, name), "BLV")
    return logits + p["output_bias"] if "output_bias" in p else logits
