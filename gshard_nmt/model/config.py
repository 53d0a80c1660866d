"""The model's settings: its shape, its routing, its numbers and how it is compiled."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from gshard_nmt.errors import UserError
from gshard_nmt.model.dispatch import DISPATCHES
from gshard_nmt.model.gating import AUX_LOSS_SCALES, POLICIES, ROUNDINGS, ROUTINGS, Gating
from gshard_nmt.model.layers import ACTIVATIONS
from gshard_nmt.model.moe import MoE
from gshard_nmt.ranges import Rule, above, at_least, between, check, one_of, rate, size

POSITIONS = ("relative", "sinusoidal", "learned")
ACTIVATION_DTYPES = ("float32", "bfloat16")
STACKS = ("unrolled", "scan")
REMATS = ("none", "layer", "block")
MOST_LAYERS = 10_000
"""Each layer of a block has weights by its own name, and a block may be the whole stack."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The model's shape. The vocabulary sizes are the data's.

    Attributes:
      encoder_layers: each is one attention and one feed-forward; 0 makes a decoder-only language
        model of the target side.
      decoder_layers: the same, with an attention to the source between the two.
      model_dim: M.
      hidden_dim: H of dense feed-forward layers.
      heads, head_dim: N and D of attention.
      experts: E of each MoE layer; 0 makes a dense Transformer.
      expert_hidden_dim: H of an expert; 0 means hidden_dim.
      moe_every: an MoE replaces the feed-forward in the first of every so many layers.
      num_groups: G; tokens of a batch are gated in so many groups, whatever the mesh; 0 makes each
        row a group.
      capacity_factor, eval_capacity_factor: slots of all experts together for each token.
      second_expert: in training, "random" (probability 2 w2), "all", "none" or "threshold".
      eval_second_expert: in evaluation, "all", "none" or "threshold".
      dispatch: "gather", "einsum" or "dense".
      aux_loss_weight: of the load-balancing loss, summed over MoE layers.
      positions: "relative" (T5's bias in each self-attention), "sinusoidal" or "learned".
      input_dropout, residual_dropout, attention_dropout: rates in training.
      label_smoothing: of the target distribution.
      z_loss_weight: of the squared log-partition of the output softmax.
      routing: "top2", or "switch": one expert a token.
      second_expert_threshold: of the policy "threshold": a token goes where w2 is above it.
      group_size: S, instead of num_groups where it is not 0.
      capacity, eval_capacity: C, instead of the capacity factor where it is not 0.
      capacity_rounding: "up", "down", "nearest" or "multiple_of_4".
      minimum_capacity: the least C that a capacity factor gives.
      aux_loss_scale: "authors" (1 at balance) or "paper" (1 / E**2 of it).
      router_z_loss_weight: of the squared log-partition of the gates, summed over MoE layers.
      router_jitter: relative noise on the gate's input in training.
      expert_dropout: rate inside experts in training.
      activation: "relu", or "geglu" with a third matrix, in feed-forward layers and experts.
      activation_dtype: "float32" or "bfloat16". Parameters, norms, softmax, gates, logits and loss
        are float32 with either.
      max_positions: rows of the learned position tables.
      stack: "unrolled", or "scan": the block is compiled once, whatever the depth, and always
        recomputed in the backward pass; the same values either way.
      remat: what the backward pass computes again instead of keeping it: "none", each "layer" or
        each "block" from its input. A scan takes "none" for "block".
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
    routing: str = "top2"
    second_expert_threshold: float = 0.2
    group_size: int = 0
    capacity: int = 0
    eval_capacity: int = 0
    capacity_rounding: str = "up"
    minimum_capacity: int = 1
    aux_loss_scale: str = "authors"
    router_z_loss_weight: float = 0.0
    router_jitter: float = 0.0
    expert_dropout: float = 0.0
    activation: str = "relu"
    activation_dtype: str = "float32"
    max_positions: int = 0
    stack: str = "unrolled"
    remat: str = "none"

    RULES: ClassVar[Sequence[Rule]] = (
        between(0, MOST_LAYERS, "encoder_layers"),
        between(1, MOST_LAYERS, "decoder_layers", "moe_every"),
        size("model_dim", "hidden_dim", "heads", "head_dim", "minimum_capacity"),
        size("experts", "expert_hidden_dim", "num_groups", "group_size", least=0),
        size("capacity", "eval_capacity", "max_positions", least=0),
        above(0, "capacity_factor", "eval_capacity_factor"),
        at_least(0, "aux_loss_weight", "z_loss_weight", "router_z_loss_weight"),
        rate("input_dropout", "residual_dropout", "attention_dropout", "expert_dropout"),
        rate("label_smoothing", "router_jitter"),
        # A second expert's weight is at most 1/2.
        between(0, 0.5, "second_expert_threshold"),
        one_of(ROUTINGS, "routing"),
        one_of(POLICIES, "second_expert"),
        # Evaluation draws no random numbers.
        one_of([policy for policy in POLICIES if policy != "random"], "eval_second_expert"),
        one_of(DISPATCHES, "dispatch"),
        one_of(ROUNDINGS, "capacity_rounding"),
        one_of(AUX_LOSS_SCALES, "aux_loss_scale"),
        one_of(POSITIONS, "positions"),
        one_of(ACTIVATIONS, "activation"),
        one_of(ACTIVATION_DTYPES, "activation_dtype"),
        one_of(STACKS, "stack"),
        one_of(REMATS, "remat"),
    )

    def __post_init__(self) -> None:
        check(self, self.RULES)
        if self.experts == 1:
            raise UserError(
                "Model.experts is 1; gating needs at least 2, and 0 makes a dense Transformer.",
                ["Model.experts"],
            )
        for stack in ("encoder", "decoder"):
            depth = getattr(self, f"{stack}_layers")
            if depth % self.block_layers:
                up = -(-depth // self.block_layers) * self.block_layers
                raise UserError(
                    f"Model.{stack}_layers is {depth}, but a block has Model.moe_every = "
                    f"{self.block_layers} layers; use a multiple of it, for instance {up}.",
                    [f"Model.{stack}_layers", "Model.moe_every"],
                )
        if self.positions == "learned" and self.max_positions < 1:
            raise UserError(
                f"Model.positions is 'learned' and Model.max_positions {self.max_positions}; it must "
                "be the number of tokens of the longest row.",
                ["Model.positions", "Model.max_positions"],
            )

    @property
    def block_layers(self) -> int:
        """Layers of one block: one with experts and the dense ones that follow it."""
        return self.moe_every if self.experts else 1

    def moe(self, training: bool) -> MoE:
        """The rules of the MoE layers, in training or in evaluation."""
        gating = Gating(
            experts=self.experts,
            routing=self.routing,
            second_expert=self.second_expert if training else self.eval_second_expert,
            second_expert_threshold=self.second_expert_threshold,
            capacity=self.capacity if training else self.eval_capacity,
            capacity_factor=self.capacity_factor if training else self.eval_capacity_factor,
            capacity_rounding=self.capacity_rounding,
            minimum_capacity=self.minimum_capacity,
            aux_loss_scale=self.aux_loss_scale,
            jitter=self.router_jitter,
        )
        return MoE(
            gating=gating,
            hidden_dim=self.expert_hidden_dim or self.hidden_dim,
            num_groups=self.num_groups,
            group_size=self.group_size,
            dispatch=self.dispatch,
            activation=self.activation,
            dropout=self.expert_dropout,
        )

    def moe_for_decoding(self) -> MoE:
        """The rules of incremental decoding: every choice is kept, so no token sees its neighbours."""
        moe = self.moe(training=False)
        return dataclasses.replace(moe, num_groups=0, group_size=0, dispatch="dense")
