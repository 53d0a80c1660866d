"""What the tests of two processes of one run share: they start the programs and wait for their ends."""

import os
import re
import shutil
import socket
import subprocess
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import command, gin, once, share_programs

TIMEOUT = 10
"""Seconds without a heartbeat after which a process is lost."""
_GLOO = re.compile(
    r"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : "
)
ENDLESS = {"Train.steps": 100_000, "Train.checkpoint_every": 5, "Train.dev_every": 0}


STARTED: list["subprocess.Popen[str]"] = []
"""The processes that a test has started."""


@pytest.fixture(autouse=True)
def no_process_stays():
    """Kills the processes that a failed test has left."""
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
    STARTED.clear()


def train_flags(prepared: Path, workdir: Path, **changes: object) -> list[object]:
    flags = ["--config", "demo", "--data", prepared / "data", "--workdir", workdir]
    return [*flags, *gin(**changes)]


def start_all(
    flags: Sequence[Sequence[object]], environments: Mapping[int, dict[str, str]], **options: Any
) -> list["subprocess.Popen[str]"]:
    """Starts a process for each of `flags`, which begin with the program; they write to pipes."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address, started = f"127.0.0.1:{probe.getsockname()[1]}", []
    for index, words in enumerate(flags):
        shared = ["--coordinator", address, "--num_processes", len(flags)]
        shared += ["--peer_timeout", TIMEOUT, "--process_id", index]
        variables = os.environ | environments.get(index, {})
        pipes = {"stderr": subprocess.PIPE, "text": True, "env": variables} | options
        started.append(subprocess.Popen(command(*words, *shared), **pipes))
        STARTED.append(started[-1])
    return started


def start(
    prepared: Path,
    workdir: Path,
    *,
    faults: Mapping[int, str] = types.MappingProxyType({}),
    count: int = 2,
    own: Mapping[int, Sequence[object]] = types.MappingProxyType({}),
    extra: Sequence[object] = (),
    **changes: object,
) -> list["subprocess.Popen[str]"]:
    """Starts the processes of a training run; `faults` and further flags, `own`, are by their number."""
    flags = ["train", *train_flags(prepared, workdir, **changes), *extra]
    all_flags = [[*flags, *own.get(index, ())] for index in range(count)]
    return start_all(all_flags, {index: _with_fault(fault) for index, fault in faults.items()})


def _with_fault(fault: str) -> dict[str, str]:
    """Returns the environment variables that give a process a fault."""
    folders = [str(Path(__file__).parent / "faulty_process"), os.environ.get("PYTHONPATH", "")]
    return {"GSHARD_TEST_FAULT": fault, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def outputs(processes) -> list[tuple[int, str, str]]:
    """Returns exit code, stdout and stderr of each at its end; prints stderr, as pytest cuts values."""
    try:
        results = []
        for number, process in enumerate(processes):
            out, err = process.communicate(timeout=240)
            print(f"process {number} ended with {process.returncode}; its stderr:\n{err}")
            results.append((process.returncode, out, own_lines(err)))
        return results
    finally:
        for process in processes:
            process.kill()


def ends(processes) -> list[tuple[int, str]]:
    """Waits for all processes and returns their exit codes and stderr."""
    return [(code, err) for code, _, err in outputs(processes)]


def own_lines(text: str) -> str:
    """Returns messages without those of Gloo, which mix, and without lines left with numbers alone."""
    rest = _GLOO.sub("", text)
    if rest == text:
        return text
    return "".join(line for line in rest.splitlines(keepends=True) if line.strip(" 0123456789\n"))


def wait_for_step(workdir: Path, step: int) -> None:
    """Returns once the log has reached a step."""
    for _ in range(3000):
        metrics = workdir / "metrics.jsonl"
        if metrics.exists() and f'"step": {step},' in metrics.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{workdir} did not reach step {step}")


@pytest.fixture(scope="module")
def runs(prepared, trained) -> Path:
    """A folder for runs of several processes. They compile what the run of one process has lowered."""

    def share(folder: Path) -> None:
        share_programs(folder)
        shutil.copytree(prepared / "untouched" / "run" / "programs", folder / "programs")

    return once(prepared / "several", share)
