"""A small training run on two CPU devices, as the integration tests know it, for many starts."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.integration.conftest import gin, prepare
from tests.run.checkpoints import whole_state
from tests.soak.campaign import last_lines

TIMEOUT = 180
"""Seconds; a start takes about 10 on an idle machine and 30 on a busy one."""


def prepared_folder() -> Path:
    """Returns a new temporary folder with `corpus/` and `data/`; its runs share their programs."""
    root = Path(tempfile.mkdtemp(prefix="gshard-soak-"))
    prepare(root)
    return root


def start(root: Path, name: str, **changes: object) -> "subprocess.Popen[bytes]":
    """Starts a training run in the folder `name`; its stderr is appended to the file `log`."""
    flags = ["--config", "demo", "--data", root / "data", "--workdir", root / name]
    # On SIGABRT the fault handler prints what each thread was doing.
    command = [sys.executable, "-X", "faulthandler", "-m", "gshard_nmt", "train"]
    with (root / "log").open("a") as stderr:
        return subprocess.Popen(
            [*command, *map(str, flags), *gin(**changes)], stdout=subprocess.DEVNULL, stderr=stderr
        )


def to_the_end(root: Path, name: str, **changes: object) -> tuple[float, str]:
    """Trains a run to its end; returns the seconds, and what went wrong."""
    log, began = root / "log", time.monotonic()
    log.write_text("")
    process = start(root, name, **changes)
    try:
        code = process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the log then shows the stack of each thread
        time.sleep(5)
        process.kill()
        process.wait()
        return TIMEOUT, f"no end after {TIMEOUT} s\n{last_lines(log.read_text(), 60)}"
    failure = f"exit code {code}\n{last_lines(log.read_text())}" if code else ""
    return time.monotonic() - began, failure


def final_state(workdir: Path) -> dict[str, Any]:
    """Returns the last arrays and counters, and each loss of the log, which equal runs have in common."""
    arrays, manifest = whole_state(workdir / "checkpoints")
    state: dict[str, Any] = {k: (v.dtype, v.shape, v.tobytes()) for k, v in arrays.items()}
    counters = {k: v for k, v in manifest.facts.items() if "seconds" not in k}
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    return {**state, "the counters": counters, "the losses in metrics.jsonl": losses}


def remove(root: Path) -> None:
    """Removes a temporary folder."""
    shutil.rmtree(root, ignore_errors=True)
