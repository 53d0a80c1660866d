"""Checkpoints: sharded, asynchronous, committed by rename, restored onto any mesh.

A run keeps two: `last`, to resume from, and `best`, to decode with. A checkpoint is a set of named
groups of arrays, so that a decoder can read the weights alone.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gshard_nmt import paths
from gshard_nmt.errors import UserError

LAST, BEST = "last", "best"

Groups = Mapping[str, Mapping[str, Any]]
"""Arrays by the names of their groups, then by their own names.

To restore, give the shape, dtype and sharding of each array instead of the array.
"""


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run folder.

    Attributes:
      folder: `checkpoints/` in the run folder.
    """

    folder: Path

    def save(self, kind: str, step: int, groups: Groups, metadata: Mapping[str, Any]) -> None:
        """Writes a checkpoint in the background, then removes the older one of the same kind.

        Args:
          kind: LAST or BEST.
          step: training steps done.
          groups: the arrays. Arrays on devices are copied before this returns, so that the next step
            may reuse their memory.
          metadata: JSON values.
        """
        ocp = _orbax()
        items = {name: ocp.args.StandardSave(dict(group)) for name, group in groups.items()}
        args = ocp.args.Composite(**items, metadata=ocp.args.JsonSave(dict(metadata)))
        # A run that is resumed after its last step tries to save that step again.
        if step not in self._manager(kind).all_steps():
            self._manager(kind).save(step, args=args, force=True)

    def latest(self, kind: str) -> int | None:
        """Returns the step of the checkpoint of this kind, or None if there is none."""
        if not (self.folder / kind).is_dir():
            return None
        return self._manager(kind).latest_step()

    def restore(self, kind: str, groups: Groups) -> dict[str, dict[str, Any]]:
        """Reads groups of arrays and places them as their shardings say.

        Args:
          kind: LAST or BEST.
          groups: for each group to read, its arrays as jax.ShapeDtypeStruct. An empty mapping reads
            all arrays of the group and leaves them on the host.

        Raises:
          UserError: there is no such checkpoint.
        """
        ocp = _orbax()
        step = self._require(kind)
        items = {
            name: ocp.args.StandardRestore(dict(group) or None) for name, group in groups.items()
        }
        restored = self._manager(kind).restore(step, args=ocp.args.Composite(**items))
        return {name: dict(restored[name]) for name in groups}

    def metadata(self, kind: str) -> dict[str, Any]:
        """Returns the metadata of the checkpoint of this kind.

        Raises:
          UserError: there is no such checkpoint.
        """
        ocp = _orbax()
        step = self._require(kind)
        args = ocp.args.Composite(metadata=ocp.args.JsonRestore())
        return dict(self._manager(kind).restore(step, args=args)["metadata"])

    def wait(self) -> None:
        """Waits until everything that was saved is on the disk."""
        for kind in (LAST, BEST):
            if (self.folder / kind).is_dir():
                self._manager(kind).wait_until_finished()

    def close(self) -> None:
        """Waits for the writes, then ends the background threads."""
        self.wait()
        for kind in (LAST, BEST):
            if (self.folder / kind).is_dir():
                self._manager(kind).close()
        _manager.cache_clear()

    def _require(self, kind: str) -> int:
        step = self.latest(kind)
        if step is None:
            raise UserError(
                f"{self.folder} has no {kind!r} checkpoint; train with gshard-train first, "
                "or give the run folder of a finished run."
            )
        return step

    def _manager(self, kind: str):
        return _manager(paths.absolute(self.folder) / kind)


@functools.cache
def _manager(folder: Path):
    ocp = _orbax()
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=True)
    return ocp.CheckpointManager(folder, options=options)


@functools.cache
def _orbax():
    import logging

    import orbax.checkpoint as ocp

    # If a checkpoint cannot be written, orbax logs a traceback for each of its threads, and asyncio one
    # for each task that was left. The error itself is raised here, so these would only hide it.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return ocp
