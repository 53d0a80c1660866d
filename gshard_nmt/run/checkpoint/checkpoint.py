"""The checkpoints of a run: found, read onto any mesh, and verified; and which of them are kept.

A run has one series of checkpoints, `checkpoints/STEP/`. Each holds the whole state as named groups of
arrays, so that a decoder can read the weights alone, and a manifest with checksums. It exists from the
moment that its commit file exists. `checkpoint_writer.py` writes them.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from gshard_nmt import paths
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.reading import (
    PAUSES,
    UnreadableError,
    UnsoundError,
    exists,
    failure,
    patiently,
    reading,
)
from gshard_nmt.run.checkpoint import manifest as manifests
from gshard_nmt.run.checkpoint import tensor_files
from gshard_nmt.run.checkpoint.checksums import Checksums, compute_checksums, on_host
from gshard_nmt.run.checkpoint.manifest import ForeignError, Manifest, Scores, Tensor
from gshard_nmt.run.checkpoint.tensor_files import COMMIT_FILE
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.config import Train
from gshard_nmt.spmd.processes import ALONE, Processes

Groups = Mapping[str, Mapping[str, Any]]
"""Arrays by the names of their groups, then by their own names."""

Wanted = Groups | Callable[[Manifest], Groups]
"""The groups to read, or a function that chooses them for a checkpoint."""

Result = TypeVar("Result")
Item = TypeVar("Item")

_PROBLEMS: tuple[type[UnsoundError], ...] = (UnreadableError, UnsoundError, ForeignError)


@dataclasses.dataclass(frozen=True)
class Retention:
    """Decides which checkpoints are kept: `last` newest ones, multiples of `every`, `best` by `metric`.

    `every` = 0 turns this rule off. The metric is such as "dev_nll" or "dev_bleu/fr".
    """

    last: int = 2
    every: int = 0
    best: int = 1
    metric: str = "dev_nll"

    @classmethod
    def of(cls, train: Train) -> "Retention":
        return cls(train.keep_last, train.keep_every, train.keep_best, train.metric)

    def ranked(self, scores: Mapping[int, Scores]) -> list[int]:
        """Returns the steps that have a score, best first.

        Only checkpoints that were scored with the settings of the newest scored checkpoint take part.
        Equal BLEU is ordered by nats per token, then by step.
        """
        scored = {
            step: score
            for step, score in scores.items()
            if math.isfinite(score.values.get(self.metric, math.nan))
        }
        if not scored:
            return []
        settings = scored[max(scored)].scored_with

        def cost(step: int) -> tuple[float, ...]:
            values = scored[step].values
            if not self.metric.startswith("dev_bleu"):
                return values[self.metric], step
            nats = values.get(self.metric.replace("bleu", "nll", 1), math.inf)
            return -values[self.metric], nats if math.isfinite(nats) else math.inf, step

        return sorted((s for s in scored if scored[s].scored_with == settings), key=cost)

    def reasons(self, scores: Mapping[int, Scores]) -> dict[int, list[str]]:
        """Returns for each step why its checkpoint is kept: some of "last", "every", "best"."""
        # An average cannot be trained further, so it takes no place of one that can.
        trained = [step for step in sorted(scores) if "average_of" not in scores[step].scored_with]
        oldest = [0, *trained][-self.last :][0]
        kept = {
            "last": [step for step in scores if step >= oldest],
            "every": [step for step in scores if self.every and step % self.every == 0],
            "best": self.ranked(scores)[: self.best],
        }
        return {step: [why for why in kept if step in kept[why]] for step in sorted(scores)}


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint that has been read and verified.

    `passed_over` has a line for each checkpoint that was tried before and could not be used.
    """

    manifest: Manifest
    groups: dict[str, dict[str, Any]]
    passed_over: tuple[str, ...]


class Checkpoints:
    """The checkpoints of a run folder. Nothing in the folder is changed.

    Process 0 decides which checkpoints there are; all processes call the methods together. `pauses` are
    the seconds before each further attempt if a file cannot be read.
    """

    pauses: Sequence[float] = PAUSES

    def __init__(
        self,
        folder: Path,
        retention: Retention | None = None,
        identity: Mapping[str, str] | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Reads nothing yet. A checkpoint with other digests than `identity` is not read."""
        self.folder = folder
        self.retention = retention or Retention()
        self._identity = dict(identity or {})
        self._processes = processes
        self._scores: dict[int, Scores] = {}
        """The scores of checkpoints whose manifests were sound when they were read, by step."""
        self._damaged: dict[int, UnsoundError] = {}
        """What `restore` has found to be wrong with the arrays of checkpoints, by step."""

    @classmethod
    def of(cls, run: RunFolder, train: Train, processes: Processes = ALONE) -> Self:
        """Opens the checkpoints of a run, with its rules."""
        return cls(run.checkpoints, Retention.of(train), run.identity(), processes)

    def steps(self) -> list[int]:
        """Returns the steps of all committed checkpoints, the oldest first, as process 0 sees them."""
        return list(self._processes.from_first(self._committed))

    def newest(self) -> Manifest | None:
        """Returns the newest manifest that can be read, unless `restore` has found its arrays damaged."""
        for step in self._newest_first():
            try:
                return self._together(self.manifest, step)
            except UnsoundError as problem:
                if not problem.is_damage:  # `restore` comes to the damaged ones, and reports them
                    self._note(step, problem)
        return None

    def manifest(self, step: int) -> Manifest:
        """Reads a manifest; raises UnsoundError if it is unreadable, damaged, or of another run."""
        return patiently(lambda: self._parse(step), self.pauses)

    def kept(self) -> dict[int, list[str]]:
        """Returns why each committed checkpoint is kept: "last", "every", "best"; or nothing."""
        return self.retention.reasons(self._read_scores()[0])

    def best_first(self) -> list[int]:
        """Returns the steps in the order in which a decoder tries them: best, then newest first."""

        def order() -> list[int]:
            best = self.retention.ranked(self._read_scores()[0])[: self.retention.best]
            return [*best, *(s for s in self._committed()[::-1] if s not in best)]

        return list(self._processes.from_first(order))

    def restore(self, groups: Wanted, steps: Sequence[int] | None = None) -> Restored:
        """Reads the first sound checkpoint, places its arrays as their shardings say, and verifies them.

        Args:
          groups: for each group to read, its arrays as jax.ShapeDtypeStruct with shardings.
          steps: the checkpoints to try, in this order; None means all that are not known to be damaged,
            the newest first.

        Raises:
          UserError: none of them is sound. The message says what is wrong with each.
          TryAgain: none of them is sound, and one cannot be read now.
        """
        problems: dict[int, UnsoundError] = {}
        for restored in self.sound(groups, problems, steps):
            return restored
        known = self._damaged if steps is None else {}
        raise self._nothing(known | problems)

    def restore_best(self, groups: Wanted) -> Restored:
        """Reads the best sound checkpoint as `restore` does.

        Its run may go on, and remove a checkpoint while this reads it. So the checkpoints are listed
        again after each one that cannot be used.
        """
        problems: dict[int, UnsoundError] = {}
        while steps := [step for step in self.best_first() if step not in problems]:
            for restored in self.sound(groups, problems, steps[:1]):
                return restored
        raise self._nothing(problems)

    def sound(
        self, groups: Wanted, problems: dict[int, UnsoundError], steps: Sequence[int] | None = None
    ) -> Iterator[Restored]:
        """Yields each sound checkpoint as `restore` reads it; adds the others to `problems`."""
        for step in self._newest_first() if steps is None else steps:
            try:
                manifest, arrays = self._read(step, groups)
            except UnsoundError as problem:
                self._note(step, problem)
                problems[step] = problem
            else:
                yield Restored(manifest, arrays, tuple(self.lines(problems)))

    def lines(self, problems: Mapping[int, UnsoundError]) -> list[str]:
        """Returns a line for each checkpoint that cannot be used."""
        return [f"{self.folder / str(step)}: {problem}" for step, problem in problems.items()]

    def read(self, manifest: Manifest, group: str, name: str) -> np.ndarray:
        """Reads one tensor to the host, and verifies it; raises UnsoundError if it is damaged."""
        tensor, key = manifest.tensors[group][name], f"{group}/{name}"
        array = self._load(
            manifest.step, lambda folder: tensor_files.load_to_host(folder, group, name, tensor)
        )
        _verify({key: tensor}, {key: on_host(array, tensor.letters)})
        return array

    def _nothing(self, problems: Mapping[int, UnsoundError]) -> UserError | TryAgain:
        """Returns the error that no checkpoint can be used."""
        for step, problem in problems.items():
            if isinstance(problem, UnreadableError):
                return failure(self.folder / str(step), problem)
        if problems:
            return UserError(
                "no checkpoint can be used:\n  "
                + "\n  ".join(self.lines(problems))
                + "\nRestore one of these folders from a copy, or start again with a new --workdir."
            )
        return UserError(
            f"{self.folder} has no checkpoint; train with gshard-train first, or give the run folder "
            "of a run that has saved one."
        )

    def _read(self, step: int, groups: Wanted) -> tuple[Manifest, dict[str, dict[str, Any]]]:
        """Reads and verifies a checkpoint. If it is unsound for one process, it is so for all."""
        manifest = self._together(self.manifest, step)
        if self._processes.count > 1:
            # It may have got its scores between the reads of two processes.
            manifest = Manifest.parse(self._processes.from_first(lambda: manifest.text))

        def load(step: int) -> dict[str, dict[str, Any]]:
            chosen = groups(manifest) if callable(groups) else groups
            for group, arrays in chosen.items():
                manifest.check_arrays(group, arrays)
            return self._load(
                step, lambda folder: tensor_files.load(folder, chosen, manifest.places)
            )

        arrays = self._together(load, step)
        tensors = flat(manifest.tensors)
        letters = {name: tensor.letters for name, tensor in tensors.items()}
        _verify(tensors, compute_checksums(flat(arrays), letters))
        return manifest, arrays

    def _together(self, read: Callable[[int], Result], step: int) -> Result:
        """Calls a function in every process; raises UnsoundError in all of them if it does in one.

        Of different problems, all raise the last of `_PROBLEMS`: so no process calls a checkpoint damaged
        if another one says that it is foreign.
        """
        problem: UnsoundError | None = None
        try:
            result = read(step)
        except UnsoundError as error:
            problem = error
        advice = getattr(problem, "advice", "")
        said = problem and [_PROBLEMS.index(type(problem)), str(problem), advice]
        told = self._processes.gather(said)
        if not any(told):
            return result
        (kind, text, advice), process = max((said, i) for i, said in enumerate(told) if said)
        if self._processes.count > 1:
            text = f"process {process} cannot read it: {text}"
        raise (UnreadableError(text, advice) if kind == 0 else _PROBLEMS[kind](text)) from problem

    def _load(self, step: int, load: Callable[[Path], Any]) -> Any:
        """Calls a function that reads arrays in a folder; raises UnsoundError if that fails."""
        import jax

        def attempt() -> Any:
            try:
                return load(self.folder / str(step))
            except (jax.errors.JaxRuntimeError, MemoryError):
                raise  # the memory is too small, or a device has failed
            except Exception as error:  # damaged files raise errors of many types
                problem = tensor_files.problem_of(error)
                if problem.is_damage:
                    # Files are missing too if the run removes this checkpoint now.
                    self._check_committed(step)
                raise problem from error

        return patiently(attempt, self.pauses)

    def _check_committed(self, step: int) -> None:
        """Raises UnreadableError if a checkpoint is not, or no longer, committed."""
        if not exists(self.folder / str(step) / COMMIT_FILE):
            raise UnreadableError(
                f"{COMMIT_FILE} is missing: it was not finished, or has been removed"
            )

    def _parse(self, step: int, committed: bool = True) -> Manifest:
        """Reads a manifest once. The errors are as of `manifest`."""
        if committed:
            self._check_committed(step)
        file = self.folder / str(step) / manifests.NAME
        try:
            with reading(file):
                text = file.read_bytes().decode("utf-8")
        except FileNotFoundError:
            raise UnsoundError(f"{manifests.NAME} is missing") from None
        except UnicodeDecodeError as error:
            raise UnsoundError(f"{manifests.NAME} is damaged: {error}") from None
        manifest = Manifest.parse(text)
        if manifest.step != step:
            raise UnsoundError(f"its manifest is of step {manifest.step}")
        manifest.check_files(self._identity)
        return manifest

    def _note(self, step: int, problem: UnsoundError) -> None:
        if problem.is_damage:
            self._damaged[step] = problem

    def _newest_first(self) -> list[int]:
        """Returns the steps that are not known to be damaged: the same in all processes."""
        return [step for step in reversed(self.steps()) if step not in self._damaged]

    def _folders(self) -> list[int]:
        """Returns the steps of all folders of checkpoints, sorted, committed or not."""

        def names() -> set[str]:
            with reading(self.folder):
                return {path.name for path in paths.entries(self.folder)}

        return sorted(int(name) for name in self._look(names) if name.isdecimal())

    def _committed(self) -> list[int]:
        """Returns the steps of all committed checkpoints, sorted, as this process sees them."""
        files = {step: self.folder / str(step) / COMMIT_FILE for step in self._folders()}
        return [step for step, file in files.items() if self._look(functools.partial(exists, file))]

    def _look(self, read: Callable[[], Result]) -> Result:
        """Calls a function that looks at the folder; raises UserError or TryAgain if that fails."""
        with usable(self.folder):
            return patiently(read, self.pauses)

    def _read_scores(self) -> tuple[dict[int, Scores], dict[int, UnsoundError]]:
        """Returns the scores of each checkpoint that can be used, and what is wrong with the others."""
        scores: dict[int, Scores] = {}
        problems: dict[int, UnsoundError] = {}
        for step in self._committed():
            try:
                if step in self._damaged:
                    raise self._damaged[step]
                if step not in self._scores:
                    self._scores[step] = self.manifest(step).scores
                scores[step] = self._scores[step]
            except UnsoundError as problem:
                problems[step] = problem
        return scores, problems


@contextlib.contextmanager
def usable(what: str | Path, remedy: str = "") -> Iterator[None]:
    """Turns an UnsoundError of the block into the error that ends the program."""
    try:
        yield
    except UnreadableError as problem:
        raise failure(what, problem) from problem
    except UnsoundError as problem:
        raise UserError(f"{what}: {problem}{remedy}") from problem


def flat(groups: Mapping[str, Mapping[str, Item]]) -> dict[str, Item]:
    return {
        f"{group}/{name}": item for group, items in groups.items() for name, item in items.items()
    }


def _verify(tensors: Mapping[str, Tensor], checksums: Mapping[str, Checksums]) -> None:
    """Raises UnsoundError if a tensor has other checksums than the manifest says."""
    for name in sorted(checksums):
        if where := tensors[name].differing(checksums[name].sums):
            raise UnsoundError(f"{name} is damaged: {where}")
