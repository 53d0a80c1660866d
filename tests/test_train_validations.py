"""Validations in the loop of gshard-train: those that fail, and those of parts of a change."""

import pathlib
import signal

import pytest

from gshard_nmt import train
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.evaluation.language_guard import Guard
from gshard_nmt.run.arrays import weights_of
from gshard_nmt.run.checkpoint import checkpoint_writer
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.manifest import Manifest
from gshard_nmt.run.checkpoint.retention import Scores
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log.progress import Interrupt
from tests.train_loop import bad_calls, calls, final, prepared, run, validations

__all__ = ["prepared", "run", "validations"]

GUARD = Guard(pathlib.Path("guard.json"), "nn", "step 7 of old", {})


class Killed(BaseException):
    """What a kill does, as far as a test can."""


def test_a_run_stops_at_a_bad_step_that_validates_too(run, validations):
    bad_calls.add(6)
    with pytest.raises(UserError, match="diverged at step 6"):
        run(on_divergence="stop", dev_every=3)


def test_a_validation_that_fails_is_made_up_for(run, validations):
    seen, fails = validations
    fails.add(3)
    with pytest.raises(RuntimeError, match="no memory left"):
        run(dev_every=3)
    # The steps so far are not lost.
    assert final(run) == (3, 3.0, 300)
    fails.clear()
    assert run(dev_every=3)
    assert seen == [3, 6]
    assert final(run) == (6, 6.0, 600)


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
    fails.add(3)
    with pytest.raises(RuntimeError, match="no memory left"):
        run(dev_every=3)
    fails.clear()

    def die(*_):
        raise Killed

    with monkeypatch.context() as patches:
        patches.setattr(train.training_state, "save", die)
        with pytest.raises(Killed):
            run(dev_every=3)
    assert seen == [3]
    checkpoints = Checkpoints(run.folder.checkpoints)
    assert checkpoints.manifest(3).scores.values == {"dev_nll": 1.0}
    assert run(dev_every=3)
    assert seen == [3, 6]


def test_the_last_validation_is_made_up_for_too(run, validations, capsys):
    seen, fails = validations
    fails.add(6)
    with pytest.raises(RuntimeError, match="no memory left"):
        run(dev_every=100)
    fails.clear()
    assert run(dev_every=100)
    assert seen == [6]
    assert len(calls) == 6
    # Then the run is finished, and nothing is owed any more.
    assert run(dev_every=100)
    assert "is finished: 6 steps, nothing to do" in capsys.readouterr().err
    assert seen == [6]


def test_a_validation_that_was_owed_may_end_the_run(run, validations, capsys):
    seen, fails = validations
    fails.add(3)
    with pytest.raises(RuntimeError, match="no memory left"):
        run(dev_every=1, patience=2)
    fails.clear()
    assert run(dev_every=1, patience=2)
    assert seen == [1, 2, 3]
    assert final(run)[0] == 3
    assert "2 validations in a row without a better dev_nll" in capsys.readouterr().err


@pytest.fixture
def language_is_added(run, validations, monkeypatch):
    """Makes the run one that adds a language, with a blend that adds 1 to the weights.

    Returns what the test may set: the scores of the best blend, the old weights, what happens before they
    are judged, and the files.
    """
    result = {"scores": None, "start": "the start", "files": {"guard.json": GUARD.text}}
    result |= {"before": lambda: None, "steps": []}
    claim = RunFolder.claim

    def claim_and_write(self, *arguments, **options):
        claim(self, *arguments, **options)
        for name, text in result["files"].items():
            self.write_text(name, text)

    monkeypatch.setattr(RunFolder, "claim", claim_and_write)

    def start_weights(*_):
        if isinstance(result["start"], Exception):
            raise result["start"]
        return result["start"]

    def blends(self, counters, state, start, note, check_stop):
        assert start == "the start"
        result["before"]()
        check_stop()
        result["steps"].append(counters.step)
        blend = {"w": weights_of(state)["w"] + 1}
        return (blend, result["scores"]) if result["scores"] else None

    monkeypatch.setattr(train, "start_weights", start_weights)

    def without_blends(self, step):
        result["taken back"] = step

    monkeypatch.setattr(train.Validation, "blends", blends, raising=False)
    monkeypatch.setattr(train.Validation, "without_blends", without_blends, raising=False)
    return result


BETTER = Scores({"dev_nll": 0.5}, {})


def newest(run) -> Manifest:
    return Checkpoints(run.folder.checkpoints).newest()


def blend_of(run) -> list[float]:
    """Returns the weights of the newest checkpoint that were chosen among the parts of the change."""
    checkpoints = Checkpoints(run.folder.checkpoints)
    return checkpoints.read(checkpoints.newest(), "blend", "w").tolist()


def test_the_best_blend_is_saved_with_its_scores_at_the_end(run, language_is_added, capsys):
    language_is_added["scores"] = BETTER
    assert run(dev_every=2, bleu_sentences=1)
    assert language_is_added["steps"] == [6]
    assert newest(run).scores.values == {"dev_nll": 0.5}
    assert blend_of(run) == [7, 7]
    assert newest(run).tensors["blend"]["w"].letters == "E"
    assert run(dev_every=2, bleu_sentences=1)
    assert "is finished: 6 steps, nothing to do" in capsys.readouterr().err
    # Training goes on from the weights themselves, and later checkpoints have no blend until the end.
    language_is_added["scores"] = None
    assert run(dev_every=2, bleu_sentences=1, steps=8)
    assert final(run)[:2] == (8, 8.0)
    assert "blend" not in newest(run).tensors
    assert language_is_added["steps"] == [6, 8]


def test_patience_ends_with_blends_too(run, language_is_added):
    assert run(dev_every=1, patience=2, bleu_sentences=1, best_metric="dev_nll")
    assert language_is_added["steps"] == [3]


@pytest.mark.parametrize(
    "error",
    [UserError("old is gone"), RuntimeError("no memory left"), KeyError()],
)
def test_without_the_old_weights_all_of_the_change_is_saved(run, language_is_added, error, capsys):
    language_is_added["start"] = error
    assert run(dev_every=2, bleu_sentences=1)
    assert final(run) == (6, 6.0, 600)
    assert newest(run).scores.values == {"dev_nll": 1.0}
    assert language_is_added["taken back"] == 6
    message = "no part of the change since the start can be chosen, so all of it is: "
    assert message + (str(error) or "KeyError") in capsys.readouterr().err
    assert run(dev_every=2, bleu_sentences=1)
    assert "is finished: 6 steps, nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize("error", [TryAgain("the disk does not answer"), OSError(5, "disk")])
def test_an_old_run_that_cannot_be_read_now_is_read_by_the_next_start(
    run, language_is_added, error
):
    language_is_added |= {"scores": BETTER, "start": error}
    with pytest.raises(type(error)):
        run(dev_every=2, bleu_sentences=1)
    assert final(run) == (6, 6.0, 600)
    language_is_added["start"] = "the start"
    assert run(dev_every=2, bleu_sentences=1)
    assert blend_of(run) == [7, 7]


def test_a_stop_does_not_hide_that_the_checkpoint_could_not_be_written(
    run, language_is_added, monkeypatch
):
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


def test_blends_are_judged_after_a_validation_that_was_owed(run, validations, language_is_added):
    _, fails = validations
    fails.add(6)
    language_is_added["scores"] = BETTER
    with pytest.raises(RuntimeError, match="no memory left"):
        run(dev_every=100, bleu_sentences=1)
    assert language_is_added["steps"] == []
    fails.clear()
    assert run(dev_every=100, bleu_sentences=1)
    assert blend_of(run) == [7, 7]
    assert final(run) == (6, 6.0, 600)


@pytest.mark.parametrize("is_kill", [False, True])
def test_blends_are_judged_by_the_next_start_if_this_one_ends(
    run, language_is_added, monkeypatch, is_kill
):
    language_is_added["scores"] = BETTER
    handlers = []
    enter = Interrupt.__enter__
    monkeypatch.setattr(Interrupt, "__enter__", lambda i: handlers.append(i) or enter(i))

    def end():
        if is_kill:
            raise Killed
        handlers[-1].requested = True

    language_is_added["before"] = end
    with pytest.raises(Killed if is_kill else KeyboardInterrupt):
        run(dev_every=2, bleu_sentences=1, checkpoint_every=100)
    # The steps and the scores of all of the change are saved already.
    assert final(run) == (6, 6.0, 600)
    assert newest(run).scores.values == {"dev_nll": 1.0}
    assert language_is_added["steps"] == []
    language_is_added["before"] = lambda: None
    assert run(dev_every=2, bleu_sentences=1, checkpoint_every=100)
    assert len(calls) == 6
    assert blend_of(run) == [7, 7]


def test_a_stop_at_the_step_at_which_patience_ends_loses_no_blend(
    run, language_is_added, monkeypatch
):
    language_is_added["scores"] = BETTER
    words = {"dev_every": 1, "patience": 2, "bleu_sentences": 1, "best_metric": "dev_nll"}
    with monkeypatch.context() as patches:
        patches.setattr(Interrupt, "stops_now", lambda _: len(calls) == 3)
        with pytest.raises(KeyboardInterrupt):
            run(**words)
    assert final(run) == (3, 3.0, 300)
    assert run(**words)
    assert blend_of(run) == [4, 4]


def kill_while_parts_are_judged(run, language_is_added):
    """Ends a run in the middle of the choice that its last checkpoint owes."""
    language_is_added["scores"] = BETTER

    def end():
        raise Killed

    language_is_added["before"] = end
    with pytest.raises(Killed):
        run(dev_every=2, bleu_sentences=1)
    language_is_added["before"] = lambda: None


def test_more_steps_after_a_stop_make_the_blends_later(run, language_is_added):
    kill_while_parts_are_judged(run, language_is_added)
    # A run without validations owes nothing any more, and the verdicts so far are of no checkpoint.
    assert run(dev_every=0, bleu_sentences=1, steps=8)
    assert language_is_added["steps"] == []
    assert language_is_added["taken back"] == 6
    assert run(dev_every=2, bleu_sentences=1, steps=10)
    assert language_is_added["steps"] == [10]


def test_a_checkpoint_that_a_run_goes_back_to_owes_nothing(run, language_is_added):
    kill_while_parts_are_judged(run, language_is_added)
    bad_calls.add(7)
    assert run(dev_every=0, bleu_sentences=1, steps=8, on_divergence="rollback")
    assert final(run)[0] == 8
    assert language_is_added["steps"] == []


def test_a_trainer_that_has_lost_its_lock_adds_no_blend(run, language_is_added):
    language_is_added["scores"] = BETTER
    language_is_added["before"] = (run.folder.path / "trainer.lock").unlink
    with pytest.raises(UserError, match="somebody removed it"):
        run(dev_every=2, bleu_sentences=1)
    assert not (run.folder.checkpoints / "6" / "blend").exists()


def test_a_blend_that_is_written_half_leaves_the_checkpoint_as_it_was(
    run, language_is_added, monkeypatch
):
    language_is_added["scores"] = BETTER

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patches:
        write = train.training_state.save_blend

        def save_blend(checkpoints, *arguments):
            checkpoints.wait()
            patches.setattr(checkpoint_writer.files, "write", full)
            write(checkpoints, *arguments)

        patches.setattr(train.training_state, "save_blend", save_blend)
        words = r"blend cannot be added to the checkpoint of step 6 in .*: No space left on"
        with pytest.raises(UserError, match=words):
            run(dev_every=2, bleu_sentences=1)
    assert not (run.folder.checkpoints / "6" / "blend").exists()
    assert final(run) == (6, 6.0, 600)
    assert "blend" not in newest(run).tensors
    assert run(dev_every=2, bleu_sentences=1)
    assert blend_of(run) == [7, 7]


def test_a_run_that_adds_no_language_has_no_blends(run, language_is_added):
    language_is_added["files"] = {}
    assert run(dev_every=2, bleu_sentences=1)
    assert language_is_added["steps"] == []


def test_a_run_that_translates_nothing_has_no_blends(run, language_is_added):
    assert run(dev_every=2, bleu_sentences=0)
    assert language_is_added["steps"] == []
