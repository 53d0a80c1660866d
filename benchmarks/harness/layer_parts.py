"""The parts of a layer as functions of their own, to measure each alone (GShard Figure 8).

Each part takes what the part before it returns, so the experts get real slots and the combine gets a real
routing. Nothing is random: there is no dropout, and every token asks for its second expert.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gshard_nmt.model import attention, dispatch, layers
from gshard_nmt.model.gating import Routing, route
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.moe import MoE, declare_moe, moe_layer
from gshard_nmt.model.parameters import Parameter, within
from gshard_nmt.model.regularizers import Exchange
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd.lowering import ArraySpec, LoweredFunction, lower
from gshard_nmt.spmd.sharding import annotate

if TYPE_CHECKING:
    Arrays = Mapping[str, "tf.Tensor"]

LAYER = "MoE layer, forward"
TRAINED_LAYER = "MoE layer, forward and backward"
_BY_NAME = layers.Mode()
"""Evaluation, without random numbers."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a layer.

    Attributes:
      name: its name in the report.
      function: takes a dict of tensors and returns a dict of tensors.
      inputs: the arrays that it takes, by name.
      outputs: the letters of the arrays that it returns. A later part may take them by these names.
    """

    name: str
    function: Callable[["Arrays"], dict[str, Any]]
    inputs: Mapping[str, ArraySpec]
    outputs: Mapping[str, str]

    def lowered(self, config: Config) -> LoweredFunction:
        def function(group):
            return [self.function(group)]

        return lower(function, [self.inputs], [self.outputs], config.mesh)


def parts(config: Config) -> list[Part]:
    """Returns the parts of a layer of the config, in the order in which they run.

    Every layer has attention and feed-forward. A layer with experts adds gating, dispatch, experts and
    combine, and the whole MoE layer, forward, and forward and backward. If tokens visit their experts
    without slots (Model.dispatch is "blocks" or "dense"), the MoE layer is not divided.
    """
    layer = _Layer.of(config)
    listed = [layer.attention(), layer.feed_forward()]
    if layer.moe is None:
        return listed
    if layer.moe.dispatch in dispatch.BY_SLOTS:
        listed += [layer.gating(), layer.dispatch(), layer.experts(), layer.combine()]
    return [*listed, layer.whole(), layer.trained()]


def values(inputs: Mapping[str, ArraySpec]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def value(spec: ArraySpec) -> np.ndarray:
        if spec.dtype == np.int32:
            return np.ones(spec.shape, np.int32)
        # The first dimension that is summed is that of M or H, up to a factor.
        scale = 0.5 / np.sqrt(spec.shape[-2] if len(spec.shape) > 1 else 1)
        return (rng.standard_normal(spec.shape, np.float32) * scale).astype(spec.dtype)

    return {name: value(spec) for name, spec in inputs.items()}


@dataclasses.dataclass(frozen=True)
class _Layer:
    """The sizes of a layer.

    Attributes:
      config: the run.
      stack: "decoder", or "encoder" if there is no decoder.
      moe: the settings of the MoE layer; None for a dense model.
    """

    config: Config
    stack: str
    moe: MoE | None

    @classmethod
    def of(cls, config: Config) -> "_Layer":
        model = config.model
        stack = "decoder" if model.decoder_layers else "encoder"
        return cls(config, stack, model.moe(training=True) if model.experts else None)

    @property
    def dtype(self) -> np.dtype:
        import jax.numpy as jnp

        return jnp.dtype(self.config.model.activation_dtype)

    @property
    def batch(self) -> tuple[int, int, int]:
        data = self.config.data
        length = data.target_length if self.stack == "decoder" else data.source_length
        return data.rows, length, self.config.model.model_dim

    @property
    def slots(self) -> tuple[int, int, int, int, int]:
        assert self.moe is not None
        rows, length, _ = self.batch
        groups = self.moe.groups(rows, length)
        size = rows * length // groups
        gating = self.moe.gating
        return groups, size, gating.experts, gating.slots(size), gating.choices

    def _activations(self) -> dict[str, ArraySpec]:
        rows, length, _ = self.batch
        return {
            "x": ArraySpec(self.batch, self.dtype, "BLM"),
            "segments": ArraySpec((rows, length), np.dtype(np.int32), "BL"),
        }

    def _weights(self, sublayer: str, declared: Mapping[str, Parameter]) -> dict[str, ArraySpec]:
        return {
            f"{self.stack}/block/{sublayer}/{name}": ArraySpec(
                p.shape, np.dtype(np.float32), p.letters
            )
            for name, p in declared.items()
        }

    def _of(self, group: "Arrays", sublayer: str) -> dict[str, "tf.Tensor"]:
        return dict(within(group, f"{self.stack}/block/{sublayer}"))

    def attention(self) -> Part:
        model = self.config.model
        declared = attention.declare_attention(
            model.model_dim, model.heads, model.head_dim, relative=False, biases=model.biases
        )

        def function(group: "Arrays") -> dict[str, Any]:
            segments, x = group["segments"], group["x"]
            bias = attention.segment_bias(segments, segments)
            if self.stack == "decoder":
                # Every row is one segment, so the positions are 1, 2, ...
                bias += attention.causal_bias(tf.cumsum(segments, axis=1))
            p = self._of(group, "self_attention_0")
            return {"attended": attention.attend(p, x, x, bias, _BY_NAME, 0.0)}

        inputs = self._activations() | self._weights("self_attention_0", declared)
        return Part("attention", function, inputs, {"attended": "BLM"})

    def feed_forward(self) -> Part:
        model = self.config.model
        declared = layers.declare_feed_forward(
            model.model_dim, model.hidden_dim, model.activation, model.biases
        )

        def function(group: "Arrays") -> dict[str, Any]:
            p = self._of(group, "feed_forward_0")
            return {"transformed": layers.feed_forward(p, group["x"], model.activation)}

        inputs = {"x": self._activations()["x"]} | self._weights("feed_forward_0", declared)
        return Part("feed-forward", function, inputs, {"transformed": "BLM"})

    def _moe_weights(self, names: Sequence[str] = ()) -> dict[str, ArraySpec]:
        assert self.moe is not None
        declared = declare_moe(self.config.model.model_dim, self.moe)
        chosen = {name: p for name, p in declared.items() if not names or name in names}
        return self._weights("moe_0", chosen)

    def gating(self) -> Part:
        moe = self.moe
        assert moe is not None
        groups, size, *_ = self.slots

        def function(group: "Arrays") -> dict[str, Any]:
            # Shape: [B, L, M] -> [G, S, M]
            x = group["x"]
            tokens = annotate(tf.reshape(x, [groups, size, x.shape[-1]]), "GSM")
            # Shape: [B, L] -> [G, S]
            is_token = tf.reshape(group["segments"], [groups, size]) > 0
            gate = self._of(group, "moe_0")["gate"]
            routing = route(tokens, gate, is_token, moe.gating, _BY_NAME)
            return {"tokens": tokens, "slot": routing.slot, "weight": routing.weight}

        inputs = self._activations() | self._moe_weights(["gate"])
        return Part("gating", function, inputs, {"tokens": "GSM", "slot": "GS_", "weight": "GS_"})

    def _routed(self) -> dict[str, ArraySpec]:
        groups, size, _, _, choices = self.slots
        return {
            "slot": ArraySpec((groups, size, choices), np.dtype(np.int32), "GS_"),
            "weight": ArraySpec((groups, size, choices), np.dtype(np.float32), "GS_"),
        }

    def _slots_of(self, group: "Arrays") -> dispatch.DispatchAndCombine:
        assert self.moe is not None
        _, _, experts, capacity, _ = self.slots
        slot, weight = group["slot"], group["weight"]
        # Dispatch and combine read only slots, weights and the capacity.
        none = tf.zeros([])
        routing = Routing(slot, weight, capacity, *[none] * 8)
        by_slots = dispatch.BY_SLOTS[self.moe.dispatch]
        return by_slots(routing, experts, tf.as_dtype(self.config.model.activation_dtype))

    def dispatch(self) -> Part:
        groups, size, *_ = self.slots

        def function(group: "Arrays") -> dict[str, Any]:
            to_experts, _ = self._slots_of(group)
            return {"slots": Exchange()(to_experts(group["tokens"]), "EGCM")}

        tokens = ArraySpec((groups, size, self.batch[2]), self.dtype, "GSM")
        return Part("dispatch", function, {"tokens": tokens} | self._routed(), {"slots": "EGCM"})

    def _by_expert(self, name: str) -> dict[str, ArraySpec]:
        groups, _, experts, capacity, _ = self.slots
        return {name: ArraySpec((experts, groups, capacity, self.batch[2]), self.dtype, "EGCM")}

    def experts(self) -> Part:
        moe = self.moe
        assert moe is not None

        def function(group: "Arrays") -> dict[str, Any]:
            p, inputs = self._of(group, "moe_0"), group["slots"]
            hidden = annotate(layers.activated(p, "EGCM,EMH->EGCH", inputs, moe.activation), "EGCH")
            outputs = layers.project("EGCH,EHM->EGCM", hidden, p, "wo")
            return {"outputs": annotate(outputs, "EGCM")}

        names = [n for n in declare_moe(1, moe) if n != "gate" and not n.startswith("shared/")]
        inputs = self._by_expert("slots") | self._moe_weights(names)
        return Part("experts", function, inputs, {"outputs": "EGCM"})

    def combine(self) -> Part:
        def function(group: "Arrays") -> dict[str, Any]:
            _, to_tokens = self._slots_of(group)
            combined = to_tokens(Exchange()(group["outputs"], "GECM"))
            return {"combined": annotate(combined, "GSM")}

        inputs = self._by_expert("outputs") | self._routed()
        return Part("combine", function, inputs, {"combined": "GSM"})

    def _apply(self, group: "Arrays") -> "tf.Tensor":
        assert self.moe is not None
        p = self._of(group, "moe_0")
        return moe_layer(p, group["x"], group["segments"] > 0, self.moe, _BY_NAME)[0]

    def whole(self) -> Part:
        inputs = self._activations() | self._moe_weights()
        return Part(LAYER, lambda group: {"y": self._apply(group)}, inputs, {"y": "BLM"})

    def trained(self) -> Part:
        weights = self._moe_weights()

        def function(group: "Arrays") -> dict[str, Any]:
            names = ["x", *weights]
            with tf.GradientTape() as tape:
                tape.watch([group[name] for name in names])
                y = self._apply(group)
            # A gradient that is known only at run time: TF2XLA would fold a constant on the host.
            gradients = tape.gradient(y, [group[n] for n in names], output_gradients=group["x"])
            return {
                f"gradient/{n}": annotate(gradient, letters[n])
                for n, gradient in zip(names, gradients, strict=True)
            }

        inputs = self._activations() | weights
        letters = {name: spec.letters for name, spec in inputs.items()}
        outputs = {f"gradient/{name}": letters[name] for name in ("x", *weights)}
        return Part(TRAINED_LAYER, function, inputs, outputs)
