"""Two processes of a run meet trouble: they decide alike, end alike, and say it in plain words."""

import json
import shutil

import numpy as np
import pytest

from tests.integration.conftest import lines_of, program, succeed
from tests.integration.two_processes import (
    ENDLESS,
    ends,
    no_process_stays,
    runs,
    start,
    train_flags,
)
from tests.run.checkpoints import files_of, whole_state

__all__ = ["no_process_stays", "runs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("memory", "out of memory: this machine has no more. Lower Data.rows"),
        ("disk", "the checkpoint of step "),
    ],
)
def test_what_only_the_user_can_mend_in_one_process_ends_all(prepared, runs, fault, message):
    zero, one = ends(start(prepared, runs / f"no_{fault}", faults={1: fault}, **ENDLESS))
    assert (zero[0], one[0]) == (2, 2), (zero, one)
    assert one[1].splitlines()[-1].startswith(f"gshard-train: {message}"), one[1]
    told = "gshard-train: process 1 of 2 ended with exit code 2: "
    assert zero[1].splitlines()[-1].startswith(told + message), zero[1]
    assert "Traceback" not in zero[1] + one[1]


@pytest.mark.slow
def test_each_process_is_traced_and_the_time_ends_for_all(prepared, runs):
    """The first start is traced, the second is short."""
    run = runs / "slow"
    finite = ENDLESS | {"Train.steps": 12, "Train.log_every": 4, "Train.checkpoint_every": 100}
    ended = ends(start(prepared, run, extra=["--profile"], **finite))
    assert [code for code, _ in ended] == [0, 0], ended
    stderr, other = (text for _, text in ended)
    assert f"a trace of 5 steps is in {run}" in stderr
    assert other == ""
    traces = sorted(run.glob("tensorboard/plugins/profile/step-10/*.xplane.pb"))
    assert [path.name.split(".")[-3] for path in traces] == ["process-0", "process-1"]

    ended = ends(start(prepared, run, extra=["--max_minutes", 0.01], **ENDLESS))
    assert [code for code, _ in ended] == [0, 0], ended
    # They agree at the first line of the log, and end after the next step.
    over = "saved {} at step 14, because the 0.01 minutes of --max_minutes are over"
    assert over.format(run) in ended[0][1]
    _, manifest = whole_state(run / "checkpoints")
    assert manifest.step == 14


@pytest.mark.slow
def test_a_run_with_a_damaged_checkpoint_goes_on_in_other_processes_on_another_mesh(
    prepared, trained, runs
):
    """One process has trained it on two devices. Two processes go on, each with two devices.

    Both hold all rows, and count them once: they stop at the step at which one process had seen
    Train.tokens. They log seldom, so they do not look at their tokens after every step.
    """
    run, stayed = runs / "moved", runs / "stayed"
    for folder in (run, stayed):
        shutil.copytree(trained, folder)
    last = run / "checkpoints" / "6"
    largest = max(files_of(last), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)

    more = {"Train.steps": 8, "Train.dev_every": 0}
    succeed(program("train", *train_flags(prepared, stayed, **more)))
    tokens = next(line["tokens"] for line in lines_of(stayed) if line["step"] == 8)
    changes = {"Train.tokens": tokens, "Train.steps": 2000, "Train.log_every": 50}
    mesh = {"Mesh.axes": ("x", "y"), "Mesh.shape": (1, 4), "Mesh.rules": {"B": "x", "E": "y"}}
    ended = ends(start(prepared, run, **changes, **mesh, **{"Train.dev_every": 0}))
    assert [code for code, _ in ended] == [0, 0], ended
    (said,) = [line for line in ended[0][1].splitlines() if str(last) in line]
    assert said.endswith("Going on from step 4")
    assert ended[1][1] == ""
    moved, expected = (whole_state(folder / "checkpoints") for folder in (run, stayed))
    assert moved[1].step == expected[1].step == 8
    assert moved[1].facts["tokens"] == expected[1].facts["tokens"]
    budget = json.loads((run / "budget.json").read_text())
    assert sum(budget["tokens_by_language"].values()) == tokens
    for name, array in expected[0].items():
        np.testing.assert_allclose(moved[0][name], array, rtol=0, atol=1e-5, err_msg=name)
