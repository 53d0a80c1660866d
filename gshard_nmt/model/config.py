"""The settings of the model: its shape, experts, dtype, regularization and compilation."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from gshard_nmt.errors import UserError
from gshard_nmt.model.dispatch import DISPATCHES
from gshard_nmt.model.gating import AUX_LOSS_SCALES, POLICIES, ROUNDINGS, ROUTINGS, MoE
from gshard_nmt.model.kept_results import KINDS
from gshard_nmt.model.layers import ACTIVATIONS, NORMS
from gshard_nmt.model.pipeline_schedule import SCHEDULES
from gshard_nmt.model.products import PRECISIONS
from gshard_nmt.ranges import Rule, above, at_least, between, check, one_of, rate, size

SINUSOIDS = ("sinusoidal", "vaswani")
POSITIONS = ("relative", *SINUSOIDS, "learned")
NORM_PLACES = ("before", "after")
START_TOKENS = ("bos", "eos")
MOE_PLACES = ("first", "last")
ACTIVATION_DTYPES = ("float32", "bfloat16")
STACKS = ("unrolled", "scan", "pipeline")
STACK_NAMES = ("encoder", "decoder")
EXPERT_STACKS = ("both", *STACK_NAMES)
REMATS = ("none", "layer", "block")
MOST_LAYERS = 10_000
"""The largest number of layers of a stack. This limit bounds the time to declare the weights. That time
grows with the number of layers in a block, and a block may be the whole stack."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The settings of the Transformer, its experts and its losses.

    The sizes of the vocabularies are settings of `Data`. Every value is checked when the config is
    read, before anything is built.
    """

    # Shape
    encoder_layers: int = 2
    """The number of encoder layers, one attention and one feed-forward each. With 0 the model is a
    decoder-only language model of the target side."""

    decoder_layers: int = 2
    """The number of decoder layers. Each has one more attention, to the encoder's output."""

    model_dim: int = 128
    """M, the width of the residual stream."""

    hidden_dim: int = 512
    """H, the width inside a dense feed-forward layer."""

    heads: int = 4
    """N, the attention heads of a layer."""

    head_dim: int = 32
    """D, the width of one attention head."""

    activation: str = "relu"
    """The activation of feed-forward layers and experts: "relu", "gelu", "swish", or "geglu" (Shazeer
    2020), which needs a third weight matrix."""

    biases: bool = False
    """Whether the projections of attention, the feed-forward layers and the experts have bias
    vectors."""

    norm: str = "rms"
    """The norm of each sub-layer: "rms" has a scale only, "layer" is layer normalization with a scale
    and a bias."""

    norm_place: str = "before"
    """"before" normalizes the input of each sub-layer, and the output of each stack. "after" normalizes
    the sum of each sub-layer and its input (Vaswani et al. 2017)."""

    shared_embedding: bool = False
    """Whether source and target have one embedding. Their vocabularies then have the same ids."""

    output_bias: bool = False
    """Whether the logits of the vocabulary have a bias."""

    start_token: str = "bos"
    """What the decoder reads first: "bos", or "eos" as in fairseq, where it has one embedding with the
    EOS at the end of a sentence."""

    positions: str = "relative"
    """How a token knows its position: "relative" (T5's bias in each self-attention), "sinusoidal"
    (the wavelengths of Tensor2Tensor), "vaswani" (those of Vaswani et al. 2017) or "learned"."""

    position_offset: int = 0
    """The position of the first token of a sentence. Used by sinusoids only."""

    max_positions: int = 0
    """The number of positions in each learned table. It must be at least the number of tokens of the
    longest row. Used only if positions is "learned"."""

    initial_scale: float = 1.0
    """s: the initial weights of a matrix have the variance s / fan-in. The Switch Transformer has 0.1
    (section 2.4), which makes large models with experts more stable. Embeddings stay as they are."""

    # Experts
    experts: int = 8
    """E, the experts of each MoE layer. With 0 the model is a dense Transformer."""

    expert_hidden_dim: int = 0
    """H, the width inside an expert. If it is 0, hidden_dim is used."""

    shared_expert_dim: int = 0
    """H, the width inside the shared expert of an MoE layer: a dense feed-forward that every token
    visits besides its own experts (DeepSpeed-MoE, arXiv 2201.05596; DeepSeekMoE, arXiv 2401.06066). With
    0 there is none."""

    moe_every: int = 2
    """The number of layers in a block. One layer of each block has the experts, the others are dense."""

    moe_place: str = "first"
    """Which layer of a block has the experts: "first" or "last"."""

    expert_stacks: str = "both"
    """Which stacks have experts: "both", "encoder" or "decoder". The other one is dense, and its number
    of layers is free."""

    num_groups: int = 8
    """G, the number of groups into which the tokens of a batch are divided. Each group is gated on its
    own. The number does not depend on the mesh, so every mesh gives the same result. 0 makes each row
    a group."""

    group_size: int = 0
    """S, the tokens of a group. If it is not 0, it replaces num_groups."""

    dispatch: str = "gather"
    """How tokens reach their experts: "gather" (indices, fast on a CPU and for large groups), "einsum"
    (one-hot products, fast on a TPU; GShard Algorithm 2), "dense" ("gather" with room for every token
    in every expert, so no token loses an expert; the work is that of every expert on every token) or
    "blocks" (each token visits its own experts, without capacity; "dense" in training). Validation and
    decoding always use "blocks"."""

    # Gating
    routing: str = "top2"
    """How many experts a token visits: "top2" is two (GShard), "switch" is one (Switch Transformer)."""

    second_expert: str = "random"
    """Which tokens go to their second expert in training: "all", "none", "threshold" or "random". With
    "random" a token goes there with probability 2 w2. Here w2 is the weight of the second expert
    (GShard section 2.2)."""

    eval_second_expert: str = "all"
    """The same in validation and decoding, which draw no random numbers: "all", "none" or "threshold"."""

    second_expert_threshold: float = 0.2
    """The policy "threshold" sends a token to its second expert if w2 is above this number."""

    capacity_factor: float = 2.0
    """The number of slots per token, summed over all experts, in training. The capacity of an expert is
    C = capacity_factor * S / E, rounded. The paper has 2. Validation and decoding have no limit."""

    capacity: int = 0
    """C, the slots of an expert in a group, in training. If it is not 0, it replaces
    capacity_factor."""

    capacity_rounding: str = "up"
    """How the capacity is rounded: "up", "down", "nearest" or "multiple_of_4" (as the authors' code)."""

    minimum_capacity: int = 1
    """The lower limit of a capacity that is computed from a capacity factor."""

    aux_loss_weight: float = 0.01
    """The weight of the load-balancing loss, which is summed over the MoE layers."""

    aux_loss_scale: str = "authors"
    """The scale of the load-balancing loss. With "authors" the loss is 1 if the load is balanced. With
    "paper" it is smaller by the factor E**2."""

    router_z_loss_weight: float = 0.0
    """The weight of the router z-loss: the squared logsumexp of the gate's logits, summed over the MoE
    layers."""

    router_jitter: float = 0.0
    """The relative noise on the gate's input in training."""

    # Dtype
    activation_dtype: str = "float32"
    """The dtype of activations, "float32" or "bfloat16". Parameters, norms, softmax, gates, logits and
    loss are float32 in both cases."""

    matmul_precision: str = "auto"
    """The precision of products with weights and of attention, for activations of either dtype. "default"
    is the device's own: a CPU multiplies float32, a TPU rounds operands to bfloat16. "bfloat16" rounds
    operands to bfloat16 and sums in float32, on every device. "auto" decides when a run begins, and the
    run keeps it: "bfloat16" on a CPU that has instructions for it, else "default"."""

    # Regularization
    input_dropout: float = 0.1
    """The dropout rate of the embeddings, in training."""

    residual_dropout: float = 0.1
    """The dropout rate of each sub-layer's output, in training."""

    attention_dropout: float = 0.1
    """The dropout rate of the attention probabilities, in training."""

    expert_dropout: float = 0.0
    """The dropout rate inside the experts, in training."""

    expert_output_masking: float = 0.0
    """The rate at which the output of an expert for a token is masked, in training (NLLB team 2022,
    arXiv 2207.04672). The authors' largest model has 0.2."""

    gating_dropout: float = 0.0
    """The rate of training steps in which tokens stay on their own devices and skip both all-to-alls
    (Liu et al. 2022, arXiv 2205.14336). `Model.num_groups` and `Model.experts` must have a common
    divisor."""

    label_smoothing: float = 0.1
    """The share of the target distribution that is spread over the whole vocabulary."""

    z_loss_weight: float = 1e-4
    """The weight of the z-loss: the squared logsumexp of the output logits."""

    # Compilation
    stack: str = "unrolled"
    """How blocks are compiled: "unrolled" compiles each block, "scan" compiles one block for any depth,
    "pipeline" divides the blocks into stages that work on different microbatches of a batch. A scan and a
    pipeline always recompute in the backward pass. The results are the same, except that a pipeline
    draws other random numbers, and other tokens share a group."""

    stages: int = 1
    """P, the number of stages of a pipeline. It must divide the number of blocks of each stack. Used only
    if stack is "pipeline"."""

    schedule: str = "gpipe"
    """The order of a pipeline: "gpipe" (each stage has consecutive blocks, and a microbatch visits it
    once) or "circular" (a stage has every P-th block, and a microbatch visits it once for each block,
    which makes the bubbles shorter). Used only if stack is "pipeline"."""

    remat: str = "none"
    """What the backward pass recomputes to save memory: "none" (nothing), each "layer" from the input of
    the layer, or each "block" from the input of the block. If stack is "scan" or "pipeline", "none"
    means "block"."""

    remat_keeps: str = "inputs"
    """What a backward pass that recomputes finds ready: "inputs" (only the inputs of layers or blocks),
    "experts" (also the gate's logits, sums and choices, and what the experts receive and return, so
    that dispatch and the all-to-alls are not done again), "attention" (also the outputs of attention), or
    "projections" (also queries, keys and values). Each keeps what the one before it keeps, and more."""

    COMPILATION: ClassVar[Sequence[str]] = ("stack", "stages", "schedule", "remat", "remat_keeps")
    """The settings that say only how the model is compiled. They may change when a run is resumed."""

    RULES: ClassVar[Sequence[Rule]] = (
        between(0, MOST_LAYERS, "encoder_layers"),
        between(1, MOST_LAYERS, "decoder_layers", "moe_every"),
        size("model_dim", "hidden_dim", "heads", "head_dim", "minimum_capacity"),
        size("experts", "expert_hidden_dim", "shared_expert_dim", "num_groups", least=0),
        size("group_size", "capacity", least=0),
        size("max_positions", "position_offset", least=0),
        above(0, "capacity_factor", "initial_scale"),
        # The weight of a second expert is at most 1/2.
        between(0, 0.5, "second_expert_threshold"),
        at_least(0, "aux_loss_weight", "z_loss_weight", "router_z_loss_weight"),
        rate("input_dropout", "residual_dropout", "attention_dropout", "label_smoothing"),
        rate("expert_dropout", "expert_output_masking", "gating_dropout", "router_jitter"),
        one_of(ROUTINGS, "routing"),
        one_of(POLICIES, "second_expert"),
        # Evaluation draws no random numbers.
        one_of([policy for policy in POLICIES if policy != "random"], "eval_second_expert"),
        one_of(POSITIONS, "positions"),
        one_of(NORMS, "norm"),
        one_of(NORM_PLACES, "norm_place"),
        one_of(START_TOKENS, "start_token"),
        one_of(MOE_PLACES, "moe_place"),
        one_of(ACTIVATION_DTYPES, "activation_dtype"),
        one_of(PRECISIONS, "matmul_precision"),
        one_of(STACKS, "stack"),
        size("stages"),
        one_of(SCHEDULES, "schedule"),
        one_of(REMATS, "remat"),
        one_of(KINDS, "remat_keeps"),
        one_of(EXPERT_STACKS, "expert_stacks"),
        one_of(DISPATCHES, "dispatch"),
        one_of(ACTIVATIONS, "activation"),
        one_of(ROUNDINGS, "capacity_rounding"),
        one_of(AUX_LOSS_SCALES, "aux_loss_scale"),
    )

    def __post_init__(self) -> None:
        check(self, self.RULES)
        if self.experts == 1:
            raise UserError(
                "Model.experts is 1; it must be at least 2, or 0. Choose 0 for a dense Transformer.",
                ["Model.experts"],
            )
        for stack in STACK_NAMES:
            depth, block = self.depth(stack), self.block_layers(stack)
            if depth % block:
                up = -(-depth // block) * block
                raise UserError(
                    f"Model.{stack}_layers is {depth}; it must be a multiple of Model.moe_every = "
                    f"{block}, the layers of a block. Use {up}, for instance.",
                    [f"Model.{stack}_layers", "Model.moe_every"],
                )
        if self.experts and not any(map(self.has_experts, STACK_NAMES)):
            raise UserError(
                "Model.encoder_layers is 0 and Model.expert_stacks is 'encoder', so no layer has experts."
                " Set Model.expert_stacks to 'decoder', or Model.experts to 0.",
                ["Model.expert_stacks", "Model.encoder_layers"],
            )
        if self.stack == "pipeline":
            self._check_pipeline()
        if self.positions == "learned" and self.max_positions < 1:
            raise UserError(
                f"Model.positions is 'learned', but Model.max_positions is {self.max_positions}. Set "
                "Model.max_positions to the number of tokens of the longest row.",
                ["Model.positions", "Model.max_positions"],
            )
        if self.positions in SINUSOIDS and self.model_dim % 2:
            raise UserError(
                f"Model.model_dim is {self.model_dim}; with Model.positions {self.positions!r} it must "
                f"be even. Use {self.model_dim + 1}, for instance.",
                ["Model.model_dim", "Model.positions"],
            )
        if self.position_offset and self.positions not in SINUSOIDS:
            raise UserError(
                f"Model.position_offset is {self.position_offset}, but Model.positions is "
                f"{self.positions!r}, which has no offset. Set Model.position_offset to 0.",
                ["Model.position_offset", "Model.positions"],
            )

    def _check_pipeline(self) -> None:
        blocks = math.gcd(*map(self.repeats, STACK_NAMES))
        if blocks % self.stages:
            legal = [n for n in range(1, blocks + 1) if not blocks % n]
            raise UserError(
                f"Model.stages is {self.stages}; it must divide the number of blocks of each stack. "
                f"Use one of {legal}.",
                ["Model.stages", *(f"Model.{stack}_layers" for stack in STACK_NAMES)],
            )

    def depth(self, stack: str) -> int:
        return self.encoder_layers if stack == "encoder" else self.decoder_layers

    def has_experts(self, stack: str) -> bool:
        chosen = self.expert_stacks in ("both", stack)
        return bool(self.experts) and chosen and self.depth(stack) > 0

    def block_layers(self, stack: str) -> int:
        """Returns the layers of one block of a stack.

        If the stack has experts, one of these layers has them, see `moe_place`.
        """
        return self.moe_every if self.has_experts(stack) else 1

    def moe_layer(self, stack: str) -> int:
        """Returns the number of the layer with experts in a block of a stack that has them, from 0."""
        return 0 if self.moe_place == "first" else self.block_layers(stack) - 1

    def repeats(self, stack: str) -> int:
        return self.depth(stack) // self.block_layers(stack)

    def moe(self, training: bool) -> MoE:
        """Returns the settings of the MoE layers. In training, those of the same name are equal.

        Outside training the experts have no capacity limit, and each token visits its own experts only.
        With a limit, a translation would depend on the other sentences of the batch. A validation has
        batches of one language, whose tokens choose the same few experts: with a limit it would drop
        many choices that neither training nor decoding drops.
        """
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(MoE)}
        settings["hidden_dim"] = self.expert_hidden_dim or self.hidden_dim
        if not training:
            settings |= {"num_groups": 0, "group_size": 0, "dispatch": "blocks"}
            settings["second_expert"] = self.eval_second_expert
        return MoE(**settings)
