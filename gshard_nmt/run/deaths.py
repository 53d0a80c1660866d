"""Decides whether a restart can cure the death of a worker.

A worker that is killed cannot say why. If the kernel killed it because memory ran out, a restart ends
in the same way. This is also likely if the worker dies twice without a new checkpoint in between.
"""

import contextlib
import dataclasses
import json
from pathlib import Path

from gshard_nmt import files, json_shape
from gshard_nmt.json_shape import fields, mapping_of, text, whole
from gshard_nmt.run.checkpoint.tensor_files import COMMIT_FILE

DEATHS = "deaths.json"
"""File of a run folder: the death of a worker since the newest checkpoint."""

_DEATH = fields({"attempt": text(), "checkpoints": mapping_of(whole())})


@dataclasses.dataclass(frozen=True)
class Cgroups:
    """Finds out how many processes of a cgroup the kernel has killed because memory ran out.

    Attributes:
      membership: the file that names the cgroups of this process.
      root: the folder where the cgroup file system is mounted.
    """

    membership: Path = Path("/proc/self/cgroup")
    root: Path = Path("/sys/fs/cgroup")

    def oom_kills(self) -> int:
        """Returns the number for the cgroup of this process, version 2 or 1; 0 if it cannot be read."""
        return max((_oom_kill_count(file) for file in self._files()), default=0)

    def _files(self) -> list[Path]:
        """Returns the files that may have the number. In a container, the root often is its cgroup."""
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:
            return []
        candidates = []
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                folders, name = [self.root, self.root / "unified"], "memory.events"
            elif "memory" in controllers.split(","):
                folders, name = [self.root / "memory"], "memory.oom_control"
            else:
                continue
            for folder in folders:
                candidates += [folder / path.lstrip("/") / name, folder / name]
        return candidates


def _oom_kill_count(file: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def is_second(workdir: Path, attempt: str) -> bool:
    """Records the death of a worker, and returns whether it is the second one without a new checkpoint.

    Workers that die in the same start of the run count once. After a second death the count begins
    anew, because the user will change something. Nothing is counted before the run folder exists.

    Args:
      workdir: the run folder, or the folder of the run folders of baselines.
      attempt: the name of this start of the run.
    """
    if not any((workdir / name).exists() for name in ("data.json", "baselines.json")):
        return False
    file = workdir / DEATHS
    steps = newest_steps(workdir)
    death = {"attempt": attempt, "checkpoints": steps}
    try:
        previous = json_shape.parse(file.read_bytes(), _DEATH)
    except (OSError, ValueError):
        previous = {}
    if previous and previous["checkpoints"] == steps and previous["attempt"] != attempt:
        file.unlink(missing_ok=True)
        return True
    # The disk may be full. The death is then not counted, and the run may start again.
    with contextlib.suppress(OSError):
        files.write(file, json.dumps(death) + "\n")
    return False


def newest_steps(workdir: Path) -> dict[str, int]:
    """Returns the step of the newest committed checkpoint of each run, by its folder of checkpoints."""
    newest: dict[str, int] = {}
    for pattern in ("checkpoints", "*/checkpoints", "candidates/*/*/checkpoints"):
        for commit in workdir.glob(f"{pattern}/*/{COMMIT_FILE}"):
            name, step = str(commit.parents[1].relative_to(workdir)), commit.parent.name
            if step.isdecimal():  # somebody may keep a copy beside it, such as 500.bak
                newest[name] = max(newest.get(name, 0), int(step))
    return newest
