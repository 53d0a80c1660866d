"""Lists the products of a training step with the letters of their tensors, from a trace of the step.

TensorFlow traces the forward pass of one block of each stack, on the whole batch and without a mesh. Each
einsum of the trace has an equation, which gives the letters, and shapes, which give the sizes. The blocks
of a stack are equal, and microbatches only divide B and G, so one trace is enough for every mesh. Nothing
is lowered. Norms, softmax, dropout and position embeddings are left out: they take the same time on every
mesh that splits activations over all devices.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gshard_nmt.errors import UserError
from gshard_nmt.inspection.compute import origin_of
from gshard_nmt.model import transformer
from gshard_nmt.model.counter_random import Key
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.steps import BATCH_ARRAYS
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh, Partition

if TYPE_CHECKING:
    from gshard_nmt.model.config import Model
    from gshard_nmt.settings.config import Config

_GATE = "GSM,M_->GS_"
"""The equation of the only product in true float32, which is no einsum; see `exact_product`."""

_EXACT_PASSES = 6
"""A product in true float32 is six bfloat16 products on a TPU (XLA's HIGHEST)."""

_KEPT = {
    **dict.fromkeys(("query", "key", "value"), "projections"),
    "output": "attention",
    **dict.fromkeys(("gate", "wo"), "experts"),
}
"""The product with a weight -> the value of `Model.remat_keeps` that keeps its result."""

_TRANSPARENT = ("Cast", "Identity", "Reshape", "Unpack")
"""Operations whose result has the same elements as their input."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of the step."""

    # If several products read the same tensor, it is gathered once for all of them.
    name: str
    letters: str  # its dimensions
    shape: tuple[int, ...]
    item_bytes: int  # the bytes of an element; 0 if moving the tensor costs nothing
    weight: str = ""  # the name by which Mesh.overrides knows it; "" for an activation
    # whether it is inside a stage of a pipeline, in which the axes of the stages split nothing
    in_stage: bool = False

    def partition(self, mesh: Mesh) -> Partition:
        if not self.weight:
            return mesh.partition("P" * self.in_stage + self.letters)[self.in_stage :]
        # The weights of a stack have one more dimension, R, for which an override may have an entry.
        stacked = "/block/" in self.weight
        partition = mesh.partition("R" * stacked + self.letters, self.weight)[stacked:]
        stages = mesh.partition("P")[0] if self.in_stage else ()
        return tuple(tuple(axis for axis in axes if axis not in stages) for axes in partition)

    def of_microbatch(self, microbatches: int, in_stage: bool) -> "Tensor":
        """Returns the part of the tensor that one microbatch has: a share of the rows or groups."""
        sizes = zip(self.letters, self.shape, strict=True)
        shape = tuple(n // microbatches if letter in "BG" else n for letter, n in sizes)
        shape = self.shape if self.weight else shape
        return dataclasses.replace(self, shape=shape, in_stage=in_stage)


@dataclasses.dataclass(frozen=True)
class Product:
    """An einsum of two tensors, and its gradients."""

    part: str  # the layer that it belongs to: "encoder 0", or what it is outside of the layers
    sublayer: str  # the sub-layer, such as "moe_0"; "" outside of the layers
    left: Tensor  # an activation
    right: Tensor  # a weight or an activation
    result: Tensor  # the activation that it makes
    times: int = 1  # its executions in the forward pass of a step
    # the number of bfloat16 products that compute it; 0 for a lookup. Its gradients have at most one.
    passes: int = 1
    recomputed: bool = False  # whether the backward pass computes its part again
    # whether the backward pass does not compute it again even so, because the result was kept or ends
    # its part
    is_found: bool = False


@dataclasses.dataclass(frozen=True)
class Exchange:
    """An activation that changes its layout, forward and, as its gradient, backward."""

    before: Tensor  # the tensor
    after: Tensor  # the same tensor with its dimensions in the new order
    times: int  # as in `Product`
    recomputed: bool


def step_of(
    config: "Config",
    weights: Mapping[str, ArraySpec],
    state: Mapping[str, ArraySpec],
    rounds_operands: bool,
) -> "Step":
    """Returns the products of the training step of a config; the mesh of the config does not matter.

    `rounds_operands`: whether products round float32 to bfloat16, as a TPU does. UserError: the config
    dispatches tokens in a way that has no formula here.
    """
    model = config.model
    if model.experts and model.dispatch not in ("einsum", "gather"):
        raise UserError(
            f"--advise: Model.dispatch is {model.dispatch!r}; only the communication of 'einsum' and "
            "'gather' can be predicted. Choose one of them with --gin \"Model.dispatch = 'einsum'\"."
        )
    one_block = dataclasses.replace(
        model,
        encoder_layers=model.encoder_layers and model.block_layers("encoder"),
        decoder_layers=model.block_layers("decoder"),
        stack="unrolled",
        stages=1,
        remat="none",
        remat_keeps="inputs",
    )
    batch = tuple((name, state[name]) for name in BATCH_ARRAYS if name in state)
    of_one_block = tuple(
        (name, dataclasses.replace(spec, shape=(1, *spec.shape[1:])))
        if spec.letters.startswith("R")
        else (name, spec)
        for name, spec in weights.items()
    )
    traced = trace(one_block, of_one_block, batch)
    return Step(config, traced, weights, state, rounds_operands)


_Specs = tuple[tuple[str, ArraySpec], ...]


@functools.lru_cache(maxsize=16)
def trace(model: "Model", weights: _Specs, batch: _Specs) -> list[Product]:
    """Returns the products of the forward pass of a model whose stacks have one block each."""

    def forward(weights: Mapping[str, "tf.Tensor"], batch: Mapping[str, "tf.Tensor"]):
        zero = tf.zeros([], tf.uint32)
        mode = Mode(training=True, key=Key(zero, zero))
        moe = model.moe(training=True) if model.experts else None
        memory = None
        if model.encoder_layers:
            memory, _ = transformer.encode(model, weights, batch, mode, moe)
        return transformer.decode(model, weights, memory, batch, mode, moe)[0]

    groups = [
        {name: tf.TensorSpec(spec.shape, spec.dtype) for name, spec in specs}
        for specs in (weights, batch)
    ]
    graph = tf.function(forward, autograph=False).get_concrete_function(*groups).graph
    # Dicts are flattened in the order of their keys.
    names = [name for group in groups for name in sorted(group)]
    places = {x.name: name for x, name in zip(graph.inputs, names, strict=False)}
    reader = _Reader(places, dict(weights), model.experts)
    products = map(reader.product, graph.get_operations())
    return [product for product in products if product]


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads products from the operations of a trace."""

    arguments: Mapping[str, str]  # a tensor of the trace -> the argument of the step that it is
    weights: Mapping[str, ArraySpec]
    experts: int

    def product(self, operation: Any) -> Product | None:
        if operation.type == "GatherV2" and self._weight(operation.inputs[0], "VM"):
            # The lookup of an embedding is a product with one-hot tokens.
            table = self._tensor(operation.inputs[0], "VM")
            shape = (*operation.inputs[1].shape.as_list(), table.shape[0])
            one_hot = Tensor(f"{table.name}/tokens", "BLV", shape, 0)
            embedded = self._tensor(operation.outputs[0], "BLM")
            return Product(table.weight, "", one_hot, table, embedded, passes=0)
        equation = _GATE if operation.type == "XlaDot" else ""
        if operation.type == "Einsum":
            equation = operation.get_attr("equation").decode()
        operands, _, result_letters = equation.partition("->")
        if not set("BG") & set(result_letters):  # a table of relative positions, or no product
            return None
        left_letters, right_letters = operands.split(",")
        left = self._tensor(operation.inputs[0], left_letters)
        right = self._tensor(operation.inputs[1], right_letters)
        result = self._tensor(operation.outputs[0], result_letters)
        if "J" in left_letters:  # dispatch or combine: the one-hot tensor is the left one
            left, right = right, left
        passes = _EXACT_PASSES if equation == _GATE else 1
        layer = origin_of(operation.name).layer.split()
        if not layer:  # the logits read the embedding in another layout than the lookup
            right = dataclasses.replace(right, name=f"{right.name} of the logits")
            return Product("logits", "", left, right, result, passes=passes)
        part = f"{layer[0]} {layer[-1].rpartition('_')[2]}"
        return Product(part, layer[-1], left, right, result, passes=passes)

    def _weight(self, x: "tf.Tensor", letters: str) -> str:
        """Returns the name of the weight that a tensor is, if it has these letters; else ""."""
        name = self.arguments.get(_source(x)[0], "")
        spec = self.weights.get(name)
        return name if spec and spec.letters.removeprefix("R") == letters else ""

    def _tensor(self, x: "tf.Tensor", letters: str) -> Tensor:
        weight, shape = self._weight(x, letters), tuple(x.shape.as_list())
        if "J" in letters:  # all slots of a group: C of each of the E experts
            place = letters.index("J")
            slots = (self.experts, shape[place] // self.experts)
            shape = (*shape[:place], *slots, *shape[place + 1 :])
            letters = letters.replace("J", "EC")
        if weight:
            return Tensor(weight, letters, shape, x.dtype.size, weight)
        name, item_bytes = _source(x)
        return Tensor(name, letters, shape, item_bytes)


def _source(x: "tf.Tensor") -> tuple[str, int]:
    """Returns the tensor whose elements a tensor has, and the fewest bytes of an element on the way."""
    item_bytes = x.dtype.size
    while x.op.type in _TRANSPARENT:
        x = x.op.inputs[0]
        item_bytes = min(item_bytes, x.dtype.size)
    return x.name, item_bytes


class Step:
    """A training step as products: all blocks and microbatches, and what is kept or computed again.

    Attributes:
      products: those of all blocks.
      exchanges: dispatch and combine of the MoE layers.
      kept: the activations that are kept from the forward pass to the backward pass, with their number.
      along_stages: (kind, tensor, times) of the collectives among the stages of a pipeline.
      weights: all weights, by name.
      state: all arrays that the step takes, by name.
    """

    def __init__(
        self,
        config: "Config",
        traced: Sequence[Product],
        weights: Mapping[str, ArraySpec],
        state: Mapping[str, ArraySpec],
        rounds_operands: bool,
    ) -> None:
        self.weights, self.state = weights, state
        self._model, self._microbatches = config.model, config.train.microbatches
        self._rounds_operands = rounds_operands
        self._pipelined = self._model.stack == "pipeline"
        self._recomputed = self._model.stack in ("scan", "pipeline") or self._model.remat != "none"
        self.products = [self._of_step(product) for product in traced]
        self.exchanges = list(self._exchanges())
        self.kept = list(self._kept())
        self.along_stages = list(self._along_stages())

    def _of_step(self, product: Product) -> Product:
        """Returns a product of one block and the whole batch as those of all blocks of the step."""
        stack, is_layer = product.part.split()[0], bool(product.sublayer)
        # Outside of the stages of a pipeline is the whole batch.
        number = 1 if self._pipelined and not is_layer else self._microbatches
        left, right, result = (
            tensor.of_microbatch(number, self._pipelined and is_layer)
            for tensor in (product.left, product.right, product.result)
        )
        product = dataclasses.replace(product, left=left, right=right, result=result, times=number)
        if not is_layer:
            return product
        return dataclasses.replace(
            product,
            times=self._times(stack),
            passes=product.passes if self._rounds_operands else min(product.passes, 1),
            recomputed=self._recomputed,
            is_found=self._ends_part(stack, product) or self._is_kept(product),
        )

    def _times(self, stack: str) -> int:
        """Returns how often a device computes a block of a stack, of which there are R.

        A pipeline has R / P blocks on a device and also computes bubbles.
        """
        repeats = self._model.repeats(stack)
        if not self._pipelined:
            return repeats * self._microbatches
        schedule = self._model.pipeline_schedule(stack, self._microbatches)
        return schedule.iterations * repeats // (schedule.stages * schedule.visits)

    def _ends_part(self, stack: str, product: Product) -> bool:
        """Returns whether a product is the last of a part that is computed again."""
        kind, _, layer = product.sublayer.rpartition("_")
        if kind != "feed_forward" or not product.right.weight.endswith("/wo"):
            return False
        return self._model.remat == "layer" or int(layer) == self._model.block_layers(stack) - 1

    def _is_kept(self, product: Product) -> bool:
        """Returns whether `Model.remat_keeps` keeps the result of a product."""
        weight = product.right.weight
        if not weight:  # the slots that dispatch fills
            return product.result.letters == "GECM" and self._model.remat_has("experts")
        _, inside = weight.split(f"/{product.sublayer}/")  # "shared/wo" of a shared expert
        kept, is_expert = _KEPT.get(inside, ""), product.sublayer.startswith("moe")
        return bool(kept) and (kept == "experts") == is_expert and self._model.remat_has(kept)

    def _exchanges(self) -> Iterator[Exchange]:
        """Yields dispatch and combine of each MoE layer: GECM -> EGCM and back (GShard section 3.2)."""
        recomputed = self._recomputed and not self._model.remat_has("experts")
        outputs = {
            p.left.name: (p.left, p.times)
            for p in self.products
            if p.left.letters == "EGCM" and p.right.weight.endswith("/wi")
        }
        for tensor, times in outputs.values():
            # XLA sends them as bfloat16 if they only go from product to product, which round them to it.
            if self._rounds_operands and self._model.dispatch == "einsum":
                tensor = dataclasses.replace(tensor, item_bytes=2)
            experts, groups, *rest = tensor.shape
            slots = dataclasses.replace(
                tensor,
                name=f"{tensor.name}/slots",
                letters="GECM",
                shape=(groups, experts, *rest),
            )
            yield Exchange(slots, tensor, times, recomputed)
            yield Exchange(tensor, slots, times, recomputed)

    def _kept(self) -> Iterator[tuple[Tensor, int]]:
        if not self._recomputed:
            for product in self.products:
                yield product.result, product.times // self._microbatches
            return
        # A pipeline keeps the results of all iterations, and a loop those of one microbatch.
        loops = 1 if self._pipelined else self._microbatches
        parts = list(dict.fromkeys(p.part for p in self.products if p.sublayer))
        stacks = [part.split()[0] for part in parts]
        for stack in stacks if self._model.remat == "layer" else dict.fromkeys(stacks):
            yield self._state(stack), self._times(stack) // loops
        if self._model.remat_has("experts"):
            item_bytes = self._state("decoder").item_bytes
            for exchange in self.exchanges:
                kept = dataclasses.replace(exchange.after, item_bytes=item_bytes)
                yield kept, exchange.times // loops
        for product in self.products:
            is_of_attention = "attention" in product.sublayer and product.right.weight
            if product.is_found and (is_of_attention or product.right.weight.endswith("/gate")):
                yield product.result, product.times // loops
        for stack in dict.fromkeys(stacks) if self._pipelined else ():
            yield self._state(stack), self._microbatches

    def _state(self, stack: str) -> Tensor:
        """Returns the input [B, L, M] of a block of a stack."""
        layers = (p for p in self.products if p.sublayer and p.part.startswith(stack))
        first = next(p.left for p in layers if p.left.letters == "BLM")
        return dataclasses.replace(first, name=f"{stack} state")

    def _along_stages(self) -> Iterator[tuple[str, Tensor, int]]:
        """Yields the collectives among the stages of the pipelines, see `Pipeline`.

        The state moves on by one stage in each iteration. All stages read every microbatch, and the last
        results are summed over the stages. The gradients do the same in reverse. With several visits,
        the weights move to their stages first, and their gradients move back.
        """
        stacks = dict.fromkeys(p.part.split()[0] for p in self.products if p.sublayer)
        for stack in stacks if self._pipelined else ():
            x = self._state(stack)
            schedule = self._model.pipeline_schedule(stack, self._microbatches)
            yield "collective-permute", x, 2 * schedule.iterations
            yield "all-gather", x, 2 * self._microbatches
            yield "all-reduce", x, 2 * self._microbatches
            for name, spec in self.weights.items():
                if schedule.visits > 1 and name.startswith(f"{stack}/block/"):
                    weight = Tensor(name, spec.letters[1:], spec.shape[1:], 4, name, in_stage=True)
                    yield "all-to-all", weight, 2 * spec.shape[0] // schedule.stages
