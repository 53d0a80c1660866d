"""Several processes train one run: the same result as one, and a clear end when one is lost."""

import json
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.run.checkpoint import LAST, Checkpoints
from gshard_nmt.run.compiled_steps import Programs
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_config
from gshard_nmt.spmd import runtime
from tests.integration.conftest import command, environment, gin, share_programs

TIMEOUT = 20
ENDLESS = {"Train.steps": 100_000, "Train.checkpoint_every": 5, "Train.dev_every": 0}


def train_flags(prepared: Path, workdir: Path, **changes: object) -> list[object]:
    flags = ["--config", "demo", "--data", prepared / "data", "--workdir", workdir]
    return [*flags, *gin(**changes)]


def start(prepared: Path, workdir: Path, count: int = 2, indices=None, **changes: object):
    """The processes of a run, started; all speak with process 0 over the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shared = ["--coordinator", f"127.0.0.1:{port}", "--num_processes", count]
    flags = [*train_flags(prepared, workdir, **changes), *shared, "--peer_timeout", TIMEOUT]
    return [
        subprocess.Popen(
            command("train", *flags, "--process_id", index),
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for index in (range(count) if indices is None else indices)
    ]


def ends(processes) -> list[tuple[int, str]]:
    """Exit code and stderr of each."""
    try:
        said = [process.communicate(timeout=240)[1] for process in processes]
        return [(p.returncode, text) for p, text in zip(processes, said, strict=True)]
    finally:
        for process in processes:
            process.kill()


def wait_for_step(workdir: Path, step: int) -> None:
    """Returns once the log has reached a step."""
    for _ in range(1200):
        metrics = workdir / "metrics.jsonl"
        if metrics.exists() and f'"step": {step},' in metrics.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{workdir} did not reach step {step}")


def state_of(workdir: Path) -> dict[str, np.ndarray]:
    """Every array of a run's last checkpoint, with the cursors of its input."""
    run = RunFolder(workdir)
    config = read_config(run.config)
    programs = Programs(config, run.steps(config), runtime.start(config.mesh))
    specs = programs.devices.abstract(programs.state_specs)
    parameters = programs.parameters_of(specs)
    others = {name: spec for name, spec in specs.items() if not name.startswith("parameters/")}
    groups = {"parameters": parameters, "optimizer": others, "input": {}}
    found = Checkpoints(run.checkpoints).restore(LAST, groups)
    return {
        f"{g}/{name}": np.asarray(a) for g, arrays in found.items() for name, a in arrays.items()
    }


@pytest.fixture(scope="module")
def runs(prepared) -> Path:
    """A folder for runs of several processes; the first of them lowers the programs of all."""
    share_programs(prepared / "several")
    return prepared / "several"


@pytest.fixture(scope="module")
def together(prepared, runs) -> Path:
    """A run of two processes that ended well."""
    for code, said in ends(start(prepared, runs / "together")):
        assert code == 0, said
    return runs / "together"


def test_two_processes_end_as_one_does(trained, together):
    alone, joined = state_of(trained), state_of(together)
    assert alone.keys() == joined.keys()
    for name, array in alone.items():
        np.testing.assert_allclose(joined[name], array, rtol=0, atol=1e-5, err_msg=name)
    budgets = [json.loads((run / "budget.json").read_text()) for run in (trained, together)]
    assert budgets[0]["tokens_by_language"] == budgets[1]["tokens_by_language"]


def test_two_processes_end_twice_the_same(prepared, runs, together):
    assert [code for code, _ in ends(start(prepared, runs / "again"))] == [0, 0]
    first, second = state_of(together), state_of(runs / "again")
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array, err_msg=name)


def test_a_killed_process_is_named_and_a_restart_resumes(prepared, runs):
    run = runs / "killed"
    first, second = start(prepared, run, **ENDLESS)
    wait_for_step(run, 7)
    second.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    (code, said), _ = ends([first, second])
    assert code == 75, said
    assert said.splitlines()[-1].startswith(
        "gshard-train: process 1 of 2 died or stopped answering"
    )
    assert "Traceback" not in said
    assert time.monotonic() - killed < 3 * TIMEOUT
    saved = json.loads((run / "budget.json").read_text())["steps"]
    again = ends(start(prepared, run, **(ENDLESS | {"Train.steps": saved + 3})))
    assert [code for code, _ in again] == [0, 0], again
    assert f"resuming {run} at step {saved}" in again[0][1]


def test_one_that_is_told_to_stop_stops_all_and_all_is_saved(prepared, runs):
    run = runs / "stopped"
    processes = start(prepared, run, **ENDLESS)
    wait_for_step(run, 6)
    processes[1].send_signal(signal.SIGTERM)
    ended = ends(processes)
    assert [code for code, _ in ended] == [130, 130], ended
    steps = {int(re.search(r"at step (\d+); the same", said)[1]) for _, said in ended}
    saved = json.loads((run / "budget.json").read_text())["steps"]
    assert steps == {saved}
