"""The weights to decode with: which checkpoint of a run, or the mean of several."""

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.run.checkpoint import Checkpoints, Groups, Restored
from gshard_nmt.run.manifest import Manifest, UnsoundError

CHECKPOINT_WORDS = "best, last, a step such as 500, or average:N for the mean of the last N"
"""The values of --checkpoint, in words."""


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Which checkpoint of a run to decode with.

    Attributes:
      kind: "best", "last", "step" or "average".
      number: the step, or the number of checkpoints of the average.
    """

    kind: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads "best", "last", "500" or "average:5".

        Raises:
          UserError: the text is none of these.
        """
        number = "([0-9]{1,18})"
        words = f"(best|last)|{number}|average:{number}"
        match = re.fullmatch(words, text.strip().lower())
        if match is None:
            raise UserError(f"--checkpoint is {text!r}; it must be {CHECKPOINT_WORDS}.")
        word, step, count = match.groups()
        if count is not None and int(count) < 2:
            raise UserError(
                f"--checkpoint is {text!r}; an average needs at least 2 checkpoints. Give average:2 or "
                "more, or last."
            )
        if word:
            return cls(word)
        return cls("step", int(step)) if step is not None else cls("average", int(count))


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Weights on their devices.

    Attributes:
      weights: the arrays by name.
      step: the training step; of an average, the newest one.
      label: names the checkpoint, or all checkpoints of the average, by their contents: no other
        weights have the same label.
      origin: the same in words, such as "step 500".
      passed_over: a line for each checkpoint that was tried before and could not be used.
    """

    weights: Mapping[str, Any]
    step: int
    label: str
    origin: str
    passed_over: tuple[str, ...] = ()


def load_weights(checkpoints: Checkpoints, choice: Chosen, specs: Mapping[str, Any]) -> Loaded:
    """Reads the weights that were chosen, and verifies them.

    Args:
      checkpoints: the checkpoints of the run.
      choice: which of them.
      specs: shape, dtype and sharding of each array, as jax.ShapeDtypeStruct.

    Raises:
      UserError: there is no such checkpoint, it is damaged, or too few are sound.
    """
    groups = {"parameters": specs}
    if choice.kind == "average":
        return _average(checkpoints, choice.number, specs)
    if choice.kind == "step":
        restored = _of_step(checkpoints, choice.number, groups)
    elif choice.kind == "last":
        restored = checkpoints.restore(groups)
    else:
        restored = checkpoints.restore_best(groups)
    manifest, passed_over = restored.manifest, restored.passed_over
    weights = restored.groups["parameters"]
    return Loaded(weights, manifest.step, manifest.label, f"step {manifest.step}", passed_over)


def expected_label(checkpoints: Checkpoints, choice: Chosen) -> str:
    """Returns the label that `load_weights` will give, unless arrays are damaged; "" if there is none.

    Only manifests are read.
    """
    orders = {"best": checkpoints.best_first, "step": lambda: [choice.number]}
    steps = orders.get(choice.kind, lambda: checkpoints.steps()[::-1])()
    count = choice.number if choice.kind == "average" else 1
    manifests: list[Manifest] = []
    for step in steps:
        with contextlib.suppress(UnsoundError):
            manifests.append(checkpoints.manifest(step))
        if len(manifests) == count:
            return manifests[0].label if choice.kind != "average" else _label(manifests)
    return ""


def _of_step(checkpoints: Checkpoints, step: int, groups: Groups) -> Restored:
    """Reads one checkpoint. If there is none, or it is damaged, the error lists the others."""
    steps = checkpoints.steps()
    if not steps:
        return checkpoints.restore(groups)  # raises the error that says why there is none
    listed = ", ".join(str(other) for other in steps if other != step) or "no other"
    if step not in steps:
        raise UserError(
            f"--checkpoint is {step}; {checkpoints.folder} has no checkpoint of this step, but of "
            f"{listed}. Give one of these."
        )
    problems: dict[int, str] = {}
    for restored in checkpoints.sound(groups, problems, [step]):
        return restored
    raise UserError(
        f"--checkpoint is {step}, and it cannot be used: {problems[step]}. There are checkpoints "
        f"of {listed}; give one of these, or best."
    )


def _average(checkpoints: Checkpoints, count: int, specs: Mapping[str, Any]) -> Loaded:
    """Returns the mean of the last sound checkpoints. The sums are float64, on the host."""
    sums = {name: _ShardSums(spec) for name, spec in specs.items()}
    manifests: list[Manifest] = []
    problems: dict[int, str] = {}
    for restored in checkpoints.sound({"parameters": specs}, problems):
        manifests.append(restored.manifest)
        # The next checkpoint needs the memory of this one, so nothing here may keep its arrays.
        _add(sums, restored.groups.pop("parameters"))
        if len(manifests) == count:
            break
    steps = ", ".join(str(manifest.step) for manifest in reversed(manifests))
    if len(manifests) < count:
        listed = "".join(f"\n  {line}" for line in problems.values())
        raise UserError(
            f"--checkpoint is average:{count}; {checkpoints.folder} has {len(manifests)} sound "
            f"checkpoints ({steps or 'none'}). Give a smaller number, or train with a larger "
            f"Train.keep_last.{listed}"
        )
    weights = {name: total.mean(count) for name, total in sums.items()}
    origin, passed_over = f"steps {steps} (averaged)", tuple(problems.values())
    return Loaded(weights, manifests[0].step, _label(manifests), origin, passed_over)


def _add(sums: Mapping[str, "_ShardSums"], arrays: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        sums[name].add(array)


def _label(manifests: list[Manifest]) -> str:
    return "average of " + "; ".join(manifest.label for manifest in manifests)


class _ShardSums:
    """The sums of an array over several checkpoints: float64, the shards of this process alone."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self._sums: dict[tuple, np.ndarray] = {}

    def add(self, array: Any) -> None:
        """Adds an array of one checkpoint. Copies of a shard on several devices count once."""
        shards = {self._place(shard.index): shard for shard in array.addressable_shards}
        for place, shard in shards.items():
            values = np.asarray(shard.data).astype(np.float64)
            self._sums[place] = self._sums[place] + values if place in self._sums else values

    def mean(self, count: int) -> Any:
        """Returns the mean of `count` arrays, with dtype and sharding of the spec."""
        import jax

        spec = self._spec
        return jax.make_array_from_callback(
            spec.shape,
            spec.sharding,
            lambda index: (self._sums[self._place(index)] / count).astype(spec.dtype),
        )

    def _place(self, index: tuple[slice, ...]) -> tuple:
        """Returns the first and last element of a shard in each dimension."""
        return tuple(
            part.indices(size)[:2] for part, size in zip(index, self._spec.shape, strict=True)
        )
