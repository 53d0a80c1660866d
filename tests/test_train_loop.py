"""The loop of gshard-train with a training step that is a Python function: what it does in trouble."""

import os
import time
from unittest import mock

import numpy as np
import pytest

from gshard_nmt import train
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.lock import LOCK_NAME
from gshard_nmt.spmd.program import ProgramMemory
from gshard_nmt.spmd.runtime import Runtime
from tests.train_loop import (
    CONFIG,
    Limit,
    Step,
    Steps,
    bad_calls,
    batches,
    calls,
    final,
    lines_of,
    position_after,
    position_saved,
    prepared,
    run,
)

__all__ = ["prepared", "run"]


def test_a_schedule_changes_the_languages_at_its_step_also_after_an_interruption(run):
    first = {"from_step": 0, "temperature": 1.0, "weights": {"de": 0.0}}
    data = {"schedule": (first, {"from_step": 5}), "packing_window": 1}
    assert run(data=data | {"schedule": (first, {"from_step": 5 / 12})}, steps=12)
    unbroken = [*batches]
    french, german = 1, 2
    assert all(set(np.unique(batch)) <= {0, french} for batch in unbroken[:5])
    assert all(french in batch for batch in unbroken[:5])
    # What was packed before the switch comes first.
    assert any(german in batch for batch in unbroken[5:8])
    # Interrupted before the switch, at it, and after it.
    batches.clear()
    for steps in (3, 5, 8, 12):
        assert run(data=data, steps=steps, name="broken")
    np.testing.assert_array_equal(batches, unbroken)


def test_accelerators_get_batches_from_processes_that_end_with_the_run(run, prepared, monkeypatch):
    apart = []

    class Recorded(TrainBatches):
        def close(self):
            super().close()
            apart.extend(self._apart)

    monkeypatch.setattr(train, "TrainBatches", Recorded)
    monkeypatch.setattr(Runtime, "is_cpu", False)
    assert run()
    assert final(run) == (6, 6.0, 600)
    assert position_saved(run) == position_after(prepared, 6)
    assert apart
    assert all(process._process.returncode is not None for process in apart)


def test_a_run_may_go_on_with_another_number_of_microbatches(run):
    for steps, microbatches in ((2, 1), (4, 2), (6, 1)):
        assert run(steps=steps, microbatches=microbatches)
    assert final(run) == (6, 6.0, 600)
    with pytest.raises(UserError, match="does not divide into Train"):
        run(steps=8, microbatches=4)


def test_a_bad_step_is_skipped(run, capsys):
    bad_calls.add(3)
    assert run(log_every=3, checkpoint_every=100)
    assert final(run) == (6, 5.0, 600)
    (event,) = [line for line in lines_of(run) if "event" in line]
    assert (event["event"], event["bad_step"], event["decision"]) == ("divergence", 3, "skip")
    assert (event["reason"], event["loss"]) == ("the loss is not finite", None)
    assert "tokens" not in event
    assert "step 3: the loss is not finite; its update was left out" in capsys.readouterr().err
    # The loss of this step, which is no number, is null in its line.
    assert [line["loss"] for line in lines_of(run) if "event" not in line] == [None, 1.0]


def test_every_one_of_many_bad_steps_is_seen_between_two_lines(run):
    bad_calls.update((2, 3, 4))
    assert run(log_every=100, checkpoint_every=100)
    events = [line for line in lines_of(run) if "event" in line]
    assert [event["bad_step"] for event in events] == [2, 3, 4]
    assert final(run) == (6, 3.0, 600)


def test_the_last_bad_step_before_a_stop_counts_too(run, monkeypatch):
    monkeypatch.setattr(train.training_state, "MOST_BAD_STEPS", 4)
    bad_calls.update(range(2, 9))
    with pytest.raises(UserError, match="up to step 6"):
        run(steps=8, log_every=100, checkpoint_every=100)


def test_a_run_stops_after_many_bad_steps_in_a_row_and_counts_on(run, monkeypatch):
    monkeypatch.setattr(train.training_state, "MOST_BAD_STEPS", 4)
    bad_calls.update(range(2, 9))
    assert run(steps=3)
    with pytest.raises(UserError, match=r"training has diverged: .* up to step 5\. metrics"):
        run(steps=8, checkpoint_every=100)
    events = [line for line in lines_of(run) if "event" in line]
    assert [event["decision"] for event in events] == ["skip", "skip", "skip", "stop"]
    assert final(run) == (5, 1.0, 500)
    # The same command tries once more.
    with pytest.raises(UserError, match="up to step 6"):
        run(steps=8, checkpoint_every=100)


def test_a_step_that_does_not_fit_into_the_memory_is_refused_before_the_first_one(run, monkeypatch):
    monkeypatch.setattr(Step, "memory", lambda self: ProgramMemory(1 << 50, 1, 1, 1))
    with pytest.raises(UserError, match=r"the training step needs .*; the memory of this machine"):
        run()
    assert calls == []
    assert not run.folder.checkpoints.exists()


def test_a_start_may_take_some_minutes_only(run, prepared, capsys):
    assert not run(limit=Limit(2))
    assert final(run) == (3, 3.0, 300)
    assert "because the 1 minutes of --max_minutes are over" in capsys.readouterr().err
    assert run()
    assert final(run) == (6, 6.0, 600)
    assert position_saved(run) == position_after(prepared, 6)


def test_a_run_ends_if_its_score_does_not_improve(run, monkeypatch, capsys):
    scores = iter([3.0, 2.0, 2.5, 2.5, 1.0])

    class Validation:
        warning = ""

        def __init__(self, *_):
            pass

        def run(self, counters, state):
            return f"step {counters.step}", Scores({"dev_nll": next(scores)}, {}), {}

    monkeypatch.setattr(train, "Validation", Validation)
    assert run(dev_every=1, patience=2)
    assert final(run)[0] == 4
    assert "2 validations in a row without a better dev_nll than 2.000" in capsys.readouterr().err
    # The run is finished, also for a command with other settings, which are kept.
    assert run(dev_every=1, patience=2, log_every=3)
    assert "Train.log_every = 3\n" in run.folder.config.read_text()
    assert "is finished: 4 steps, nothing to do" in capsys.readouterr().err
    # The best checkpoint is still there.
    assert Checkpoints(run.folder.checkpoints).best_first()[0] == 2


def test_the_command_is_recorded(run, prepared):
    train.train(
        CONFIG, prepared.folder, run.folder.path, start=train.Start(command="gshard-train x")
    )
    assert (run.folder.path / "command.txt").read_text() == "gshard-train x\n"


@pytest.mark.parametrize(("kind", "bad"), [(UserError, 0), (TryAgain, 1)])
def test_damaged_data_does_not_cost_the_steps_so_far(run, monkeypatch, kind, bad):
    read = TrainBatches.__next__
    bad_calls.update([3] * bad)

    def fail_at_the_fourth(self):
        if len(calls) == 3:
            raise kind("--data is damaged")
        return read(self)

    monkeypatch.setattr(TrainBatches, "__next__", fail_at_the_fourth)
    with pytest.raises(kind, match="--data is damaged"):
        run(log_every=100, checkpoint_every=100)
    assert final(run) == (3, 3.0 - bad, 300)


def test_a_start_that_has_lost_its_lock_removes_nothing(run, monkeypatch):
    def initialize(steps, initialize=Steps.initialize):
        (run.folder.path / "trainer.lock").unlink()
        return initialize(steps)

    monkeypatch.setattr(Steps, "initialize", initialize)
    monkeypatch.setattr(train.training_state, "start_saving", None)
    with pytest.raises(UserError, match="somebody removed it"):
        run()


def test_a_trainer_that_has_lost_its_lock_saves_nothing_on_an_error(run, monkeypatch):
    read = TrainBatches.__next__

    def fail_at_the_fourth(self):
        if len(calls) == 3:
            (run.folder.path / "trainer.lock").unlink()
            raise UserError("--data is damaged")
        return read(self)

    monkeypatch.setattr(TrainBatches, "__next__", fail_at_the_fourth)
    with pytest.raises(UserError, match="--data is damaged") as raised:
        run()
    (note,) = raised.value.__notes__
    assert "not saved" in note
    assert "somebody removed it" in note
    while not Checkpoints(run.folder.checkpoints).steps():
        time.sleep(0.01)  # the checkpoint of step 2 was on its way
    assert final(run)[0] == 2


def test_a_lost_commit_file_costs_no_steps(run, capsys):
    assert run(steps=2)
    (run.folder.checkpoints / "2" / "commit_success.txt").unlink()
    assert run(steps=4)
    assert len(calls) == 4
    assert final(run) == (4, 4.0, 400)
    assert [line["step"] for line in lines_of(run)] == [1, 2, 3, 4]
    said = capsys.readouterr().err
    assert "2/commit_success.txt was missing; the checkpoint is complete, and is used" in said
    # A finished run has a checkpoint that a decoder can use.
    (run.folder.checkpoints / "4" / "commit_success.txt").unlink()
    assert run(steps=4)
    assert Checkpoints(run.folder.checkpoints).steps() == [2, 4]


@pytest.mark.parametrize("loss", ["checkpoints", "checkpoints/2", "commit and manifest"])
def test_a_run_whose_checkpoints_are_missing_does_not_start_from_step_0(run, loss):
    assert run(steps=2)
    if loss == "commit and manifest":
        for name in ("commit_success.txt", "manifest.json"):
            (run.folder.checkpoints / "2" / name).unlink()
    else:
        (run.folder.path / loss).rename(run.folder.path.parent / "elsewhere")
    before = run.folder.metrics.read_text()
    with pytest.raises(
        UserError, match=r"saved step 2, but .*checkpoints has no checkpoint\. Mount"
    ):
        run(steps=4)
    assert len(calls) == 2
    assert run.folder.metrics.read_text() == before
    # The user may want just that.
    (run.folder.path / "budget.json").unlink()
    assert run(steps=4)
    assert final(run) == (4, 4.0, 400)


class OtherRun:
    """A run that another one starts from: as `StartingPoint` does it."""

    moment_steps = 5
    inherited = None

    def __init__(self) -> None:
        self.reads = self.recorded = 0

    def record(self, run):
        self.recorded += 1

    def read(self, devices, processes):
        self.reads += 1
        return self

    def report(self, run, is_first, note):
        note("a table")

    def applied_to(self, initial):
        return initial | {"parameters/w": initial["parameters/w"] + 100}


def test_a_run_starts_from_another_one_once(run, monkeypatch, capsys):
    other = OtherRun()
    # As if the folder did not say that the run has started.
    monkeypatch.setattr(train.StartingPoint, "find", lambda *_: other)
    moment_steps = []
    monkeypatch.setattr(
        train,
        "CompiledSteps",
        lambda c, f, d, is_new: moment_steps.append(f.moment_steps) or Steps(c, f, d, is_new),
    )
    assert run(steps=2)
    assert final(run) == (2, 102.0, 200)
    assert "a table" in capsys.readouterr().err
    assert run(steps=4)
    assert final(run) == (4, 104.0, 400)
    assert (other.reads, other.recorded) == (1, 2)
    assert moment_steps == [5, 5]


def test_a_trainer_that_has_lost_its_lock_removes_no_checkpoint(run, monkeypatch):
    """The third checkpoint makes the first one needless, but another trainer has the folder by then."""
    save = train.training_state.save

    def save_and_lose_the_lock(checkpoints, programs, state):
        save(checkpoints, programs, state)
        if state.counters.step == 3:
            (run.folder.path / LOCK_NAME).write_text("process 7 on another-host trains in it")

    monkeypatch.setattr(train.training_state, "save", save_and_lose_the_lock)
    with pytest.raises(UserError, match="now process 7 on another-host trains"):
        run(checkpoint_every=1)
    assert {"1", "2"} <= set(os.listdir(run.folder.checkpoints))


def test_all_processes_have_a_batch_before_the_first_step():
    facts = {"processes.count": 2, "state.owes_validation": False, "_over.return_value": ""}
    trainer = mock.MagicMock(**facts, **{"_next_batch.side_effect": InterruptedError})
    with pytest.raises(InterruptedError):
        train._Trainer._loop(trainer, None)
    called = [name for name, *_ in trainer.mock_calls]
    assert called[-3:] == ["batches.wait", "processes.barrier", "_next_batch"]
