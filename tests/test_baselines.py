"""gshard-train --baselines_of with a trainer that trains nothing: order, resumption, budgets."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.baselines import Request, train_baselines
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.run import baselines
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.lock import run_lock
from gshard_nmt.run.progress import TimeLimit
from gshard_nmt.run.training_state import write_budget
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.processes import ALONE
from tests.data.synthetic import write_prepared_data

patience_of = baselines.patience_of
CONFIG = load_config("bilingual").replace(
    data={"source_length": 24, "target_length": 20, "rows": 4, "minimum_pairs": 1},
    train={"bleu_sentences": 2, "patience": 3, "steps": 100},
    optimizer={"cooldown_steps": 0},
)
COOLING = CONFIG.replace(optimizer={"cooldown_steps": 5})
TOKENS = {"de": 50, "fr": 90, "it": 20, "nl": 10}
OF = Path("of")
CONVERGED = Request(OF, size="config")
TWO = Request(OF, size="config", languages=("fr", "de"))
FRENCH = Request(OF, size="config", languages=("fr",))
BUDGET = Request(OF, "budget")


class Killed(Exception):
    """The trainer dies."""


class FakeTrainer:
    """Ends by the limits of the config, as `train`; `dies_at` and `out_of_time` are numbers of calls."""

    def __init__(self, root, dies_at=0, out_of_time=()):
        self.root, self.dies_at, self.out_of_time = root, dies_at, out_of_time
        self.calls, self.configs = [], []

    def __call__(self, config, data, folder):
        self.calls.append(str(folder.relative_to(self.root)))
        self.configs.append(config)
        run, prepared = RunFolder(folder), PreparedData.open(data)
        config = config.replace(data=prepared.fitted(config.data))
        folder.mkdir(parents=True, exist_ok=True)
        with run_lock(folder):
            run.claim(run.with_precision(config, ALONE), prepared)
        if len(self.calls) == self.dies_at:
            raise Killed
        is_over = len(self.calls) in self.out_of_time
        tokens = config.train.tokens or 1000
        budget = {"steps": 7, "parameters": 8, "seconds": 60.0}
        (language,) = config.data.languages
        run.write_json("budget.json", budget | {"tokens_by_language": {language: tokens}})
        cools = not config.train.patience
        score = 10.5 if cools else 9.0
        facts = {"metric": "dev_bleu", "best": score, "validations": 0 if is_over or cools else 3}
        run.write_json("patience.json", facts)
        return not is_over


@pytest.fixture(autouse=True)
def _without_checkpoints(monkeypatch):
    def patience_of(run):
        file = run.path / "patience.json"
        return json.loads(file.read_text()) if file.exists() else {}

    monkeypatch.setattr(baselines, "patience_of", patience_of)
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: None
    )  # no power cut here; it takes most time


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "prepared"
    return write_prepared_data(folder, CONFIG.data, dict.fromkeys(TOKENS, 20)).folder


@pytest.fixture
def root(tmp_path):
    (tmp_path / "of").mkdir()
    budget = {"steps": 7, "parameters": 8, "seconds": 1.0, "tokens_by_language": TOKENS}
    RunFolder(tmp_path / "of").write_json("budget.json", budget)
    return tmp_path / "baselines"


def trained(root, prepared, trainer, request=CONVERGED, config=CONFIG, limit=None):
    """Trains the baselines; returns whether they are finished."""
    request = dataclasses.replace(request, run=root.parent / "of")
    return train_baselines(trainer, config, prepared, root, request, limit or TimeLimit())


def record(root, language):
    return json.loads((root / language / "baseline.json").read_text())


def test_each_language_has_one_model_with_the_size_of_its_text(root, prepared, capsys, monkeypatch):
    monkeypatch.setattr(baselines, "LEAST_PAIRS", {"big": 21, "base": 20, "small": 0})
    trainer = FakeTrainer(root)
    assert trained(root, prepared, trainer, Request(OF))
    assert trainer.calls == ["fr", "de", "it", "nl"]
    assert [config.data.languages for config in trainer.configs] == [(n,) for n in trainer.calls]
    assert {config.model.model_dim for config in trainer.configs} == {512}
    assert {config.train.tokens for config in trainer.configs} == {0}
    for language in TOKENS:
        of = record(root, language)
        assert (of["kind"], of["size"], of["ended"]) == ("converged", "base", "patience")
        assert (of["dev_bleu"], of["vocabulary"], of["train_pairs"]) == (9.0, "shared", 20)
    assert f"language 2 of 4, de: {root / 'de'} is finished: 7 steps" in capsys.readouterr().err
    # All run folders share their compiled programs.
    assert {RunFolder(root / call).programs for call in trainer.calls} == {root / "programs"}
    again = FakeTrainer(root)
    assert trained(root, prepared, again, Request(OF))
    assert again.calls == []
    shutil.rmtree(root / "fr")
    assert trained(root, prepared, again, Request(OF))
    assert again.calls == ["fr"]


@pytest.mark.parametrize("dies_at", [1, 2])
def test_after_a_kill_at_any_model_the_same_command_goes_on(root, prepared, dies_at):
    first = FakeTrainer(root, dies_at)
    with pytest.raises(Killed):
        trained(root, prepared, first, TWO)
    second = FakeTrainer(root)
    assert trained(root, prepared, second, TWO)
    assert second.calls == ["fr", "de"][dies_at - 1 :]


def test_a_finished_model_of_other_data_or_settings_is_refused_and_not_changed(
    root, prepared, tmp_path
):
    assert trained(root, prepared, FakeTrainer(root), FRENCH)
    before = record(root, "fr")
    other = write_prepared_data(tmp_path / "data", CONFIG.data, dict.fromkeys(TOKENS, 24))
    for data, config, request, message in (
        (prepared, CONFIG.replace(model={"model_dim": 64}), FRENCH, "other settings or other data"),
        (other.folder, CONFIG, FRENCH, "was made with other settings or other data"),
        (prepared, CONFIG, BUDGET, "was trained with --until converged. Give another --workdir"),
    ):
        with pytest.raises(UserError, match=message):
            trained(root, data, None, request, config)
    assert record(root, "fr") == before


def test_what_another_program_trains_is_left_to_it(root, prepared, capsys):
    (root / "de").mkdir(parents=True)
    trainer = FakeTrainer(root)
    with run_lock(root / "de"):
        assert trained(root, prepared, trainer)
    assert trainer.calls == ["fr", "de", "it", "nl"]
    assert sorted(path.parent.name for path in root.glob("*/baseline.json")) == ["fr", "it", "nl"]
    assert "de: left to another program, because --workdir" in capsys.readouterr().err


def test_to_a_budget_a_model_has_the_tokens_of_the_multilingual_run(root, prepared):
    trainer = FakeTrainer(root)
    assert trained(root, prepared, trainer, BUDGET)
    assert trainer.calls == ["fr", "de", "it", "nl"]
    assert [config.train.tokens for config in trainer.configs] == [90, 50, 20, 10]
    assert {config.model for config in trainer.configs} == {CONFIG.model}
    of = record(root, "fr")
    assert (of["kind"], of["size"], of["tokens"]) == ("budget", "config", 90)
    again = FakeTrainer(root)
    assert trained(root, prepared, again, BUDGET)
    assert again.calls == []


def test_the_limit_of_all_ends_this_start_and_the_next_one_goes_on(root, prepared, capsys):
    trainer = FakeTrainer(root)
    assert not trained(root, prepared, trainer, limit=TimeLimit(1e-9))
    assert trainer.calls == []
    assert "the same command goes on here" in capsys.readouterr().err
    assert trained(root, prepared, FakeTrainer(root))


def test_a_model_that_cannot_converge_is_refused_before_anything_is_written(
    root, prepared, tmp_path
):
    for change in ({"patience": 0}, {"bleu_sentences": 0}, {"dev_every": 0}, {"keep_best": 0}):
        with pytest.raises(
            UserError, match="Use --config bilingual, set them, or give --until bud"
        ):
            trained(root, prepared, None, config=CONFIG.replace(train=change))
    folder = write_prepared_data(tmp_path / "data", CONFIG.data, {"fr": 20, "de": 2}).folder
    with pytest.raises(UserError, match="has no dev text of de, so its training cannot end early"):
        trained(root, folder, None, Request(OF, languages=("fr", "de")))
    assert not root.exists()


@pytest.mark.parametrize("request_", [BUDGET, CONVERGED], ids=["budget", "converged"])
def test_a_schedule_keeps_the_weights_of_the_language_of_each_baseline(root, prepared, request_):
    schedule = (
        {"from_step": 0, "temperature": 1.0, "weights": {"fr": 0.0, "de": 2.0}},
        {"from_step": 50, "temperature": 5.0},
    )
    config = CONFIG.replace(data={"schedule": schedule})
    trainer = FakeTrainer(root)
    assert trained(root, prepared, trainer, request_, config)
    for config in trainer.configs:
        # The weight of the only language changes nothing, and 0 would leave nothing to train on.
        assert config.data.schedule == ({**schedule[0], "weights": {}}, schedule[1])
        components = PreparedData.open(prepared).components(config.data)
        assert [phase.rates(components).tolist() for phase in config.data.phases] == [[1.0], [1.0]]


@pytest.mark.parametrize("cooldown", [5, 5 / 12])
def test_a_model_that_has_converged_cools_down(root, prepared, cooldown):
    trainer = FakeTrainer(root)
    config = CONFIG.replace(optimizer={"cooldown_steps": cooldown})
    assert trained(root, prepared, trainer, FRENCH, config)
    limits = [(config.train.steps, config.train.patience) for config in trainer.configs]
    assert limits == [(100, 3), (12, 0)]  # it had converged after 7 steps
    of = record(root, "fr")
    assert (of["dev_bleu"], of["ended"]) == (10.5, "patience")
    assert of["cooldown"] == {"steps": 5, "dev_bleu_before": 9.0}
    again = FakeTrainer(root)
    assert trained(root, prepared, again, FRENCH, config)
    # More steps change nothing for it.
    assert trained(root, prepared, again, FRENCH, config.replace(train={"steps": 200}))
    assert again.calls == []
    # More patience trains it on, and then it cools down again.
    assert trained(root, prepared, again, FRENCH, config.replace(train={"patience": 2}))
    assert [config.train.patience for config in again.configs] == [2, 0]


@pytest.mark.parametrize("how", ["killed", "out of time"])
def test_an_interrupted_cooldown_goes_on(root, prepared, how):
    if how == "killed":
        with pytest.raises(Killed):
            trained(root, prepared, FakeTrainer(root, dies_at=2), FRENCH, COOLING)
    else:
        assert not trained(root, prepared, FakeTrainer(root, out_of_time=[2]), FRENCH, COOLING)
    second = FakeTrainer(root)
    assert trained(root, prepared, second, FRENCH, COOLING)
    assert [config.train.steps for config in second.configs] == [12]
    assert record(root, "fr")["cooldown"]["dev_bleu_before"] == 9.0


def test_the_end_of_a_run_is_read_from_its_newest_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "patience_of", patience_of)
    checkpoints = CheckpointWriter(tmp_path / "checkpoints")
    patience = {"metric": "dev_bleu", "best": 12.5, "scored_with": {}, "validations": 3}
    facts = {"step": 7, "tokens": {"fr": 90}, "seconds": 1.5, "patience": patience}
    checkpoints.save(7, {"parameters": {"w": np.zeros((4, 2), np.float32)}}, {}, facts)
    checkpoints.close()
    write_budget(RunFolder(tmp_path), checkpoints.newest())
    of = baselines.outcome(RunFolder(tmp_path), CONFIG.replace(train={"patience": 0}).train)
    end = {"weights": 8, "steps": 7, "tokens": 90, "seconds": 1.5}
    assert of == end | {"dev_bleu": 12.5, "ended": "steps"}
    for limits, ended in (
        ({"patience": 3}, "patience"),
        ({"patience": 3, "tokens": 90}, "patience"),
        ({"tokens": 90}, "tokens"),
        ({"tokens": 91}, "steps"),
        ({"steps": 7}, "steps"),
    ):
        train = CONFIG.replace(train={"patience": 0} | limits).train
        assert baselines.outcome(RunFolder(tmp_path), train)["ended"] == ended


def test_a_score_that_is_not_bleu_is_not_called_bleu(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "patience_of", lambda run: {"metric": "dev_nll", "best": 1.5})
    assert baselines.outcome(RunFolder(tmp_path), CONFIG.train)["dev_bleu"] is None


def test_a_damaged_record_names_the_file(tmp_path):
    (tmp_path / "baseline.json").write_text('{"kind": 3}')
    with pytest.raises(UserError, match=r"baseline\.json"):
        baselines.read_record(tmp_path)
    assert baselines.read_record(tmp_path / "none") is None
