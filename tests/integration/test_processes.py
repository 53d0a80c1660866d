"""Several processes train one run: they give the result of one, and end together if one is lost."""

import json
import re
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.run.training_state import MOST_BAD_STEPS
from tests.integration.conftest import lines_of, program, succeed
from tests.integration.two_processes import (
    ENDLESS,
    TIMEOUT,
    ends,
    no_process_stays,
    runs,
    start,
    train_flags,
    wait_for_step,
)
from tests.run.checkpoints import whole_state

__all__ = ["no_process_stays", "runs"]


def state_of(workdir: Path) -> dict[str, np.ndarray]:
    """Returns every array of a run's last checkpoint, including the positions of its input."""
    arrays, _ = whole_state(workdir / "checkpoints")
    return arrays


@pytest.fixture(scope="module")
def together(prepared, runs) -> Path:
    """The folder of a run of two processes that has ended without an error."""
    # tests/integration/test_hosts.py has the search of two processes.
    for code, stderr in ends(start(prepared, runs / "together", **{"Train.bleu_sentences": 0})):
        assert code == 0, stderr
    return runs / "together"


def assert_close(run: Path, expected: Path) -> None:
    """Checks that two runs have the same last state but for rounding."""
    arrays = state_of(run)
    for name, array in state_of(expected).items():
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-5, err_msg=name)


def test_two_processes_give_the_result_of_one(trained, together):
    assert_close(together, trained)
    budgets = [json.loads((run / "budget.json").read_text()) for run in (trained, together)]
    assert budgets[0]["tokens_by_language"] == budgets[1]["tokens_by_language"]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(prepared, runs, trained, together):
    """Two processes have begun it. tests/integration/test_faulty_processes.py has the other direction."""
    shutil.copytree(together, runs / "2_to_1")
    shutil.rmtree(runs / "2_to_1" / "checkpoints" / "6")
    succeed(program("train", *train_flags(prepared, runs / "2_to_1")))
    assert_close(runs / "2_to_1", trained)


def ends_of_the_others(processes) -> list[str]:
    """Kills the last process; returns the stderr of the others, which must end soon."""
    processes[-1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    ended = ends(processes)[:-1]
    assert time.monotonic() - killed < 3 * TIMEOUT
    for code, stderr in ended:
        assert "Traceback" not in stderr
        if code == -signal.SIGABRT:  # no heartbeats, no process 0, or a message out of turn
            assert re.search("JAX distributed service detected fatal errors|gloo::Enforce", stderr)
        else:  # a collective failed, here or in another process that has said so
            assert code == 75
            assert re.search(
                "another process died or stopped answering|ended with exit code 75", stderr
            )
    return [stderr for _, stderr in ended]


def test_after_a_kill_all_end_and_the_same_command_gives_the_same_result(prepared, runs, together):
    """The same bits as if never killed; steps take a second, so that the kill precedes a checkpoint."""
    run = runs / "killed"
    changes = {"Train.dev_every": 0}
    endless = changes | {"Train.steps": 100_000}
    processes = start(prepared, run, faults=dict.fromkeys(range(2), "pause"), **endless)
    wait_for_step(run, 5)
    ends_of_the_others(processes)
    assert [code for code, _ in ends(start(prepared, run, **changes))] == [0, 0]
    killed_run, other = state_of(run), state_of(together)
    assert int(other["optimizer/step"]) == 6
    for name, array in other.items():
        np.testing.assert_array_equal(killed_run[name], array, err_msg=name)


@pytest.mark.slow
def test_if_one_of_four_processes_is_killed_the_others_end(prepared, runs):
    processes = start(prepared, runs / "four", count=4, **ENDLESS, **{"Mesh.shape": (4,)})
    wait_for_step(runs / "four", 7)
    assert len(ends_of_the_others(processes)) == 3


@pytest.mark.slow
def test_if_a_process_hangs_the_others_end_after_the_timeout(prepared, runs):
    run = runs / "hanging"
    processes = start(prepared, run, **ENDLESS)
    wait_for_step(run, 6)
    processes[0].send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    other = processes[1]
    stderr = other.communicate(timeout=6 * TIMEOUT)[1]
    assert time.monotonic() - stopped < 4 * TIMEOUT
    assert other.returncode in (75, -signal.SIGABRT), stderr


def test_processes_with_other_settings_all_end_with_the_difference(prepared, runs):
    ended = ends(start(prepared, runs / "other", own={1: ["--gin", "Train.seed = 9"]}))
    assert [code for code, _ in ended] == [2, 2], ended
    for _, stderr in ended:
        assert stderr.splitlines()[-1].startswith(
            "gshard-train: Train.seed is 9 in process 1 and 1 in process 0. Start all processes with "
        ), stderr
    assert not (runs / "other").exists()


def test_sigterm_to_one_process_stops_all_with_a_checkpoint(prepared, runs):
    """A machine that is taken away sends SIGTERM, so that another start may go on."""
    run = runs / "stopped"
    processes = start(prepared, run, **ENDLESS)
    wait_for_step(run, 6)
    processes[1].send_signal(signal.SIGTERM)
    ended = ends(processes)
    assert [code for code, _ in ended] == [75, 75], ended
    words = "A machine is being taken away (SIGTERM). Start all processes again"
    assert all(words in stderr.splitlines()[-1] for _, stderr in ended), ended
    steps = {int(re.search(r"at step (\d+); the same", stderr)[1]) for _, stderr in ended}
    assert steps == {json.loads((run / "budget.json").read_text())["steps"]}


def test_a_folder_that_only_process_0_needs_to_write_ends_all_if_it_cannot(prepared, tmp_path):
    (tmp_path / "file").write_text("in the way")
    zero, one = ends(start(prepared, tmp_path / "file" / "run"))
    assert (zero[0], one[0]) == (2, 2), (zero, one)
    message = f"--workdir {tmp_path}/file/run: "
    assert f"gshard-train: {message}" in zero[1]
    assert f"gshard-train: process 0 of 2 ended with exit code 2: {message}" in one[1]


@pytest.mark.slow
def test_both_processes_leave_bad_updates_out_and_stop_at_the_same_step(prepared, runs):
    run = runs / "diverged"
    ended = ends(start(prepared, run, faults={0: "gradient", 1: "gradient"}, **ENDLESS))
    assert [code for code, _ in ended] == [2, 2], ended
    events = [line for line in lines_of(run) if line.get("event") == "divergence"]
    assert [event["bad_step"] for event in events] == list(range(7, 7 + MOST_BAD_STEPS))
    assert [event["decision"] for event in events] == ["skip"] * (MOST_BAD_STEPS - 1) + ["stop"]
    for _, stderr in ended:
        assert "Traceback" not in stderr
        last = stderr.splitlines()[-1]
        assert last.startswith(f"gshard-train: {run}: training has diverged: 50 updates in"), stderr
    # What the run tells on its way is told once.
    assert [stderr.count("its update was left out") for _, stderr in ended] == [MOST_BAD_STEPS, 0]
