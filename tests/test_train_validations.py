"""Validations in the loop of gshard-train, and those that fail."""

import functools
import signal

import pytest

from gshard_nmt import train
from gshard_nmt.errors import UserError
from gshard_nmt.run.checkpoint import checkpoint_writer
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.progress import Interrupt
from tests.train_loop import Limit, calls, final, prepared, run, validations

__all__ = ["prepared", "run", "validations"]


class Killed(BaseException):
    """What a kill does, as far as a test can."""


def fail_once(run, fails, step, **settings):
    """Starts a run whose validation after a step fails."""
    fails.add(step)
    with pytest.raises(RuntimeError, match="no memory left"):
        run(**settings)
    fails.clear()


def test_a_validation_that_fails_is_made_up_for(run, validations):
    seen, fails = validations
    fail_once(run, fails, 3, dev_every=3)
    # The steps so far are not lost.
    assert final(run) == (3, 3.0, 300)
    assert run(dev_every=3)
    assert seen == [3, 6]
    assert final(run) == (6, 6.0, 600)


def test_a_start_whose_time_is_up_leaves_its_validation_to_the_next_one(run, validations):
    seen, _ = validations
    assert not run(limit=Limit(2), dev_every=3)
    assert seen == []
    assert run(dev_every=3)
    assert seen == [3, 6]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_a_validation_and_the_next_start_does_it(
    run, validations, monkeypatch, number
):
    """The checkpoint is on its way before the validation begins, for a machine may not wait for it."""
    seen, _ = validations
    with monkeypatch.context() as patches:

        def slow(self, counters, *_):
            assert Checkpoints(run.folder.checkpoints).newest().facts["owes_validation"]
            with self.stoppable():
                signal.raise_signal(number)
                raise AssertionError("the signal was not heard")

        save = train.training_state.save
        patches.setattr(train.Validation, "run", slow)
        patches.setattr(
            train.training_state, "save", lambda *state: (save(*state), state[0].wait())
        )
        with pytest.raises(KeyboardInterrupt, match="at step 3; the same command goes on"):
            run(dev_every=3, checkpoint_every=100)
    assert final(run) == (3, 3.0, 300)
    assert run(dev_every=3, checkpoint_every=100)
    assert seen == [3, 6]
    assert len(calls) == 6
    assert Checkpoints(run.folder.checkpoints).manifest(3).scores.values == {"dev_nll": 1.0}


def test_a_validation_is_made_up_for_once_though_the_run_is_killed_after_it(
    run, validations, monkeypatch
):
    seen, fails = validations
    fail_once(run, fails, 3, dev_every=3)

    def die(*_):
        raise Killed

    with monkeypatch.context() as patches:
        patches.setattr(train.training_state, "save", die)
        with pytest.raises(Killed):
            run(dev_every=3)
    assert seen == [3]
    assert Checkpoints(run.folder.checkpoints).manifest(3).scores.values == {"dev_nll": 1.0}
    assert run(dev_every=3)
    assert seen == [3, 6]


def test_the_last_validation_is_made_up_for_too(run, validations, capsys):
    seen, fails = validations
    fail_once(run, fails, 6, dev_every=100)
    assert run(dev_every=0)
    assert seen == []
    assert run(dev_every=100)
    assert seen == [6]
    assert len(calls) == 6
    # Then the run is finished, and nothing is owed any more.
    assert run(dev_every=100)
    assert "is finished: 6 steps, nothing to do" in capsys.readouterr().err
    assert seen == [6]


def test_a_validation_that_was_owed_may_end_the_run(run, validations, capsys):
    seen, fails = validations
    fail_once(run, fails, 3, dev_every=1, patience=2)
    assert run(dev_every=1, patience=2)
    assert seen == [1, 2, 3]
    assert final(run)[0] == 3
    assert "2 validations in a row without a better dev_nll" in capsys.readouterr().err


def test_a_signal_while_one_of_several_models_is_saved_ends_the_program(run, monkeypatch):
    enter, save = Interrupt.__enter__, train.training_state.save
    handlers = []
    monkeypatch.setattr(Interrupt, "__enter__", lambda i: handlers.append(i) or enter(i))

    def save_and_stop(*arguments):
        save(*arguments)
        handlers[-1].requested = True

    monkeypatch.setattr(train.training_state, "save", save_and_stop)
    assert run(dev_every=0, checkpoint_every=100)
    monkeypatch.setattr(train, "Start", functools.partial(train.Start, is_part=True))
    with pytest.raises(KeyboardInterrupt, match="second is saved; the same command goes on"):
        run(dev_every=0, checkpoint_every=100, name="second")


def test_a_stop_does_not_hide_that_the_checkpoint_could_not_be_written(run, monkeypatch):
    handlers = []
    enter = Interrupt.__enter__
    monkeypatch.setattr(Interrupt, "__enter__", lambda i: handlers.append(i) or enter(i))
    save = train.training_state.save

    def full(*_):
        raise OSError(28, "No space left on device")

    def save_and_stop(*arguments):
        monkeypatch.setattr(checkpoint_writer.files, "write", full)
        save(*arguments)
        handlers[-1].requested = True

    monkeypatch.setattr(train.training_state, "save", save_and_stop)
    words = r"step 6 cannot be written to .*: No space left on"
    with pytest.raises((UserError, KeyboardInterrupt), match=words):
        run(dev_every=100, bleu_sentences=1, checkpoint_every=100)
