"""The weights of a run: of which checkpoint, or the mean of several."""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.reading import UnreadableError, UnsoundError, failure
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, Groups, Restored, Wanted
from gshard_nmt.run.checkpoint.manifest import Manifest


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Which checkpoint of a run is meant: "best", "last", a "step", or an "average" of some."""

    kind: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads "best", "last", "500" or "average:5"; raises UserError for anything else."""
        number = "([0-9]{1,18})"
        match = re.fullmatch(f"(best|last)|{number}|average:{number}", text.strip().lower())
        if match is None:
            raise UserError(
                f"--checkpoint is {text!r}; it must be best, last, a step such as 500, or average:N for "
                "the mean of the last N."
            )
        word, step, count = match.groups()
        if count is not None and int(count) < 2:
            raise UserError(
                f"--checkpoint is {text!r}; an average needs at least 2 checkpoints. Give average:2 or "
                "more, or last."
            )
        return cls(word or ("average" if step is None else "step"), int(step or count or 0))


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Weights on their devices."""

    weights: Mapping[str, Any]
    step: int  # the training step; of an average, the newest one
    label: str  # names the checkpoints by their contents: no other weights have the same label
    origin: str  # the same in words, such as "step 500" or "step 500 (Train.ema)"
    passed_over: tuple[str, ...] = ()  # a line for each checkpoint that could not be used


def load_weights(checkpoints: Checkpoints, choice: Chosen, specs: Mapping[str, Any]) -> Loaded:
    """Reads the weights that were chosen, and verifies them; raises UserError if they are not sound."""

    def groups(manifest: Manifest) -> Groups:
        return {manifest.group_to_decode: specs}

    if choice.kind == "average":
        return _average_of_last(checkpoints, choice.number, groups)
    if choice.kind == "step":
        restored = _of_step(checkpoints, choice.number, groups)
    elif choice.kind == "last":
        restored = checkpoints.restore(groups)
    else:
        restored = checkpoints.restore_best(groups)
    manifest, (weights,) = restored.manifest, restored.groups.values()
    origin = f"step {manifest.step}" + " (Train.ema)" * manifest.has_average
    return Loaded(weights, manifest.step, manifest.label, origin, restored.passed_over)


def expected_label(checkpoints: Checkpoints, choice: Chosen) -> str:
    """Returns the label that `load_weights` will give, unless arrays are damaged; "" if there is none."""
    orders = {"best": checkpoints.best_first, "step": lambda: [choice.number]}
    steps = orders.get(choice.kind, lambda: checkpoints.steps()[::-1])()
    count = choice.number if choice.kind == "average" else 1
    manifests: list[Manifest] = []
    for step in steps:
        with contextlib.suppress(UnsoundError):
            manifests.append(checkpoints.manifest(step))
        if len(manifests) == count:
            return _label(manifests) if choice.kind == "average" else manifests[0].label
    return ""


def _of_step(checkpoints: Checkpoints, step: int, groups: Wanted) -> Restored:
    """Reads one checkpoint. If there is none, or it is damaged, the error lists the others."""
    steps = checkpoints.steps()
    if not steps:
        return checkpoints.restore(groups)  # raises the error that says why there is none
    problems: dict[int, UnsoundError] = {}
    for restored in checkpoints.sound(groups, problems, [step] if step in steps else []):
        return restored
    _check_readable(checkpoints, problems)
    reason = "".join(f"it cannot be used: {line}" for line in checkpoints.lines(problems))
    listed = ", ".join(str(other) for other in steps if other != step) or "no other step"
    raise UserError(
        f"--checkpoint is {step}, and {reason or f'{checkpoints.folder} has none of this step'}. There "
        f"are checkpoints of {listed}; give one of these, or best."
    )


def _average_of_last(checkpoints: Checkpoints, count: int, groups: Wanted) -> Loaded:
    """Returns the mean of the last sound checkpoints. One with a moving average counts with it."""
    manifests: list[Manifest] = []
    problems: dict[int, UnsoundError] = {}

    def parts() -> Iterator[tuple[float, Mapping[str, Any]]]:
        for restored in checkpoints.sound(groups, problems):
            manifests.append(restored.manifest)
            yield 1.0, restored.groups.popitem()[1]
            if len(manifests) == count:
                return

    weights = average(parts())
    steps = ", ".join(str(manifest.step) for manifest in reversed(manifests))
    passed_over = checkpoints.lines(problems)
    if len(manifests) < count:
        if problems.keys() - set(checkpoints.steps()):  # its run has removed one, and saved another
            return _average_of_last(checkpoints, count, groups)
        _check_readable(checkpoints, problems)
        listed = "".join(f"\n  {line}" for line in passed_over)
        raise UserError(
            f"--checkpoint is average:{count}; {checkpoints.folder} has {len(manifests)} sound "
            f"checkpoints ({steps or 'none'}). Give a smaller number, or train with a larger "
            f"Train.keep_last.{listed}"
        )
    ema = ", Train.ema" * any(manifest.has_average for manifest in manifests)
    origin = f"steps {steps} (averaged{ema})"
    return Loaded(weights, manifests[0].step, _label(manifests), origin, tuple(passed_over))


def _check_readable(checkpoints: Checkpoints, problems: Mapping[int, UnsoundError]) -> None:
    """Raises the error of a checkpoint that cannot be read now: it may be sound."""
    for step, problem in problems.items():
        if isinstance(problem, UnreadableError) and step in checkpoints.steps():  # not removed
            raise failure(checkpoints.folder / str(step), problem)


def _label(manifests: list[Manifest]) -> str:
    return "average of " + "; ".join(manifest.label for manifest in manifests)


def average(parts: Iterable[tuple[float, Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns a weighted mean of weights on their devices, summed in float32; {} of no part.

    Only one part, a share and its arrays by name, is read at a time.
    """
    sums: dict[str, Any] = {}
    dtypes: dict[str, Any] = {}
    total = 0.0
    for share, arrays in parts:
        total += share
        for name, array in arrays.items():
            dtypes[name] = array.dtype
            values = np.float32(share) * array
            sums[name] = sums[name] + values if name in sums else values
        del arrays  # the next part needs its memory
    return {name: (s / np.float32(total)).astype(dtypes[name]) for name, s in sums.items()}
