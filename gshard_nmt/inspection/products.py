"""Lists the products of a training step with the letters of their tensors, without lowering the step.

The declared weights tell almost everything: a weight with the letters MH multiplies BLM and gives BLH.
Only attention, dispatch and combine have products without a weight. Norms, softmax, dropout and position
embeddings are left out: they take the same time on every mesh that splits activations over all devices.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh, Partition

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config

_EQUATIONS = {
    "MND": ("BLM", "BLND"),
    "NDM": ("BLND", "BLM"),
    "MH": ("BLM", "BLH"),
    "HM": ("BLH", "BLM"),
    "M_": ("GSM", "GS_"),
    "EMH": ("EGCM", "EGCH"),
    "EHM": ("EGCH", "EGCM"),
}
"""Letters of a weight -> letters of the activation that it multiplies, and of the result."""

_FLOAT32 = 4
_EXACT_PASSES = 6
"""A product in true float32, as that of the gate, is six bfloat16 products on a TPU (XLA's HIGHEST)."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of the step."""

    # a name. If several products read the same tensor, it is gathered once for all of them.
    name: str
    letters: str  # its dimensions
    shape: tuple[int, ...]  # its sizes
    item_bytes: int  # the bytes of an element; 0 if moving the tensor costs nothing
    weight: str = ""  # the name by which Mesh.overrides knows it; "" for an activation
    # whether it is inside a stage of a pipeline, where the axes of the stages split nothing
    in_stage: bool = False

    def partition(self, mesh: Mesh) -> Partition:
        """Returns the mesh axes of each dimension."""
        if not self.weight:
            return mesh.partition("P" * self.in_stage + self.letters)[self.in_stage :]
        # The weights of a stack have one more dimension, R, for which an override may have an entry.
        stacked = "/block/" in self.weight
        partition = mesh.partition("R" * stacked + self.letters, self.weight)[stacked:]
        stages = mesh.partition("P")[0] if self.in_stage else ()
        return tuple(tuple(axis for axis in axes if axis not in stages) for axes in partition)


@dataclasses.dataclass(frozen=True)
class Product:
    """An einsum of two tensors, and its gradients."""

    part: str  # the layer that it belongs to
    left: Tensor  # an activation
    right: Tensor  # a weight or an activation
    result: Tensor  # the activation that it makes
    times: int  # its executions in the forward pass of a step
    # the number of bfloat16 products that compute it; 0 for a lookup. Its gradients have at most one.
    passes: int = 1
    recomputed: bool = False  # whether the backward pass computes its part again
    # whether the backward pass does not compute it again even so, because the result was kept or
    # ends its part
    is_found: bool = False


@dataclasses.dataclass(frozen=True)
class Exchange:
    """An activation that changes its layout, forward and, as its gradient, backward."""

    part: str  # as in `Product`
    before: Tensor  # the tensor
    after: Tensor  # the same tensor with its dimensions in the new order
    times: int  # as in `Product`
    recomputed: bool  # as in `Product`


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step as products."""

    products: tuple[Product, ...]  # all products
    exchanges: tuple[Exchange, ...]  # dispatch and combine of the MoE layers
    # the activations that are kept from the forward pass to the backward pass, with their number
    kept: tuple[tuple[Tensor, int], ...]
    # (kind, tensor, times) of the collectives among the stages of a pipeline
    along_stages: tuple[tuple[str, Tensor, int], ...]
    weights: Mapping[str, ArraySpec]  # all weights, by name
    state: Mapping[str, ArraySpec]  # all arrays that the step takes, by name


def step_of(
    config: "Config",
    weights: Mapping[str, ArraySpec],
    state: Mapping[str, ArraySpec],
    rounds_operands: bool,
) -> Step:
    """Returns the products of the training step of a config; the mesh of the config does not matter.

    Args:
      weights: the weights of the model, by name.
      state: all arrays that the step takes, by name.
      rounds_operands: whether products round float32 to bfloat16, as a TPU does.

    Raises:
      UserError: the config dispatches tokens in a way that has no formula here.
    """
    model = config.model
    if model.experts and model.dispatch not in ("einsum", "gather"):
        raise UserError(
            f"--advise: Model.dispatch is {model.dispatch!r}; only the communication of 'einsum' and "
            "'gather' can be predicted. Choose one of them with --gin \"Model.dispatch = 'einsum'\"."
        )
    layers = _Layers(config, weights, rounds_operands)
    return Step(
        tuple(layers.products()),
        tuple(layers.exchanges()),
        tuple(layers.kept()),
        tuple(layers.along_stages()),
        weights,
        state,
    )


class _Layers:
    """The layers of a config, taken from the names of its weights."""

    def __init__(
        self, config: "Config", weights: Mapping[str, ArraySpec], rounds_operands: bool
    ) -> None:
        model, data = config.model, config.data
        self._rounds_operands = rounds_operands
        self._model, self._weights = model, weights
        self._microbatches = config.train.microbatches
        self._rows = data.rows // self._microbatches
        self._length = {"encoder": data.source_length, "decoder": data.target_length}
        self._item_bytes = 2 if model.activation_dtype == "bfloat16" else _FLOAT32
        self._pipelined = model.stack == "pipeline"
        self._recomputed = model.stack in ("scan", "pipeline") or model.remat != "none"

    def _sizes(self, stack: str) -> dict[str, int]:
        """Returns the sizes of the letters of a stack's activations."""
        model, length = self._model, self._length[stack]
        sizes = {
            "B": self._rows,
            "L": length,
            "T": length,
            "M": model.model_dim,
            "N": model.heads,
            "D": model.head_dim,
        }
        if model.has_experts(stack):
            moe = model.moe(training=True)
            groups = moe.groups(self._rows * self._microbatches, length) // self._microbatches
            tokens = self._rows * length // groups
            capacity = moe.gating.slots(tokens)
            sizes |= {"G": groups, "S": tokens, "E": model.experts, "C": capacity}
        return sizes

    def _activation(
        self, name: str, letters: str, sizes: Mapping[str, int], item_bytes: int = 0
    ) -> Tensor:
        shape = tuple(sizes[letter] for letter in letters)
        item_bytes = item_bytes or self._item_bytes
        return Tensor(name, letters, shape, item_bytes, in_stage=self._pipelined)

    def _times(self, stack: str, repeats: int) -> int:
        """Returns how often a device computes a block of a stack, of which there are R = `repeats`.

        A pipeline has R / P blocks on a device and also computes bubbles.
        """
        if not self._pipelined:
            return repeats * self._microbatches
        schedule = self._model.pipeline_schedule(stack, self._microbatches)
        return schedule.iterations * repeats // (schedule.stages * schedule.visits)

    def _blocks(self) -> Iterator[tuple[str, str, int]]:
        """Yields (stack, sub-layer, executions in a step)."""
        seen = set()
        for name, spec in self._weights.items():
            if "/block/" in name:
                stack, _, sublayer, *_ = name.split("/")
                if (stack, sublayer) not in seen:
                    seen.add((stack, sublayer))
                    yield stack, sublayer, self._times(stack, spec.shape[0])

    def products(self) -> Iterator[Product]:
        """Yields all products of a step."""
        for name, spec in self._weights.items():
            if "/block/" in name and spec.letters[1:] in _EQUATIONS:
                yield self._of_weight(name, spec)
            elif name.endswith("_embedding") and spec.letters == "VM":
                yield from self._of_embedding(name, spec)
        for stack, sublayer, times in self._blocks():
            if "attention" in sublayer:
                yield from self._of_attention(stack, sublayer, times)
            elif sublayer.startswith("moe") and self._model.dispatch == "einsum":
                yield from self._of_dispatch(stack, sublayer, times)

    def _of_weight(self, name: str, spec: ArraySpec) -> Product:
        stack, _, sublayer, *inside, leaf = name.split("/")
        letters, shape = spec.letters[1:], spec.shape[1:]
        is_memory = sublayer.startswith("cross") and leaf in ("key", "value")
        source, part = "encoder" if is_memory else stack, _part(stack, sublayer)
        left, result = _EQUATIONS[letters]
        sizes = self._sizes(stack) | dict(zip(letters, shape, strict=True))
        sizes["L"] = self._length[source]
        # Query, key and value read the same tensor, as do the two products of GEGLU.
        reads = f"{part}/{sublayer}/{'memory' if is_memory else left}"
        is_gate = letters == "M_"
        return Product(
            part,
            self._activation(reads, left, sizes),
            self._weight(name, _FLOAT32 if is_gate else self._item_bytes),
            self._activation(f"{part}/{sublayer}/{leaf}/{result}", result, sizes),
            self._times(stack, spec.shape[0]),
            _EXACT_PASSES if is_gate and self._rounds_operands else 1,
            self._recomputed,
            # What a shared expert computes is not among the kept results.
            is_found=self._ends_part(stack, sublayer, leaf)
            or (not inside and self._is_kept(sublayer, leaf)),
        )

    def _weight(self, name: str, item_bytes: int) -> Tensor:
        """Returns a weight of one block."""
        spec = self._weights[name]
        return Tensor(
            name, spec.letters[1:], spec.shape[1:], item_bytes, name, in_stage=self._pipelined
        )

    def _ends_part(self, stack: str, sublayer: str, leaf: str) -> bool:
        """Returns whether a weight is the last of a part that is computed again."""
        if not sublayer.startswith("feed_forward") or leaf != "wo":
            return False
        layer = int(sublayer.rpartition("_")[2])
        return self._model.remat == "layer" or layer == self._model.block_layers(stack) - 1

    def _is_kept(self, sublayer: str, leaf: str) -> bool:
        """Returns whether `Model.remat_keeps` keeps the result of the product with a weight."""
        if "attention" in sublayer:
            return self._model.remat_has("attention" if leaf == "output" else "projections")
        is_moe = sublayer.startswith("moe")
        return is_moe and leaf in ("gate", "wo") and self._model.remat_has("experts")

    def _of_embedding(self, name: str, spec: ArraySpec) -> Iterator[Product]:
        """Yields the lookup of an embedding, as a product with one-hot tokens, and the logits."""
        stack = "encoder" if name.startswith("source") else "decoder"
        sizes = self._sizes(stack) | {"V": spec.shape[0]}
        times = self._microbatches
        if self._pipelined:  # outside of the stages is the whole batch
            sizes["B"], times = self._rows * times, 1
        table = Tensor(name, "VM", spec.shape, _FLOAT32, name)
        x, logits = (
            dataclasses.replace(tensor, in_stage=False)
            for tensor in (
                self._activation(f"{stack}/embedded", "BLM", sizes, _FLOAT32),
                self._activation(f"{stack}/logits", "BLV", sizes, _FLOAT32),
            )
        )
        one_hot = dataclasses.replace(logits, name=f"{stack}/tokens", item_bytes=0)
        yield Product(name, one_hot, table, x, times, 0)
        if stack == "decoder":
            last = dataclasses.replace(x, name="decoder/last")
            transposed = dataclasses.replace(table, name=f"{name} of the logits")
            yield Product("logits", last, transposed, logits, times)

    def _of_attention(self, stack: str, sublayer: str, times: int) -> Iterator[Product]:
        part, sizes = _part(stack, sublayer), self._sizes(stack)
        sizes["T"] = self._length["encoder" if sublayer.startswith("cross") else stack]
        names = {
            name: self._activation(f"{part}/{sublayer}/{name}", letters, sizes, item_bytes)
            for name, letters, item_bytes in (
                ("query", "BLND", 0),
                ("key", "BTND", 0),
                ("value", "BTND", 0),
                ("context", "BLND", 0),
                ("logits", "BNLT", _FLOAT32),
            )
        }
        query, key, value, context, logits = names.values()
        yield Product(part, query, key, logits, times, recomputed=self._recomputed)
        yield Product(part, logits, value, context, times, recomputed=self._recomputed)

    def _of_dispatch(self, stack: str, sublayer: str, times: int) -> Iterator[Product]:
        part, sizes = _part(stack, sublayer), self._sizes(stack)
        place = f"{part}/{sublayer}"
        mask = self._activation(f"{place}/mask", "GSEC", sizes)
        weights = self._activation(f"{place}/weights", "GSEC", sizes)
        tokens = self._activation(f"{place}/GSM", "GSM", sizes)
        slots = self._activation(f"{place}/slots", "GECM", sizes)
        outputs = dataclasses.replace(slots, name=f"{place}/outputs")
        combined = dataclasses.replace(tokens, name=f"{place}/combined")
        is_kept = self._model.remat_has("experts")
        yield Product(part, tokens, mask, slots, times, 1, self._recomputed, is_kept)
        yield Product(part, outputs, weights, combined, times, recomputed=self._recomputed)

    def exchanges(self) -> Iterator[Exchange]:
        """Yields dispatch and combine of each MoE layer: GECM -> EGCM and back (GShard section 3.2)."""
        for stack, sublayer, times in self._blocks():
            if not sublayer.startswith("moe"):
                continue
            part, sizes = _part(stack, sublayer), self._sizes(stack)
            # XLA sends them as bfloat16 if they only go from product to product, which round them to it.
            is_rounded = self._rounds_operands and self._model.dispatch == "einsum"
            item_bytes = 2 if is_rounded else self._item_bytes
            by_group = self._activation(f"{part}/{sublayer}/slots", "GECM", sizes, item_bytes)
            by_expert = self._activation(f"{part}/{sublayer}/outputs", "EGCM", sizes, item_bytes)
            recomputed = self._recomputed and not self._model.remat_has("experts")
            yield Exchange(part, by_group, by_expert, times, recomputed)
            yield Exchange(part, by_expert, by_group, times, recomputed)

    def kept(self) -> Iterator[tuple[Tensor, int]]:
        """Yields what the forward pass keeps: the inputs of parts and some results, or all results."""
        by_layer = self._model.remat == "layer"
        if not self._recomputed:
            for product in self.products():
                yield product.result, product.times // self._microbatches
            return
        parts = {
            (stack, _part(stack, sublayer) if by_layer else stack): times
            for stack, sublayer, times in self._blocks()
        }
        # A pipeline keeps the results of all iterations, and a loop those of one microbatch.
        loops = 1 if self._pipelined else self._microbatches
        for (stack, part), times in parts.items():
            yield self._activation(part, "BLM", self._sizes(stack)), times // loops
        if self._model.remat_has("experts"):
            for exchange in self.exchanges():
                kept = dataclasses.replace(exchange.after, item_bytes=self._item_bytes)
                yield kept, exchange.times // loops
        for product in self.products():
            weight = product.right.weight
            if product.is_found and ("attention" in weight or weight.endswith("/gate")):
                yield product.result, product.times // loops
        for x in self._states():
            yield x, self._microbatches

    def _states(self) -> Iterator[Tensor]:
        """Yields the microbatch in a stage of each pipeline, [B/n, L, M]."""
        for stack in dict.fromkeys(stack for stack, _, _ in self._blocks()):
            if self._pipelined:
                yield self._activation(f"{stack} stage", "BLM", self._sizes(stack))

    def along_stages(self) -> Iterator[tuple[str, Tensor, int]]:
        """Yields the collectives among the stages of the pipelines, see `Pipeline`.

        The state moves on by one stage in each iteration. All stages read every microbatch, and the last
        results are summed over the stages. The gradients do the same in reverse. With several visits,
        the weights move to their stages first, and their gradients move back.
        """
        for x in self._states():
            stack = x.name.partition(" ")[0]
            schedule = self._model.pipeline_schedule(stack, self._microbatches)
            yield "collective-permute", x, 2 * schedule.iterations
            yield "all-gather", x, 2 * self._microbatches
            yield "all-reduce", x, 2 * self._microbatches
            for name, spec in self._weights.items():
                if schedule.visits > 1 and name.startswith(f"{stack}/block/"):
                    times = 2 * spec.shape[0] // schedule.stages
                    yield "all-to-all", self._weight(name, _FLOAT32), times


def _part(stack: str, sublayer: str) -> str:
    """Returns the name of the layer of a sub-layer, for instance "encoder 0" of self_attention_0."""
    return f"{stack} {sublayer.rpartition('_')[2]}"
