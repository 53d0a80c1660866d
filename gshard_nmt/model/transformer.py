"""The encoder-decoder Transformer with a Mixture of Experts in every other layer.

A stack is R equal blocks; a block is `moe_every` layers of which the first has the experts (the
authors' order: attention, MoE, attention, dense). Each parameter of a block is kept once with a
leading dimension R. Sub-layers are pre-norm: x + dropout(f(norm(x))), padding zeroed at each entry.
"""

import dataclasses
from collections.abc import Callable, Mapping

from gshard_nmt.errors import UserError
from gshard_nmt.model import attention, layers
from gshard_nmt.model.layers import Mode, dropout, rms_norm
from gshard_nmt.model.moe import MoE, Routing, declare_moe, moe_layer
from gshard_nmt.model.parameters import (
    Parameter,
    normal,
    scoped,
    stacked,
    within,
)
from gshard_nmt.model.tensorflow import tf
from gshard_nmt.spmd.sharding import annotate

POSITIONS = ("relative", "sinusoidal")


@dataclasses.dataclass(frozen=True)
class Model:
    """The model's shape. The vocabulary sizes are the data's.

    Attributes:
      encoder_layers, decoder_layers: each is one attention (the decoder: two) and one feed-forward.
      model_dim: M.
      hidden_dim: H of dense feed-forward layers.
      heads, head_dim: N and D of attention.
      experts: E of each MoE layer; 0 makes a dense Transformer.
      expert_hidden_dim: H of an expert; 0 means hidden_dim.
      moe_every: an MoE replaces the feed-forward in the first of every so many layers.
      num_groups: G; tokens of a batch are gated in so many groups, whatever the mesh.
      capacity_factor, eval_capacity_factor: slots of all experts together for each token.
      second_expert, eval_second_expert: "random" (probability 2 w2) or "all".
      dispatch: "gather" or "einsum".
      aux_loss_weight: of the load-balancing loss, summed over MoE layers.
      positions: "relative" (T5's bias in each self-attention) or "sinusoidal".
      input_dropout, residual_dropout, attention_dropout: rates in training.
      label_smoothing: of the target distribution.
      z_loss_weight: of the squared log-partition of the output softmax.
    """

    encoder_layers: int = 2
    decoder_layers: int = 2
    model_dim: int = 128
    hidden_dim: int = 512
    heads: int = 4
    head_dim: int = 32
    experts: int = 8
    expert_hidden_dim: int = 0
    moe_every: int = 2
    num_groups: int = 8
    capacity_factor: float = 2.0
    eval_capacity_factor: float = 2.0
    second_expert: str = "random"
    eval_second_expert: str = "all"
    dispatch: str = "gather"
    aux_loss_weight: float = 0.01
    positions: str = "relative"
    input_dropout: float = 0.1
    residual_dropout: float = 0.1
    attention_dropout: float = 0.1
    label_smoothing: float = 0.1
    z_loss_weight: float = 1e-4

    def __post_init__(self) -> None:
        if self.positions not in POSITIONS:
            raise UserError(
                f"Model.positions is {self.positions!r}; it must be one of {list(POSITIONS)}."
            )
        for stack in ("encoder", "decoder"):
            depth = getattr(self, f"{stack}_layers")
            if depth < 1 or depth % self.block_layers:
                up = -(-max(depth, 1) // self.block_layers) * self.block_layers
                raise UserError(
                    f"Model.{stack}_layers is {depth}, but a block has Model.moe_every = "
                    f"{self.block_layers} layers; use a multiple of it, for instance {up}."
                )
        if self.experts:
            self.moe(training=True)

    @property
    def block_layers(self) -> int:
        """Layers of one block: one with experts and the dense ones that follow it."""
        return self.moe_every if self.experts else 1

    def moe(self, training: bool) -> MoE:
        """The rules of the MoE layers, in training or in evaluation."""
        return MoE(
            self.experts,
            self.expert_hidden_dim or self.hidden_dim,
            self.num_groups,
            self.capacity_factor if training else self.eval_capacity_factor,
            self.second_expert if training else self.eval_second_expert,
            self.dispatch,
        )

    def moe_for_decoding(self) -> MoE:
        """The rules of incremental decoding: no choice is dropped, so C = S."""
        return dataclasses.replace(
            self.moe(training=False), capacity_factor=float(self.experts), second_expert="all"
        )


def declare(model: Model, source_vocabulary: int, target_vocabulary: int) -> dict[str, Parameter]:
    """All parameters by name; the target embedding is also the output projection."""
    m = model.model_dim
    declared = {
        "source_embedding": Parameter((source_vocabulary, m), "VM", normal(1.0)),
        "target_embedding": Parameter((target_vocabulary, m), "VM", normal(1.0)),
    }
    for stack, depth in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        block: dict[str, Parameter] = {}
        for sublayer in sublayers(model, stack):
            block |= scoped(sublayer, _declare_sublayer(model, sublayer))
        declared |= scoped(f"{stack}/block", stacked(depth // model.block_layers, block))
        declared |= scoped(f"{stack}/final_norm", layers.declare_norm(m))
    return declared


def sublayers(model: Model, stack: str) -> list[str]:
    """The names of a block's sub-layers in order, numbered by their layer in the block."""
    names = []
    for layer in range(model.block_layers):
        names.append(f"self_attention_{layer}")
        if stack == "decoder":
            names.append(f"cross_attention_{layer}")
        names.append(f"moe_{layer}" if model.experts and layer == 0 else f"feed_forward_{layer}")
    return names


def _declare_sublayer(model: Model, sublayer: str) -> dict[str, Parameter]:
    kind = sublayer.rpartition("_")[0]
    if kind == "moe":
        declared = declare_moe(model.model_dim, model.moe(training=True))
    elif kind == "feed_forward":
        declared = layers.declare_feed_forward(model.model_dim, model.hidden_dim)
    else:
        relative = kind == "self_attention" and model.positions == "relative"
        declared = attention.declare_attention(
            model.model_dim, model.heads, model.head_dim, relative
        )
    return declared | scoped("norm", layers.declare_norm(model.model_dim))


Values = Mapping[str, "tf.Tensor"]
SubLayer = Callable[[str, int, Values, "tf.Tensor"], "tf.Tensor"]
"""(name, repeat, values, normed input) -> output, before the residual."""


def run_stack(
    model: Model, stack: str, p: Values, x: "tf.Tensor", real: "tf.Tensor", mode: Mode, f: SubLayer
) -> "tf.Tensor":
    """Applies the blocks of a stack, each sub-layer computed by `f`, and the final norm.

    Args:
      model: the shape.
      stack: "encoder" or "decoder".
      p: all parameters of the stack.
      x: float32[B, L, M] (decoding: [B, K, M]).
      real: bool, x without its last dimension; padding is zeroed at every entry.
      mode: for the residual dropout.
      f: computes one sub-layer.
    """
    keep = tf.cast(real, x.dtype)[..., tf.newaxis]
    block = within(p, "block")
    repeats = next(iter(block.values())).shape[0]
    for repeat in range(repeats):
        for name in sublayers(model, stack):
            with tf.name_scope(f"{stack}_{repeat}_{name}"):
                values = {k: v[repeat] for k, v in within(block, name).items()}
                normed = rms_norm(within(values, "norm"), x * keep)
                out = f(name, repeat, values, normed)
                out = dropout(out, model.residual_dropout, mode, f"{stack}/{name}/{repeat}")
                x = x + out
    return rms_norm(within(p, "final_norm"), x) * keep


def embed(
    model: Model, table: "tf.Tensor", ids: "tf.Tensor", positions: "tf.Tensor"
) -> "tf.Tensor":
    """Rows of an embedding VM for int32[B, L], with sinusoids where positions are absolute."""
    x = tf.gather(table, ids)
    if model.positions == "sinusoidal":
        x = x + layers.sinusoids(positions, model.model_dim)
    return x


def encode(
    model: Model, p: Values, batch: Mapping[str, "tf.Tensor"], mode: Mode, moe: MoE | None
) -> tuple["tf.Tensor", list[Routing]]:
    """Source ids, segments and positions int32[B, L] to memory float32[B, L, M] and routings."""
    segments = batch["source_segments"]
    real = segments > 0
    x = embed(model, p["source_embedding"], batch["source_ids"], batch["source_positions"])
    x = dropout(annotate(x, "BLM"), model.input_dropout, mode, "source_input")
    visible = attention.segment_bias(segments, segments)
    routings: list[Routing] = []

    def sublayer(name: str, repeat: int, values: Values, x: "tf.Tensor") -> "tf.Tensor":
        if name.startswith("self_attention"):
            bias = visible + _self_bias(values, x.shape[1], causal=False)
            return attention.attend(
                values, x, x, bias, mode.named(f"encoder/{name}", repeat), model.attention_dropout
            )
        return feed_forward_or_moe(
            values, x, real, moe, mode.named(f"encoder/{name}", repeat), routings
        )

    x = run_stack(model, "encoder", within(p, "encoder"), x, real, mode, sublayer)
    return annotate(x, "BLM"), routings


def decode(
    model: Model,
    p: Values,
    memory: "tf.Tensor",
    batch: Mapping[str, "tf.Tensor"],
    mode: Mode,
    moe: MoE | None,
) -> tuple["tf.Tensor", list[Routing]]:
    """Target inputs int32[B, L] under teacher forcing to logits float32[B, L, V] and routings."""
    segments, positions = batch["target_segments"], batch["target_positions"]
    real = segments > 0
    x = embed(model, p["target_embedding"], batch["target_inputs"], positions)
    x = dropout(annotate(x, "BLM"), model.input_dropout, mode, "target_input")
    visible = attention.segment_bias(segments, segments) + attention.causal_bias(positions)
    visible_memory = attention.segment_bias(segments, batch["source_segments"])
    routings: list[Routing] = []

    def sublayer(name: str, repeat: int, values: Values, x: "tf.Tensor") -> "tf.Tensor":
        mine = mode.named(f"decoder/{name}", repeat)
        if name.startswith("self_attention"):
            bias = visible + _self_bias(values, x.shape[1], causal=True)
            return attention.attend(values, x, x, bias, mine, model.attention_dropout)
        if name.startswith("cross_attention"):
            rate = model.attention_dropout
            return attention.attend(values, x, memory, visible_memory, mine, rate)
        return feed_forward_or_moe(values, x, real, moe, mine, routings)

    x = run_stack(model, "decoder", within(p, "decoder"), x, real, mode, sublayer)
    return output_logits(model, p, annotate(x, "BLM")), routings


def output_logits(model: Model, p: Values, x: "tf.Tensor") -> "tf.Tensor":
    """Logits [B, L, V] against the tied target embedding, of vectors [B, L, M] scaled by M**-0.5."""
    scaled = x * model.model_dim**-0.5
    return annotate(tf.einsum("BLM,VM->BLV", scaled, p["target_embedding"]), "BLV")


def _self_bias(values: Values, length: int, causal: bool) -> "tf.Tensor | float":
    if "relative_bias" not in values:
        return 0.0
    # Segments are contiguous, so positions differ as places in the row do.
    places = tf.range(length)
    distances = places[:, tf.newaxis] - places[tf.newaxis, :]
    return attention.relative_bias(values["relative_bias"], distances, causal)[tf.newaxis]


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
