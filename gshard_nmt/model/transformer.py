"""The Transformer with a Mixture of Experts in every other layer.

Encoder and decoder, or a decoder alone as a language model. A stack is R equal blocks; a block is
`moe_every` layers of which the first has the experts (the authors' order: attention, MoE, attention,
dense). Each parameter of a block is kept once with a leading dimension R. Sub-layers are pre-norm:
x + dropout(f(norm(x))), padding zeroed at each entry.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from gshard_nmt.errors import UserError
from gshard_nmt.model import attention, layers
from gshard_nmt.model.config import POSITIONS, Model
from gshard_nmt.model.counter_random import KeyTable
from gshard_nmt.model.gating import Routing
from gshard_nmt.model.layers import Mode, dropout, rms_norm
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.moe import MoE, declare_moe, moe_layer
from gshard_nmt.model.parameters import Parameter, Parameters, normal, scoped, stacked, within
from gshard_nmt.model.stack import Index, Part, Totals, scanned, unrolled
from gshard_nmt.spmd.sharding import annotate

__all__ = ["POSITIONS", "Model", "declare", "decode", "encode"]


def declare(model: Model, source_vocabulary: int, target_vocabulary: int) -> dict[str, Parameter]:
    """All parameters by name; the target embedding is also the output projection."""
    declared: dict[str, Parameter] = {}
    for side, stack, depth, vocabulary in (
        ("source", "encoder", model.encoder_layers, source_vocabulary),
        ("target", "decoder", model.decoder_layers, target_vocabulary),
    ):
        if depth:
            declared |= _declare_stack(model, side, stack, depth, vocabulary)
    return declared


def _declare_stack(
    model: Model, side: str, stack: str, depth: int, vocabulary: int
) -> dict[str, Parameter]:
    m = model.model_dim
    declared = {f"{side}_embedding": Parameter((vocabulary, m), "VM", normal(1.0))}
    if model.positions == "learned":
        shape = (model.max_positions, m)
        declared[f"{side}_position_embedding"] = Parameter(shape, "LM", normal(1.0))
    block = stacked(depth // model.block_layers, declare_block(model, stack))
    declared |= scoped(f"{stack}/block", block)
    return declared | scoped(f"{stack}/final_norm", layers.declare_norm(m))


def declare_block(model: Model, stack: str) -> dict[str, Parameter]:
    """The parameters of one block of a stack, "encoder" or "decoder"."""
    block: dict[str, Parameter] = {}
    for sublayer in sublayers(model, stack):
        block |= scoped(sublayer, _declare_sublayer(model, sublayer))
    return block


def sublayers(model: Model, stack: str) -> list[str]:
    """The names of a block's sub-layers in order, numbered by their layer in the block."""
    return [name for layer in _layers(model, stack) for name in layer]


def _layers(model: Model, stack: str) -> list[list[str]]:
    found = []
    for layer in range(model.block_layers):
        names = [f"self_attention_{layer}"]
        if stack == "decoder" and model.encoder_layers:
            names.append(f"cross_attention_{layer}")
        names.append(f"moe_{layer}" if model.experts and layer == 0 else f"feed_forward_{layer}")
        found.append(names)
    return found


def _declare_sublayer(model: Model, sublayer: str) -> dict[str, Parameter]:
    kind = sublayer.rpartition("_")[0]
    if kind == "moe":
        declared = declare_moe(model.model_dim, model.moe(training=True))
    elif kind == "feed_forward":
        declared = layers.declare_feed_forward(model.model_dim, model.hidden_dim, model.activation)
    else:
        relative = kind == "self_attention" and model.positions == "relative"
        declared = attention.declare_attention(
            model.model_dim, model.heads, model.head_dim, relative
        )
    return declared | scoped("norm", layers.declare_norm(model.model_dim))


def kind_of(name: str) -> str:
    """What a parameter is part of, by its name: one of KINDS."""
    parts = name.split("/")
    if parts[-1] in ("scale", "relative_bias"):
        return "norms" if parts[-1] == "scale" else "positions"
    if parts[-1].endswith("embedding"):
        return "positions" if "position" in parts[-1] else "embeddings"
    sublayer = parts[-2].rpartition("_")[0]
    if sublayer == "moe":
        return "gates" if parts[-1] == "gate" else "experts"
    return "feed_forward" if sublayer == "feed_forward" else "attention"


KINDS = ("experts", "gates", "attention", "feed_forward", "embeddings", "norms", "positions")


def count_by_kind(declared: Parameters) -> dict[str, int]:
    """Weights of each of KINDS; the papers count matrices, not norm scales and position tables."""
    counts = dict.fromkeys(KINDS, 0)
    for name, parameter in declared.items():
        counts[kind_of(name)] += parameter.size
    return counts


Values = Mapping[str, "tf.Tensor"]
Batch = Mapping[str, "tf.Tensor"]


@dataclasses.dataclass(frozen=True)
class SubLayers:
    """The sub-layers of a block: each is x + dropout(f(norm(x))).

    Attributes:
      model: the shape.
      stack: "encoder" or "decoder".
      keep: [B, L, 1] in the dtype of x, 0 at padding, which is zeroed at every entry.
      mode: for the residual dropout, of this repeat.
      f: (name, values, normed x) -> output of one sub-layer, before the residual.
    """

    model: Model
    stack: str
    keep: "tf.Tensor"
    mode: Mode
    f: Callable[[str, Values, "tf.Tensor"], "tf.Tensor"]

    def apply(
        self, names: Sequence[str], repeat: Index, values: Values, x: "tf.Tensor"
    ) -> "tf.Tensor":
        """Some of them in order, on x[B, L, M], with the parameters of one repeat of the block."""
        for name in names:
            place = f"{repeat}_{name}" if isinstance(repeat, int) else name
            with tf.name_scope(f"{self.stack}_{place}"):
                mine = within(values, name)
                out = self.f(name, mine, rms_norm(within(mine, "norm"), x * self.keep))
                x = x + dropout(out, self.model.residual_dropout, self.mode.named(name), "residual")
        return x


@dataclasses.dataclass(frozen=True)
class StackInputs:
    """What the sub-layers of a stack read, besides their own input and parameters.

    Attributes:
      real: bool[B, L], False for padding.
      visible: float32[B, 1, L, L], the mask of self-attention as a bias.
      visible_memory: float32[B, 1, L, T], of the decoder's attention to the source.
      moe: the rules of MoE layers; None in a dense model.
    """

    real: "tf.Tensor"
    visible: "tf.Tensor"
    visible_memory: "tf.Tensor | None"
    moe: MoE | None


def run_stack(
    model: Model,
    stack: str,
    p: Values,
    x: "tf.Tensor",
    inputs: StackInputs,
    mode: Mode,
    memory: Sequence["tf.Tensor"] = (),
) -> tuple["tf.Tensor", Totals]:
    """Applies the blocks of a stack, as Model.stack and Model.remat say, and the final norm.

    Args:
      model: the shape.
      stack: "encoder" or "decoder".
      p: all parameters of the model.
      x: [B, L, M].
      inputs: masks and rules.
      mode: for the dropouts.
      memory: the encoder's output [B, T, M], where there is one to attend to.

    Returns:
      [B, L, M], and the sums over MoE layers of `routing_totals`.
    """
    keep = tf.cast(inputs.real, x.dtype)[..., tf.newaxis]
    prefix, mode = f"{stack}/block", mode.named(stack)
    block, declared = within(p, prefix), declare_block(model, stack)
    depth = model.encoder_layers if stack == "encoder" else model.decoder_layers
    draws = _draws(model, stack, mode, depth // model.block_layers)

    def part(names: Sequence[str]) -> Part:
        def apply(values: Values, x: "tf.Tensor", memory: Sequence["tf.Tensor"], repeat: Index):
            routings: list[Routing] = []
            here = mode if draws is None else dataclasses.replace(mode, prepared=draws.at(repeat))

            def sublayer(name: str, values: Values, x: "tf.Tensor") -> "tf.Tensor":
                mine = here.named(name)
                if name.startswith("self_attention"):
                    bias = inputs.visible + _self_bias(values, x.shape[1], stack == "decoder")
                    return attention.attend(values, x, x, bias, mine, model.attention_dropout)
                if name.startswith("cross_attention"):
                    rate, bias = model.attention_dropout, inputs.visible_memory
                    return attention.attend(values, x, memory[0], bias, mine, rate)
                return feed_forward_or_moe(values, x, inputs.real, inputs.moe, mine, routings)

            y = SubLayers(model, stack, keep, here, sublayer).apply(names, repeat, values, x)
            return y, routing_totals(routings)

        mine = [name for name in declared if name.split("/")[0] in names]
        return Part(
            mine, apply, low_precision=[name for name in mine if not declared[name].keep_float32]
        )

    by_layer = model.remat == "layer"
    groups = _layers(model, stack) if by_layer else [sublayers(model, stack)]
    parts = [part(names) for names in groups]
    if model.stack == "scan":

        def laid_out(name: str, value: "tf.Tensor") -> "tf.Tensor":
            return annotate(value, "R" + declared[name].letters, f"{prefix}/{name}")

        x, totals = scanned(parts, block, laid_out, x, memory, _totals_shapes(inputs.moe))
    else:
        x, totals = unrolled(parts, block, x, memory, recompute=model.remat != "none")
    return rms_norm(within(p, f"{stack}/final_norm"), x) * keep, totals


def _draws(model: Model, stack: str, mode: Mode, repeats: int) -> KeyTable | None:
    """The keys of all random numbers of a stack, made at once: a key is a hundred scalar operations."""
    if not mode.training or mode.key is None:
        return None
    uses = {
        "moe": ["jitter", "second_expert", "expert", "residual"],
        "feed_forward": ["residual"],
    }
    names = [
        f"{mode.scope}{name}/{use}"
        for name in sublayers(model, stack)
        for use in uses.get(name.rpartition("_")[0], ["attention", "residual"])
    ]
    return mode.key.fold_each(names, repeats)


def routing_totals(routings: Sequence[Routing]) -> Totals:
    """Sums over some MoE layers of their losses and statistics, float32; {} without any.

    aux_loss, z_loss, overflow_fraction, entropy float32[], load float32[E], and layers float32[], how
    many there are.
    """
    if not routings:
        return {}
    totals = {
        name: tf.add_n([getattr(routing, name) for routing in routings])
        for name in ("aux_loss", "z_loss", "overflow_fraction", "entropy", "load")
    }
    return totals | {"layers": tf.constant(float(len(routings)), totals["load"].dtype)}


def _totals_shapes(moe: MoE | None) -> dict[str, list[int]]:
    if moe is None:
        return {}
    scalars = ("aux_loss", "z_loss", "overflow_fraction", "entropy", "layers")
    return {**{name: [] for name in scalars}, "load": [moe.gating.experts]}


def embed(model: Model, p: Values, side: str, ids: "tf.Tensor", positions: "tf.Tensor"):
    """Embeddings [B, L, M] of int32[B, L], with what positions add, in the activations' dtype.

    Args:
      model: the shape.
      p: all parameters.
      side: "source" or "target".
      ids: int32[B, L].
      positions: int32[B, L], within the segment.
    """
    x = tf.gather(p[f"{side}_embedding"], ids)
    if model.positions == "sinusoidal":
        x = x + tf.cast(layers.sinusoids(positions, model.model_dim), x.dtype)
    elif model.positions == "learned":
        x = x + tf.gather(p[f"{side}_position_embedding"], positions)
    return x if x.dtype == tf.float64 else tf.cast(x, model.activation_dtype)


def _check_length(model: Model, ids: "tf.Tensor") -> None:
    if model.positions == "learned" and ids.shape[1] > model.max_positions:
        raise UserError(
            f"rows of {ids.shape[1]} tokens need as many positions; Model.max_positions is "
            f"{model.max_positions}. Make it {ids.shape[1]}, or the rows shorter."
        )


def encode(
    model: Model, p: Values, batch: Batch, mode: Mode, moe: MoE | None
) -> tuple["tf.Tensor", Totals]:
    """Source ids, segments and positions int32[B, L] to memory [B, L, M] and routing totals."""
    segments = batch["source_segments"]
    _check_length(model, segments)
    x = embed(model, p, "source", batch["source_ids"], batch["source_positions"])
    x = dropout(annotate(x, "BLM"), model.input_dropout, mode, "source_input")
    inputs = StackInputs(segments > 0, attention.segment_bias(segments, segments), None, moe)
    x, totals = run_stack(model, "encoder", p, x, inputs, mode)
    return annotate(x, "BLM"), totals


def decode(
    model: Model,
    p: Values,
    memory: "tf.Tensor | None",
    batch: Batch,
    mode: Mode,
    moe: MoE | None,
) -> tuple["tf.Tensor", Totals]:
    """Target inputs int32[B, L] under teacher forcing to logits float32[B, L, V] and routing totals.

    `memory` is the encoder's output, None in a decoder-only model.
    """
    segments, positions = batch["target_segments"], batch["target_positions"]
    _check_length(model, segments)
    x = embed(model, p, "target", batch["target_inputs"], positions)
    x = dropout(annotate(x, "BLM"), model.input_dropout, mode, "target_input")
    visible = attention.segment_bias(segments, segments) + attention.causal_bias(positions)
    visible_memory = None
    if memory is not None:
        visible_memory = attention.segment_bias(segments, batch["source_segments"])
    inputs = StackInputs(segments > 0, visible, visible_memory, moe)
    shared = [] if memory is None else [memory]
    x, totals = run_stack(model, "decoder", p, x, inputs, mode, shared)
    return output_logits(model, p, annotate(x, "BLM")), totals


def output_logits(model: Model, p: Values, x: "tf.Tensor") -> "tf.Tensor":
    """Logits float32[B, L, V] against the tied target embedding, of vectors [B, L, M] scaled by M**-0.5.

    The product has float32 operands and result; a TPU multiplies them in bfloat16, as in the paper's
    runs, and adds in float32.
    """
    scaled = layers.to_float32(x) * model.model_dim**-0.5
    return annotate(layers.project("BLM,VM->BLV", scaled, p, "target_embedding"), "BLV")


def _self_bias(values: Values, length: int, causal: bool) -> "tf.Tensor | float":
    if "relative_bias" not in values:
        return 0.0
    # Segments are contiguous, so positions differ as places in the row do.
    return attention.relative_bias_of_row(values["relative_bias"], length, causal)[tf.newaxis]


def feed_forward_or_moe(
    values: Values,
    x: "tf.Tensor",
    real: "tf.Tensor",
    moe: MoE | None,
    mode: Mode,
    routings: list[Routing],
) -> "tf.Tensor":
    """The position-wise part of a layer, experts or dense; a routing is appended to `routings`."""
    if "gate" not in values or moe is None:
        return layers.feed_forward(values, x)
    out, routing = moe_layer(values, x, real, moe, mode)
    routings.append(routing)
    return out
