"""The weights of a run: of which checkpoint, or the mean of several."""

import contextlib
import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any, Self

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.reading import UnsoundError
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, Groups, Restored, Wanted
from gshard_nmt.run.checkpoint.manifest import DECODED, Manifest

CHECKPOINT_WORDS = (
    "best, last, a step such as 500, or average:N for the mean of the last N; with :weights at its end, "
    "as in best:weights, for the weights without Train.ema or the blend of --add_language"
)
"""The values of --checkpoint, in words."""


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Which checkpoint of a run to decode with, or to start another run from.

    Attributes:
      kind: "best", "last", "step" or "average".
      number: the step, or the number of checkpoints of the average.
      raw: whether to take the weights themselves, also if there is a moving average or a blend.
    """

    kind: str
    number: int = 0
    raw: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads "best", "last", "500" or "average:5", with or without ":weights" at the end.

        Raises:
          UserError: the text is none of these.
        """
        number = "([0-9]{1,18})"
        words = f"(?:(best|last)|{number}|average:{number})(:weights)?"
        match = re.fullmatch(words, text.strip().lower())
        if match is None:
            raise UserError(f"--checkpoint is {text!r}; it must be {CHECKPOINT_WORDS}.")
        word, step, count, raw = match.groups()
        if count is not None and int(count) < 2:
            raise UserError(
                f"--checkpoint is {text!r}; an average needs at least 2 checkpoints. Give average:2 or "
                "more, or last."
            )
        kind = word or ("average" if step is None else "step")
        return cls(kind, int(step or count or 0), bool(raw))


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Weights on their devices.

    Attributes:
      weights: the arrays by name.
      step: the training step; of an average, the newest one.
      label: names the checkpoint, or all checkpoints of the average, by their contents: no other
        weights have the same label.
      origin: the same in words, such as "step 500" or, of a moving average, "step 500 (Train.ema)".
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

    def groups(manifest: Manifest) -> Groups:
        return {manifest.group_to_decode(choice.raw): specs}

    if choice.kind == "average":
        return _average(checkpoints, choice, groups, specs)
    if choice.kind == "step":
        restored = _of_step(checkpoints, choice.number, groups)
    elif choice.kind == "last":
        restored = checkpoints.restore(groups)
    else:
        restored = checkpoints.restore_best(groups)
    manifest, ((group, weights),) = restored.manifest, restored.groups.items()
    origin = f"step {manifest.step}" + _in_words([group])
    return Loaded(weights, manifest.step, _label(manifest, choice), origin, restored.passed_over)


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
            return _joined_label(manifests, choice)
    return ""


def _of_step(checkpoints: Checkpoints, step: int, groups: Wanted) -> Restored:
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


def _average(
    checkpoints: Checkpoints, choice: Chosen, groups: Wanted, specs: Mapping[str, Any]
) -> Loaded:
    """Returns the mean of the last sound checkpoints. The sums are float64, on the host.

    A checkpoint that has a moving average or a blend counts with it, unless the raw weights were chosen.
    """
    count = choice.number
    sums = {name: _ShardSums(spec) for name, spec in specs.items()}
    manifests: list[Manifest] = []
    problems: dict[int, str] = {}
    for restored in checkpoints.sound(groups, problems):
        manifests.append(restored.manifest)
        # The next checkpoint needs the memory of this one, so nothing here may keep its arrays.
        _add(sums, restored.groups.popitem()[1])
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
    decoded = {manifest.group_to_decode(choice.raw) for manifest in manifests}
    origin = f"steps {steps}{_in_words(decoded, 'averaged')}"
    label = _joined_label(manifests, choice)
    return Loaded(weights, manifests[0].step, label, origin, tuple(problems.values()))


def _add(sums: Mapping[str, "_ShardSums"], arrays: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        sums[name].add(array)


def _joined_label(manifests: list[Manifest], choice: Chosen) -> str:
    labels = [_label(manifest, choice) for manifest in manifests]
    return labels[0] if choice.kind != "average" else "average of " + "; ".join(labels)


def _label(manifest: Manifest, choice: Chosen) -> str:
    """Returns the label of the weights that are read from a checkpoint."""
    group = manifest.group_to_decode()
    leaves_out = group != manifest.group_to_decode(choice.raw)
    return manifest.label + (f", without {DECODED[group]}" if leaves_out else "")


def _in_words(groups: Collection[str], *first: str) -> str:
    """Returns what the weights are, such as " (averaged, Train.ema)"; "" if they are as trained."""
    facts = [*first, *(words for group, words in DECODED.items() if group in groups)]
    return f" ({', '.join(facts)})" if facts else ""


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
