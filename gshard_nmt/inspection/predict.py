"""Predicts the time and the memory of a training step on a mesh, by formula and without a compiler.

Each product is partitioned by its letters. On every mesh axis, a product is computed by the letter that
most of its three tensors split over this axis, as XLA's partitioner does (GSPMD section 4.4). A tensor
that is split in another way moves:

    all-gather       an operand whose letter is not in the product's own split
    all-reduce       the result, if the product is computed by a letter that is summed
    reduce-scatter   the same, if the result is to be split over this axis by another letter
    all-to-all       a tensor that is split by another of its letters

The constants are the figures of the chip (spmd/topology.py) and the times of links.py. Nothing is fitted.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gshard_nmt.inspection import links
from gshard_nmt.inspection.memory import shard_bytes
from gshard_nmt.inspection.products import Product, Step, Tensor
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Chip, Topology, peak_of

_OPTIMIZER_PASSES = 7
"""How often a step reads or writes an array of the size of a weight, after its gradient is there.

The norm of all gradients reads the gradient. Adafactor reads it for its moments, for the size of the
update and for the update; it reads the weight for its size and for the update, and writes it
(model/optimizer.py).
"""

Traffic = Mapping[tuple[str, tuple[str, ...]], float]
"""(kind of collective, mesh axes) -> bytes on one device in a step, as links.seconds counts them."""

Einsum = tuple[Tensor, Tensor, Tensor]
"""The two operands of a product, and its result."""


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


def predict(cost: Cost, topology: Topology, mesh: Mesh) -> Prediction:
    """Returns the predicted step time on a mesh whose devices have places in the machine."""
    assert topology.chip is not None
    seconds = {"products": cost.product_seconds, "optimizer": cost.optimizer_seconds}
    for (kind, axes), nbytes in cost.traffic.items():
        time = links.seconds(kind, nbytes, links.place_on(topology, mesh, axes), topology.chip)
        seconds[kind] = seconds.get(kind, 0.0) + time
    return Prediction(cost, seconds)


def cost_of(step: Step, mesh: Mesh, chip: Chip) -> Cost:
    """Returns the cost of a step on a mesh; the order of its devices does not matter."""
    partitioner = _Partitioner(mesh)
    # Each phase moves a tensor once, however many products read it.
    sent: dict[tuple[str, str, str, tuple[str, ...]], float] = {}
    flops = seconds = 0.0
    temporaries: Counter[str] = Counter()
    for product in step.products:
        for phase, einsum, passes in _executions(product):
            letters = partitioner.letters_of_work(einsum)
            for tensor, kind, axes, nbytes in partitioner.moves(einsum, letters):
                key = (phase, tensor.name, kind, axes)
                sent[key] = max(sent.get(key, 0.0), nbytes * product.times)
                if kind == "all-gather" and phase == "forward":
                    temporaries[product.part] += int(nbytes)
            sizes = {k: n for x in einsum for k, n in zip(x.letters, x.shape, strict=True)}
            work = 2.0 * math.prod(sizes.values()) * passes / partitioner.size(letters)
            moved = sum(partitioner.share(tensor, letters) for tensor in einsum)
            flops += work * product.times
            peak = peak_of(chip, "bf16" if einsum[0].item_bytes == 2 else "f32")
            seconds += product.times * max(work / peak, moved / chip.hbm_bandwidth)
        # The result, and its gradient.
        temporaries[product.part] += 2 * int(partitioner.local(product.result))
    for tensor, moved_tensor, times in step.exchanges:
        before, after = partitioner.home(tensor), partitioner.home(moved_tensor)
        for axis in before:
            if axis in after and before[axis] != after[axis]:  # both layouts have the same size
                key = ("", tensor.name, "all-to-all", (axis,))
                sent[key] = sent.get(key, 0.0) + times * partitioner.local(tensor)
    traffic: dict[tuple[str, tuple[str, ...]], float] = {}
    for (_, _, kind, axes), nbytes in sent.items():
        traffic[kind, axes] = traffic.get((kind, axes), 0.0) + nbytes
    weights = sum(shard_bytes(name, spec, mesh) for name, spec in step.weights.items())
    optimizer = _OPTIMIZER_PASSES * weights / chip.hbm_bandwidth
    kept = sum(times * partitioner.local(tensor) for tensor, times in step.kept)
    arguments = sum(shard_bytes(name, spec, mesh) for name, spec in step.state.items())
    # All gradients are there at once, beside the state and the activations of one layer.
    memory = arguments + weights + int(kept) + max(temporaries.values())
    return Cost(flops, seconds, optimizer, traffic, memory)


def _executions(product: Product) -> Iterator[tuple[str, Einsum, int]]:
    """Yields (phase, einsum, passes) of a product, of its recomputation, and of its gradients.

    If nothing is recomputed, the backward pass finds what the forward pass has gathered.
    """
    left, right, result = product.left, product.right, product.result
    d_left, d_right, d_result = (
        dataclasses.replace(tensor, name=f"gradient of {tensor.name}")
        for tensor in (left, right, result)
    )
    yield "forward", (left, right, result), product.passes
    backward = "backward" if product.recomputed else "forward"
    if product.recomputed and not product.ends_part:
        yield backward, (left, right, result), product.passes
    # A lookup has no products in its gradients either. The gradients of an exact product have the
    # default precision.
    passes = min(product.passes, 1)
    if left.item_bytes:
        yield backward, (d_result, right, d_left), passes
    yield backward, (left, d_result, d_right), passes


Move = tuple[Tensor, str, tuple[str, ...], float]
"""A tensor that moves: itself, the kind of collective, the mesh axes, and the bytes on one device."""


class _Partitioner:
    """Divides products over a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._axes = {axis: size for axis, size in mesh.sizes.items() if size > 1}
        self._homes: dict[Tensor, dict[str, str]] = {}

    def size(self, axes: Iterable[str]) -> int:
        return math.prod(self._axes[axis] for axis in axes)

    def home(self, tensor: Tensor) -> dict[str, str]:
        """Returns for each mesh axis the letter of the tensor that is split over it."""
        if tensor not in self._homes:
            partition = tensor.partition(self._mesh)
            self._homes[tensor] = {
                axis: letter
                for letter, axes in zip(tensor.letters, partition, strict=True)
                for axis in axes
                if axis in self._axes
            }
        return self._homes[tensor]

    def share(self, tensor: Tensor, split: Mapping[str, str]) -> float:
        """Returns the bytes of a tensor on one device if each mesh axis splits this letter."""
        axes = [axis for axis, letter in split.items() if letter in tensor.letters]
        return float(tensor.item_bytes * math.prod(tensor.shape)) / self.size(axes)

    def local(self, tensor: Tensor) -> float:
        return self.share(tensor, self.home(tensor))

    def letters_of_work(self, einsum: Einsum) -> dict[str, str]:
        """Returns the letter by which an einsum is computed on each axis that splits it.

        Most of its tensors decide. If they are undecided, the letter with the fewest bytes to move wins.
        """
        letters = {}
        for axis in self._axes:
            homes = [self.home(tensor) for tensor in einsum]
            votes = Counter(home[axis] for home in homes if axis in home)
            most = max(votes.values(), default=0)
            candidates = [letter for letter, count in votes.items() if count == most]
            if len(candidates) > 1:
                moved = {letter: self._moved(einsum, axis, letter) for letter in candidates}
                candidates.sort(key=moved.__getitem__)
            if candidates:
                letters[axis] = candidates[0]
        return letters

    def _moved(self, einsum: Einsum, axis: str, letter: str) -> float:
        """Returns the bytes that move if an einsum is computed by a letter on one axis."""
        return sum(
            nbytes * (1 + (kind == "all-reduce"))
            for _, kind, axes, nbytes in self.moves(einsum, {axis: letter}, [axis])
            if axes == (axis,)
        )

    def moves(
        self, einsum: Einsum, letters: Mapping[str, str], only: Sequence[str] = ()
    ) -> Iterator[Move]:
        """Yields the collectives of an einsum that is computed by these letters.

        They bring the operands into the layout of the work, and the result into its own. `only` names
        the mesh axes to look at; () looks at all.
        """
        for tensor in einsum:
            whole = self.home(tensor)
            home = {axis: letter for axis, letter in whole.items() if not only or axis in only}
            split = [axis for axis, letter in letters.items() if letter in tensor.letters]
            turned = [axis for axis in split if axis in home and home[axis] != letters[axis]]
            if tensor is einsum[2]:
                nbytes = self.share(tensor, letters)
                summed = [axis for axis in letters if axis not in split]
                scattered = tuple(axis for axis in summed if axis in home)
                reduced = tuple(axis for axis in summed if axis not in home)
                gathered = tuple(axis for axis in split if axis not in home)
                rest = nbytes / self.size(scattered)
                moves = [("reduce-scatter", scattered, nbytes), ("all-reduce", reduced, rest)]
            else:
                rest, moves = self.local(tensor), []
                gathered = tuple(axis for axis in home if axis not in split)
            moves += [("all-to-all", (axis,), rest) for axis in turned]
            moves.append(("all-gather", gathered, rest * self.size(gathered)))
            for kind, axes, nbytes in moves:
                if axes and nbytes:
                    yield tensor, kind, axes, nbytes
