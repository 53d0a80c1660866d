"""Writes the checkpoints of a run: sharded, asynchronous, atomic.

Orbax writes the arrays in the background, then the manifest and the commit file are written. Nothing is
renamed, because a rename is not atomic on object stores and on buckets that are mounted. A checkpoint
is removed only after a newer one has been committed.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files, paths
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run import manifest as manifests
from gshard_nmt.run import tensor_files
from gshard_nmt.run.checkpoint import Checkpoints, Groups, flat
from gshard_nmt.run.checksums import NotFiniteError, on_devices, program
from gshard_nmt.run.manifest import Manifest, Tensor
from gshard_nmt.run.retention import Retention, Scores
from gshard_nmt.spmd.processes import ALONE, Processes


class CheckpointWriter(Checkpoints):
    """The checkpoints of a run folder, for the processes that train it."""

    def __init__(
        self,
        folder: Path,
        retention: Retention | None = None,
        identity: Mapping[str, str] | None = None,
        processes: Processes = ALONE,
        on_commit: Callable[[Manifest], None] | None = None,
    ) -> None:
        """Writes nothing yet.

        Args:
          folder, retention, identity, processes: as for `Checkpoints`.
          on_commit: process 0 calls it in the background for each checkpoint, just before the commit.
        """
        super().__init__(folder, retention, identity, processes)
        self._on_commit = on_commit
        self._writer: Any = None
        self._pending: Manifest | None = None

    def start_saving(self) -> list[int]:
        """Prepares to save: makes the folder, and removes what killed saves have left.

        Returns:
          The steps of the checkpoints that were not finished and have been removed.
        """
        left = []
        if self._processes.is_first:
            self.folder.mkdir(parents=True, exist_ok=True)
            committed = set(self._committed())
            for path in paths.entries(self.folder):
                if path.name.isdecimal() and int(path.name) not in committed:
                    tensor_files.remove(path)
                    left.append(int(path.name))
        self._processes.barrier("ready to save checkpoints")
        self._writer = tensor_files.new_writer(self._write_manifest)
        return self._of_first_process(sorted(left))

    def prepare(self, groups: Groups, letters: Mapping[str, Mapping[str, str]]) -> None:
        """Compiles the program that computes the checksums, so that the first save need not.

        Args:
          groups: the shapes, dtypes and shardings of the arrays that will be saved.
          letters: as for `save`.
        """
        program(flat(groups), flat(letters))

    def would_be_best(self, step: int, scores: Scores) -> bool:
        """Returns whether a checkpoint with these scores would be kept because it is one of the best."""
        others = {s: v for s, v in self._read_scores().items() if s != step}
        best = self.retention.ranked({**others, step: scores})[: self.retention.best]
        return bool(self._of_first_process([int(step in best)])[0])

    def save(
        self,
        step: int,
        groups: Groups,
        letters: Mapping[str, Mapping[str, str]],
        facts: Mapping[str, Any],
        scores: Scores | None = None,
        average_of: Sequence[str] = (),
    ) -> bool:
        """Writes a checkpoint in the background, unless this step has a sound one.

        It first waits until the previous checkpoint is committed, and removes those that are no longer
        kept. Arrays on devices are copied before this returns, so the next step may reuse their memory.

        Args:
          step: training steps done.
          groups: the arrays.
          letters: the letters of the arrays of each group, for checksums of each expert.
          facts: JSON values.
          scores: the scores of this step, if it was validated.
          average_of: the checkpoints whose average this is.

        Returns:
          Whether a checkpoint is being written.

        Raises:
          NotFiniteError: a value is infinite or not a number. Nothing is written.
          UserError: this checkpoint or the previous one cannot be written.
        """
        if self._writer is None:
            self.start_saving()
        self.wait()
        known = self._read_scores()
        if step in self.steps() and step not in self._damaged:
            if step in known:
                return False
            raise UserError(
                f"{self.folder / str(step)} is a checkpoint of another run or another version of "
                "gshard-nmt. Move it away, or start again with a new --workdir."
            )
        manifest = self._describe(step, groups, letters, facts, scores or Scores(), average_of)
        tree, places = tensor_files.pack(groups)
        manifest = manifest.placed(places)
        with self._writing(step):
            folder = self.folder / str(step)
            if self._processes.is_first:
                tensor_files.remove(folder)
            self._pending = manifest
            save = tensor_files.orbax().args.PyTreeSave(tree)
            # With `force` only process 0 asks whether the folder exists.
            self._writer.save(tensor_files.location(folder), args=save, force=True)
        self._damaged.discard(step)
        self._scores = {**known, step: manifest.scores}
        return True

    def check_for_errors(self) -> None:
        """Raises UserError if the checkpoint that is being written in the background has failed."""
        if self._writer is not None and self._pending is not None:
            with self._writing(self._pending.step):
                self._writer.check_for_errors()

    def wait(self) -> None:
        """Waits until the last checkpoint is committed, then removes those that are no longer kept.

        Raises:
          UserError: it could not be written.
        """
        if self._writer is None or self._pending is None:
            return
        step = self._pending.step
        with self._writing(step):
            self._writer.wait_until_finished()
        self._pending = None
        reasons = self.kept()
        superseded = {other for other, words in reasons.items() if not words} | self._damaged
        if self._processes.is_first:
            for other in superseded - {step}:
                tensor_files.remove(self.folder / str(other))
        self._damaged.clear()
        self._scores = {s: v for s, v in self._read_scores().items() if s not in superseded}

    def close(self) -> None:
        """Waits for the last checkpoint, then ends the background threads."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                # It raises again what `wait` has reported.
                with contextlib.suppress(OSError, ValueError, RuntimeError):
                    self._writer.close()
            self._writer = self._pending = None

    def _describe(
        self,
        step: int,
        groups: Groups,
        letters: Mapping[str, Mapping[str, str]],
        facts: Mapping[str, Any],
        scores: Scores,
        average_of: Sequence[str],
    ) -> Manifest:
        """Returns the manifest of a checkpoint; raises NotFiniteError if a value is not finite."""
        flat_letters = flat(letters)
        checksums = on_devices(flat(groups), flat_letters)
        if bad := {name: c.not_finite for name, c in checksums.items() if c.not_finite}:
            raise NotFiniteError(bad)
        tensors = {
            group: {
                name: Tensor(
                    tuple(array.shape),
                    np.dtype(array.dtype).name,
                    flat_letters.get(f"{group}/{name}", ""),
                    checksums[f"{group}/{name}"].sums,
                )
                for name, array in arrays.items()
            }
            for group, arrays in groups.items()
        }
        return Manifest(step, tensors, self._identity, facts, scores, tuple(average_of))

    def _write_manifest(self) -> None:
        """Writes the manifest; orbax calls it in process 0, just before it writes the commit file."""
        manifest = self._pending
        assert manifest is not None
        files.write(self.folder / str(manifest.step) / manifests.NAME, manifest.text)
        if self._on_commit is not None:
            self._on_commit(manifest)

    @contextlib.contextmanager
    def _writing(self, step: int) -> Iterator[None]:
        """Turns the errors of writing into a UserError that names the checkpoint."""
        import jax

        try:
            yield
        except jax.errors.JaxRuntimeError:
            raise  # it is about another process, or about a device
        except TimeoutError as error:
            self._pending = None
            raise TryAgain(
                f"the checkpoint of step {step} was not finished, because another process did not "
                f"answer: {error} Start all processes again with the same commands."
            ) from error
        except (OSError, ValueError, RuntimeError) as error:
            self._pending = None
            reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[-1]
            raise UserError(
                f"the checkpoint of step {step} cannot be written to {self.folder}: {reason}. Free some "
                "space or mend the disk, then start the same command again; the earlier checkpoints are "
                "still there."
            ) from error
