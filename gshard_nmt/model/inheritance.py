"""Which weights of a trained model the weights of a new one begin with, by name, layer and expert.

A weight of a stack is compared layer by layer, so the blocks of both models may differ:

    old model, dense                      new model, Model.moe_every = 2
    layer 0   feed_forward_0, repeat 0    moe_0, repeat 0            each expert is a copy
    layer 1   feed_forward_0, repeat 1    feed_forward_1, repeat 0   copied

If the depths differ, layer i of n begins with layer floor(i m / n) of the old m layers. Blocks are kept
together if both depths divide into blocks of both models. A second copy of a layer is silent: its output
projections and their biases are 0. All sub-layers are residual, so the deeper model computes the same
function at first (LLaMA Pro, Wu et al. 2024, section 3.2). With `Model.norm_place = 'after'` it does not:
the silent sub-layer still normalizes the sum.

If the numbers of experts differ, expert j begins with the old expert j mod E. Dense feed-forwards become
experts that are all equal, with a new gate (Komatsuzaki et al. 2023, "Sparse Upcycling", section 3.1).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gshard_nmt.model.config import Model

_OUTPUTS = ("output", "wo")
"""The last words of the names of output projections. A bias has `_bias` after them."""


class Shaped(Protocol):
    """An array or its description: a shape, and a letter for each dimension."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""

    @property
    def letters(self) -> str:
        """The letter of each dimension."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a weight, or one repeat of a weight of a stack, begins with."""

    name: str  # the old weight
    repeat: int | None = None  # its repeat; None if the old weight is not of a stack
    # the letter of the dimension whose size changes: "V" or "L" for rows, "E" for experts, "_" for
    # the columns of a gate; "" if none does
    resized: str = ""
    upcycled: bool = False  # whether a dense matrix becomes the matrix of each expert
    silent: bool = False  # whether the values become 0


Origins = Sequence[Origin | None]
"""The origin of each repeat of a weight, or of a whole weight as the only entry. None is a new value."""


@dataclasses.dataclass(frozen=True)
class _Side:
    """One of the two models: its settings, and its weights by name."""

    model: Model
    weights: Mapping[str, Shaped]


def origins(
    old: Model, old_weights: Mapping[str, Shaped], new: Model, new_weights: Mapping[str, Shaped]
) -> dict[str, Origins]:
    sides = _Side(old, old_weights), _Side(new, new_weights)
    return {
        name: _of_stack(name, *sides) if "/block/" in name else [_of_rows(name, *sides)]
        for name in new_weights
    }


def layer_map(old: Model, new: Model, stack: str) -> list[tuple[int, bool]]:
    """Returns for each layer of a new stack the old layer, and whether the new one is silent."""
    depths = old.depth(stack), new.depth(stack)
    # Whole blocks stay together, so that layers with experts come from layers with experts.
    unit = math.lcm(old.block_layers(stack), new.block_layers(stack))
    if depths[0] % unit or depths[1] % unit:
        unit = 1
    before, after = (depth // unit for depth in depths)
    if not before:
        return []
    units = [i * before // after for i in range(after)]
    return [
        (units[i] * unit + j, i > 0 and units[i] == units[i - 1])
        for i in range(after)
        for j in range(unit)
    ]


def _of_rows(name: str, old: _Side, new: _Side) -> Origin | None:
    """Returns the origin of a weight that is not of a stack: an embedding, a bias, or a final norm."""
    after = new.weights[name]
    if name == "source_embedding" and old.model.shared_embedding:
        name = "target_embedding"
    if name not in old.weights:
        return None
    before = old.weights[name]
    if after.letters[0] in "VL" and before.shape[1:] == after.shape[1:]:
        # Two vocabularies of equal size may have other pieces.
        is_equal = after.letters[0] == "L" and before.shape == after.shape
        return Origin(name, resized="" if is_equal else after.letters[0])
    return Origin(name) if before.shape == after.shape else None


def _of_stack(name: str, old: _Side, new: _Side) -> list[Origin | None]:
    stack, _, place = name.partition("/block/")
    sublayer, _, word = place.partition("/")
    kind, _, number = sublayer.rpartition("_")
    layers = layer_map(old.model, new.model, stack)
    repeats: list[Origin | None] = []
    for repeat in range(new.model.repeats(stack)):
        layer = repeat * new.model.block_layers(stack) + int(number)
        if not layers:
            repeats.append(None)
            continue
        old_layer, silent = layers[layer]
        old_repeat, old_number = divmod(old_layer, old.model.block_layers(stack))
        names = [f"{stack}/block/{kind}_{old_number}/{word}"]
        if kind == "moe":
            names.append(f"{stack}/block/feed_forward_{old_number}/{word}")
        origin = next(
            (_fitting(n, old_repeat, old, new.weights[name]) for n in names if n in old.weights),
            None,
        )
        if origin and silent and word.rpartition("/")[2].removesuffix("_bias") in _OUTPUTS:
            origin = dataclasses.replace(origin, silent=True)
        repeats.append(origin)
    return repeats


def _fitting(name: str, repeat: int, old: _Side, new: Shaped) -> Origin | None:
    """Returns the origin of a repeat in an old weight; None if their shapes do not fit."""
    before = dict(zip(old.weights[name].letters[1:], old.weights[name].shape[1:], strict=True))
    after = dict(zip(new.letters[1:], new.shape[1:], strict=True))
    upcycled = "E" in after and "E" not in before
    if upcycled:
        before = {"E": after["E"]} | before
    resized = [letter for letter in after if before.get(letter) != after[letter]]
    if before.keys() != after.keys() or any(letter not in "E_" for letter in resized):
        return None
    return Origin(name, repeat, "".join(resized), upcycled)


def describe(name: str, entries: Origins, before: Mapping[str, Shaped], after: Shaped) -> str:
    """Returns in words what a weight begins as, such as "copied"."""
    if not any(entries):
        if name not in before:
            return "new"
        return f"new: it is {'x'.join(map(str, before[name].shape))} in the run"
    changes = {_change(o, before[o.name], after): None for o in entries if o}
    words = "; ".join(changes)
    in_order = [Origin(name, repeat) for repeat in range(len(entries))]
    sources = [o and Origin(o.name, o.repeat, silent=o.silent) for o in entries]
    if "/block/" not in name or sources == in_order:
        return words
    return f"{words}: {', '.join(_place(o) for o in entries)}"


def _place(origin: Origin | None) -> str:
    if origin is None:
        return "new"
    sublayer = origin.name.partition("/block/")[2].partition("/")[0]
    return f"{sublayer}[{origin.repeat}]" + " times 0" * origin.silent


def _change(origin: Origin, before: Shaped, after: Shaped) -> str:
    sizes = dict(zip(after.letters, after.shape, strict=True))
    if origin.upcycled:
        return f"copied to each of {sizes['E']} experts"
    if origin.resized in ("E", "_"):
        number, wanted = before.shape[before.letters.index(origin.resized)], sizes[origin.resized]
        if wanted < number:
            return f"experts 0 to {wanted - 1} of {number} copied"
        return f"expert j begins as expert j mod {number}"
    if origin.resized == "L":
        return f"{min(before.shape[0], after.shape[0])} of {after.shape[0]} positions copied"
    return "copied"


def left_out(planned: Mapping[str, Origins], old_weights: Mapping[str, Shaped]) -> dict[str, str]:
    """Returns the old weights that are not used, or only in part, and which part of them is not."""
    used: dict[str, set[Any]] = {}
    for entries in planned.values():
        for origin in filter(None, entries):
            used.setdefault(origin.name, set()).add(origin.repeat)
    unused = {}
    for name, weight in old_weights.items():
        if name not in used:
            unused[name] = "all of it"
        elif "/block/" in name:
            missing = sorted(set(range(weight.shape[0])) - used[name])
            if missing:
                unused[name] = f"repeats {', '.join(map(str, missing))}"
    return unused
