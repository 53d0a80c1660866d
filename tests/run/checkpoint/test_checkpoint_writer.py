"""Checkpoints as they are written: committed whole, kept by rules, all values finite."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run.checkpoint import tensor_files
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, Retention
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.checksums import NotFiniteError
from gshard_nmt.run.checkpoint.manifest import Scores
from tests.faults import full_disk
from tests.run.checkpoints import (
    LETTERS,
    abstract,
    assert_equal,
    files_of,
    make_readable,
    make_unreadable,
    state,
)


@pytest.fixture
def open_writer(tmp_path):
    """Opens writers of one folder, and closes them after the test."""
    writers = []

    def open_writer(**rules) -> CheckpointWriter:
        identity = {"config": "aa"}
        writers.append(CheckpointWriter(tmp_path / "checkpoints", Retention(**rules), identity))
        return writers[-1]

    yield open_writer
    for writer in writers:
        writer.close()


def save(writer: CheckpointWriter, step: int, nll: float | None = None) -> bool:
    scores = Scores() if nll is None else Scores({"dev_nll": nll}, {"dev_batches": 1})
    return writer.save(step, state(step), LETTERS, {"step": step}, scores)


def saved(writer: CheckpointWriter, *steps: int) -> CheckpointWriter:
    """Returns the writer after it has saved these steps and is closed."""
    for step in steps:
        save(writer, step)
    writer.close()
    return writer


def steps_on_disk(writer: CheckpointWriter) -> list[int]:
    return sorted(int(path.name) for path in writer.folder.iterdir())


def test_the_rules_say_which_checkpoints_are_kept(open_writer):
    writer = open_writer(every=4)
    for step, nll in [(1, 3.0), (2, 1.0), (3, None), (4, 2.0), (5, None), (6, None), (7, None)]:
        assert save(writer, step, nll)
    writer.wait()
    assert steps_on_disk(writer) == [2, 4, 6, 7]
    assert writer.kept() == {2: ["best"], 4: ["every"], 6: ["last"], 7: ["last"]}
    # A new process reads the same from the disk, and goes on with it.
    again = open_writer()
    assert again.kept() == {2: ["best"], 4: [], 6: ["last"], 7: ["last"]}
    save(again, 8, 0.5)
    again.wait()
    assert steps_on_disk(again) == [7, 8]


def test_nothing_is_removed_before_the_next_one_is_committed(open_writer, monkeypatch):
    writer = open_writer()
    for step in (1, 2):
        save(writer, step)
    writer.wait()
    monkeypatch.setattr(writer, "_write_manifest", lambda: None)
    seen = []
    writer._writer._post_finalization_callback = lambda: (
        seen.append((steps_on_disk(writer), Checkpoints(writer.folder).steps())),
        CheckpointWriter._write_manifest(writer),
    )
    save(writer, 3)
    writer.wait()
    assert seen == [([1, 2, 3], [1, 2])]
    assert steps_on_disk(writer) == [2, 3]


def test_a_sound_checkpoint_is_not_written_again(open_writer):
    writer = open_writer()
    assert save(writer, 3)
    writer.wait()
    before = {path: path.stat().st_mtime_ns for path in files_of(writer.folder)}
    assert not save(writer, 3)
    assert not save(open_writer(), 3)
    assert before == {path: path.stat().st_mtime_ns for path in files_of(writer.folder)}


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_saved_again(open_writer):
    writer = saved(open_writer(), 1, 2)
    (writer.folder / "2" / "manifest.ocdbt").write_bytes(b"")
    resumed = open_writer()
    assert resumed.restore(abstract(state(1))).manifest.step == 1
    assert save(resumed, 2)
    resumed.wait()
    assert_equal(Checkpoints(resumed.folder).restore(abstract(state(1))).groups, state(2))
    assert steps_on_disk(resumed) == [1, 2]


def test_a_damaged_checkpoint_counts_for_no_rule_and_stays_until_there_are_newer_ones(open_writer):
    writer = saved(open_writer(), 1, 2, 4)
    (writer.folder / "4" / "manifest.json").write_text("")
    resumed = open_writer()
    kept = []
    for step in (3, 5, 6):
        assert save(resumed, step)
        resumed.wait()
        kept.append(steps_on_disk(resumed))
    assert kept == [[2, 3, 4], [3, 4, 5], [5, 6]]


@pytest.mark.parametrize("name", ["manifest.json", "manifest.ocdbt"])
def test_a_run_does_not_go_back_because_of_a_disk_that_fails(open_writer, name):
    writer = saved(open_writer(), 1, 2)
    content = make_unreadable(writer.folder / "2" / name)
    resumed = open_writer()
    message = r"checkpoints/2: .* cannot be read: .*Too many levels of symbolic links.* again when"
    with pytest.raises(TryAgain, match=message):
        resumed.restore(abstract(state(1)))
    make_readable(writer.folder / "2" / name, content)
    assert open_writer().restore(abstract(state(1))).manifest.step == 2


def test_a_checkpoint_that_cannot_be_read_now_is_not_removed(open_writer):
    """It is the best one, but its manifest cannot be read when the next ones are saved."""
    writer = open_writer()
    for step, nll in [(1, 1.0), (2, None), (3, None)]:
        save(writer, step, nll)
    writer.close()
    content = make_unreadable(writer.folder / "1" / "manifest.json")
    resumed = open_writer()
    for step in (4, 5, 6):
        save(resumed, step)
    resumed.wait()
    assert steps_on_disk(resumed) == [1, 5, 6]
    with pytest.raises(TryAgain, match=r"1: manifest\.json cannot be read"):
        save(resumed, 1)
    # It counts again as soon as it can be read.
    make_readable(writer.folder / "1" / "manifest.json", content)
    save(resumed, 7, 2.0)
    resumed.wait()
    assert steps_on_disk(resumed) == [1, 6, 7]


def test_a_complete_checkpoint_without_a_commit_file_is_taken_up_again(open_writer):
    writer = saved(open_writer(), 1, 2)
    before = files_of(writer.folder)
    for step in (1, 2):
        (writer.folder / str(step) / "commit_success.txt").unlink()
    resumed = open_writer()
    assert resumed.adopt() == [1, 2]
    assert resumed.start_saving() == []
    assert files_of(writer.folder) == before
    assert_equal(resumed.restore(abstract(state(1))).groups, state(2))


def test_what_is_not_finished_and_of_another_run_is_left_alone(open_writer, monkeypatch):
    writer = saved(open_writer(), 5)
    (writer.folder / "5" / "commit_success.txt").unlink()
    monkeypatch.setattr("gshard_nmt.run.checkpoint.manifest.FORMAT", 2)
    other = open_writer()
    assert other.adopt() == []
    assert other.start_saving() == []
    assert steps_on_disk(other) == [5]
    content = make_unreadable(writer.folder / "5" / "manifest.json")
    with pytest.raises(TryAgain, match=r"5: manifest\.json cannot be read"):
        open_writer().adopt()
    make_readable(writer.folder / "5" / "manifest.json", content)


def test_a_foreign_checkpoint_is_neither_replaced_nor_removed(open_writer, monkeypatch):
    saved(open_writer(), 5)
    monkeypatch.setattr("gshard_nmt.run.checkpoint.manifest.FORMAT", 2)
    other = open_writer()
    for step in (2, 3, 4):
        save(other, step)
    with pytest.raises(UserError, match="5 is a checkpoint of another run or another version"):
        save(other, 5)
    assert steps_on_disk(other) == [3, 4, 5]


def test_what_killed_saves_have_left_is_removed_at_the_start(open_writer):
    writer = saved(open_writer(), 1)
    shutil.copytree(writer.folder / "1", writer.folder / "2")
    (writer.folder / "2" / "commit_success.txt").unlink()
    (writer.folder / "notes").mkdir()
    assert Checkpoints(writer.folder).steps() == [1]
    assert (writer.folder / "2").exists()
    assert open_writer().start_saving() == [2]
    assert sorted(path.name for path in writer.folder.iterdir()) == ["1", "notes"]


def test_the_next_step_may_reuse_the_memory_of_what_is_being_saved(open_writer):
    """The arrays are donated while orbax still writes them."""
    writer = open_writer()
    add = jax.jit(lambda tree: jax.tree.map(lambda a: a + 1, tree), donate_argnums=0)
    groups = {"parameters": {str(i): jnp.full((64, 256), float(i)) for i in range(20)}}
    expected = jax.tree.map(np.array, groups)
    for step in (1, 2, 3):
        writer.save(step, groups, {}, {})
        groups = add(groups)
    writer.close()
    restored = Checkpoints(writer.folder).restore(abstract(groups)).groups
    assert_equal(restored, jax.tree.map(lambda a: a + 2, expected))


def test_a_value_that_is_not_finite_is_never_committed(open_writer):
    writer = open_writer()
    save(writer, 1)
    bad = state(2)
    bad["parameters"]["b"] = bad["parameters"]["b"].at[1].set(jnp.nan)
    with pytest.raises(NotFiniteError, match=r"^not finite: parameters/b \(1\)$"):
        writer.save(2, bad, LETTERS, {})
    writer.close()
    assert steps_on_disk(writer) == [1]


@pytest.mark.parametrize("limit", [0, 20, 700, 1300])
def test_on_a_full_disk_the_older_checkpoints_stay(open_writer, limit, monkeypatch):
    # Several arrays are written at the same time when one of them fails.
    monkeypatch.setattr(tensor_files, "_SMALL_BYTES", 0)
    writer = open_writer()
    for step in (1, 2):
        save(writer, step)
    writer.wait()
    with full_disk(limit), pytest.raises(UserError) as error:
        (save(writer, 3), writer.wait())
    assert str(error.value).startswith(
        f"the checkpoint of step 3 cannot be written to {writer.folder}: "
    )
    assert Checkpoints(writer.folder).restore(abstract(state(1))).manifest.step == 2
    # The next start has the space that the failed save had taken.
    assert steps_on_disk(writer) == [1, 2]
    # When there is space again, the same command goes on.
    resumed = open_writer()
    assert resumed.start_saving() == []
    save(resumed, 3)
    resumed.wait()
    assert resumed.steps() == [2, 3]


def test_an_error_in_the_background_is_reported_at_the_next_look(open_writer):
    writer = open_writer()
    save(writer, 1)
    writer.wait()
    with full_disk(1300):
        save(writer, 2)
        writer._writer._async_manager._thread.join()
    with pytest.raises(UserError, match="the checkpoint of step 2 cannot be written"):
        writer.check_for_errors()
    writer.check_for_errors()


def test_a_save_that_fails_after_its_manifest_is_taken_up_by_the_next_start(open_writer):
    writer = open_writer()
    writer.on_commit = lambda manifest: (_ for _ in ()).throw(OSError(28, "No space left"))
    save(writer, 1)
    with pytest.raises(UserError, match="the checkpoint of step 1 cannot be written"):
        writer.wait()
    assert writer.steps() == []
    assert open_writer().adopt() == [1]
    assert_equal(open_writer().restore(abstract(state(1))).groups, state(1))


def test_a_save_that_takes_too_long_is_no_mistake_of_the_user(open_writer):
    writer = open_writer()
    message = r"step 7 was not written to .* within 24 hours: .* not answer \(at the barrier"
    with pytest.raises(TryAgain, match=message), writer._writing(7):
        raise TimeoutError("at the barrier")
    # The file server of a network file system does not answer.
    message = "the checkpoint of step 7 cannot be written to .*: Connection timed out"
    with pytest.raises(TryAgain, match=message), writer._writing(7):
        raise OSError(110, "Connection timed out")
    # Tensorstore, which writes the arrays, has the number in its text.
    for text in ("UNKNOWN: write [os_error_code='116']", "UNAVAILABLE: 503"):
        with pytest.raises(TryAgain, match="cannot be written"), writer._writing(7):
            raise ValueError(text)
    with pytest.raises(UserError, match=r": RuntimeError\. Free some"), writer._writing(7):
        raise RuntimeError  # a library that gives no reason


def test_facts_and_scores_of_a_committed_checkpoint_are_changed(open_writer):
    writer = open_writer()
    save(writer, 1, 3.0)
    writer.change(1, {"step": 6}, Scores({"dev_nll": 1.0}))
    manifest = Checkpoints(writer.folder).newest()
    assert (manifest.facts, manifest.scores) == ({"step": 6}, Scores({"dev_nll": 1.0}))
    assert writer.best_first() == [1]
    (writer.folder / "1" / "manifest.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"^\S+/1: manifest.json is damaged.*Start the same command again"
    ):
        writer.change(1, {}, Scores())
    with pytest.raises(TryAgain, match=r"^a server"), writer._writing(7):
        raise TryAgain("a server does not answer")


def test_training_replaces_an_average_at_its_step(open_writer):
    writer = open_writer()
    save(writer, 1)
    weights = {"parameters": state(7)["parameters"]}
    writer.save(2, weights, LETTERS, {}, average_of=["step 1", "step 7"])
    assert writer.save(2, state(2), LETTERS, {})
    writer.close()
    assert_equal(Checkpoints(writer.folder).restore(abstract(state(2))).groups, state(2))
