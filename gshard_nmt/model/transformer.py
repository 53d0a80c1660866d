"""The Transformer with a Mixture of Experts in every other layer (GShard section 2.1 and Figure 3).

It has an encoder and a decoder, or only a decoder as a language model. A stack is R equal blocks. A
block is `moe_every` layers, and the first of them has the experts. This is the authors' order:
attention, MoE, attention, dense feed-forward. Each parameter of a block is stored once, with a leading
dimension R. Sub-layers are pre-norm: x + dropout(f(norm(x))), and padding is set to 0 before each norm.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from gshard_nmt.errors import UserError
from gshard_nmt.model import attention, figures, layers
from gshard_nmt.model.config import Model
from gshard_nmt.model.counter_random import KeyTable
from gshard_nmt.model.figures import LayerCounter
from gshard_nmt.model.gating import Routing
from gshard_nmt.model.layers import Mode, dropout, rms_norm
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.moe import MoE, declare_moe, moe_layer
from gshard_nmt.model.parameters import Parameter, normal, scoped, stacked, within
from gshard_nmt.model.stack import Index, Part, Total, Totals, scanned, unrolled
from gshard_nmt.spmd.sharding import annotate


def declare(model: Model, source_vocabulary: int, target_vocabulary: int) -> dict[str, Parameter]:
    """Declares all parameters by name. The target embedding is also the output projection."""
    declared: dict[str, Parameter] = {}
    for side, stack, vocabulary in (
        ("source", "encoder", source_vocabulary),
        ("target", "decoder", target_vocabulary),
    ):
        if model.depth(stack):
            declared |= _declare_stack(model, side, stack, vocabulary)
    return declared


def _declare_stack(model: Model, side: str, stack: str, vocabulary: int) -> dict[str, Parameter]:
    m = model.model_dim
    declared = {f"{side}_embedding": Parameter((vocabulary, m), "VM", normal(1.0))}
    if model.positions == "learned":
        shape = (model.max_positions, m)
        declared[f"{side}_position_embedding"] = Parameter(shape, "LM", normal(1.0))
    block = stacked(model.repeats(stack), declare_block(model, stack))
    declared |= scoped(f"{stack}/block", block)
    return declared | scoped(f"{stack}/final_norm", layers.declare_norm(m))


def declare_block(model: Model, stack: str) -> dict[str, Parameter]:
    """Declares the parameters of one block of a stack, "encoder" or "decoder"."""
    block: dict[str, Parameter] = {}
    for sublayer in sublayers(model, stack):
        block |= scoped(sublayer, _declare_sublayer(model, sublayer))
    return block


def sublayers(model: Model, stack: str) -> list[str]:
    """Returns the names of a block's sub-layers in order. A name ends in the number of its layer."""
    return [name for layer in _layers(model, stack) for name in layer]


def _layers(model: Model, stack: str) -> list[list[str]]:
    """Returns the names of the sub-layers of each layer of a block."""
    layers_of_block = []
    for layer in range(model.block_layers(stack)):
        names = [f"self_attention_{layer}"]
        if stack == "decoder" and model.encoder_layers:
            names.append(f"cross_attention_{layer}")
        is_moe = layer == 0 and model.has_experts(stack)
        names.append(f"moe_{layer}" if is_moe else f"feed_forward_{layer}")
        layers_of_block.append(names)
    return layers_of_block


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


Values = Mapping[str, "tf.Tensor"]
Batch = Mapping[str, "tf.Tensor"]


@dataclasses.dataclass(frozen=True)
class SubLayers:
    """The sub-layers of a block; each computes x + dropout(f(norm(x))).

    Attributes:
      model: the settings of the model.
      stack: "encoder" or "decoder".
      token_mask: [B, L, 1] in the dtype of x, 1 for tokens and 0 for padding. It multiplies the input of
        every norm.
      mode: the mode of this repeat, for the residual dropout.
      f: (name, values, normed x) -> output of one sub-layer, before the residual is added.
    """

    model: Model
    stack: str
    token_mask: "tf.Tensor"
    mode: Mode
    f: Callable[[str, Values, "tf.Tensor"], "tf.Tensor"]

    def apply(
        self, names: Sequence[str], repeat: Index, values: Values, x: "tf.Tensor"
    ) -> "tf.Tensor":
        """Applies the named sub-layers in order to x[B, L, M], with the parameters of one repeat."""
        for name in names:
            place = f"{repeat}_{name}" if isinstance(repeat, int) else name
            with tf.name_scope(f"{self.stack}_{place}"):
                p = within(values, name)
                out = self.f(name, p, rms_norm(within(p, "norm"), x * self.token_mask))
                x = x + dropout(out, self.model.residual_dropout, self.mode.named(name), "residual")
        return x


@dataclasses.dataclass(frozen=True)
class StackInputs:
    """The inputs of all sub-layers of a stack, besides their own x and parameters.

    A bias is added to attention logits. It is 0 at visible positions and very negative at others.

    Attributes:
      is_token: bool[B, L], False for padding.
      self_bias: float32[B, 1, L, L], the mask of self-attention as a bias.
      cross_bias: float32[B, 1, L, T], the mask of the decoder's attention to the source as a bias; None
        in an encoder and in a language model.
      moe: the settings of the MoE layers; None in a dense model.
      counter: adds totals of its own; None adds nothing.
    """

    is_token: "tf.Tensor"
    self_bias: "tf.Tensor"
    cross_bias: "tf.Tensor | None"
    moe: MoE | None
    counter: LayerCounter | None = None

    def totals_of(self, routings: Sequence[Routing], repeat: Index, repeats: int) -> Totals:
        """Returns what the MoE layer of a part of a block adds to the totals of the stack."""
        totals = figures.totals_of(routings, repeat, repeats)
        if self.counter is None or not routings:
            return totals
        return totals | self.counter.totals_of(routings[0], repeat, repeats)

    def declare_totals(self, repeats: int) -> dict[str, Total]:
        """Declares the totals of a stack of R = `repeats` blocks."""
        rows, length = self.is_token.shape.as_list()
        declared = figures.declare_totals(self.moe, rows, length, repeats)
        return declared if self.counter is None else declared | self.counter.declare(repeats)


def run_stack(
    model: Model,
    stack: str,
    p: Values,
    x: "tf.Tensor",
    inputs: StackInputs,
    mode: Mode,
    memory: Sequence["tf.Tensor"] = (),
) -> tuple["tf.Tensor", Totals]:
    """Applies the blocks of a stack and the final norm, as Model.stack and Model.remat say.

    Args:
      model: the settings of the model.
      stack: "encoder" or "decoder".
      p: all parameters of the model.
      x: [B, L, M].
      inputs: the masks, and the settings of the MoE layers.
      mode: the mode for the dropouts.
      memory: the encoder's output [B, T, M] as the only entry, or nothing.

    Returns:
      [B, L, M], and the totals of `figures.totals_of`, over all MoE layers of the stack. If there is a
      counter, its totals are added.
    """
    # [B, L] -> [B, L, 1]
    token_mask = tf.cast(inputs.is_token, x.dtype)[..., tf.newaxis]
    prefix, mode = f"{stack}/block", mode.named(stack)
    block, declared = within(p, prefix), declare_block(model, stack)
    repeats = model.repeats(stack)
    if not model.has_experts(stack):
        inputs = dataclasses.replace(inputs, moe=None, counter=None)
    keys = _random_keys(model, stack, mode, repeats)

    def part(names: Sequence[str]) -> Part:
        def apply(values: Values, x: "tf.Tensor", memory: Sequence["tf.Tensor"], repeat: Index):
            routings: list[Routing] = []
            block_mode = mode
            if keys is not None:
                block_mode = dataclasses.replace(mode, prepared=keys.at(repeat))

            def sublayer(name: str, values: Values, x: "tf.Tensor") -> "tf.Tensor":
                sublayer_mode, rate = block_mode.named(name), model.attention_dropout
                if name.startswith("self_attention"):
                    bias = inputs.self_bias + _relative_bias(values, x.shape[1], stack == "decoder")
                    return attention.attend(values, x, x, bias, sublayer_mode, rate)
                if name.startswith("cross_attention"):
                    bias = inputs.cross_bias
                    return attention.attend(values, x, memory[0], bias, sublayer_mode, rate)
                return feed_forward_or_moe(
                    values, x, inputs.is_token, inputs.moe, sublayer_mode, routings
                )

            layers_of_part = SubLayers(model, stack, token_mask, block_mode, sublayer)
            out = layers_of_part.apply(names, repeat, values, x)
            return out, inputs.totals_of(routings, repeat, repeats)

        weights = [name for name in declared if name.split("/")[0] in names]
        low_precision = [name for name in weights if not declared[name].keep_float32]
        return Part(weights, apply, low_precision)

    by_layer = model.remat == "layer"
    groups = _layers(model, stack) if by_layer else [sublayers(model, stack)]
    parts = [part(names) for names in groups]
    if model.stack == "scan":

        def annotate_gradient(name: str, gradient: "tf.Tensor") -> "tf.Tensor":
            return annotate(gradient, "R" + declared[name].letters, f"{prefix}/{name}")

        declared_totals = inputs.declare_totals(repeats)
        x, totals = scanned(parts, block, annotate_gradient, x, memory, declared_totals)
    else:
        x, totals = unrolled(parts, block, x, memory, recompute=model.remat != "none")
    return rms_norm(within(p, f"{stack}/final_norm"), x) * token_mask, totals


def _random_keys(model: Model, stack: str, mode: Mode, repeats: int) -> KeyTable | None:
    """Returns the keys of all random numbers of a stack, or None if nothing is random.

    We make all keys in one call, because each call has about a hundred operations.
    """
    if not mode.training or mode.key is None:
        return None
    uses = {
        "moe": ["jitter", "second_expert", "expert", "residual"],
        "feed_forward": ["residual"],
    }
    if model.expert_output_masking:
        uses["moe"].append("expert_output")
    names = [
        f"{mode.scope}{name}/{use}"
        for name in sublayers(model, stack)
        for use in uses.get(name.rpartition("_")[0], ["attention", "residual"])
    ]
    return mode.key.fold_each(names, repeats)


def embed(model: Model, p: Values, side: str, ids: "tf.Tensor", positions: "tf.Tensor"):
    """Returns the embeddings [B, L, M] of tokens and their positions, in the dtype of activations.

    Args:
      model: the settings of the model.
      p: all parameters.
      side: "source" or "target".
      ids: int32[B, L].
      positions: int32[B, L], the position of each token in its segment.
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
            f"rows have {ids.shape[1]} tokens, but Model.max_positions is {model.max_positions}. Set "
            f"Model.max_positions to {ids.shape[1]} or more, or use shorter rows."
        )


def encode(
    model: Model,
    p: Values,
    batch: Batch,
    mode: Mode,
    moe: MoE | None,
    counter: LayerCounter | None = None,
) -> tuple["tf.Tensor", Totals]:
    """Returns two results: the encoder's output [B, L, M] and the routing totals.

    `batch` has source ids, segments and positions int32[B, L].
    """
    segments = batch["source_segments"]
    _check_length(model, segments)
    x = embed(model, p, "source", batch["source_ids"], batch["source_positions"])
    x = dropout(annotate(x, "BLM"), model.input_dropout, mode, "source_input")
    inputs = StackInputs(
        segments > 0, attention.segment_bias(segments, segments), None, moe, counter
    )
    x, totals = run_stack(model, "encoder", p, x, inputs, mode)
    return annotate(x, "BLM"), totals


def decode(
    model: Model,
    p: Values,
    memory: "tf.Tensor | None",
    batch: Batch,
    mode: Mode,
    moe: MoE | None,
    counter: LayerCounter | None = None,
) -> tuple["tf.Tensor", Totals]:
    """Returns the logits float32[B, L, V] with teacher forcing, and the routing totals.

    `batch` has target inputs, segments and positions int32[B, L]. `memory` is the encoder's output
    [B, T, M], or None in a decoder-only model.
    """
    segments, positions = batch["target_segments"], batch["target_positions"]
    _check_length(model, segments)
    x = embed(model, p, "target", batch["target_inputs"], positions)
    x = dropout(annotate(x, "BLM"), model.input_dropout, mode, "target_input")
    self_bias = attention.segment_bias(segments, segments) + attention.causal_bias(positions)
    cross_bias = None
    if memory is not None:
        cross_bias = attention.segment_bias(segments, batch["source_segments"])
    inputs = StackInputs(segments > 0, self_bias, cross_bias, moe, counter)
    shared = [] if memory is None else [memory]
    x, totals = run_stack(model, "decoder", p, x, inputs, mode, shared)
    return output_logits(model, p, annotate(x, "BLM")), totals


def output_logits(model: Model, p: Values, x: "tf.Tensor") -> "tf.Tensor":
    """Returns the logits float32[B, L, V] of x[B, L, M].

    They are the products of x * M**-0.5 with the target embedding. The operands and the result are
    float32. A TPU multiplies them in bfloat16, as in the paper's runs, and adds in float32.
    """
    scaled = layers.to_float32(x) * model.model_dim**-0.5
    name = "output_embedding" if "output_embedding" in p else "target_embedding"
    return annotate(layers.project("BLM,VM->BLV", scaled, p, name), "BLV")


def _relative_bias(values: Values, length: int, causal: bool) -> "tf.Tensor | float":
    if "relative_bias" not in values:
        return 0.0
    # Segments are contiguous, so two tokens have the same distance in their segment and in the row.
    return attention.relative_bias_of_row(values["relative_bias"], length, causal)[tf.newaxis]


def feed_forward_or_moe(
    values: Values,
    x: "tf.Tensor",
    is_token: "tf.Tensor",
    moe: MoE | None,
    mode: Mode,
    routings: list[Routing],
) -> "tf.Tensor":
    """Applies the feed-forward or the experts of a layer to x[B, L, M].

    An MoE layer appends its routing to `routings`.
    """
    if "gate" not in values or moe is None:
        return layers.feed_forward(values, x)
    out, routing = moe_layer(values, x, is_token, moe, mode)
    routings.append(routing)
    return out
