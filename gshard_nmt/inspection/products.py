"""Lists the products of a training step with the letters of their tensors, from a trace of the step.

TensorFlow traces the forward pass of one block of each stack, on the whole batch and without a mesh. Each
einsum of the trace has an equation, which gives the letters, and shapes, which give the sizes. The blocks
of a stack are equal, and microbatches only divide B and G, so one trace is enough for every mesh. Nothing
is lowered. Norms, softmax, dropout and position embeddings are left out: they take the same time on every
mesh that splits activations over all devices. So is `Model.remat_keeps`.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gshard_nmt.errors import UserError
from gshard_nmt.inspection.compute import origin_of
from gshard_nmt.model import transformer
from gshard_nmt.model.counter_random import Key
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import within
from gshard_nmt.model.steps import BATCH_ARRAYS
from gshard_nmt.spmd.lowering import ArraySpecs, load_tensorflow
from gshard_nmt.spmd.mesh import Mesh, Partition

if TYPE_CHECKING:
    from gshard_nmt.model.config import Model
    from gshard_nmt.settings.config import Config

_GATE = "GSM,M_->GS_"
"""The equation of the only product in true float32, which is no einsum; see `exact_product`."""

_EXACT_PASSES = 6
"""A product in true float32 is six bfloat16 products on a TPU (XLA's HIGHEST)."""

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

    def partition(self, mesh: Mesh) -> Partition:
        # The weights of a stack have one more dimension, R, for which an override may have an entry.
        stacked = "/block/" in self.weight
        return mesh.partition("R" * stacked + self.letters, self.weight)[stacked:]

    def of_microbatch(self, microbatches: int) -> "Tensor":
        """Returns the part of an activation that one microbatch has: a share of the rows or groups."""
        if self.weight:
            return self
        sizes = zip(self.letters, self.shape, strict=True)
        shape = tuple(n // microbatches if letter in "BG" else n for letter, n in sizes)
        return dataclasses.replace(self, shape=shape)


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
    ends_part: bool = False  # whether its result ends that part, so that nobody reads it again


Exchange = tuple[Tensor, Tensor, int]
"""An activation that changes its layout: the tensor, the same tensor with its dimensions in the new
order, and how often a step does so, forward and, as its gradient, backward."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step as products: all blocks and microbatches, and what is kept or computed again."""

    products: Sequence[Product]  # those of all blocks
    exchanges: Sequence[Exchange]  # dispatch and combine of the MoE layers
    # the activations that are kept from the forward pass to the backward pass, with their number
    kept: Sequence[tuple[Tensor, int]]
    weights: ArraySpecs  # all weights, by name
    state: ArraySpecs  # all arrays that the step takes, by name


def step_of(config: "Config", state: ArraySpecs, rounds_operands: bool) -> Step:
    """Returns the products of the training step of a config; the mesh of the config does not matter.

    `state` has all arrays that the step takes, by name. `rounds_operands`: whether products round float32
    to bfloat16, as a TPU does. UserError: the config is a pipeline.
    """
    model = config.model
    if model.stack == "pipeline":
        raise UserError(
            "--advise: Model.stack is 'pipeline', whose time has no formula. Rank the meshes of the same "
            "layers in a loop, with --gin \"Model.stack = 'scan'\"."
        )
    weights = within(state, "parameters")
    one_block = dataclasses.replace(
        model,
        encoder_layers=model.encoder_layers and model.block_layers("encoder"),
        decoder_layers=model.block_layers("decoder"),
        stack="unrolled",
        remat="none",
        remat_keeps="inputs",
    )
    batch = {name: state[name] for name in BATCH_ARRAYS}
    of_one_block = {
        name: dataclasses.replace(spec, shape=(1, *spec.shape[1:]))
        if spec.letters.startswith("R")
        else spec
        for name, spec in weights.items()
    }
    traced = trace(one_block, of_one_block, batch)
    products = [_of_step(config, product, rounds_operands) for product in traced]
    exchanges = list(_exchanges(model, products, rounds_operands))
    return Step(products, exchanges, list(_kept(config, products)), weights, state)


def trace(model: "Model", weights: ArraySpecs, batch: ArraySpecs) -> list[Product]:
    """Returns the products of the forward pass of a model whose stacks have one block each."""

    def forward(weights: Mapping[str, "tf.Tensor"], batch: Mapping[str, "tf.Tensor"]):
        zero = tf.zeros([], tf.uint32)
        mode = Mode(Key(zero, zero))
        return transformer.encode_and_decode(model, weights, batch, mode)[0]

    groups = [
        {name: tf.TensorSpec(spec.shape, spec.dtype) for name, spec in specs.items()}
        for specs in (weights, batch)
    ]
    load_tensorflow()  # which hides GPUs from it
    graph = tf.function(forward, autograph=False).get_concrete_function(*groups).graph
    # Dicts are flattened in the order of their keys.
    names = [name for group in groups for name in sorted(group)]
    places = {x.name: name for x, name in zip(graph.inputs, names, strict=False)}
    reader = _Reader(places, weights, model.experts)
    products = map(reader.product, graph.get_operations())
    return [product for product in products if product]


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads products from the operations of a trace."""

    arguments: Mapping[str, str]  # a tensor of the trace -> the argument of the step that it is
    weights: ArraySpecs
    experts: int

    def product(self, operation: Any) -> Product | None:
        if operation.type == "GatherV2" and self._weight(operation.inputs[0], "VM"):
            # The lookup of an embedding is a product with one-hot tokens.
            table = self._tensor(operation.inputs[0], "VM")
            shape = (*operation.inputs[1].shape.as_list(), table.shape[0])
            one_hot = Tensor(f"{table.name}/tokens", "BLV", shape, 0)
            embedded = self._tensor(operation.outputs[0], "BLM")
            return Product(table.weight, "", one_hot, table, embedded, passes=0)
        equation = _GATE if operation.type == "XlaDotV2" else ""
        if operation.type == "XlaEinsum":
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


def _recomputes(model: "Model") -> bool:
    return model.stack == "scan" or model.remat != "none"


def _of_step(config: "Config", product: Product, rounds_operands: bool) -> Product:
    """Returns a product of one block and the whole batch as those of all blocks of the step."""
    model, microbatches = config.model, config.train.microbatches
    parts = (x.of_microbatch(microbatches) for x in (product.left, product.right, product.result))
    left, right, result = parts
    product = dataclasses.replace(
        product, left=left, right=right, result=result, times=microbatches
    )
    if not product.sublayer:
        return product
    stack = product.part.split()[0]
    kind, _, layer = product.sublayer.rpartition("_")
    is_last_layer = model.remat == "layer" or int(layer) == model.block_layers(stack) - 1
    ends_layer = kind == "feed_forward" and product.right.weight.endswith("/wo")
    return dataclasses.replace(
        product,
        times=model.repeats(stack) * microbatches,
        passes=product.passes if rounds_operands else min(product.passes, 1),
        recomputed=_recomputes(model),
        ends_part=ends_layer and is_last_layer,
    )


def _exchanges(
    model: "Model", products: Sequence[Product], rounds_operands: bool
) -> Iterator[Exchange]:
    """Yields dispatch and combine of each MoE layer: GECM -> EGCM and back (GShard section 3.2)."""
    passes = 3 if _recomputes(model) else 2
    outputs = {
        p.left.name: (p.left, passes * p.times)
        for p in products
        if p.left.letters == "EGCM" and p.right.weight.endswith("/wi")
    }
    for tensor, times in outputs.values():
        # XLA sends them as bfloat16 if they only go from product to product, which round them to it.
        if rounds_operands and model.dispatch == "einsum":
            tensor = dataclasses.replace(tensor, item_bytes=2)
        experts, groups, *rest = tensor.shape
        shape, name = (groups, experts, *rest), f"{tensor.name}/slots"
        slots = dataclasses.replace(tensor, name=name, letters="GECM", shape=shape)
        yield slots, tensor, times
        yield tensor, slots, times


def _kept(config: "Config", products: Sequence[Product]) -> Iterator[tuple[Tensor, int]]:
    """Yields all results, or if they are computed again, the input [B, L, M] of each block or layer."""
    model, microbatches = config.model, config.train.microbatches
    if not _recomputes(model):
        for product in products:
            yield product.result, product.times // microbatches
        return
    parts = dict.fromkeys(product.part for product in products if product.sublayer)
    stacks = [part.split()[0] for part in parts]
    for stack in stacks if model.remat == "layer" else dict.fromkeys(stacks):
        layers = (p for p in products if p.sublayer and p.part.startswith(stack))
        first = next(p.left for p in layers if p.left.letters == "BLM")
        yield first, model.repeats(stack)
