"""gshard-train without compiling: what is checked first, what is saved, and the baselines."""

import types

import numpy as np
import pytest

from gshard_nmt import train
from gshard_nmt.errors import UserError
from gshard_nmt.run import input_state
from gshard_nmt.run.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.counters import RunCounters
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.manifest import Manifest, Tensor
from gshard_nmt.run.retention import Scores
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec
from tests.data.synthetic import write_prepared_data

DEMO = load_config("demo").replace(
    data={"source_length": 24, "target_length": 20, "rows": 4, "minimum_pairs": 1},
    model={"num_groups": 4},
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_prepared_data(
        tmp_path_factory.mktemp("data") / "prepared", DEMO.data, {"fr": 40, "de": 20}
    )


def test_a_run_that_cannot_start_leaves_no_run_folder(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(train.runtime, "start", lambda *arguments: pytest.fail("started"))
    with pytest.raises(UserError, match=r"Data\.rows: dimension B has size 3"):
        train.train(DEMO.replace(data={"rows": 3}), prepared.folder, tmp_path / "run")
    with pytest.raises(UserError, match="there is no such folder"):
        train.train(DEMO, tmp_path / "none", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_left_as_it_is(prepared, tmp_path, monkeypatch, capsys):
    run = RunFolder(tmp_path / "run")
    run.claim(DEMO, prepared)
    checkpoints = CheckpointWriter(run.checkpoints)
    counters = {"step": 7, "tokens": {"fr": 90}, "seconds": 1.0}
    checkpoints.save(7, {"parameters": {"w": np.zeros((4, 2), np.float32)}}, {}, counters)
    checkpoints.close()
    monkeypatch.setattr(train.runtime, "start", lambda *arguments: None)
    monkeypatch.setattr(train, "CompiledSteps", lambda *arguments: pytest.fail("compiled"))
    train.train(DEMO.replace(train={"steps": 7}), prepared.folder, run.path)
    assert capsys.readouterr().err == f"{run.path} is finished: 7 steps, nothing to do\n"
    # A kill just before the commit of a later step may have left its budget.
    assert run.budget() == {
        "steps": 7,
        "seconds": 1.0,
        "parameters": 8,
        "tokens_by_language": {"fr": 90},
    }
    # The limit of tokens ends it too.
    train.train(DEMO.replace(train={"steps": 9, "tokens": 90}), prepared.folder, run.path)
    assert "nothing to do" in capsys.readouterr().err


def test_a_checkpoint_restores_the_state_the_input_and_the_counters(tmp_path):
    devices = runtime.start(DEMO.mesh)
    names = ("parameters/a/w", "moments/row/a/w", "step")
    specs = {name: ArraySpec((2, 3), np.dtype(np.float32), "EM") for name in names}
    state = devices.put({n: np.full((2, 3), i, np.float32) for i, n in enumerate(names)}, specs)
    programs = types.SimpleNamespace(devices=devices, state_specs=specs, config=DEMO)
    shapes = {name: spec.shape[:-1] for name, spec in input_state.input_specs(DEMO.data).items()}
    cursors = {
        name: np.arange(np.prod(shape)).reshape(shape) - 2**40 for name, shape in shapes.items()
    }
    batches = types.SimpleNamespace(state=lambda: cursors)
    run = RunFolder(tmp_path)
    checkpoints = CheckpointWriter(run.checkpoints)
    counters = RunCounters(step=3, tokens={"fr": 9, "de": 5}, seconds=1.5)
    train._save(checkpoints, counters, state, batches, Scores({"dev_nll": 1.0}), programs)
    counters.step = 4
    train._save(checkpoints, counters, state, batches, Scores(), programs)
    checkpoints.close()
    # The newest is damaged, so the one before it is used, and the user is told.
    (run.checkpoints / "4" / "manifest.ocdbt").unlink()
    notes = []
    progress = types.SimpleNamespace(note=notes.append)
    restored, restored_cursors, restored_counters = train._restore(checkpoints, programs, progress)
    assert restored_counters == RunCounters(step=3, tokens={"fr": 9, "de": 5}, seconds=1.5)
    assert notes[0].startswith(f"{run.checkpoints}/4: its arrays cannot be read: ")
    assert notes[0].endswith(". Going on from step 3")
    for actual, expected in ((restored, state), (restored_cursors, cursors)):
        assert actual.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(actual[name], array)


def test_a_state_that_is_not_finite_is_not_saved(tmp_path):
    devices = runtime.start(DEMO.mesh)
    specs = {"parameters/w": ArraySpec((2, 3), np.dtype(np.float32), "EM")}
    state = devices.put({"parameters/w": np.full((2, 3), np.nan, np.float32)}, specs)
    programs = types.SimpleNamespace(devices=devices, state_specs=specs, config=DEMO)
    window = DEMO.data.packing_window
    cursors = {"cursors": np.zeros(4, np.int64), "waiting": np.zeros((4, window), np.int64)}
    batches = types.SimpleNamespace(state=lambda: cursors)
    checkpoints = CheckpointWriter(tmp_path)
    message = r"the state of step 5 is not finite: parameters/w \(6\): training has diverged"
    with pytest.raises(UserError, match=message):
        train._save(checkpoints, RunCounters(step=5), state, batches, Scores(), programs)
    checkpoints.close()
    assert list(tmp_path.iterdir()) == []


def test_the_budget_counts_the_weights(tmp_path):
    sums = np.array(0, np.uint32)
    tensors = {
        "parameters": {"w": Tensor((2, 3), "float32", "", sums)},
        "optimizer": {"m": Tensor((9,), "float32", "", sums)},
    }
    facts = {"step": 3, "tokens": {"fr": 9, "de": 5}, "seconds": 1.5}
    train._write_budget(RunFolder(tmp_path), Manifest(3, tensors, facts=facts))
    assert RunFolder(tmp_path).budget() == {
        "steps": 3,
        "seconds": 1.5,
        "parameters": 6,
        "tokens_by_language": {"de": 5, "fr": 9},
    }


def test_the_best_metric_must_be_of_a_language_of_the_run(prepared, tmp_path):
    config = DEMO.replace(train={"best_metric": "dev_nll/frr"})
    with pytest.raises(UserError, match=r"no language 'frr'; did you mean 'fr'\? It has fr, de;"):
        train.train(config, prepared.folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_each_baseline_gets_its_language_and_the_tokens_of_the_multilingual_run(
    tmp_path, monkeypatch
):
    runs = []
    monkeypatch.setattr(train, "train", lambda *arguments: runs.append(arguments))
    of = RunFolder(tmp_path / "run")
    of.path.mkdir()
    of.write_json("budget.json", {"tokens_by_language": {"de": 5, "fr": 9}})
    train.train_baselines(DEMO, tmp_path / "data", of.path, tmp_path / "baselines")
    assert [(config.data.languages, config.train.tokens) for config, *_ in runs] == [
        (("fr",), 9),
        (("de",), 5),
    ]
    assert [workdir.name for _, _, workdir, _ in runs] == ["fr", "de"]
    # The baselines share their compiled programs.
    folders = {RunFolder(workdir).programs for _, _, workdir, _ in runs}
    assert folders == {tmp_path / "baselines" / "programs"}


def test_baselines_need_a_trained_multilingual_run(tmp_path):
    with pytest.raises(UserError, match=r"has no budget\.json; train it with gshard-train before"):
        train.train_baselines(DEMO, tmp_path, tmp_path, tmp_path / "baselines")
    assert not (tmp_path / "baselines").exists()
