"""gshard-train --add_language, without training: the data, the config, the averages, what is refused."""

import dataclasses
import gzip
import shlex
import shutil
import types
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt import add_language as program
from gshard_nmt.add_language import Request, add_language
from gshard_nmt.data.preparation.job import Options
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary_match import match_rows
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.language_guard import SHARES, Change, Outcome
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.starting_point import Init
from tests.newcomer import CONFIG, make_run, write_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("add language")
    write_corpus(folder / "new", "el")
    run, _ = make_run(folder)
    return folder, run


@pytest.fixture
def request_for(made, tmp_path, monkeypatch):
    """Returns a function that makes a request. Nothing is compared."""
    folder, run = made
    monkeypatch.setattr(program, "_keep_old_languages", lambda *_: None)

    init = Init.of(run.path, "best")

    def make(**values) -> Request:
        request = Request("el", init, folder / "new", tmp_path / "run", new_pieces=40)
        return dataclasses.replace(request, **values)

    return make


class Trainer:
    """Records what is to be trained, and makes the run folder."""

    calls: int = 0

    def __call__(self, config, data, init, command) -> bool:
        self.config, self.data, self.init = config, data, init
        self.command, self.calls = command, self.calls + 1
        run = RunFolder(data.parent / "run")
        run.claim(config, PreparedData.open(data))
        if init:
            run.write_json("init.json", {"from": init.run, "checkpoint": init.checkpoint})
        return True


def test_a_run_gets_the_data_of_all_languages_and_starts_from_the_old_one(made, request_for):
    (_, old), trained = made, Trainer()
    request = request_for()
    assert add_language(request, trained)
    data = PreparedData.open(trained.data)
    assert trained.data == request.data
    assert {p.folder for p in data.pairs} == {"fr-en", "de-en", "el-en.added-el"}
    assert trained.init == Init.of(old.path, "best")
    assert trained.command.endswith(f"--data={request.data} --workdir={request.workdir}")
    # All old rows of the embeddings are copied to the same place.
    before, after = old.vocabularies(), RunFolder(request.workdir).vocabularies()
    for was, now in zip(before, after, strict=True):
        match = match_rows(was, now)
        assert [tuple(ids) for ids in match.sources[: was.size]] == [(i,) for i in range(was.size)]
        assert all(match.sources)
    assert match_rows(before[0], after[0]).means > 0
    # Nothing is left of the work.
    assert sorted(path.name for path in request.workdir.parent.iterdir()) == ["run", "run-data"]
    # The new model can be made and fits the data.
    assert list(data.misfits(trained.config.data)) == []


def test_half_of_the_examples_are_in_the_new_language(request_for):
    trained = Trainer()
    add_language(request_for(), trained)
    data = PreparedData.open(trained.data)
    (phase,) = trained.config.data.phases
    components = data.components(trained.config.data)
    rates = dict(zip((c.language for c in components), phase.rates(components), strict=True))
    assert rates["el"] == pytest.approx(0.5, abs=0.001)
    assert rates["fr"] == pytest.approx(rates["de"])


def test_settings_of_the_user_win_over_ours_and_ours_over_the_runs(request_for, monkeypatch):
    trained, options = Trainer(), []
    record = lambda **values: options.append(values["cleaning"]) or Options(**values)  # noqa: E731
    monkeypatch.setattr(program, "Options", record)
    settings = ("Train.steps = 40", "Optimizer.learning_rate = 0.25", "Train.bleu_sentences = 3")
    add_language(request_for(settings=(*settings, "Cleaning.filters = ('empty',)")), trained)
    assert [cleaning.filters for cleaning in options] == [("empty",)]
    train, optimizer = trained.config.train, trained.config.optimizer
    assert (train.steps, train.dev_every, train.best_metric) == (40, 20, "dev_bleu/el")
    assert (train.bleu_sentences, optimizer.learning_rate, optimizer.cooldown_steps) == (
        3,
        0.25,
        40,
    )
    assert optimizer.warmup_steps == CONFIG.optimizer.warmup_steps
    assert trained.config.model == CONFIG.model


def test_lengths_and_rates_follow_the_number_of_steps_and_of_directions(request_for, monkeypatch):
    """41 steps with 2 validations: the last one is at the end at the latest."""
    trained, kept, fast = Trainer(), [], {"matmul_precision": "bfloat16"}
    request = request_for(settings=("Train.steps = 41",))
    monkeypatch.setattr(program, "_keep_old_languages", lambda _, c, __: kept.append(c.model))
    monkeypatch.setattr(RunFolder, "with_precision", lambda _, c, __: c.replace(model=fast))
    add_language(request, trained)
    assert kept[0].matmul_precision == "bfloat16"
    train, optimizer = trained.config.train, trained.config.optimizer
    assert (train.dev_every, train.checkpoint_every, train.keep_best) == (21, 21, 1)
    assert optimizer.learning_rate == pytest.approx(0.3 * CONFIG.optimizer.learning_rate)
    assert (optimizer.linear_warmup_steps, optimizer.cooldown_steps) == (2, 41)
    assert train.bleu_sentences == 200
    data = PreparedData.open(trained.data)
    for total, sentences in ((300, 50), (30, 20)):
        # Three languages with two directions each.
        monkeypatch.setattr(program, "DEV_SENTENCES", total)
        monkeypatch.setattr(program, "dev_pairs", lambda *_: ["to", "from"])
        config = program._config(request_for(), request_for().old, data)
        assert config.train.bleu_sentences == sentences


def test_the_end_of_the_old_mixture_goes_on_beside_the_new_language(
    request_for, made, tmp_path, monkeypatch
):
    old = [
        {"from_step": 0, "temperature": 1.0},
        {"from_step": 10, "temperature": 5.0, "weights": {"fr": 3.0}},
    ]
    config = CONFIG.replace(
        data={"schedule": old}, train={"patience": 2, "tokens": 10_000}, cleaning={"ratio": 4.5}
    )
    run = RunFolder(Path(shutil.copytree(made[1].path, tmp_path / "two phases")))
    run.write_text("config.gin", config.text)
    jobs, job, newcomers, grow = [], program.Job, [], program.grow_pair

    def recorded_job(*arguments):
        jobs.append(arguments)
        return job(*arguments)

    def recorded_growth(newcomer, *arguments):
        newcomers.append(newcomer)
        return grow(newcomer, *arguments)

    monkeypatch.setattr(program, "Job", recorded_job)
    monkeypatch.setattr(program, "grow_pair", recorded_growth)
    trained = Trainer()
    add_language(request_for(init=Init.of(run.path, "best")), trained)
    data, (phase,) = PreparedData.open(trained.data), trained.config.data.phases
    assert (phase.from_step, phase.temperature) == (0, 5.0)
    components = data.components(trained.config.data)
    rates = dict(zip((c.language for c in components), phase.rates(components), strict=True))
    assert rates["el"] == pytest.approx(0.5, abs=0.001)
    assert rates["fr"] == pytest.approx(3 * rates["de"])
    assert (trained.config.train.patience, trained.config.train.tokens) == (0, 0)
    # The new text is cleaned like the old one, and its sources get the tags of the old targets.
    assert jobs[0][4].cleaning.ratio == 4.5
    assert newcomers[0].old_targets == {"en"}


def test_a_second_start_resumes_the_run(request_for, made):
    trained = Trainer()
    add_language(request_for(), trained)
    first, data = trained.config, trained.data.stat().st_ino
    add_language(request_for(), trained)
    assert (trained.config, trained.init, trained.calls) == (first, request_for().init, 2)
    assert trained.data.stat().st_ino == data
    with pytest.raises(UserError, match="has a run that does not add nn"):
        add_language(request_for(language="nn"), trained)


@dataclasses.dataclass
class FakeComparison:
    """What weights translate, by their share of the new ones; they have the scores of the test."""

    changes: dict[float, float]

    def __call__(self, old, config, data, language):
        self.old = old
        return self

    def outcome(self, translator, share):
        change = Change("fr-en", 20.0, 20.0 + self.changes[share], 0.01)
        return Outcome(share, {"dev_bleu/el": 10 * share}, 10 * share, [change], np.ones((3, 10)))


def keep(made, tmp_path, monkeypatch, changes, settings=()) -> list:
    """Compares a finished run with the old one; returns what is saved."""
    folder, old = made
    saved, translator = [], types.SimpleNamespace
    parameters = types.SimpleNamespace(parameters={"w": "learned"})
    monkeypatch.setattr(
        program,
        "load_translator",
        lambda config, run, checkpoint="best": translator(of_ids=parameters, origin="step 9"),
    )
    newest = types.SimpleNamespace(average_of=())
    monkeypatch.setattr(program.Checkpoints, "newest", lambda _: newest)
    monkeypatch.setattr(program, "Comparison", FakeComparison(changes))
    point = types.SimpleNamespace(weights_beside=lambda learned, devices: ({"w": "old"}, "step 7"))
    monkeypatch.setattr(program.StartingPoint, "open", lambda *_: point)
    monkeypatch.setattr(
        program.runtime, "start", lambda *_: types.SimpleNamespace(abstract=lambda specs: specs)
    )
    monkeypatch.setattr(program, "average", list)

    def save_average(run, rules, weights, letters, scores, average_of):
        saved.append((weights, scores, average_of))
        newest.average_of = average_of
        return run.checkpoints / "10"

    monkeypatch.setattr(program, "save_average", save_average)
    request = Request("el", Init.of(old.path, "best"), folder / "new", tmp_path / "run")
    config = CONFIG.replace(
        train={"bleu_sentences": 4, "best_metric": "dev_bleu/el", **dict(settings)}
    )
    data = PreparedData.open(folder / "prepared")
    for _ in range(2):  # the second start finds the average
        program._keep_old_languages(request, config, data)
    return saved


def test_an_average_is_saved_if_only_without_it_languages_lose(made, tmp_path, monkeypatch, capsys):
    changes = {1.0: -3.0, 0.8: -2.0, 0.6: 0.5, 0.5: 0.4, 0.4: 0.25, 0.3: 0.1, 0.2: 0.0}
    ((weights, scores, average_of),) = keep(made, tmp_path, monkeypatch, changes)
    assert weights == [(0.4, {"w": "old"}), (0.6, {"w": "learned"})]
    assert scores == {"dev_bleu/el": 6.0}
    assert average_of == (
        f"0.4 of step 7 of {made[1].path}",
        f"0.6 of step 9 of {tmp_path / 'run'}",
    )
    shown = capsys.readouterr().out
    assert "0.8 of the new weights: BLEU of el 8.0; old languages -2.00 on average, 1 of 1" in shown
    assert "+0.5" in shown
    assert "checkpoints/10 has this average; gshard-decode uses it" in " ".join(shown.split())


def test_no_average_is_saved_if_none_or_all_lose(made, tmp_path, monkeypatch, capsys):
    assert keep(made, tmp_path, monkeypatch, {1.0: 0.5}) == []
    assert "each average" not in capsys.readouterr().out
    assert keep(made, tmp_path, monkeypatch, dict.fromkeys((1.0, *SHARES), -2.0)) == []
    assert "Old languages lose with each average too, so none is saved." in capsys.readouterr().out
    assert (
        keep(made, tmp_path, monkeypatch, {}, {"bleu_sentences": 0, "best_metric": ""}.items())
        == []
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"language": "fr"}, "--add_language is fr, which .* has already; it has de, en, fr"),
        ({"language": "ell_Grek"}, r"'ell_Grek', which is no BCP 47 tag; did you mean el\?"),
        ({"language": "Greek!"}, "which is no BCP 47 tag; give one such as nn or pt-BR"),
        ({"language": "nn"}, "has no train text of nn and English; it has el-en. It must be a"),
    ],
)
def test_a_wrong_language_is_refused(request_for, values, message):
    with pytest.raises(UserError, match=message):
        add_language(request_for(**values), Trainer())


@pytest.mark.parametrize("split", ["train", "dev"])
def test_missing_text_is_refused(request_for, made, tmp_path, split):
    shutil.copytree(made[0] / "new", tmp_path / "part")
    for file in (tmp_path / "part" / "el-en").glob(f"{split}.*"):
        file.unlink()
    with pytest.raises(
        UserError, match=f"has no {split} text of el and English; it has el-en. It "
    ):
        add_language(request_for(corpus=tmp_path / "part"), Trainer())
    assert not (tmp_path / "run-data").exists()
    for file in (made[0] / "new" / "el-en").glob("dev.*"):
        (tmp_path / "part" / "el-en" / file.name).write_bytes(gzip.compress(b"\n"))
    if split == "dev":
        with pytest.raises(UserError, match="has dev text of el, but each line is empty or does"):
            add_language(request_for(corpus=tmp_path / "part"), Trainer())


def test_the_data_of_the_old_run_must_be_there_and_unchanged(request_for, made, tmp_path):
    folder, run = made
    unknown = tmp_path / "copied run"
    shutil.copytree(run.path, unknown)
    (unknown / "command.txt").unlink()
    with pytest.raises(UserError, match=r"does not record its prepared data\. Give .* --replay"):
        add_language(request_for(init=Init.of(unknown, "best")), Trainer())
    (unknown / "command.txt").write_text(f"gshard-train --data={tmp_path / 'gone'}\n")
    with pytest.raises(UserError, match="gone, and there is no such folder"):
        add_language(request_for(init=Init.of(unknown, "best")), Trainer())
    # The last command counts, and the last of its flags.
    commands = [
        "gshard-train --data=/gone/first",
        shlex.join(["gshard-train", "--data=/gone/second", f"--data={folder / 'prepared'}"]),
    ]
    (unknown / "command.txt").write_text("".join(f"{line}\n" for line in commands))
    assert program._old_data(request_for(), RunFolder(unknown)).folder == folder / "prepared"
    trained = Trainer()
    add_language(request_for(init=Init.of(unknown, "best"), replay=folder / "prepared"), trained)
    other = trained.data
    with pytest.raises(UserError, match=r"is not the data that .* was trained on"):
        add_language(request_for(replay=other, workdir=tmp_path / "second"), Trainer())


def test_folders_of_something_else_are_not_replaced(request_for, tmp_path):
    (tmp_path / "run-data").mkdir()
    with pytest.raises(UserError, match="run-data is in the way"):
        add_language(request_for(), Trainer())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data.json").write_text("{}")
    with pytest.raises(UserError, match="has a run that does not add el"):
        add_language(request_for(), Trainer())
    assert list((tmp_path / "run-data").iterdir()) == []
