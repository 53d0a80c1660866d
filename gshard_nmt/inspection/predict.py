"""Predicts the time and the memory of a training step on a mesh, by formula and without a compiler.

Each product is partitioned by its letters. On every mesh axis, a product is computed by the letter that
most of its three tensors split over this axis, as XLA's partitioner does (GSPMD section 4.2). A tensor
that is split in another way moves:

    all-gather       an operand whose letter is not in the product's own split
    all-reduce       the result, if the product is computed by a letter that is summed
    reduce-scatter   the same, if the result is to be split over this axis by another letter
    all-to-all       a tensor that is split by another of its letters

The constants are the figures of the chip (spmd/chips.py) and the times of links.py. Nothing is fitted.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from gshard_nmt.inspection import links
from gshard_nmt.inspection.links import Placement
from gshard_nmt.inspection.memory import shard_bytes
from gshard_nmt.inspection.products import Exchange, Product, Step, Tensor
from gshard_nmt.spmd import shared_update
from gshard_nmt.spmd.chips import Chip, peak_of
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh

_OPTIMIZER_PASSES = 7
"""How often a step reads or writes an array of the size of a weight, after its gradient is there.

The norm of all gradients reads the gradient. Adafactor reads it for its moments, for the size of the
update and for the update; it reads the weight for its size and for the update, and writes it
(model/optimizer.py).
"""

Traffic = Mapping[tuple[str, tuple[str, ...]], float]
"""(kind of collective, mesh axes) -> bytes on one device in a step, as links.seconds counts them."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one device does in a step, wherever the devices of the mesh are."""

    flops: float  # multiplications and additions, with those that are computed again
    product_seconds: float  # the roofline time of the products
    optimizer_seconds: float  # the time of the optimizer, which only reads and writes memory
    traffic: Traffic  # what it sends
    memory: int  # bytes at the peak


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted time of a step on a mesh whose devices have places in the machine."""

    cost: Cost  # what a device does
    seconds: Mapping[str, float]  # "products", "optimizer", and each kind of collective -> its time

    @property
    def step_seconds(self) -> float:
        """Nothing overlaps."""
        return sum(self.seconds.values())


def cost_of(step: Step, mesh: Mesh, chip: Chip) -> Cost:
    """Returns the cost of a step on a mesh; the order of its devices does not matter."""
    partitioner = _Partitioner(mesh)
    sent: dict[tuple[str, str, str, tuple[str, ...]], float] = {}
    flops = seconds = 0.0
    temporaries: Counter[str] = Counter()
    for product in step.products:
        for phase, times, einsum, passes in _executions(product):
            letters = partitioner.letters_of_work(einsum)
            for move in partitioner.moves(einsum, letters):
                key = (phase, move.tensor.name, move.kind, move.axes)
                sent[key] = max(sent.get(key, 0.0), move.nbytes * times)
                if move.kind == "all-gather" and phase == "forward":
                    temporaries[product.part] += int(move.nbytes)
            work = 2.0 * math.prod(einsum.sizes.values()) * passes
            work /= partitioner.size(letters)
            moved = sum(partitioner.worked_bytes(tensor, letters) for tensor in einsum.tensors)
            flops += work * times
            peak = peak_of(chip, "bf16" if einsum.left.item_bytes == 2 else "f32")
            seconds += times * max(work / peak, moved / chip.hbm_bandwidth)
        # The result, and its gradient.
        temporaries[product.part] += 2 * int(partitioner.layout(product.result).local)
    for exchange in step.exchanges:
        for phase, times, before, after in _layouts(exchange):
            for axis in partitioner.exchanged_axes(before, after):
                key = (phase, before.name, "all-to-all", (axis,))
                sent[key] = sent.get(key, 0.0) + times * partitioner.layout(before).local
    traffic: dict[tuple[str, tuple[str, ...]], float] = {}
    for (_, _, kind, axes), nbytes in sent.items():
        traffic[kind, axes] = traffic.get((kind, axes), 0.0) + nbytes
    stages = tuple(axis for axis in mesh.partition("P")[0] if mesh.axis_size((axis,)) > 1)
    for kind, tensor, times in step.along_stages if stages else ():
        nbytes = times * partitioner.layout(tensor).local
        traffic[kind, stages] = traffic.get((kind, stages), 0.0) + nbytes
    weights = sum(shard_bytes(name, spec, mesh) for name, spec in step.weights.items())
    updated = sum(_updated_bytes(name, spec, mesh) for name, spec in step.weights.items())
    optimizer = _OPTIMIZER_PASSES * updated / chip.hbm_bandwidth
    kept = sum(times * partitioner.layout(tensor).local for tensor, times in step.kept)
    arguments = sum(shard_bytes(name, spec, mesh) for name, spec in step.state.items())
    # All gradients are there at once, beside the state and the activations of one layer.
    memory = arguments + weights + int(kept) + max(temporaries.values())
    return Cost(flops, seconds, optimizer, traffic, memory)


def _updated_bytes(name: str, spec: ArraySpec, mesh: Mesh) -> int:
    """Returns the bytes of a weight that one device updates.

    If devices share the update, the links carry as much as before: a reduce-scatter and an all-gather
    send what an all-reduce does.
    """
    if not mesh.shared_update:
        return shard_bytes(name, spec, mesh)
    fine, partition = shared_update.fine_mesh(mesh, spec.letters, spec.shape, name)
    return spec.nbytes // math.prod(fine.axis_size(axes) for axes in partition)


def predict(cost: Cost, chip: Chip, place: Callable[[tuple[str, ...]], Placement]) -> Prediction:
    """Returns the predicted step time, with the devices of the mesh in their places."""
    seconds = {"products": cost.product_seconds, "optimizer": cost.optimizer_seconds}
    for (kind, axes), nbytes in cost.traffic.items():
        time = links.seconds(kind, nbytes, place(axes), chip)
        seconds[kind] = seconds.get(kind, 0.0) + time
    return Prediction(cost, seconds)


@dataclasses.dataclass(frozen=True)
class _Einsum:
    left: Tensor
    right: Tensor
    result: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.left, self.right, self.result

    @property
    def sizes(self) -> dict[str, int]:
        return {
            letter: size
            for tensor in self.tensors
            for letter, size in zip(tensor.letters, tensor.shape, strict=True)
        }


def _executions(product: Product) -> list[tuple[str, int, _Einsum, int]]:
    """Returns (phase, times, einsum, passes) of a product, of its gradients, and of its recomputation.

    A phase gathers each tensor once. If nothing is recomputed, the backward pass finds what the forward
    pass has gathered.
    """
    left, right, result = product.left, product.right, product.result
    forward = _Einsum(left, right, result)
    backward = "backward" if product.recomputed else "forward"
    executions = [("forward", product.times, forward, product.passes)]
    if product.recomputed and not product.is_found:
        executions.append((backward, product.times, forward, product.passes))
    d_result = _gradient(result)
    # A lookup has no products in its gradients either. The gradients of an exact product have the
    # default precision.
    passes = min(product.passes, 1)
    if left.item_bytes:
        d_left = _Einsum(d_result, right, _gradient(left))
        executions.append((backward, product.times, d_left, passes))
    d_right = _Einsum(left, d_result, _gradient(right))
    executions.append((backward, product.times, d_right, passes))
    return executions


def _gradient(tensor: Tensor) -> Tensor:
    return dataclasses.replace(tensor, name=f"gradient of {tensor.name}")


@dataclasses.dataclass(frozen=True)
class _Move:
    tensor: Tensor
    kind: str
    axes: tuple[str, ...]
    nbytes: float


@dataclasses.dataclass(frozen=True)
class _Layout:
    """How a mesh splits a tensor."""

    # mesh axis -> the letter of the tensor that is split over it, without axes of size 1
    home: Mapping[str, str]
    nbytes: float  # the bytes of the whole tensor
    local: float  # the bytes on one device


class _Partitioner:
    """Divides products over a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._axes = {
            axis: size for axis, size in zip(mesh.axes, mesh.shape, strict=True) if size > 1
        }
        self._layouts: dict[Tensor, _Layout] = {}

    def size(self, axes: Iterable[str]) -> int:
        return math.prod(self._axes[axis] for axis in axes)

    def layout(self, tensor: Tensor) -> _Layout:
        if tensor not in self._layouts:
            home = {
                axis: letter
                for letter, axes in zip(tensor.letters, tensor.partition(self._mesh), strict=True)
                for axis in axes
                if axis in self._axes
            }
            nbytes = float(tensor.item_bytes * math.prod(tensor.shape))
            self._layouts[tensor] = _Layout(home, nbytes, nbytes / self.size(home))
        return self._layouts[tensor]

    def worked_bytes(self, tensor: Tensor, letters: Mapping[str, str]) -> float:
        """Returns the bytes of a tensor on one device as the work reads or makes it."""
        split = [axis for axis, letter in letters.items() if letter in tensor.letters]
        return self.layout(tensor).nbytes / self.size(split)

    def letters_of_work(self, einsum: _Einsum) -> dict[str, str]:
        """Returns the letter by which an einsum is computed on each axis that splits it.

        Most of its tensors decide. If they are undecided, the letter with the fewest bytes to move wins.
        """
        letters = {}
        for axis in self._axes:
            homes = [self.layout(tensor).home for tensor in einsum.tensors]
            votes = Counter(home[axis] for home in homes if axis in home)
            most = max(votes.values(), default=0)
            candidates = [letter for letter, count in votes.items() if count == most]
            if len(candidates) > 1:
                bytes_of = {letter: self._moved(einsum, axis, letter) for letter in candidates}
                candidates.sort(key=lambda letter: bytes_of[letter])
            if candidates:
                letters[axis] = candidates[0]
        return letters

    def _moved(self, einsum: _Einsum, axis: str, letter: str) -> float:
        """Returns the bytes that move if an einsum is computed by a letter on one axis."""
        moves = [
            move for move in self.moves(einsum, {axis: letter}, only=axis) if move.axes == (axis,)
        ]
        return sum(move.nbytes * (1 + (move.kind == "all-reduce")) for move in moves)

    def moves(
        self, einsum: _Einsum, letters: Mapping[str, str], only: str | None = None
    ) -> list[_Move]:
        """Returns the collectives of an einsum that is computed by these letters, one for each mesh axis.

        `only` names the only mesh axis to look at; None looks at all.
        """
        homes = [
            {a: letter for a, letter in self.layout(tensor).home.items() if only in (None, a)}
            for tensor in einsum.tensors
        ]
        moves = [
            move
            for tensor, home in zip(einsum.tensors[:2], homes[:2], strict=True)
            for move in self._moves_of_operand(tensor, home, letters)
        ]
        moves += self._moves_of_result(einsum.result, homes[2], letters)
        return [move for move in moves if move.nbytes]

    def _moves_of_operand(
        self, tensor: Tensor, home: Mapping[str, str], letters: Mapping[str, str]
    ) -> Iterator[_Move]:
        """Yields the collectives that bring an operand into the layout of the work."""
        local = self.layout(tensor).local
        split = [axis for axis, letter in letters.items() if letter in tensor.letters]
        gathered = tuple(axis for axis in home if axis not in split)
        for axis in home:
            if axis not in gathered and letters[axis] != home[axis]:
                yield _Move(tensor, "all-to-all", (axis,), local)
        if gathered:
            yield _Move(tensor, "all-gather", gathered, local * self.size(gathered))

    def _moves_of_result(
        self, tensor: Tensor, home: Mapping[str, str], letters: Mapping[str, str]
    ) -> Iterator[_Move]:
        """Yields the collectives that bring the result of the work into its own layout."""
        nbytes = self.worked_bytes(tensor, letters)
        split = [axis for axis, letter in letters.items() if letter in tensor.letters]
        summed = [axis for axis in letters if axis not in split]
        scattered = tuple(axis for axis in summed if axis in home)
        reduced = tuple(axis for axis in summed if axis not in home)
        gathered = tuple(axis for axis in split if axis not in home)
        if scattered:
            yield _Move(tensor, "reduce-scatter", scattered, nbytes)
            nbytes /= self.size(scattered)
        if reduced:
            yield _Move(tensor, "all-reduce", reduced, nbytes)
        for axis in split:
            if axis in home and home[axis] != letters[axis]:
                yield _Move(tensor, "all-to-all", (axis,), nbytes)
        if gathered:
            yield _Move(tensor, "all-gather", gathered, nbytes * self.size(gathered))

    def exchanged_axes(self, before: Tensor, after: Tensor) -> list[str]:
        """Returns the axes over which two layouts of a tensor split different letters."""
        old, new = self.layout(before).home, self.layout(after).home
        return [axis for axis in old if axis in new and old[axis] != new[axis]]


def _layouts(exchange: Exchange) -> list[tuple[str, int, Tensor, Tensor]]:
    """Returns (phase, times, before, after) of an exchange, its recomputation and its gradient."""
    before, after, times = exchange.before, exchange.after, exchange.times
    layouts = [("forward", times, before, after), ("backward", times, after, before)]
    if exchange.recomputed:
        layouts.append(("recomputed", times, before, after))
    return layouts
