"""gshard-train without compiling: what is checked first, what is saved, and the baselines."""

import types

import jax
import numpy as np
import pytest

from gshard_nmt import train
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import step_functions
from gshard_nmt.run.checkpoint import LAST, Checkpoints
from gshard_nmt.run.counters import RunCounters
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.lock import RunLock
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.processes import ALONE
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
    with pytest.raises(UserError, match=r"Decode\.rows: dimension B has size 33"):
        train.train(DEMO.replace(decode={"rows": 33}), prepared.folder, tmp_path / "run")
    with pytest.raises(UserError, match="there is no such folder"):
        train.train(DEMO, tmp_path / "none", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_left_as_it_is(prepared, tmp_path, monkeypatch, capsys):
    run = RunFolder(tmp_path / "run")
    run.claim(DEMO, prepared)
    checkpoints = Checkpoints(run.checkpoints)
    counters = {"step": 7, "tokens": {"fr": 90}, "seconds": 1.0}
    checkpoints.save(LAST, 7, {"input": {"cursors": np.zeros(4)}}, counters)
    checkpoints.close()
    monkeypatch.setattr(train.runtime, "start", lambda *arguments: None)
    monkeypatch.setattr(train, "CompiledSteps", lambda *arguments: pytest.fail("compiled"))
    train.train(DEMO.replace(train={"steps": 7}), prepared.folder, run.path)
    assert capsys.readouterr().err == f"{run.path} is finished: 7 steps, nothing to do\n"
    # The limit of tokens ends it too.
    train.train(DEMO.replace(train={"steps": 9, "tokens": 90}), prepared.folder, run.path)
    assert "nothing to do" in capsys.readouterr().err


def test_a_checkpoint_restores_the_state_the_input_and_the_counters(tmp_path):
    functions = step_functions(DEMO)
    names = ("parameters/a/w", "moments/row/a/w", "step")
    state = {name: jax.device_put(np.full((2, 3), i)) for i, name in enumerate(names)}
    cursors = {"cursors": np.arange(4) + 2**40, "waiting": np.full((4, 3), -1)}
    batches = types.SimpleNamespace(state=lambda: cursors)
    run = RunFolder(tmp_path)
    checkpoints = Checkpoints(run.checkpoints)
    counters = RunCounters(step=3, tokens={"fr": 9, "de": 5}, seconds=1.5)
    train._save(run, checkpoints, counters, state, batches, ALONE)
    checkpoints.wait()
    abstract = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
        for name, array in state.items()
    }
    devices = types.SimpleNamespace(abstract=lambda specs: abstract)
    programs = types.SimpleNamespace(devices=devices, state_specs=None, functions=functions)
    restored, restored_cursors = train._restore(checkpoints, programs)
    assert RunCounters(**checkpoints.metadata(LAST)) == counters
    checkpoints.close()
    for actual, expected in ((restored, state), (restored_cursors, cursors)):
        assert actual.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(actual[name], array)
    budget = run.budget()
    assert budget["tokens_by_language"] == {"de": 5, "fr": 9}
    assert (budget["steps"], budget["seconds"], budget["parameters"]) == (3, 1.5, 6)


def test_each_process_contributes_the_cursors_of_its_own_rows():
    def contribution(rows: range) -> types.SimpleNamespace:
        cursors = np.where(np.isin(np.arange(4), rows), 10 + np.arange(4), 0)
        return types.SimpleNamespace(rows=rows, state=lambda: {"cursors": cursors.copy()})

    both = [contribution(range(2)), contribution(range(2, 4))]
    gathered = {
        (2,): np.array([[b.rows.start, b.rows.stop] for b in both]),
        (4,): np.array([b.state()["cursors"] for b in both]),
    }
    processes = types.SimpleNamespace(count=2, gather=lambda array: gathered[array.shape])
    for batches in both:
        whole = train._whole_input(batches, processes)
        assert whole["cursors"].tolist() == [10, 11, 12, 13]


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


def test_a_second_trainer_is_refused_before_it_writes_anything(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(train.runtime, "start", lambda *arguments: pytest.fail("started"))
    run = RunFolder(tmp_path / "run")
    run.claim(DEMO, prepared)
    before = {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()}
    with RunLock(run.path):
        with pytest.raises(UserError, match="is in use: process"):
            train.train(DEMO.replace(train={"steps": 9}), prepared.folder, run.path)
        (run.path / "trainer.lock").stat()
    assert {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()} == before


def test_a_run_that_ends_in_any_way_frees_its_folder(prepared, tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("there are too few devices")

    monkeypatch.setattr(train.runtime, "start", fail)
    for _ in range(2):
        with pytest.raises(UserError, match="too few devices"):
            train.train(DEMO, prepared.folder, tmp_path / "run")
    assert not (tmp_path / "run" / "trainer.lock").exists()
