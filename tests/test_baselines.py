"""gshard-train --baselines_of with a trainer that trains nothing: order, resumption, keys, budgets."""

import itertools
import json
import shutil

import pytest

from gshard_nmt.baselines import train_baselines
from gshard_nmt.data.sets.manifest import MANIFEST
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.run import baseline_files
from gshard_nmt.run.baseline_search import Request, SearchSpace
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.identity import hash_of_manifest
from gshard_nmt.run.lock import RunLock
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
SEARCH = Request(space=SearchSpace((("small", 0),), (0.1, 0.3)))
TWO = Request(space=SEARCH.space, languages=("fr", "de"))
BUDGET = Request("budget")


class Killed(Exception):
    """The trainer dies."""


class FakeTrainer:
    """Trains 10 tokens a call of `step`, and ends by the limits of the config, as `train` does.

    Attributes:
      calls: the run folder of each call, below the folder of the baselines.
      dies_at: the number of the call that dies in the middle; 0 for none.
      scores: dev BLEU by dropout. A cooldown adds 1.5.
    """

    def __init__(self, root, dies_at=0, scores=None, out_of_time=()):
        self.root, self.dies_at, self.out_of_time = root, dies_at, out_of_time
        self.scores = {0.1: 5.0, 0.3: 9.0} if scores is None else scores
        self.calls, self.configs, self.limits = [], [], []

    def __call__(self, config, data, folder, limit):
        self.calls.append(str(folder.relative_to(self.root)))
        self.configs.append(config)
        self.limits.append((limit.minutes, limit.flag))
        folder.mkdir(parents=True, exist_ok=True)
        run = RunFolder(folder)
        if not (folder / "data.json").exists():
            manifest = PreparedData.open(data).manifest
            facts = {"files": {"data": hash_of_manifest(manifest)}}
            run.write_json("data.json", facts)
        if len(self.calls) == self.dies_at:
            raise Killed
        is_over = len(self.calls) in self.out_of_time
        tokens = config.train.tokens or 1000
        budget = {"steps": 7, "parameters": 8, "seconds": 60.0}
        (language,) = config.data.languages
        run.write_json("budget.json", budget | {"tokens_by_language": {language: tokens}})
        score = self.scores.get(config.model.input_dropout)
        cools = not config.train.patience
        if cools:
            score += 1.5
        facts = {"metric": "dev_bleu", "best": score, "validations": 0 if is_over or cools else 3}
        run.write_json("patience.json", facts)
        return not is_over


@pytest.fixture(autouse=True)
def _without_checkpoints(monkeypatch):
    def patience_of(run):
        file = run.path / "patience.json"
        return json.loads(file.read_text()) if file.exists() else {}

    monkeypatch.setattr(baseline_files, "patience_of", patience_of)
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: None
    )  # no power cut here; it takes most time
    # The data.json of the fake trainer has nothing else.
    monkeypatch.setattr(
        RunFolder, "identity", lambda run: json.loads((run.path / "data.json").read_text())["files"]
    )


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


def trained(root, prepared, trainer, request=SEARCH, config=CONFIG, limit=None):
    """Trains the baselines; returns whether they are finished."""
    return train_baselines(
        trainer, config, prepared, root.parent / "of", root, request, limit=limit
    )


def record(root, language):
    return json.loads((root / language / "baseline.json").read_text())


def names(calls):
    """Returns language and dropout of each run folder of a candidate."""
    return [(call.split("/")[1], call.split("dropout")[1].split("-")[0]) for call in calls]


def test_each_language_tries_each_dropout_and_keeps_the_best(root, prepared, capsys):
    trainer = FakeTrainer(root)
    assert trained(root, prepared, trainer)
    order = [(language, rate) for language in ("fr", "de", "it", "nl") for rate in ("0.1", "0.3")]
    assert names(trainer.calls) == order
    assert all(
        config.data.languages == (name,)
        for config, (name, _) in zip(trainer.configs, order, strict=True)
    )
    assert len({config.model for config in trainer.configs}) == 2  # programs are shared
    for language in TOKENS:
        of = record(root, language)
        assert (of["kind"], of["size"], of["dropout"]) == ("converged", "small", 0.3)
        assert (of["dev_bleu"], of["ended"], of["vocabulary"]) == (9.0, "patience", "shared")
        assert of["search"] == {"candidates": 2, "tokens": 2000, "seconds": 120.0}
        candidates = json.loads((root / language / "search.json").read_text())["candidates"]
        assert [entry["dropout"] for entry in candidates] == [0.1, 0.3]
    err = capsys.readouterr().err
    assert "language 2 of 4, de: candidate 2 of 2, small-dropout0.3-shared" in err
    assert "language 2 of 4, de: the best of 2 is small-dropout0.3-shared, dev BLEU 9.0" in err
    # All run folders share their compiled programs.
    folders = [root / call for call in trainer.calls] + [root / "fr"]
    assert {RunFolder(folder).programs for folder in folders} == {root / "programs"}


def test_finished_work_is_not_trained_again(root, prepared):
    assert trained(root, prepared, FakeTrainer(root))
    again = FakeTrainer(root)
    assert trained(root, prepared, again)
    assert again.calls == []
    # The other candidates may be removed.
    shutil.rmtree(root / "candidates")
    assert trained(root, prepared, again)
    assert again.calls == []
    # A removed winner is trained again.
    shutil.rmtree(root / "fr")
    assert trained(root, prepared, again)
    assert {language for language, _ in names(again.calls)} == {"fr"}
    assert record(root, "fr")["dropout"] == 0.3


@pytest.mark.parametrize("dies_at", range(1, 5))
def test_after_a_kill_at_any_model_the_same_command_goes_on(root, prepared, dies_at):
    first = FakeTrainer(root, dies_at)
    with pytest.raises(Killed):
        trained(root, prepared, first, TWO)
    second = FakeTrainer(root)
    assert trained(root, prepared, second, TWO)
    # The model that was killed goes on in its folder, and each model is finished once.
    assert second.calls[0] == first.calls[-1]
    assert len(first.calls) - 1 + len(second.calls) == 4
    assert all(record(root, language)["dropout"] == 0.3 for language in TWO.languages)


@pytest.mark.parametrize("step", ["put_aside", "put_in_place", "outcome", "write_search"])
def test_after_a_kill_between_two_files_the_same_command_goes_on(root, prepared, monkeypatch, step):
    assert trained(root, prepared, FakeTrainer(root, scores={0.1: 9.0, 0.3: 5.0}), TWO)
    config = CONFIG.replace(
        train={"patience": 2}
    )  # all candidates train on, and 0.3 becomes the best
    whole = getattr(baseline_files, step)

    def dies(*arguments):
        whole(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(baseline_files, step, dies)
        with pytest.raises(Killed):
            trained(root, prepared, FakeTrainer(root), TWO, config)
    assert trained(root, prepared, FakeTrainer(root), TWO, config)
    for language in TWO.languages:
        assert record(root, language)["dropout"] == 0.3
        assert len(list((root / "candidates" / language).glob("small-*"))) == 1


def test_a_change_of_one_language_trains_only_that_one(root, prepared, tmp_path):
    data = shutil.copytree(prepared, tmp_path / "data")
    assert trained(root, data, FakeTrainer(root))
    manifest = json.loads((data / MANIFEST).read_text())
    changed = {name: "0" * 64 for name in manifest["checksums"] if name.startswith("de-en/train")}
    manifest["checksums"] |= changed
    (data / MANIFEST).write_text(json.dumps(manifest))
    again = FakeTrainer(root)
    assert trained(root, data, again)
    assert names(again.calls) == [("de", "0.1"), ("de", "0.3")]
    # The earlier models of this language are still there.
    assert len(list((root / "candidates" / "de").glob("small-*"))) == 3
    # One more dropout trains only the model that is new.
    more = FakeTrainer(root, scores={0.1: 5.0, 0.3: 9.0, 0.2: 11.0})
    request = Request(space=SearchSpace((("small", 0),), (0.1, 0.3, 0.2)))
    assert trained(root, data, more, request)
    assert [rate for _, rate in names(more.calls)] == ["0.2"] * 4
    assert record(root, "de")["dropout"] == 0.2
    # Back to the first search: nothing is trained, and its best model is in place again.
    nothing = FakeTrainer(root)
    assert trained(root, data, nothing)
    assert (nothing.calls, record(root, "de")["dropout"]) == ([], 0.3)


def test_an_unfinished_model_of_other_prepared_data_is_left_and_trained_anew(
    root, prepared, tmp_path
):
    data = shutil.copytree(prepared, tmp_path / "data")
    first = FakeTrainer(root, dies_at=1)
    with pytest.raises(Killed):
        trained(root, data, first)
    manifest = json.loads((data / MANIFEST).read_text())
    manifest["checksums"] |= {
        name: "0" * 64 for name in manifest["checksums"] if name.startswith("de-")
    }
    (data / MANIFEST).write_text(json.dumps(manifest))
    second = FakeTrainer(root)
    assert trained(root, data, second)
    assert second.calls[0] == f"{first.calls[0]}-2"


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_shards_cover_the_languages_exactly_once(parts):
    shards = [Request(shard=(part, parts)).languages_of(TOKENS) for part in range(1, parts + 1)]
    assert sorted(itertools.chain(*shards)) == sorted(TOKENS)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_languages_and_shards_train_their_part(root, prepared):
    trainer = FakeTrainer(root)
    part = Request(space=SEARCH.space, languages=("it", "fr"), shard=(2, 2))
    assert trained(root, prepared, trainer, part)
    assert {language for language, _ in names(trainer.calls)} == {"it"}
    wrong = Request(languages=("frr",))
    with pytest.raises(
        UserError, match=r"has no language 'frr'; did you mean 'fr'\? It has de, fr,"
    ):
        trained(root, prepared, trainer, wrong)


def test_two_machines_do_not_search_the_same_language(root, prepared):
    (root / "candidates" / "fr").mkdir(parents=True)
    trainer = FakeTrainer(root)
    with RunLock(root / "candidates" / "fr"), pytest.raises(UserError, match="is in use"):
        trained(root, prepared, trainer)
    assert trainer.calls == []


def test_to_a_budget_each_language_has_one_model_with_the_tokens_of_the_multilingual_run(
    root, prepared
):
    trainer = FakeTrainer(root)
    assert trained(root, prepared, trainer, BUDGET)
    assert trainer.calls == ["fr", "de", "it", "nl"]
    assert [config.train.tokens for config in trainer.configs] == [90, 50, 20, 10]
    assert {config.model for config in trainer.configs} == {CONFIG.model}
    of = record(root, "fr")
    assert (of["kind"], of["size"], of["dropout"], of["tokens"]) == ("budget", "config", None, 90)
    again = FakeTrainer(root)
    assert trained(root, prepared, again, BUDGET)
    assert again.calls == []
    # A model with other settings does not go on in the same folder.
    other = CONFIG.replace(model={"model_dim": 64})
    assert trained(root, prepared, again, BUDGET, other)
    assert again.calls == ["fr", "de", "it", "nl"]
    assert len(list((root / "candidates").glob("*/config-shared-*"))) == 4


def test_budgets_of_each_model(root, prepared):
    trainer = FakeTrainer(root, out_of_time=[2])
    request = Request(space=SEARCH.space, languages=("fr",), max_tokens=40, max_minutes=3.0)
    assert trained(root, prepared, trainer, request)
    assert [config.train.tokens for config in trainer.configs] == [40, 40]
    assert trainer.limits == [(3.0, "--max_minutes_each")] * 2
    candidates = json.loads((root / "fr" / "search.json").read_text())["candidates"]
    assert [entry["ended"] for entry in candidates] == ["patience", "tokens"]
    # With more time, a model goes on with what is left of it.
    more = FakeTrainer(root)
    longer = Request(space=SEARCH.space, languages=("fr",), max_tokens=40, max_minutes=5.0)
    assert trained(root, prepared, more, longer)
    assert [minutes for minutes, _ in more.limits] == [4.0, 4.0]
    assert sorted(more.calls) == sorted(["fr", trainer.calls[0]])


def test_a_model_that_runs_out_of_minutes_is_recorded_and_the_search_goes_on(root, prepared):
    trainer = FakeTrainer(root, out_of_time=[1])
    request = Request(space=SEARCH.space, languages=("fr",), max_minutes=3.0)
    assert trained(root, prepared, trainer, request)
    candidates = json.loads((root / "fr" / "search.json").read_text())["candidates"]
    assert [entry["ended"] for entry in candidates] == ["minutes", "patience"]


def test_the_limit_of_all_ends_this_start_and_the_next_one_goes_on(root, prepared, capsys):
    trainer = FakeTrainer(root, out_of_time=[1])
    assert not trained(root, prepared, trainer, limit=TimeLimit(1e-9))
    assert trainer.calls == []
    assert "the same command goes on from here" in capsys.readouterr().err
    assert not (root / "fr").exists()
    assert trained(root, prepared, FakeTrainer(root))


def test_a_second_vocabulary_is_tried_if_there_is_data_for_it(root, prepared, tmp_path):
    own = tmp_path / "own"
    write_prepared_data(own / "fr", CONFIG.data, {"fr": 20})
    (own / "fr" / "source.model").write_bytes(b"another vocabulary")
    manifest = json.loads((own / "fr" / MANIFEST).read_text())
    del manifest["checksums"]
    (own / "fr" / MANIFEST).write_text(json.dumps(manifest))
    trainer = FakeTrainer(root)
    request = Request(space=SEARCH.space, languages=("fr", "de"), own_data=own)
    assert trained(root, prepared, trainer, request)
    tried = [call.split("/")[2].rpartition("-")[0] for call in trainer.calls]
    assert tried == [
        *("small-dropout0.1-shared", "small-dropout0.3-shared", "small-dropout0.3-own"),
        *("small-dropout0.1-shared", "small-dropout0.3-shared"),
    ]


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


def test_baselines_need_a_trained_multilingual_run(prepared, tmp_path):
    with pytest.raises(UserError, match=r"has no budget\.json; train it with gshard-train before"):
        train_baselines(None, CONFIG, prepared, tmp_path, tmp_path / "baselines", SEARCH)
    assert not (tmp_path / "baselines").exists()


@pytest.mark.parametrize("request_", [BUDGET, SEARCH], ids=["budget", "search"])
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


def test_a_baseline_trains_all_weights(root, prepared):
    trainer = FakeTrainer(root)
    config = CONFIG.replace(train={"freeze": ("encoder/*",)})
    assert trained(root, prepared, trainer, BUDGET, config)
    assert {config.train.freeze for config in trainer.configs} == {()}


def test_a_schedule_with_a_wrong_name_is_refused_before_any_training(root, prepared):
    config = CONFIG.replace(data={"schedule": ({"from_step": 0, "weights": {"frr": 1.0}},)})
    trainer = FakeTrainer(root)
    with pytest.raises(UserError, match="a weight names 'frr', which the data does not have"):
        trained(root, prepared, trainer, BUDGET, config)
    assert not trainer.calls


def test_a_pair_that_is_used_in_both_directions_is_one_training_pair(root, tmp_path):
    config = CONFIG.replace(data={"direction": "many-to-many"})
    folder = write_prepared_data(tmp_path / "data", config.data, {"fr": 20}).folder
    assert trained(root, folder, FakeTrainer(root), Request("budget", languages=("fr",)), config)
    assert record(root, "fr")["train_pairs"] == 20


FRENCH = Request(space=SEARCH.space, languages=("fr",))


def test_the_best_model_cools_down_when_it_has_converged(root, prepared):
    trainer = FakeTrainer(root)
    assert trained(root, prepared, trainer, FRENCH, COOLING)
    assert [rate for _, rate in names(trainer.calls)] == ["0.1", "0.3", "0.3"]
    limits = [(config.train.steps, config.train.patience) for config in trainer.configs]
    assert limits == [(100, 3), (100, 3), (12, 0)]  # it had converged after 7 steps
    of = record(root, "fr")
    assert (of["dev_bleu"], of["ended"]) == (10.5, "patience")
    assert of["cooldown"] == {"steps": 5, "dev_bleu_before": 9.0}
    candidates = json.loads((root / "fr" / "search.json").read_text())["candidates"]
    assert ["cooldown" in entry for entry in candidates] == [False, True]
    again = FakeTrainer(root)
    assert trained(root, prepared, again, FRENCH, COOLING)
    assert again.calls == []
    # More minutes change nothing for it; the other candidate is asked again.
    longer = Request(space=SEARCH.space, languages=("fr",), max_minutes=9.0)
    assert trained(root, prepared, again, longer, COOLING)
    assert [rate for _, rate in names(again.calls)] == ["0.1"]
    # More patience trains it on, and then it cools down again.
    patient = COOLING.replace(train={"patience": 2})
    assert trained(root, prepared, again, FRENCH, patient)
    assert [config.train.patience for config in again.configs[1:]] == [2, 2, 0]


def test_a_new_candidate_is_compared_with_scores_before_the_cooldown(root, prepared):
    assert trained(root, prepared, FakeTrainer(root), FRENCH, COOLING)
    more = Request(space=SearchSpace((("small", 0),), (0.1, 0.3, 0.2)), languages=("fr",))
    trainer = FakeTrainer(root, scores={0.2: 9.5})
    assert trained(root, prepared, trainer, more, COOLING)
    assert (record(root, "fr")["dropout"], record(root, "fr")["dev_bleu"]) == (0.2, 11.0)


@pytest.mark.parametrize("how", ["killed", "out of time"])
def test_an_interrupted_cooldown_goes_on(root, prepared, how):
    if how == "killed":
        with pytest.raises(Killed):
            trained(root, prepared, FakeTrainer(root, dies_at=3), FRENCH, COOLING)
    else:
        first = FakeTrainer(root, out_of_time=[3])
        assert not trained(root, prepared, first, FRENCH, COOLING)
    second = FakeTrainer(root)
    assert trained(root, prepared, second, FRENCH, COOLING)
    assert [config.train.steps for config in second.configs] == [12]
    assert record(root, "fr")["cooldown"]["dev_bleu_before"] == 9.0


def test_a_model_that_a_limit_ended_does_not_cool_down(root, prepared):
    trainer = FakeTrainer(root, out_of_time=[1, 2])
    request = Request(space=SEARCH.space, languages=("fr",), max_minutes=3.0)
    assert trained(root, prepared, trainer, request, COOLING)
    assert len(trainer.calls) == 2
    assert "cooldown" not in record(root, "fr")
