"""gshard-train without compiling: what is checked first, and what is saved."""

import numpy as np
import pytest

from gshard_nmt import train
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.lock import RunLock
from gshard_nmt.spmd import machine
from gshard_nmt.spmd.processes import ALONE
from tests.run.fake_time import FakeTime
from tests.train_loop import DEMO, prepared

__all__ = ["prepared"]


def test_a_run_that_cannot_start_leaves_no_run_folder(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(train.runtime, "start", lambda *arguments: pytest.fail("started"))
    with pytest.raises(UserError, match=r"Data\.rows: dimension B has size 3"):
        train.train(DEMO.replace(data={"rows": 3}), prepared.folder, tmp_path / "run")
    cannot_decode = {"positions": "learned", "max_positions": 64}
    too_long = DEMO.replace(
        model=cannot_decode, decode={"source_lengths": (65,)}, train={"bleu_sentences": 0}
    )
    with pytest.raises(UserError, match=r"Decode\.source_lengths: 65 tokens are more than"):
        train.train(too_long, prepared.folder, tmp_path / "run")
    with pytest.raises(UserError, match="there is no such folder"):
        train.train(DEMO, tmp_path / "none", tmp_path / "run")
    monkeypatch.setattr(Vocabulary, "load", lambda file: {("text", file.name): 0})
    shared = DEMO.replace(model={"shared_embedding": True})
    with pytest.raises(UserError, match="have other pieces at the same ids"):
        train.train(shared, prepared.folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_the_precision_of_products_with_which_it_began(prepared, tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "run")

    def precision(is_fast: bool) -> str:
        monkeypatch.setattr(machine, "multiplies_bfloat16", lambda: is_fast)
        return run.with_precision(DEMO, ALONE).model.matmul_precision

    assert [precision(True), precision(False)] == ["bfloat16", "default"]
    run.claim(DEMO.replace(model={"matmul_precision": "default"}), prepared)
    assert precision(True) == "default"
    other = DEMO.replace(model={"matmul_precision": "bfloat16"})
    with pytest.raises(UserError, match=r"Model\.matmul_precision: 'default', now 'bfloat16'"):
        train.train(other, prepared.folder, run.path)


def test_a_finished_run_is_left_as_it_is(prepared, tmp_path, monkeypatch, capsys):
    run = RunFolder(tmp_path / "run")
    run.claim(DEMO, prepared)
    checkpoints = CheckpointWriter(run.checkpoints)
    counters = {"step": 7, "tokens": {"fr": 90}, "seconds": 1.0}
    checkpoints.save(7, {"parameters": {"w": np.zeros((4, 2), np.float32)}}, {}, counters)
    checkpoints.close()
    monkeypatch.setattr(train.runtime, "start", lambda *arguments: None)
    monkeypatch.setattr(train, "CompiledSteps", lambda *_, **__: pytest.fail("compiled"))
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
    limited = DEMO.replace(train={"steps": 9, "tokens": 90}, data={"romanize_source": True})
    train.train(limited, prepared.folder, run.path)
    told, end = capsys.readouterr().err.splitlines()
    assert told.endswith(" holds, not the new one: Data.romanize_source: False, now True")
    assert "nothing to do" in end


def test_the_best_metric_must_be_of_a_language_of_the_run(prepared, tmp_path, monkeypatch):
    config = DEMO.replace(train={"best_metric": "dev_nll/frr"})
    with pytest.raises(
        UserError, match=r"no dev text of 'frr'; did you mean 'fr'\? It has fr, de;"
    ):
        train.train(config, prepared.folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with_text = {"train": ["fr", "de"], "dev": ["fr"]}
    monkeypatch.setattr(PreparedData, "languages", lambda *words: with_text[[*words, "train"][2]])
    with pytest.raises(UserError, match="no dev text of 'de'"):
        train.train(
            DEMO.replace(train={"best_metric": "dev_nll/de"}), prepared.folder, tmp_path / "run"
        )


def test_the_step_counts_the_languages_of_the_run_and_not_of_its_data(
    prepared, tmp_path, monkeypatch
):
    def stop(config, data):
        raise InterruptedError({pair["language"] for pair in data["pairs"]})

    monkeypatch.setattr(train, "step_functions", stop)
    config = DEMO.replace(data={"languages": ("fr",)})
    with pytest.raises(InterruptedError, match=r"^\{'fr'\}"):
        train.train(config, prepared.folder, tmp_path / "run")


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


def test_a_program_that_goes_on_waits_for_no_other_machine(prepared, tmp_path, monkeypatch):
    time, held = FakeTime(), RunLock(tmp_path)
    monkeypatch.setattr("gshard_nmt.run.lock.time", time)
    held._owner = b"process 7 on other-host trains in it"
    with held, pytest.raises(UserError, match="is in use: process 7 on other-host"):
        train.train(DEMO, prepared.folder, tmp_path, start=train.Start(waits=False))
    assert time.now == 0


def test_a_run_that_ends_in_any_way_frees_its_folder(prepared, tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("there are too few devices")

    monkeypatch.setattr(train.runtime, "start", fail)
    for _ in range(2):
        with pytest.raises(UserError, match="too few devices"):
            train.train(DEMO, prepared.folder, tmp_path / "run")
    assert not (tmp_path / "run" / "trainer.lock").exists()
