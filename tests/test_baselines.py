"""gshard-train --baselines_of with a trainer that trains nothing: order, resumption, keys, budgets."""

import itertools
import json
import shutil

import pytest

from gshard_nmt.baselines import Request, train_baselines
from gshard_nmt.data.sets.manifest import MANIFEST
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.run import baselines
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log.clock import TimeLimit
from gshard_nmt.settings.gin_reader import load_config
from tests.data.synthetic import write_prepared_data

CONFIG = load_config("bilingual").replace(
    data={"source_length": 24, "target_length": 20, "rows": 4, "minimum_pairs": 1},
    train={"bleu_sentences": 2, "patience": 3, "steps": 100},
    optimizer={"cooldown_steps": 0},
)
COOLING = CONFIG.replace(optimizer={"cooldown_steps": 5})
TOKENS = {"de": 50, "fr": 90, "it": 20, "nl": 10}
CONVERGED = Request(sizes=[("config", 0)])
TWO = Request(sizes=CONVERGED.sizes, languages=("fr", "de"))
FRENCH = Request(sizes=CONVERGED.sizes, languages=("fr",))
BUDGET = Request("budget")


class Killed(Exception):
    """The trainer dies."""


class FakeTrainer:
    """Trains 10 tokens a call of `step`, and ends by the limits of the config, as `train` does.

    Attributes:
      calls: the run folder of each call, below the folder of the baselines.
      dies_at: the number of the call that dies in the middle; 0 for none.
      out_of_time: the numbers of the calls that the time ends.
    """

    def __init__(self, root, dies_at=0, out_of_time=()):
        self.root, self.dies_at, self.out_of_time = root, dies_at, out_of_time
        self.calls, self.configs, self.limits = [], [], []

    def __call__(self, config, data, folder, limit):
        self.calls.append(str(folder.relative_to(self.root)))
        self.configs.append(config)
        self.limits.append((limit.minutes, limit.flag))
        folder.mkdir(parents=True, exist_ok=True)
        run = RunFolder(folder)
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
    return train_baselines(
        trainer, config, prepared, root.parent / "of", root, request, limit=limit
    )


def record(root, language):
    return json.loads((root / language / "baseline.json").read_text())


def test_each_language_has_one_model_with_the_size_of_its_text(root, prepared, capsys):
    trainer = FakeTrainer(root)
    assert trained(root, prepared, trainer, Request(sizes=[("small", 0), ("base", 20)]))
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
    assert trained(root, prepared, again, Request(sizes=[("small", 0), ("base", 20)]))
    assert again.calls == []
    shutil.rmtree(root / "fr")
    assert trained(root, prepared, again, Request(sizes=[("small", 0), ("base", 20)]))
    assert again.calls == ["fr"]


@pytest.mark.parametrize("dies_at", [1, 2])
def test_after_a_kill_at_any_model_the_same_command_goes_on(root, prepared, dies_at):
    first = FakeTrainer(root, dies_at)
    with pytest.raises(Killed):
        trained(root, prepared, first, TWO)
    second = FakeTrainer(root)
    assert trained(root, prepared, second, TWO)
    assert second.calls == ["fr", "de"][dies_at - 1 :]


@pytest.mark.parametrize("step", ["put_aside", "outcome"])
def test_after_a_kill_between_two_files_the_same_command_goes_on(root, prepared, monkeypatch, step):
    assert trained(root, prepared, FakeTrainer(root), TWO)
    config = CONFIG.replace(model={"model_dim": 64})
    whole = getattr(baselines, step)

    def dies(*arguments):
        whole(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(baselines, step, dies)
        with pytest.raises(Killed):
            trained(root, prepared, FakeTrainer(root), TWO, config)
    assert trained(root, prepared, FakeTrainer(root), TWO, config)
    assert sorted(path.name for path in (root / "earlier").iterdir()) == ["de-1", "fr-1"]
    assert record(root, "fr")["key"] != record(root / "earlier", "fr-1")["key"]


def test_a_change_of_one_language_trains_only_that_one_and_keeps_its_earlier_model(
    root, prepared, tmp_path
):
    data = shutil.copytree(prepared, tmp_path / "data")
    assert trained(root, data, FakeTrainer(root))
    for count in (1, 2):
        manifest = json.loads((data / MANIFEST).read_text())
        names = [name for name in manifest["checksums"] if name.startswith("de-en/train")]
        manifest["checksums"] |= dict.fromkeys(names, f"{count}" * 64)
        (data / MANIFEST).write_text(json.dumps(manifest))
        again = FakeTrainer(root)
        assert trained(root, data, again)
        assert again.calls == ["de"]
        assert (root / "earlier" / f"de-{count}" / "baseline.json").exists()


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_shards_cover_the_languages_exactly_once(parts):
    shards = [Request(shard=(part, parts)).languages_of(TOKENS) for part in range(1, parts + 1)]
    assert sorted(itertools.chain(*shards)) == sorted(TOKENS)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


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
    # A model with other settings does not go on in the same folder.
    other = CONFIG.replace(model={"model_dim": 64})
    assert trained(root, prepared, again, BUDGET, other)
    assert again.calls == ["fr", "de", "it", "nl"]


def test_the_limits_of_each_model(root, prepared):
    trainer = FakeTrainer(root, out_of_time=[1])
    request = Request(sizes=CONVERGED.sizes, languages=("fr",), max_tokens=40, max_minutes=3.0)
    assert trained(root, prepared, trainer, request)
    assert [config.train.tokens for config in trainer.configs] == [40]
    assert trainer.limits == [(3.0, "--max_minutes_each")]
    assert record(root, "fr")["ended"] == "tokens"
    # With more time, a model goes on with what is left of it.
    longer = Request(sizes=CONVERGED.sizes, languages=("fr",), max_tokens=40, max_minutes=5.0)
    assert trained(root, prepared, trainer, longer)
    assert trainer.limits[1:] == [(4.0, "--max_minutes_each")]


def test_a_model_that_runs_out_of_minutes_is_recorded_and_the_next_one_trains(root, prepared):
    trainer = FakeTrainer(root, out_of_time=[1])
    request = Request(sizes=CONVERGED.sizes, languages=("fr", "de"), max_minutes=3.0)
    assert trained(root, prepared, trainer, request, COOLING)
    assert [record(root, name)["ended"] for name in ("fr", "de")] == ["minutes", "patience"]
    # What a limit has ended does not cool down.
    assert ["cooldown" in record(root, name) for name in ("fr", "de")] == [False, True]


def test_the_limit_of_all_ends_this_start_and_the_next_one_goes_on(root, prepared, capsys):
    trainer = FakeTrainer(root)
    assert not trained(root, prepared, trainer, limit=TimeLimit(1e-9))
    assert trainer.calls == []
    assert "the same command goes on from here" in capsys.readouterr().err
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
        trained(root, folder, None, Request(languages=("fr", "de")))
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


def test_a_model_that_has_converged_cools_down(root, prepared):
    trainer = FakeTrainer(root)
    assert trained(root, prepared, trainer, FRENCH, COOLING)
    limits = [(config.train.steps, config.train.patience) for config in trainer.configs]
    assert limits == [(100, 3), (12, 0)]  # it had converged after 7 steps
    of = record(root, "fr")
    assert (of["dev_bleu"], of["ended"]) == (10.5, "patience")
    assert of["cooldown"] == {"steps": 5, "dev_bleu_before": 9.0}
    again = FakeTrainer(root)
    assert trained(root, prepared, again, FRENCH, COOLING)
    # More minutes change nothing for it.
    longer = Request(sizes=FRENCH.sizes, languages=("fr",), max_minutes=9.0)
    assert trained(root, prepared, again, longer, COOLING)
    assert again.calls == []
    # More patience trains it on, and then it cools down again.
    assert trained(root, prepared, again, FRENCH, COOLING.replace(train={"patience": 2}))
    assert [config.train.patience for config in again.configs] == [2, 0]


@pytest.mark.parametrize("how", ["killed", "out of time"])
def test_an_interrupted_cooldown_goes_on(root, prepared, how):
    if how == "killed":
        with pytest.raises(Killed):
            trained(root, prepared, FakeTrainer(root, dies_at=2), FRENCH, COOLING)
    else:
        first = FakeTrainer(root, out_of_time=[2])
        assert not trained(root, prepared, first, FRENCH, COOLING)
    second = FakeTrainer(root)
    assert trained(root, prepared, second, FRENCH, COOLING)
    assert [config.train.steps for config in second.configs] == [12]
    assert record(root, "fr")["cooldown"]["dev_bleu_before"] == 9.0
