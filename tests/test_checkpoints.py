"""gshard-checkpoint: what it prints, what it finds, and the average that it makes."""

import shutil
from unittest import mock

import jax
import numpy as np
import pytest

from gshard_nmt import checkpoints as program
from gshard_nmt import outputs, paths
from gshard_nmt.cli import commands
from gshard_nmt.errors import UserError
from gshard_nmt.reading import UnreadableError
from gshard_nmt.run.checkpoint import tensor_files
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.settings.gin_reader import load_config
from tests.run.checkpoints import LETTERS, abstract, assert_equal, flip, state

CONFIG = load_config("demo").replace(train={"bleu_sentences": 0})


def make_run(folder, states: dict[int, dict], identity=None):
    """Writes a run folder with these checkpoints. The scores get better step by step."""
    folder.mkdir()
    (folder / "config.gin").write_text(CONFIG.text)
    for name in ("data.json", "source.model", "target.model"):
        (folder / name).write_text(f"{name} of {folder.name}")
    writer = CheckpointWriter(folder / "checkpoints", identity=identity)
    for step, groups in states.items():
        scores = Scores({"dev_nll": 10.0 - step}, {"dev_batches": 1})
        writer.save(step, groups, LETTERS, {"seconds": 1.0}, scores)
    writer.close()
    return folder


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", {1: state(1), 2: state(2)})


def checkpoint(*arguments: object) -> int:
    return commands.main(["checkpoint", *map(str, arguments)])


def test_list_shows_why_each_is_kept(run, capsys):
    assert checkpoint("list", "--workdir", run) == 0
    out = capsys.readouterr().out
    assert "8.000" in out
    assert "last, best" in out


def test_verify_reads_every_tensor(run, capsys):
    assert checkpoint("verify", "--workdir", run) == 0
    assert capsys.readouterr().out == "step 1: 3 tensors, sound\nstep 2: 3 tensors, sound\n"
    flip(run / "checkpoints", 1)
    assert checkpoint("verify", "--workdir", run) == 2
    err = capsys.readouterr().err
    assert err.startswith("gshard-checkpoint verify: 1 of 2 checkpoints cannot be used:\n")
    assert "checkpoints/1: parameters/experts/w is damaged: repeat 0, expert 1\n" in err
    assert checkpoint("verify", "--workdir", run, "--step", 2) == 0
    assert checkpoint("verify", "--workdir", run, "--step", 9) == 2
    assert "has no checkpoint of step 9; it has 1, 2." in capsys.readouterr().err
    (run / "checkpoints").rename(run / "away")
    assert checkpoint("verify", "--workdir", run) == 2


@pytest.mark.parametrize(("status", "code"), [("PERMISSION_DENIED", 2), ("UNKNOWN", 75)])
def test_verify_does_not_call_damaged_what_it_could_not_read(
    run, capsys, monkeypatch, status, code
):
    def refuse(*_):
        raise ValueError(f"{status}: the server says no")

    monkeypatch.setattr(program.Checkpoints, "pauses", ())
    for name in ("load", "load_to_host"):
        monkeypatch.setattr(tensor_files, name, refuse)
    assert checkpoint("verify", "--workdir", run) == code
    out, err = capsys.readouterr()
    assert out == "step 1: 0 tensors, cannot be read\nstep 2: 0 tensors, cannot be read\n"
    assert f"checkpoints/2: its arrays cannot be read: {status}: the server says no. " in err
    assert "damaged" not in err
    assert (
        checkpoint("average", "--workdir", run, "--out", run.parent / "mean", "--last", 2) == code
    )
    assert "choose a sound checkpoint" not in capsys.readouterr().err


def test_verify_passes_over_what_its_run_removes_meanwhile(run, capsys, monkeypatch):
    def removed(checkpoints, step, *_):
        shutil.rmtree(checkpoints.folder / str(step))
        raise UnreadableError("it is gone")

    monkeypatch.setattr(program, "_find_problems", removed)
    assert checkpoint("verify", "--workdir", run) == 0
    assert "step 1: its run has removed it meanwhile\n" in capsys.readouterr().out


def test_verify_compares_the_vocabularies(tmp_path):
    run = make_run(tmp_path / "run", {1: state(1)}, {"source.model": "00", "config": "11"})
    with pytest.raises(UserError, match=r"checkpoints/1: it was made with another source\.model"):
        program.verify(run)


def test_diff_names_tensors_experts_and_sizes(run, tmp_path, capsys):
    changed = state(2)
    weight = changed["parameters"]["experts/w"]
    changed["parameters"]["experts/w"] = weight.at[0, 1, 2, 3].add(0.5)
    other = make_run(tmp_path / "other", {2: changed})
    assert checkpoint("diff", "--workdir", run, "--other", other) == 0
    *_, row, equal = capsys.readouterr().out.splitlines()
    norm = f"{0.5 / np.linalg.norm(np.asarray(weight)):.3g}"
    assert row.split() == ["parameters/experts/w", "0.5", norm, "repeat", "0,", "expert", "1"]
    assert equal == "equal to the bit: 2 of 3 tensors"
    assert checkpoint("diff", "--workdir", run, "--steps", "1,2") == 0
    assert "equal to the bit: 0 of 3 tensors" in capsys.readouterr().out


def test_diff_of_different_models(run, tmp_path, capsys):
    groups = state(2)
    groups["parameters"]["b"] = jax.numpy.zeros(4)
    del groups["optimizer"]
    program.diff((run, 2), (make_run(tmp_path / "other", {5: groups}), None))
    words = " ".join(capsys.readouterr().out.split())
    assert f"optimizer/step only in {run}/checkpoints/2"[:40] in words
    assert "parameters/b float32[3] and float32[4]" in words


def test_diff_of_a_damaged_checkpoint_names_it(run):
    flip(run / "checkpoints", 1)
    with pytest.raises(
        UserError, match=r"checkpoints/1: parameters/experts/w is damaged: repeat 0"
    ):
        program.diff((run, 1), (run, 2))
    (run / "checkpoints" / "2" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"checkpoints/2: manifest\.json is missing"):
        program.diff((run, 2), (run, 1))


@pytest.mark.parametrize("flags", [["--last", 2], ["--steps", "2,1"]])
def test_the_average_is_a_run_folder_that_decodes(run, tmp_path, capsys, flags):
    out = tmp_path / "averaged"
    (run / "imported").mkdir()
    (run / "imported" / "vocab.json").write_text("{}")
    assert checkpoint("average", "--workdir", run, "--out", out, *flags) == 0
    assert f"decode with gshard-decode --workdir {out}" in capsys.readouterr().out
    checkpoints = Checkpoints(out / "checkpoints")
    weights = {"parameters": state(1)["parameters"]}
    restored = checkpoints.restore(abstract(weights), checkpoints.best_first())
    assert_equal(restored.groups, {"parameters": state(1.5)["parameters"]})
    assert restored.manifest.average_of == (f"{run}/checkpoints/1", f"{run}/checkpoints/2")
    for name in ("config.gin", "data.json", "source.model", "target.model", "imported/vocab.json"):
        assert (out / name).read_bytes() == (run / name).read_bytes()
    # Training cannot go on from it.
    with pytest.raises(UserError, match=r"it is an average of .* and has only weights"):
        checkpoints.restore(abstract(state(1)))


def test_the_moving_average_is_listed_verified_compared_and_averaged(tmp_path, capsys):
    second = state(2) | {"ema": state(9)["parameters"]}
    run, out = make_run(tmp_path / "run", {1: state(1), 2: second}), tmp_path / "averaged"
    program.list_checkpoints(run)
    assert capsys.readouterr().out.count("Train.ema") == 1
    program.verify(run, 2)
    assert "step 2: 5 tensors, sound" in capsys.readouterr().out
    program.diff((run, 1), (run, 2))
    assert capsys.readouterr().out.count("only in") == 2
    program.average(run, [], 2, out)
    checkpoints = Checkpoints(out / "checkpoints")
    restored = checkpoints.restore(abstract({"parameters": state(1)["parameters"]}))
    assert_equal(restored.groups, {"parameters": state(5)["parameters"]})
    assert restored.manifest.average_of == (
        f"{run}/checkpoints/1",
        f"{run}/checkpoints/2 (Train.ema)",
    )


def test_an_average_is_of_sound_checkpoints_of_one_model(run, tmp_path):
    with pytest.raises(UserError, match=r"--last is 3, and .* has 2 checkpoints; give a smaller"):
        program.average(run, [], 3, tmp_path / "averaged")
    with pytest.raises(UserError, match=r"--out .*run is not empty; give a new folder"):
        program.average(run, [], 2, run)
    # Another program may make the folder after it was checked.
    late = mock.patch.object(program, "outputs", mock.Mock(new_folder=outputs.new_folder))
    with late, pytest.raises(UserError, match=r"--out .*run is not empty; give a new folder"):
        program.average(run, [], 2, run)
    flip(run / "checkpoints", 2)
    with pytest.raises(UserError, match=r"checkpoints/2: parameters/experts/w is damaged"):
        program.average(run, [1, 2], 0, tmp_path / "averaged")
    assert not (tmp_path / "averaged").exists()


def test_an_average_that_cannot_be_written_leaves_nothing_behind(run, tmp_path, monkeypatch):
    close = CheckpointWriter.close

    def full(writer):
        close(writer)
        raise UserError("the disk is full")

    monkeypatch.setattr(CheckpointWriter, "close", full)
    with pytest.raises(UserError, match="the disk is full"):
        program.average(run, [], 2, tmp_path / "averaged")
    assert list(tmp_path.iterdir()) == [run]


def test_a_run_in_a_bucket_has_all_verbs(bucket, tmp_path, capsys):
    folder = paths.folder_path("workdir", "gs://bucket/run")
    run, out = make_run(folder, {1: state(1), 2: state(2)}), tmp_path / "averaged"
    assert checkpoint("list", "--workdir", run) == 0
    assert checkpoint("verify", "--workdir", run) == 0
    assert checkpoint("diff", "--workdir", run, "--steps", "1,2") == 0
    assert checkpoint("average", "--workdir", run, "--last", 2, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "step 2: 3 tensors, sound\n" in printed
    assert "equal to the bit: 0 of 3 tensors\n" in printed
    assert Checkpoints(out / "checkpoints").steps() == [2]
    assert (out / "source.model").read_text() == "source.model of run"
