"""Writes the checkpoints of a run: sharded, asynchronous, atomic.

Orbax writes the arrays in the background, then the manifest and the commit file are written. Nothing is
renamed, because a rename is not atomic on object stores and on buckets that are mounted. A checkpoint
is removed only after a newer one has been committed.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt import files
from gshard_nmt.data.reading.rows import listed
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.reading import UnreadableError, UnsoundError, exists, failure, patiently
from gshard_nmt.run.checkpoint import manifest as manifests
from gshard_nmt.run.checkpoint import tensor_files
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, Groups, flat, usable
from gshard_nmt.run.checkpoint.checksums import NotFiniteError, compute_checksums
from gshard_nmt.run.checkpoint.manifest import ForeignError, Manifest, Scores, Tensor


class CheckpointWriter(Checkpoints):
    """The checkpoints of a run folder, for the processes that train it.

    Process 0 calls `on_commit` in the background just before each commit.
    """

    on_commit: Callable[[Manifest], None] = staticmethod(lambda _: None)
    _writer: Any = None
    _pending: Manifest | None = None

    def adopt(self) -> list[int]:
        """Commits the checkpoints that are complete except for their commit file. Returns their steps.

        A kill or a copy may have cost them this file. The manifest is written when everything else is
        there, so a folder with a sound manifest is complete. Its arrays are verified when they are read.
        """
        return self._processes.from_first(lambda: [*filter(self._commit, self._unfinished())])

    def _commit(self, step: int) -> bool:
        """Commits a checkpoint if its manifest is sound."""
        folder = self.folder / str(step)
        try:
            patiently(functools.partial(self._parse, step, committed=False), self.pauses)
        except UnreadableError as problem:
            raise failure(folder, problem) from problem
        except UnsoundError:
            return False
        with self._writing(step):
            text = "This checkpoint had lost this file. Its manifest is sound.\n"
            files.write(folder / tensor_files.COMMIT_FILE, text)
        return True

    def _unfinished(self) -> list[int]:
        committed = set(self._committed())
        return [step for step in self._folders() if step not in committed]

    def start_saving(self) -> list[int]:
        """Makes the folder; removes, after `adopt`, what killed saves have left. Returns their steps."""
        self.adopt()

        def tidy() -> list[int]:
            self.folder.mkdir(parents=True, exist_ok=True)
            return [step for step in self._unfinished() if self._remove_unfinished(step)]

        removed: list[int] = self._processes.from_first(tidy)
        self._processes.barrier("ready to save checkpoints")
        self._writer = tensor_files.new_writer(self._write_manifest, self._processes.count)
        return removed

    def _remove_unfinished(self, step: int) -> bool:
        """Removes a folder that is not committed, unless it belongs to another run."""
        try:
            self._parse(step, committed=False)
        except UnsoundError as problem:
            if not problem.is_damage:
                return False
        with contextlib.suppress(OSError):  # somebody may read a file of it now
            self._remove(step)
        return True

    def save(
        self,
        step: int,
        groups: Groups,
        letters: Mapping[str, Mapping[str, str]],
        facts: Mapping[str, Any],
        scores: Scores | None = None,
        average_of: Sequence[str] = (),
    ) -> bool:
        """Writes a checkpoint in the background. Returns False if this step has a sound one already.

        It first waits until the previous checkpoint is committed, and removes those that are no longer
        kept. Arrays on devices are copied before this returns, so the next step may reuse their memory.
        `letters` are those of the arrays, for checksums of each expert; `facts` are JSON values.

        Raises:
          NotFiniteError: a value is infinite or not a number. Nothing is written.
          UserError, TryAgain: this checkpoint or the previous one cannot be written, or be read now.
        """
        if self._writer is None:
            self.start_saving()
        self.wait()
        if self._processes.from_first(lambda: self._has(step)):
            return False
        names = flat(letters)
        checksums = compute_checksums(flat(groups), names)
        if bad := [f"{name} ({c.not_finite})" for name, c in checksums.items() if c.not_finite]:
            raise NotFiniteError(f"not finite: {listed(bad, 5)}")
        tree, places = tensor_files.pack(groups)

        def tensor(group: str, name: str, array: Any) -> Tensor:
            key, dtype = f"{group}/{name}", np.dtype(array.dtype).name
            sums, place = checksums[key].sums, places.get((group, name))
            return Tensor(tuple(array.shape), dtype, names.get(key, ""), sums, place)

        tensors = {
            group: {name: tensor(group, name, array) for name, array in arrays.items()}
            for group, arrays in groups.items()
        }
        scores = scores or Scores()
        with self._writing(step):
            if self._processes.is_first:
                self._remove(step)
            self._pending = Manifest(
                step, tensors, self._identity, facts, scores, tuple(average_of)
            )
            self._damaged.pop(step, None)
            self._scores.pop(step, None)
            save = tensor_files.orbax().args.PyTreeSave(tree)
            # With `force` only process 0 asks whether the folder exists.
            self._writer.save(tensor_files.location(self.folder / str(step)), args=save, force=True)
        return True

    def change(self, step: int, facts: Mapping[str, Any], scores: Scores) -> None:
        """Gives a committed checkpoint other facts and scores."""
        self.wait()
        folder = self.folder / str(step)
        remedy = ". Start the same command again; it goes on from the newest sound checkpoint."

        def write() -> None:
            with usable(folder, remedy):
                manifest = dataclasses.replace(self.manifest(step), facts=facts, scores=scores)
            files.write(folder / manifests.NAME, manifest.text)

        with self._writing(step):
            self._processes.from_first(write)
        self._scores.pop(step, None)

    def _has(self, step: int) -> bool:
        """Returns whether there is a sound checkpoint of a step; raises an error if nobody knows."""
        scores, problems = self._read_scores()
        if step in scores:
            # Training may come to the step of an average, which cannot be trained further.
            return not self.manifest(step).average_of
        problem, folder = problems.get(step), self.folder / str(step)
        if isinstance(problem, UnreadableError):
            raise failure(folder, problem)
        if isinstance(problem, ForeignError):
            raise UserError(
                f"{folder} is a checkpoint of another run or another version of gshard-nmt. Move it "
                "away, or start again with a new --workdir."
            )
        return False

    def check_for_errors(self) -> None:
        """Raises UserError or TryAgain if the save of a checkpoint in the background has failed."""
        if self._writer is not None and self._pending is not None:
            with self._writing(self._pending.step):
                self._writer.check_for_errors()

    def wait(self) -> None:
        """Waits until the last checkpoint is committed, then removes those that are no longer kept."""
        if self._writer is None or self._pending is None:
            return
        step = self._pending.step
        with self._writing(step):
            self._writer.wait_until_finished()
        self._pending = None
        self.remove_superseded(step)

    def remove_superseded(self, newest: int | None = None) -> None:
        """Removes the checkpoints that no rule keeps, but never `newest`.

        A run that was killed after its last commit may have left one. A damaged one stays until there are
        `Retention.last` newer sound ones: somebody may want to save what can be read of it. One that
        cannot be read now may be sound, so it stays too.
        """
        if not self._processes.is_first:
            return
        scores, problems = self._read_scores()
        reasons = self.retention.reasons(scores)
        superseded = {step for step, words in reasons.items() if not words}
        superseded |= {
            step
            for step, problem in problems.items()
            if problem.is_damage and sum(other > step for other in scores) >= self.retention.last
        }
        for step in sorted(superseded - {newest}):
            # A file that somebody reads may not be removed now; the next start removes the rest.
            with contextlib.suppress(OSError):
                self._remove(step)

    def _note(self, step: int, problem: UnsoundError) -> None:
        """Raises an error if a checkpoint cannot be read now: it may be the one to go on from."""
        if isinstance(problem, UnreadableError):
            raise failure(self.folder / str(step), problem) from problem
        super()._note(step, problem)

    def _remove(self, step: int) -> None:
        """Removes a checkpoint, first its commit file, then its manifest: no part looks like a whole."""
        path = tensor_files.location(self.folder / str(step))
        for name in (tensor_files.COMMIT_FILE, manifests.NAME):
            (path / name).unlink(missing_ok=True)
        if path.exists():
            path.rmtree()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            if self._writer is not None:
                # It raises again what `wait` has reported.
                with contextlib.suppress(OSError, ValueError, RuntimeError):
                    self._writer.close()
            self._writer = self._pending = None

    def _write_manifest(self) -> None:
        """Writes the manifest; orbax calls it in process 0, just before it writes the commit file."""
        manifest = self._pending
        assert manifest is not None
        files.write(self.folder / str(manifest.step) / manifests.NAME, manifest.text)
        self.on_commit(manifest)

    @contextlib.contextmanager
    def _writing(self, step: int) -> Iterator[None]:
        """Turns the errors of writing into a UserError or TryAgain that names the checkpoint."""
        import jax

        try:
            yield
        except (jax.errors.JaxRuntimeError, UserError, TryAgain):
            raise  # it is about another process or a device, or is in plain words already
        except (OSError, ValueError, RuntimeError) as error:
            self._pending = None
            # A disk that does not answer has a number of the system, ETIMEDOUT.
            if isinstance(error, TimeoutError) and error.errno is None:
                raise TryAgain(
                    f"the checkpoint of step {step} was not written to {self.folder} within "
                    f"{tensor_files.SAVE_HOURS} hours: a disk, a server or another process does not "
                    f"answer ({error}). Look at them, then start the same commands again."
                ) from error
            self._remove_failed(step)
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = getattr(error, "strerror", None) or lines[-1]
            kind = TryAgain if tensor_files.is_away(error) else UserError
            raise kind(
                f"the checkpoint of step {step} cannot be written to {self.folder}: {reason}. Free some "
                "space or mend the disk, then start the same command again; the earlier checkpoints are "
                "still there."
            ) from error

    def _remove_failed(self, step: int) -> None:
        """Removes what a failed save has left, for its space; the next start adopts what is whole."""
        if not self._processes.is_first:
            return
        # Some of orbax's threads may still write a file.
        for pause in (0.0, 0.05, 0.2):
            time.sleep(pause)
            # The error of the save is reported, not another one.
            with contextlib.suppress(Exception):
                if not exists(self.folder / str(step) / manifests.NAME):
                    self._remove(step)
