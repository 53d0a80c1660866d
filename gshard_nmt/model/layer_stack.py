"""A stack of layers, the encoder or the decoder: its blocks, and the ways to run them.

If a stack has experts, a block is `moe_every` layers, of which `moe_place` names the one with experts.
Otherwise a block is one layer. Each parameter of a block is stored once, with a leading dimension R.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from gshard_nmt.model import attention, figures, layers
from gshard_nmt.model.config import Model
from gshard_nmt.model.counter_random import Key
from gshard_nmt.model.figures import LayerCounter, LayerSums
from gshard_nmt.model.gating import MoE, Routing
from gshard_nmt.model.kept_results import Keep
from gshard_nmt.model.layers import Mode, dropout
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.moe import declare_moe, moe_layer
from gshard_nmt.model.parameters import Parameter, scoped, within
from gshard_nmt.model.pipeline import Pipeline
from gshard_nmt.model.pipeline_schedule import Schedule
from gshard_nmt.model.products import barrier
from gshard_nmt.model.stack import SUMS, Declaration, Index, Part, Totals, Values, scanned, unrolled
from gshard_nmt.model.stages import (
    Lettered,
    Tensors,
    annotate_for_stages,
    join_microbatches,
    microbatches_of,
)
from gshard_nmt.spmd.sharding import annotate, annotate_gradient


def declare_block(model: Model, stack: str) -> dict[str, Parameter]:
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
        is_moe = layer == model.moe_layer(stack) and model.has_experts(stack)
        names.append(f"moe_{layer}" if is_moe else f"feed_forward_{layer}")
        layers_of_block.append(names)
    return layers_of_block


def _declare_sublayer(model: Model, sublayer: str) -> dict[str, Parameter]:
    kind = sublayer.rpartition("_")[0]
    if kind == "moe":
        declared = declare_moe(model.model_dim, model.moe(training=True))
    elif kind == "feed_forward":
        declared = layers.declare_feed_forward(
            model.model_dim, model.hidden_dim, model.activation, model.biases
        )
    else:
        relative = kind == "self_attention" and model.positions == "relative"
        declared = attention.declare_attention(
            model.model_dim, model.heads, model.head_dim, relative, model.biases
        )
    return declared | scoped("norm", layers.declare_norm(model.model_dim, model.norm))


def apply_sublayers(
    model: Model,
    names: Sequence[str],
    prefix: str,
    values: Values,
    x: "tf.Tensor",
    token_mask: "tf.Tensor",
    mode: Mode,
    f: Callable[[str, Values, "tf.Tensor"], "tf.Tensor"],
) -> "tf.Tensor":
    """Applies sub-layers in order to x[B, L, M], with the parameters of one repeat.

    Each computes x + dropout(f(norm(x))), or norm(x + dropout(f(x))).

    Args:
      prefix: the beginning of the name scope of each sub-layer; its name follows.
      token_mask: [B, L, 1] in the dtype of x, 1 for tokens and 0 for padding. It multiplies the input of
        every sub-layer.
      mode: the mode of this repeat, for the residual dropout.
      f: (name, values, input) -> output of one sub-layer, before the residual is added.
    """
    for name in names:
        with tf.name_scope(f"{prefix}{name}"):
            p = within(values, name)
            norm = functools.partial(layers.norm, within(p, "norm"))
            before = model.norm_place == "before"
            masked = x * token_mask
            out = f(name, p, norm(masked) if before else masked)
            x = x + dropout(out, model.residual_dropout, mode.named(name), "residual")
            x = x if before else norm(x)
    return x


@dataclasses.dataclass(frozen=True)
class StackInputs:
    """The inputs of all sub-layers of a stack, besides their own x and parameters."""

    segments: "tf.Tensor"  # int32[B, L], counted from 1; 0 is padding
    # int32[B, L], if the self-attention is causal, as in a decoder; None in an encoder
    positions: "tf.Tensor | None" = None
    # int32[B, T], of the source that a decoder attends to; None without a source
    source_segments: "tf.Tensor | None" = None
    moe: MoE | None = None  # the settings of the MoE layers, which `run_stack` sets; None without
    counter: LayerCounter | None = None  # adds totals of its own; None adds nothing
    # n, the number of microbatches of a pipeline. 0 runs a pipeline's blocks one after another on
    # the whole batch.
    microbatches: int = 0

    def tensors(self) -> Tensors:
        names = ("segments", "positions", "source_segments")
        tensors = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def of_microbatch(self, tensors: Tensors) -> "StackInputs":
        """Returns the inputs of one microbatch, which has these tensors and its share of the groups."""
        moe = self.moe
        if moe is not None:
            moe = dataclasses.replace(moe, num_groups=moe.num_groups // self.microbatches)
        return dataclasses.replace(self, moe=moe, **tensors)

    def totals_of(self, routings: Sequence[Routing], repeat: Index, repeats: int) -> Totals:
        totals = figures.totals_of(routings, repeat, repeats)
        if self.counter is None or not routings:
            return totals
        return totals | self.counter.totals_of(routings[0], repeat, repeats)

    def declare_totals(self, repeats: int) -> dict[str, Declaration]:
        rows, length = self.segments.shape.as_list()
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
      p: all parameters of the model, and perhaps sums of gradients; see `SUMS`.
      x: [B, L, M].
      inputs: the segments, and the counter.
      memory: the encoder's output [B, T, M] as the only entry, or nothing.

    Returns:
      [B, L, M], and the totals of `figures.totals_of`, over all MoE layers of the stack. If there is a
      counter, its totals are added.
    """
    if model.has_experts(stack):
        inputs = dataclasses.replace(inputs, moe=model.moe(mode.training))
    else:
        inputs = dataclasses.replace(inputs, counter=None)
    blocks = Blocks(model, stack, mode.named(stack))
    weights = within(p, f"{stack}/block")
    if model.stack == "pipeline" and inputs.microbatches:
        x, totals = blocks.pipelined(weights, x, inputs, memory)
    else:
        keys = mode.key and mode.key.fold_each(blocks.streams, blocks.repeats)
        parts = blocks.parts(inputs, keys)
        if model.stack == "scan":
            x, totals = scanned(
                *(parts, weights, blocks.annotate_gradient, x, memory),
                inputs.declare_totals(blocks.repeats),
                within(p, f"{SUMS}/{stack}/block"),
            )
        else:
            x, totals = unrolled(parts, weights, x, memory, mode.training and model.remat != "none")
    # [B, L] -> [B, L, 1]
    token_mask = tf.cast(inputs.segments > 0, x.dtype)[..., tf.newaxis]
    return final_norm(model, p, stack, x) * token_mask, totals


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The R equal blocks of a stack."""

    model: Model  # the settings of the model
    stack: str  # "encoder" or "decoder"
    mode: Mode  # the mode for the dropouts, whose scope is the stack

    @property
    def repeats(self) -> int:
        return self.model.repeats(self.stack)

    def parts(self, inputs: StackInputs, keys: Key | None) -> list[Part]:
        """Returns the parts of a block for these inputs, whose random numbers follow from the keys."""
        model, stack, segments = self.model, self.stack, inputs.segments
        is_token = segments > 0
        token_mask = is_token[..., tf.newaxis]
        # A bias is added to attention logits. It is 0 at visible positions and very negative at others.
        self_bias, cross_bias = attention.segment_bias(segments, segments), None
        if inputs.positions is not None:
            self_bias += attention.causal_bias(inputs.positions)
        if inputs.source_segments is not None:
            cross_bias = attention.segment_bias(segments, inputs.source_segments)

        def apply(
            names: Sequence[str],
            values: Values,
            x: "tf.Tensor",
            memory: Sequence["tf.Tensor"],
            repeat: Index,
            keep: Keep,
        ):
            routings: list[Routing] = []
            mode = dataclasses.replace(self.mode, keep=keep)
            if keys is not None:
                mode = dataclasses.replace(mode, prepared=keys.at(repeat, self.streams))

            def sublayer(name: str, values: Values, x: "tf.Tensor") -> "tf.Tensor":
                own_mode, rate = mode.named(name), model.attention_dropout
                if name.startswith("self_attention"):
                    bias = self_bias
                    if (buckets := values.get("relative_bias")) is not None:
                        # Segments are contiguous, so distances in them are those in the row.
                        shape = (x.shape[1], stack == "decoder")
                        bias += attention.relative_bias_of_row(buckets, *shape)[tf.newaxis]
                    return attention.attend(values, x, x, bias, own_mode, rate)
                if name.startswith("cross_attention"):
                    return attention.attend(values, x, memory[0], cross_bias, own_mode, rate)
                return feed_forward_or_moe(
                    model, values, x, is_token, inputs.moe, own_mode, routings
                )

            prefix = f"{stack}_{repeat}_" if isinstance(repeat, int) else f"{stack}_"
            mask = tf.cast(token_mask, x.dtype)
            x = apply_sublayers(model, names, prefix, values, x, mask, mode, sublayer)
            return x, inputs.totals_of(routings, repeat, self.repeats)

        declared = declare_block(model, stack)
        parts = []
        # The names of the sub-layers of each part.
        groups = _layers(model, stack) if model.remat == "layer" else [sublayers(model, stack)]
        for names in groups:
            weights = [name for name in declared if name.split("/")[0] in names]
            low_precision = [name for name in weights if not declared[name].keep_float32]
            part_apply = functools.partial(apply, names)
            keeps = model.remat_keeps if self.mode.training else "inputs"
            parts.append(Part(weights, part_apply, low_precision, keeps))
        return parts

    def annotate_gradient(self, name: str, gradient: "tf.Tensor") -> "tf.Tensor":
        """Annotates the gradient [R, ...] of a parameter of the block."""
        letters = "R" + declare_block(self.model, self.stack)[name].letters
        return annotate_gradient(gradient, letters, f"{self.stack}/block/{name}")

    @property
    def streams(self) -> list[str]:
        """The names of the random streams of a block."""
        uses = {
            "moe": ["jitter", "second_expert", "expert", "residual"],
            "feed_forward": ["residual"],
        }
        if self.model.expert_output_masking:
            uses["moe"].append("expert_output")
        return [
            f"{self.mode.scope}{name}/{use}"
            for name in sublayers(self.model, self.stack)
            for use in uses.get(name.rpartition("_")[0], ["attention", "residual"])
        ]

    def pipelined(
        self, weights: Values, x: "tf.Tensor", inputs: StackInputs, memory: Sequence["tf.Tensor"]
    ) -> tuple["tf.Tensor", Totals]:
        model, number = self.model, inputs.microbatches
        if inputs.moe is not None:
            inputs = dataclasses.replace(inputs, counter=LayerSums(model.experts, 1.0))
        split = {n: _split(tensor, number, "BL") for n, tensor in inputs.tensors().items()}
        side = {name: Lettered(tensor, "_BL") for name, tensor in split.items()}
        keys = self._keys_of_microbatches(number)
        if keys is not None:
            side |= {f"word{i}": Lettered(word, "___") for i, word in enumerate(keys.words)}
        # Gating dropout has one number for all microbatches. A stage must not capture its key: what is
        # captured has no manual sharding.
        step = list(self.mode.key.words) if self.mode.key and model.gating_dropout else []
        for i, word in enumerate(step):
            side[f"step{i}"] = Lettered(tf.broadcast_to(word, [number]), "_")

        def parts_of(side: Tensors) -> list[Part]:
            own_inputs = inputs.of_microbatch({name: side[name] for name in split})
            key = Key(side["step0"], side["step1"]) if step else self.mode.key
            own = dataclasses.replace(self, mode=dataclasses.replace(self.mode, key=key))
            return own.parts(own_inputs, keys and Key(side["word0"], side["word1"]))

        first = inputs.of_microbatch({name: tensor[0] for name, tensor in split.items()})
        x_split, *memory_split = [_split(tensor, number, "BLM") for tensor in (x, *memory)]
        with tf.__internal__.FuncGraph("shapes").as_default():  # only for the shapes
            saved = [
                part.declare_saved(weights, x_split[0], [m[0] for m in memory_split])
                for part in self.parts(first, None)
            ]
        visits = self.repeats // model.stages if model.schedule == "circular" else 1
        pipeline = Pipeline(
            schedule=Schedule(model.stages, number, visits),
            parts_of=parts_of,
            side=side,
            letters={n: p.letters for n, p in declare_block(model, self.stack).items()},
            totals=first.declare_totals(self.repeats),
            saved=saved,
            scope=f"{self.stack}/block",
        )
        y, totals = pipeline.run(weights, x_split, memory_split)
        y = join_microbatches(y, "BLM", annotate_for_stages)
        return annotate(y, "BLM"), figures.of_batch(totals, split["segments"])

    def _keys_of_microbatches(self, number: int) -> Key | None:
        """Returns keys of which each microbatch has its own: uint32[n, R, streams]."""
        if self.mode.key is None:
            return None
        key = self.mode.key.fold("microbatch", tf.range(number))
        key = Key(*(tf.reshape(w, [-1, 1, 1]) for w in key.words))
        keys = key.fold_each(self.streams, self.repeats)
        # Without the barrier the TPU compiler moves the code of these keys into the loop over iterations
        # (its pass while-loop-fusible-sinking), with a copy of an operand for each of its uses. Each of
        # the 26 rounds of the generator uses its operands several times, so memory runs out.
        return Key(*barrier(keys.words))


def _split(x: "tf.Tensor", number: int, letters: str) -> "tf.Tensor":
    """Returns the microbatches of x, which every stage of a pipeline can read."""
    x = annotate_for_stages(x, letters)
    return microbatches_of(x, number, letters, annotate_for_stages)


def feed_forward_or_moe(
    model: Model,
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
        return layers.feed_forward(values, x, model.activation)
    out, routing = moe_layer(values, x, is_token, moe, mode)
    routings.append(routing)
    return out


def final_norm(model: Model, p: Values, stack: str, x: "tf.Tensor") -> "tf.Tensor":
    """Returns x after the norm that ends a stack of pre-norm layers. Post-norm layers need none."""
    if model.norm_place == "after":
        return x
    return layers.norm(within(p, f"{stack}/final_norm"), x)
