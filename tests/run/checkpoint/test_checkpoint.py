"""Checkpoints as they are read: verified, and passed over if they are not sound."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.reading import UnreadableError, UnsoundError
from gshard_nmt.run.checkpoint import tensor_files
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, Retention
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import ForeignError, Scores
from tests.run.checkpoints import (
    LETTERS,
    abstract,
    assert_equal,
    files_of,
    flip,
    make_readable,
    make_unreadable,
    state,
)

IDENTITY = {"source.model": "aa", "config": "bb"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with the checkpoints of steps 1 and 2. Step 1 is the better one."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    writer = CheckpointWriter(folder, identity=IDENTITY)
    for step in (1, 2):
        scores = Scores({"dev_nll": float(step)}, {"dev_batches": 1})
        writer.save(step, state(step), LETTERS, {"seconds": step + 0.5}, scores)
    writer.close()
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(written, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def specs() -> dict:
    return abstract(state(1))


def test_a_checkpoint_is_read_as_it_was_written(written):
    restored = Checkpoints(written).restore(specs())
    assert restored.passed_over == ()
    assert restored.manifest.step == 2
    assert restored.manifest.facts == {"seconds": 2.5}
    assert restored.manifest.files == IDENTITY
    assert_equal(restored.groups, state(2))
    # One group alone, of another step.
    first = Checkpoints(written).restore({"parameters": specs()["parameters"]}, [1])
    assert_equal(first.groups, {"parameters": state(1)["parameters"]})


def test_a_reader_changes_nothing_in_a_folder(written):
    before = {path: path.stat().st_mtime_ns for path in [written, *written.rglob("*")]}
    checkpoints = Checkpoints(written)
    assert checkpoints.steps() == [1, 2]
    assert checkpoints.newest().step == 2
    assert checkpoints.best_first() == [1, 2]
    assert checkpoints.kept() == {1: ["last", "best"], 2: ["last"]}
    checkpoints.restore(specs())
    checkpoints.read(checkpoints.manifest(1), "parameters", "b")
    assert before == {path: path.stat().st_mtime_ns for path in [written, *written.rglob("*")]}


def test_every_file_missing_cut_or_flipped_is_noticed_or_does_no_harm(written, folder):
    """The newest checkpoint is damaged: the one before it is used, or all values are equal."""
    harmless = set()
    for file in files_of(written / "2"):
        path = folder / file.relative_to(written)
        content = file.read_bytes()
        flipped = bytearray(content)
        if content:
            flipped[len(content) // 2] ^= 0x10
        for damage in (None, content[: len(content) // 2], bytes(flipped)):
            path.unlink()
            if damage is not None:
                path.write_bytes(damage)
            restored = Checkpoints(folder).restore(specs())
            if restored.manifest.step == 2:
                harmless.add(file)
                assert restored.manifest.facts == {"seconds": 2.5}
            assert_equal(restored.groups, state(restored.manifest.step))
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
    # Every part of the files that carry values is noticed.
    noticed = {str(file.relative_to(written / "2")) for file in files_of(written / "2")}
    noticed -= {str(file.relative_to(written / "2")) for file in harmless}
    assert {"manifest.json", "manifest.ocdbt"} < noticed
    assert any(name.startswith("ocdbt.process_0/d/") for name in noticed)


def test_each_flipped_byte_of_the_data_is_noticed_and_its_tensor_named(folder):
    flip(folder, 2)
    restored = Checkpoints(folder).restore(specs())
    assert restored.manifest.step == 1
    assert restored.passed_over == (
        f"{folder}/2: parameters/experts/w is damaged: repeat 0, expert 1",
    )


def test_if_none_is_sound_each_is_named(folder):
    (folder / "1" / "manifest.json").write_text("{}")
    (folder / "2" / "manifest.ocdbt").unlink()
    with pytest.raises(UserError) as error:
        Checkpoints(folder).restore(specs())
    first, second, third, last = str(error.value).splitlines()
    assert first == "no checkpoint can be used:"
    assert second.startswith(f"  {folder}/2: its arrays cannot be read: ")
    assert third == f"  {folder}/1: manifest.json is damaged: sha256 is missing"
    assert last.startswith("Restore one of these folders from a copy")


def test_a_checkpoint_of_another_run_is_named(written):
    with pytest.raises(UserError, match=r"2: it belongs to another run: config differ"):
        Checkpoints(written, identity={**IDENTITY, "config": "cc"}).restore(specs())
    # A run that records more than an older version did reads its checkpoints.
    Checkpoints(written, identity={**IDENTITY, "new": "dd"}).restore(specs())


OTHER_MODELS = [
    ("parameters", "b", np.zeros(4, np.float32), "parameters/b is float32[3], and float32[4] in"),
    ("parameters", "b", np.zeros(3, np.int32), "parameters/b is float32[3], and int32[3] in"),
    ("parameters", "c", np.zeros(3, np.int32), "parameters/c is missing, and int32[3] in the run"),
    ("input", "c", np.zeros(3, np.int32), "it has no input"),
]


@pytest.mark.parametrize(("group", "name", "array", "message"), OTHER_MODELS)
def test_a_checkpoint_of_another_model_is_named(written, group, name, array, message):
    groups = state(1)
    groups.setdefault(group, {})[name] = jax.device_put(array)
    with pytest.raises(UserError) as error:
        Checkpoints(written).restore(abstract(groups))
    assert message in str(error.value)


def test_the_newest_manifest_that_can_be_read_counts(folder):
    (folder / "2" / "manifest.json").write_text("")
    assert Checkpoints(folder).newest().step == 1
    (folder / "1" / "commit_success.txt").unlink()
    assert Checkpoints(folder).newest() is None


def test_what_restoring_has_found_to_be_damaged_is_not_tried_again(folder):
    (folder / "2" / "manifest.ocdbt").unlink()
    checkpoints = Checkpoints(folder)
    assert checkpoints.newest().step == 2
    assert len(checkpoints.restore(specs()).passed_over) == 1
    assert checkpoints.newest().step == 1
    assert checkpoints.restore(specs()).passed_over == ()
    (folder / "1" / "manifest.ocdbt").unlink()
    with pytest.raises(UserError, match=r"(?s)no checkpoint can be used.*/2: its.*/1: its"):
        checkpoints.restore(specs())


@pytest.mark.parametrize("name", ["manifest.json", "manifest.ocdbt"])
def test_a_file_that_cannot_be_read_now_is_no_damage(folder, name):
    content = make_unreadable(folder / "2" / name)
    checkpoints = Checkpoints(folder)
    restored = checkpoints.restore(specs())
    assert restored.manifest.step == 1
    (problem,) = restored.passed_over
    assert problem.startswith(f"{folder}/2: ")
    assert "Too many levels of symbolic links" in problem
    make_readable(folder / "2" / name, content)
    assert checkpoints.restore(specs()).manifest.step == 2


def test_a_file_is_read_again_after_a_pause(folder, monkeypatch):
    """Each of the two kinds of files fails twice."""
    load, errors = (
        tensor_files.load,
        [OSError(5, "Input/output error"), ValueError("UNAVAILABLE: x")],
    )

    def flaky(*arguments):
        if errors:
            raise errors.pop()
        return load(*arguments)

    monkeypatch.setattr(tensor_files, "load", flaky)
    waited = []
    monkeypatch.setattr("gshard_nmt.reading.time.sleep", waited.append)
    restored = Checkpoints(folder).restore(specs())
    assert (restored.manifest.step, restored.passed_over) == (2, ())
    assert len(waited) == 2


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path):
    (tmp_path / "checkpoints").symlink_to(tmp_path / "checkpoints")
    with pytest.raises(TryAgain, match=r"checkpoints cannot be read: Too many levels"):
        Checkpoints(tmp_path / "checkpoints").steps()


def test_a_commit_file_that_cannot_be_seen_is_not_a_missing_one(folder):
    make_unreadable(folder / "2" / "commit_success.txt")
    with pytest.raises(TryAgain, match=r"commit_success\.txt cannot be read: Too many levels"):
        Checkpoints(folder).steps()


def test_a_decoder_lists_again_if_the_run_removes_what_it_reads(folder, monkeypatch):
    load = tensor_files.load

    def remove_first(path, *arguments):
        if (folder / "1").exists():
            # The run goes on meanwhile: it has saved step 5, and keeps no other one.
            (folder / "1").rename(folder.parent / "5")
            shutil.rmtree(folder / "2")
            writer = CheckpointWriter(folder, identity=IDENTITY)
            writer.save(5, state(5), LETTERS, {})
            writer.close()
        return load(path, *arguments)

    monkeypatch.setattr(tensor_files, "load", remove_first)
    restored = Checkpoints(folder).restore_best(specs())
    assert restored.manifest.step == 5
    (problem,) = restored.passed_over
    assert "commit_success.txt is missing: it was not finished, or has been removed" in problem
    assert_equal(restored.groups, state(5))


def test_a_decoder_that_can_use_none_says_so(folder):
    for step in (1, 2):
        (folder / str(step) / "manifest.json").write_text("")
    with pytest.raises(UserError, match=r"(?s)no checkpoint can be used:.*/2: .*/1: "):
        Checkpoints(folder).restore_best(specs())


def test_a_missing_checkpoint_is_said_and_no_folder_is_made(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.steps() == []
    assert checkpoints.newest() is None
    with pytest.raises(UserError, match=r"has no checkpoint; train with gshard-train first"):
        checkpoints.restore(specs())
    assert not checkpoints.folder.exists()


def test_a_decoder_tries_the_best_first_then_the_newest(written):
    assert Checkpoints(written, Retention(metric="dev_bleu")).best_first() == [2, 1]
    assert Checkpoints(written, Retention(best=0)).best_first() == [2, 1]


class OtherProcesses:
    """This process is 1 of 2; the test says what process 0 decides and tells."""

    count, is_first = 2, False

    def __init__(self, *answers):
        self.answers = list(answers)

    def from_first(self, decide):
        return self.answers.pop(0)

    def gather(self, value):
        return [self.answers.pop(0), value]


def test_process_0_decides_which_checkpoints_there_are(written):
    """On a network file system the processes may see different lists."""

    assert Checkpoints(written, processes=OtherProcesses([1, 2, 9])).steps() == [1, 2, 9]


def test_process_0_decides_whether_to_save(folder):
    """Process 1 cannot read the manifest of step 2, and waits for no other answer because of it."""
    make_unreadable(folder / "2" / "manifest.json")
    (folder / "1" / "manifest.json").write_text("")
    processes = OtherProcesses(True)
    writer = CheckpointWriter(folder, processes=processes)
    writer._writer = object()
    assert not writer.save(2, state(2), LETTERS, {})
    assert processes.answers == []


@pytest.mark.parametrize(
    ("number", "kind"), [(0, UnreadableError), (1, UnsoundError), (2, ForeignError)]
)
def test_a_checkpoint_has_the_same_problem_for_all_processes(written, number, kind):
    told = [number, "_CHECKPOINT is missing", "Do something"]
    checkpoints = Checkpoints(written, processes=OtherProcesses(told))
    message = "^process 0 cannot read it: _CHECKPOINT is missing$"
    with pytest.raises(UnsoundError, match=message) as error:
        checkpoints._read(2, specs())
    assert type(error.value) is kind
    assert error.value.is_damage == (number == 1)
    if number == 0:
        assert error.value.advice == "Do something"


def test_all_processes_read_the_manifest_of_process_0(written):
    """It may get its scores between their reads."""
    alone = Checkpoints(written).manifest(2)
    scored = dataclasses.replace(alone, scores=Scores({"dev_nll": 1.0}))
    checkpoints = Checkpoints(written, processes=OtherProcesses(None, scored.text, None))
    manifest, arrays = checkpoints._read(2, specs())
    assert manifest.text == scored.text
    assert manifest.label == alone.label
    assert arrays.keys() == specs().keys()


def test_a_foreign_checkpoint_is_damaged_for_no_process(folder):
    (folder / "2" / "manifest.json").write_text("")
    checkpoints = Checkpoints(folder, processes=OtherProcesses([2, "another run", ""]))
    with pytest.raises(ForeignError):
        checkpoints._read(2, specs())
