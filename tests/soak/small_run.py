"""A small training run on two CPU devices, as the integration tests know it, for many starts."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.integration.conftest import environment, gin, prepare
from tests.run.checkpoints import whole_state


def prepared_folder() -> Path:
    """Returns a new temporary folder with `corpus/` and `data/`; its runs share their programs."""
    root = Path(tempfile.mkdtemp(prefix="gshard-soak-"))
    prepare(root)
    return root


def start(root: Path, name: str, log: Path, **changes: object) -> subprocess.Popen:
    """Starts a training run in the folder `name`; its stderr is appended to a file."""
    flags = ["--config", "demo", "--data", root / "data", "--workdir", root / name]
    # On SIGABRT the fault handler prints what each thread was doing.
    command = [sys.executable, "-X", "faulthandler", "-m", "gshard_nmt", "train"]
    with log.open("a") as stderr:
        return subprocess.Popen(
            [*command, *map(str, flags), *gin(**changes)],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment(),
        )


def abort(process: subprocess.Popen) -> None:
    """Ends a process that hangs; its log then shows the stack of each thread."""
    process.send_signal(signal.SIGABRT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclasses.dataclass(frozen=True)
class FinalState:
    """What a finished run must have in common with any other run of the same config.

    Attributes:
      arrays: parameters, optimizer state and the place in the data, by "group/name".
      counters: steps and tokens of the checkpoint's manifest.
      losses: the loss of each line of the log, in order.
    """

    arrays: dict[str, np.ndarray]
    counters: dict[str, object]
    losses: list[tuple[int, float]]

    @classmethod
    def read(cls, workdir: Path) -> "FinalState":
        """Reads the last checkpoint of a run folder."""
        arrays, manifest = whole_state(workdir / "checkpoints")
        counters = {k: v for k, v in manifest.facts.items() if "seconds" not in k}
        lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
        return cls(arrays, counters, losses)

    def differences(self, other: "FinalState") -> list[str]:
        """Returns the names of what is not equal to the bit."""
        names = sorted(self.arrays.keys() | other.arrays.keys())
        different = [
            name
            for name in names
            if name not in self.arrays
            or name not in other.arrays
            or self.arrays[name].dtype != other.arrays[name].dtype
            or self.arrays[name].tobytes() != other.arrays[name].tobytes()
        ]
        different += [] if self.counters == other.counters else ["the counters"]
        return different + ([] if self.losses == other.losses else ["the losses in metrics.jsonl"])


def remove(root: Path) -> None:
    """Removes a temporary folder."""
    shutil.rmtree(root, ignore_errors=True)
