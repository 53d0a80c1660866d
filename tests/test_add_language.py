"""gshard-train --add_language, without training: the data, the config, the guard, and what is refused."""

import dataclasses
import shlex
import shutil
import types
from pathlib import Path

import pytest

from gshard_nmt import add_language as program
from gshard_nmt.add_language import Request, add_language
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary_match import match_rows
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.language_guard import NAME, Change, DevOutput, Guard, Verdict
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.start import Init
from tests.newcomer import CONFIG, make_run, write_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("add language")
    write_corpus(folder / "new", "el")
    run, _ = make_run(folder)
    return folder, run


@pytest.fixture
def request_for(made, tmp_path, monkeypatch):
    """Returns a function that makes a request; the old run translates each source as itself."""
    folder, run = made
    translator = types.SimpleNamespace(of_ids="the old run", origin="step 7")
    monkeypatch.setattr(program, "load_translator", lambda config, run, checkpoint: translator)

    def read(vocabulary, data, pairs, sentences):
        outputs = [DevOutput(p.folder, p.language, "en", [f"{sentences}"], []) for p in pairs]
        return types.SimpleNamespace(translated=lambda _: outputs)

    monkeypatch.setattr(program.DevText, "read", read)

    def make(**values) -> Request:
        request = Request("el", run.path, "best", folder / "new", tmp_path / "run", new_pieces=40)
        return dataclasses.replace(request, **values)

    return make


class Trainer:
    """Records what is to be trained, and makes the run folder. It may die as soon as this is made."""

    calls: int = 0

    def __init__(self, dies: bool = False) -> None:
        self.dies = dies

    def __call__(self, config, data, init, texts, command) -> bool:
        self.config, self.data, self.init, self.texts = config, data, init, texts
        self.command, self.calls = command, self.calls + 1
        run = RunFolder(data.parent / "run")
        run.claim(config, PreparedData.open(data))
        if self.dies:
            raise KeyboardInterrupt
        if init:
            run.write_json("init.json", {"from": init.run, "checkpoint": init.checkpoint})
        for name, text in texts.items():
            run.write_text(name, text)
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
        assert match.drawn == 0
    assert match_rows(before[0], after[0]).means > 0
    # Nothing is left of the work.
    folders = sorted(path.name for path in request.workdir.parent.iterdir())
    assert folders == ["run", "run-data"]
    # The new model can be made and fits the data.
    assert list(data.misfits(trained.config.data)) == []
    guard = Guard.of(request.workdir)
    sentences = trained.config.train.bleu_sentences
    assert guard.translations == {d: [f"{sentences}"] for d in ("fr-en", "de-en")}
    assert guard.weights == f"step 7 of {old.path}"


def test_half_of_the_examples_are_in_the_new_language(request_for):
    trained = Trainer()
    add_language(request_for(), trained)
    data = PreparedData.open(trained.data)
    (phase,) = trained.config.data.phases
    components = data.components(trained.config.data)
    rates = dict(zip((c.language for c in components), phase.rates(components), strict=True))
    assert rates["el"] == pytest.approx(0.5, abs=0.001)
    assert rates["fr"] == pytest.approx(rates["de"])


def test_settings_of_the_user_win_over_ours_and_ours_over_those_of_the_run(request_for):
    trained = Trainer()
    settings = ("Train.steps = 40", "Optimizer.learning_rate = 0.25", "Train.bleu_sentences = 3")
    add_language(request_for(settings=settings), trained)
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
    trained = Trainer()
    add_language(request_for(settings=("Train.steps = 41",)), trained)
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
        config = program._config(request_for(), RunFolder(request_for().run), data)
        assert config.train.bleu_sentences == sentences


@pytest.fixture
def two_phases(made, tmp_path):
    """A copy of the run whose mixture, patience and limits are not the defaults."""
    config = CONFIG.replace(
        data={
            "schedule": [
                {"from_step": 0, "temperature": 1.0},
                {"from_step": 10, "temperature": 5.0, "weights": {"fr": 3.0}},
            ]
        },
        train={"patience": 2, "tokens": 10_000},
        cleaning={"ratio": 4.5},
    )
    run = RunFolder(Path(shutil.copytree(made[1].path, tmp_path / "two phases")))
    run.write_text("config.gin", config.text)
    return run


def test_the_end_of_the_old_mixture_goes_on_beside_the_new_language(
    request_for, two_phases, monkeypatch
):
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
    add_language(request_for(run=two_phases.path), trained)
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


def test_the_old_run_translates_with_beam_search_on_the_new_mesh(request_for, monkeypatch):
    configs = []

    def load(config, run, checkpoint):
        configs.append((config, checkpoint))
        return types.SimpleNamespace(of_ids="the old run", origin="step 7")

    monkeypatch.setattr(program, "load_translator", load)
    settings = ("Decode.method = 'sample'", "Mesh.shape = (2,)")
    add_language(request_for(settings=settings, checkpoint="last"), Trainer())
    ((config, checkpoint),) = configs
    assert (config.decode.method, tuple(config.mesh.shape), checkpoint) == ("beam", (2,), "last")
    assert config.train == CONFIG.train


def test_a_second_start_resumes_the_run(request_for, made):
    trained = Trainer()
    add_language(request_for(), trained)
    first, data = trained.config, trained.data.stat().st_ino
    add_language(request_for(), trained)
    assert (trained.config, trained.init, trained.texts, trained.calls) == (first, None, {}, 2)
    assert trained.data.stat().st_ino == data
    with pytest.raises(UserError, match="has a run that does not add nn"):
        add_language(request_for(language="nn"), trained)


def test_a_run_that_died_before_it_recorded_the_old_run_still_starts_from_it(request_for, made):
    with pytest.raises(KeyboardInterrupt):
        add_language(request_for(), Trainer(dies=True))
    trained = Trainer()
    add_language(request_for(), trained)
    assert trained.init == Init.of(made[1].path, "best")
    assert set(trained.texts) == {NAME}


def test_the_table_shows_the_best_step_and_each_old_direction(request_for, capsys, tmp_path):
    changes = [Change("fr-en", 20.0, 19.0, 0.01), Change("de-en", 10.0, 10.5, 1.0)]
    verdicts = [Verdict(10, 3.0, changes[1:]), Verdict(20, 4.0, changes)]
    guard = Guard(tmp_path / NAME, "el", "step 7 of old", {}, verdicts)
    program.show(guard)
    shown = capsys.readouterr().out
    assert "passes, best" in shown
    assert "does not pass" in shown
    assert "+0.5" in shown
    assert "19.0" not in shown
    program.show(dataclasses.replace(guard, verdicts=verdicts[1:]))
    shown = capsys.readouterr().out
    assert shown.index("fr-en") < shown.index("de-en")
    assert "No checkpoint passes the guard, so there is no best one" in shown
    assert "1 of 2" in shown
    better = Verdict(30, 5.0, [Change("de-en", 10.0, 10.25, 1.0)])
    program.show(dataclasses.replace(guard, verdicts=[verdicts[0], better]))
    shown = capsys.readouterr().out
    assert shown.count("passes, best") == 1
    assert shown.count("passes") == 2
    worse = Verdict(40, 5.0, [Change("fr-en", 20.0, 17.5, 0.01)])
    program.show(dataclasses.replace(guard, verdicts=[verdicts[1], worse]))
    assert "step 40 beside step 7 of old" in capsys.readouterr().out
    # If nothing passes, decoding uses all of the change, also if parts of it lose less.
    less = Verdict(40, 4.0, [Change("fr-en", 20.0, 18.5, 0.01)], 0.4)
    program.show(dataclasses.replace(guard, verdicts=[verdicts[1], worse, less]))
    shown = capsys.readouterr().out
    assert "step 40 beside step 7 of old" in shown
    (direction,) = [line for line in shown.splitlines() if line.startswith("fr-en")]
    assert direction.split()[1:4] == ["20.0", "17.5", "-2.5"]
    part = dataclasses.replace(better, share=0.6)
    program.show(dataclasses.replace(guard, verdicts=[worse, part]))
    shown = capsys.readouterr().out
    assert [
        line.split()[:3] for line in shown.splitlines() if "5.0" in line and "of 1" in line
    ] == [
        ["40", "all", "5.0"],
        ["30", "0.6", "5.0"],
    ]
    assert "step 30, 0.6 of the change, beside step 7 of old" in " ".join(shown.split())
    assert "smallest part" not in shown


def test_the_table_says_why_a_part_with_a_lower_score_is_chosen(capsys, tmp_path):
    changes = [Change("de-en", 10.0, 10.25, 1.0)]
    # 200 short sentences with other mistakes: their scores differ by chance.
    lines = [["5 5 5 4 3 2 5 4 3 2", "5 5 3 2 1 0 5 4 3 2"][i % 2] for i in range(200)]
    other = [*lines[1:], lines[1]]
    verdicts = [
        Verdict(30, bleu, changes, share, 0.3, {"el-en": rows})
        for bleu, share, rows in ((5.1, 0.8, lines), (5.0, 0.4, other))
    ]
    program.show(Guard(tmp_path / NAME, "el", "step 7 of old", {}, verdicts))
    assert (
        "0.4 of the change is the smallest part that is as good for el as the best part that passes"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"language": "fr"}, "--add_language is fr, which .* has already; it has de, en, fr"),
        ({"language": "ell_Grek"}, r"'ell_Grek', which is no BCP 47 tag; did you mean el\?"),
        ({"language": "Greek!"}, "which is no BCP 47 tag; give one such as nn or pt-BR"),
        ({"language": "nn"}, "has no text of nn and English, only el-en. With --add_language"),
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
    with pytest.raises(UserError, match=f"has no {split} text of el. Add el-en/{split}.el and"):
        add_language(request_for(corpus=tmp_path / "part"), Trainer())
    assert not (tmp_path / "run-data").exists()


def test_dev_text_without_a_usable_line_is_refused(request_for, made, tmp_path):
    shutil.copytree(made[0] / "new", tmp_path / "part")
    (tmp_path / "part" / "el-en" / "dev.en").write_text("\n" * 12)
    with pytest.raises(UserError, match="has dev text of el, but no line of it can be used"):
        add_language(request_for(corpus=tmp_path / "part"), Trainer())
    assert not (tmp_path / "run-data").exists()


def test_the_data_of_the_old_run_must_be_there_and_unchanged(request_for, made, tmp_path):
    folder, run = made
    unknown = tmp_path / "copied run"
    shutil.copytree(run.path, unknown)
    (unknown / "command.txt").unlink()
    with pytest.raises(UserError, match=r"does not record its prepared data\. Give .* --replay"):
        add_language(request_for(run=unknown), Trainer())
    (unknown / "command.txt").write_text(f"gshard-train --data={tmp_path / 'gone'}\n")
    with pytest.raises(UserError, match="gone, and there is no such folder"):
        add_language(request_for(run=unknown), Trainer())
    # The last command counts, and the last of its flags.
    commands = [
        "gshard-train --data=/gone/first",
        shlex.join(["gshard-train", "--data=/gone/second", f"--data={folder / 'prepared'}"]),
    ]
    (unknown / "command.txt").write_text("".join(f"{line}\n" for line in commands))
    assert program._old_data(request_for(), RunFolder(unknown)).folder == folder / "prepared"
    trained = Trainer()
    add_language(request_for(run=unknown, replay=folder / "prepared"), trained)
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
