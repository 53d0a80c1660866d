"""The checkpoints of a run: found, read onto any mesh, and verified.

A run has one series of checkpoints, `checkpoints/STEP/`. Each holds the whole state as named groups of
arrays, so that a decoder can read the weights alone, and a manifest with checksums. It exists from the
moment that its commit file exists. `checkpoint_writer.py` writes them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.run import manifest as manifests
from gshard_nmt.run import tensor_files
from gshard_nmt.run.checksums import on_devices, on_host
from gshard_nmt.run.manifest import ForeignError, Manifest, UnsoundError
from gshard_nmt.run.retention import Retention, Scores
from gshard_nmt.run.tensor_files import COMMIT_FILE
from gshard_nmt.spmd.processes import ALONE, Processes

Groups = Mapping[str, Mapping[str, Any]]
"""Arrays by the names of their groups, then by their own names."""

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint that has been read and verified.

    Attributes:
      manifest: its manifest, with the step.
      groups: the arrays.
      passed_over: a line for each checkpoint that was tried before and could not be used.
    """

    manifest: Manifest
    groups: dict[str, dict[str, Any]]
    passed_over: tuple[str, ...]


_REASON_BYTES = 240
"""What processes tell each other about a checkpoint that they cannot read has this length."""


class Checkpoints:
    """The checkpoints of a run folder.

    Nothing in the folder is changed. Process 0 decides which checkpoints there are. If there are several
    processes, all of them call the methods together.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention | None = None,
        identity: Mapping[str, str] | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Reads nothing yet.

        Args:
          folder: `checkpoints/` in the run folder.
          retention: which checkpoints to keep; None gives the defaults.
          identity: digests of what must not change in a run. They are recorded in each checkpoint, and a
            checkpoint with other digests is not read.
          processes: the processes of the run.
        """
        self.folder = folder
        self.retention = retention or Retention()
        self._identity = dict(identity or {})
        self._processes = processes
        self._scores: dict[int, Scores] | None = None
        self._damaged: set[int] = set()

    def steps(self) -> list[int]:
        """Returns the steps of all committed checkpoints, the oldest first, as process 0 sees them.

        Raises:
          UserError: the folder has checkpoints of an older version of this package.
        """
        return self._of_first_process(self._committed())

    def newest(self) -> Manifest | None:
        """Returns the newest manifest that can be read; None if there is no checkpoint."""
        for step in reversed(self.steps()):
            try:
                return self._together(self.manifest, step)
            except UnsoundError:
                continue
        return None

    def manifest(self, step: int) -> Manifest:
        """Reads the manifest of a checkpoint.

        Raises:
          UnsoundError: it cannot be read, is damaged, or belongs to another run.
        """
        if not (self.folder / str(step) / COMMIT_FILE).exists():
            raise UnsoundError(
                f"{COMMIT_FILE} is missing: it was not finished, or is being removed"
            )
        try:
            text = (self.folder / str(step) / manifests.NAME).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UnsoundError(f"{manifests.NAME} is missing") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UnsoundError(f"{manifests.NAME} cannot be read: {error}") from None
        manifest = Manifest.parse(text)
        if manifest.step != step:
            raise UnsoundError(f"its manifest is of step {manifest.step}")
        manifest.check_files(self._identity)
        return manifest

    def kept(self) -> dict[int, list[str]]:
        """Returns why each committed checkpoint is kept: "last", "every", "best"; or nothing."""
        return self.retention.reasons(self._read_scores())

    def best_first(self) -> list[int]:
        """Returns the steps in the order in which a decoder tries them: best, then newest first."""
        best = self.retention.ranked(self._read_scores())[: max(self.retention.best, 0)]
        return self._of_first_process(
            [*best, *(s for s in self._committed()[::-1] if s not in best)]
        )

    def restore(self, groups: Groups, steps: Sequence[int] | None = None) -> Restored:
        """Reads the first sound checkpoint, places its arrays as their shardings say, and verifies them.

        Args:
          groups: for each group to read, its arrays as jax.ShapeDtypeStruct with shardings.
          steps: the checkpoints to try, in this order; None means all, the newest first.

        Raises:
          UserError: none of them is sound. The message says what is wrong with each.
        """
        problems = []
        for step in self.steps()[::-1] if steps is None else steps:
            try:
                manifest, arrays = self._read(step, groups)
            except UnsoundError as problem:
                self._note(step, problem)
                problems.append(f"{self.folder / str(step)}: {problem}")
            else:
                return Restored(manifest, arrays, tuple(problems))
        if not problems:
            raise UserError(
                f"{self.folder} has no checkpoint; train with gshard-train first, or give the run folder "
                "of a run that has saved one."
            )
        raise UserError(
            "no checkpoint can be used:\n  "
            + "\n  ".join(problems)
            + "\nRestore one of these folders from a copy, or start again with a new --workdir."
        )

    def read(self, manifest: Manifest, group: str, name: str) -> np.ndarray:
        """Reads one tensor to the host, and verifies it.

        Raises:
          UnsoundError: it is damaged.
        """
        tensor = manifest.tensors[group][name]
        arguments = (group, name, tensor.shape, tensor.dtype, tensor.place)
        array = self._loading(tensor_files.load_to_host, manifest.step, *arguments)
        _check(group, {name: on_host(array, tensor.letters)}, manifest)
        return array

    def _read(self, step: int, groups: Groups) -> tuple[Manifest, dict[str, dict[str, Any]]]:
        """Reads and verifies a checkpoint. If it is unsound for one process, it is so for all.

        Raises:
          UnsoundError: it is damaged, incomplete, or of another run.
        """

        def load(step: int) -> tuple[Manifest, dict[str, dict[str, Any]]]:
            manifest = self.manifest(step)
            for group, arrays in groups.items():
                manifest.check_arrays(group, arrays)
            return manifest, self._loading(tensor_files.load, step, groups, manifest.places)

        manifest, arrays = self._together(load, step)
        letters = {
            f"{group}/{name}": tensor.letters
            for group, tensors in manifest.tensors.items()
            for name, tensor in tensors.items()
        }
        checksums = on_devices(flat(arrays), letters)
        for group in groups:
            _check(group, {name: checksums[f"{group}/{name}"] for name in arrays[group]}, manifest)
        return manifest, arrays

    def _loading(self, load: Callable[..., Any], step: int, *arguments: Any) -> Any:
        """Calls a function that reads arrays; raises UnsoundError if their files are damaged."""
        import jax

        try:
            return load(self.folder / str(step), *arguments)
        except (jax.errors.JaxRuntimeError, MemoryError):
            raise  # the memory is too small, or a device has failed
        except Exception as error:  # damaged files raise errors of many types
            reason = str(error).strip().partition("\n")[0][:200]
            raise UnsoundError(f"its arrays cannot be read: {reason}") from error

    def _note(self, step: int, problem: UnsoundError) -> None:
        """Remembers a damaged checkpoint: it is removed after the next one has been committed."""
        if not isinstance(problem, ForeignError):
            self._damaged.add(step)

    def _committed(self) -> list[int]:
        """Returns the steps of all committed checkpoints, as this process sees them."""
        if not self.folder.is_dir():
            return []
        names = [path.name for path in self.folder.iterdir()]
        if {"last", "best"} & set(names):
            raise UserError(
                f"{self.folder} has checkpoints of an older version of gshard-nmt, in last/ and best/. "
                "Use that version, or start again with a new --workdir."
            )
        steps = sorted(int(name) for name in names if name.isdecimal())
        return [step for step in steps if (self.folder / str(step) / COMMIT_FILE).exists()]

    def _read_scores(self) -> dict[int, Scores]:
        """Returns the scores of each committed checkpoint; none for a checkpoint that is unsound."""
        if self._scores is None:
            self._scores = {}
            for step in self._committed():
                try:
                    self._scores[step] = self.manifest(step).scores
                except UnsoundError as problem:
                    self._note(step, problem)
        return {step: s for step, s in self._scores.items() if step not in self._damaged}

    def _of_first_process(self, numbers: list[int]) -> list[int]:
        """Returns the numbers of process 0 in every process."""
        if self._processes.count == 1:
            return numbers
        counts = self._processes.gather(np.array([len(numbers)]))[:, 0]
        padded = np.zeros(counts.max(), np.int64)
        padded[: len(numbers)] = numbers
        return self._processes.gather(padded)[0, : counts[0]].tolist()

    def _together(self, read: Callable[[int], Result], step: int) -> Result:
        """Calls a function in every process; raises UnsoundError in all of them if it does in one."""
        problem: UnsoundError | None = None
        try:
            result = read(step)
        except UnsoundError as error:
            problem = error
        reason = b"" if problem is None else (str(problem) or "unknown").encode()[:_REASON_BYTES]
        # All words of a process are 0 if it has no problem.
        words = np.frombuffer(reason.ljust(_REASON_BYTES, b"\0"), np.int64)
        reasons = self._processes.gather(words)
        if problem is not None:
            raise problem
        if (failed := reasons.any(axis=1)).any():
            process = int(failed.argmax())
            text = reasons[process].tobytes().rstrip(b"\0").decode(errors="replace")
            raise UnsoundError(f"process {process} cannot read it: {text}")
        return result


def flat(groups: Groups) -> dict[str, Any]:
    """Returns the arrays of all groups by "group/name"."""
    return {
        f"{group}/{name}": array
        for group, arrays in groups.items()
        for name, array in arrays.items()
    }


def _check(group: str, checksums: Mapping[str, Any], manifest: Manifest) -> None:
    """Raises UnsoundError if a tensor of a group has other checksums than the manifest."""
    for name in sorted(checksums):
        if where := manifest.tensors[group][name].damaged(checksums[name]):
            raise UnsoundError(f"{group}/{name} is damaged: {where}")
