"""The race: its text, its clock, its curves, and what it does again after an interruption."""

import dataclasses
import json
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.errors import UserError
from tests.data.synthetic import write_prepared_data

PROGRAM = """
import pathlib, signal, sys, time
folder, updates, every, seconds = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:4]), float(sys.argv[4])
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
for step in range(1, updates + 1):
    time.sleep(seconds)
    print(f"Up. {step}", flush=True)
    if step % every == 0 or step == updates or stopped:
        (folder / f"{step}.fake").touch()
    if stopped:
        break
"""


@dataclasses.dataclass(frozen=True)
class Fake:
    """A racer that learns the sources by heart: its translations get better with each checkpoint."""

    seconds: float = 0.01
    validation: float = 0.0
    program: str = PROGRAM
    name = "fake"
    label = "A fake"
    requirements = None
    stop_signal = signal.SIGTERM
    variables = {"FAKE": "1"}  # noqa: RUF012

    def command(self, plan):
        numbers = (plan.updates, plan.every, self.seconds)
        return [plan.python, "-c", self.program, str(plan.folder), *map(str, numbers)]

    def updates(self, plan):
        return plan.log_text().count("Up. ")

    def validation_seconds(self, plan):
        return self.validation

    def checkpoints(self, plan):
        return sorted(int(path.stem) for path in plan.folder.glob("*.fake"))

    def decoder(self, plan, step):
        copied = f"line if n < {step} else 'nothing at all'"
        program = (
            f"import sys; [print({copied}) for n, line in enumerate(sys.stdin.read().splitlines())]"
        )
        return [plan.python, "-c", f"print('noise'); {program}"]


@pytest.fixture
def text(load, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    lines = "".join(f"a b c d e {n}\n" for n in range(20))
    for split in ("train", "dev"):
        for language in ("fr", "en"):
            (folder / f"{split}.{language}").write_text(lines)
    return load("racers.plan").Text(folder, "fr", folder, folder / "source.model", "abc")


@pytest.fixture
def plan(load, text, tmp_path):
    (tmp_path / "run").mkdir()
    return load("racers.plan").Plan(text, tmp_path / "run", sys.executable, 2, 20, 5)


def test_the_clock_notes_when_each_checkpoint_was_ready(load, plan):
    run = load("racers.clock").train(Fake(0.05), plan, 60.0)
    assert list(run.checkpoints) == [5, 10, 15, 20]
    times = list(run.checkpoints.values())
    assert times == sorted(times)
    assert times[-1] <= run.seconds + 0.01
    assert 0 < run.speed < 21
    assert run.start_seconds < run.seconds


def test_the_clock_stops_a_racer_which_saves_what_it_has(load, plan):
    plan = dataclasses.replace(plan, updates=10_000, every=10_000)
    run = load("racers.clock").train(Fake(0.05), plan, 0.8)
    assert len(run.checkpoints) == 1
    assert set(run.checkpoints.values()) == {run.seconds}
    assert 0.8 <= run.seconds < 5


def test_the_clock_stops_a_racer_in_the_background_of_a_shell(load, plan, monkeypatch):
    """Such a command ignores SIGINT, and the programs that it starts inherit this."""

    class Interrupted(Fake):
        stop_signal = signal.SIGINT

    program = "import time\nwhile True: time.sleep(0.05)"
    clock = load("racers.clock")
    monkeypatch.setattr(clock, "GRACE_SECONDS", 5.0)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = clock.train(Interrupted(program=program), plan, 0.5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.seconds < 5


def test_validations_are_not_counted(load, plan):
    plan = dataclasses.replace(plan, updates=10_000, every=10_000)
    began = time.monotonic()
    run = load("racers.clock").train(Fake(0.05, validation=0.7), plan, 0.3)
    assert time.monotonic() - began > 0.99
    assert run.validation_seconds == 0.7


def test_a_racer_that_fails_is_reported_with_the_end_of_its_log(load, plan):
    clock = load("racers.clock")
    with pytest.raises(clock.RacerFailed, match=r"A fake ended with exit code 3.*\n.*no memory"):
        clock.train(Fake(program="import sys; print('no memory'); sys.exit(3)"), plan, 9.0)


def test_a_racer_translates_every_dev_line(load, plan):
    clock = load("racers.clock")
    translations = clock.translate(Fake(), plan, 1)
    assert translations == ["a b c d e 0", *["nothing at all"] * 19]


@pytest.fixture
def race(load, text, tmp_path, monkeypatch):
    """Runs the program with a fake and a clock of its own; returns the exit code."""
    module = load("race")
    monkeypatch.setattr(module, "RACERS", {"fake": Fake()})
    monkeypatch.setattr(module, "make_text", lambda *_: text)
    monkeypatch.setattr(module.environment, "busy", lambda: "")
    monkeypatch.setattr(module.page, "PAGE", tmp_path / "docs.md")
    monkeypatch.setattr(load("harness.records"), "RESULTS", tmp_path / "results.json")
    (tmp_path / "images").mkdir()
    (tmp_path / "docs.md").write_text("<!-- begin race -->\n<!-- end race -->\n")
    lines = text.lines("dev", "en")

    def train(racer, plan, limit):
        run.plans.append((plan, limit))
        reports = [(20.0, 20), (70.0, 120)]
        return module.clock.Run({100: 60.0, 200: 110.0}, reports, 120.0, 30.0, 300.0)

    def translate(racer, plan, step):
        return lines if step == 200 else [*lines[:10], *["nothing at all"] * 10]

    def run(*flags):
        command = ["race.py", "--corpus", str(tmp_path), "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", [*command, "--minutes", "2", *flags])
        return module.main()

    monkeypatch.setattr(module.result, "figure", lambda results, title: f"<svg {title}".encode())
    monkeypatch.setattr(module.clock, "train", train)
    monkeypatch.setattr(module.clock, "translate", translate)
    run.module, run.plans = module, []
    return run


def test_a_race_gives_a_table_a_record_and_a_figure(race, tmp_path, capsys):
    assert race() == 0
    out = capsys.readouterr().out
    assert "20 training pairs of fr-en, 20 dev sentences, 2 minutes" in out
    row = next(line for line in out.splitlines() if line.startswith("| A fake"))
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells == ["100.0", "1.8 min", "200", "10 s", "30 s", "2.0"]
    assert "sacreBLEU `nrefs:1|" in out
    folder = tmp_path / "out" / "fr"
    points = json.loads((folder / "race.json").read_text())["racers"][0]["points"]
    assert [(point["minutes"], point["updates"]) for point in points] == [
        (1.0, 100),
        (110 / 60, 200),
    ]
    assert 0 < points[0]["bleu"] < 60 < points[1]["bleu"]
    figure = (folder / "race.svg").read_bytes()
    assert figure == b"<svg fr to en, 20 training pairs"
    assert (tmp_path / "images" / "race.svg").read_bytes() == figure
    (published,) = json.loads((tmp_path / "results.json").read_text())
    assert (published["part"], published["name"]) == ("race", "A fake")
    assert "| A fake | " in (tmp_path / "docs.md").read_text()


def test_the_figure_has_a_curve_for_each_racer(load):
    result = load("racers.result")
    points = (result.Point(1.0, 10, 4.0), result.Point(2.0, 20, 3.0))
    results = [
        result.Result(name, name, {}, points, 1.0, 0.0, 2.0, "") for name in ("ours", "theirs")
    ]
    axes = result.draw(results, "A race").axes[0]
    assert [line.get_label() for line in axes.lines] == ["ours", "theirs"]
    assert list(zip(*axes.lines[1].get_data(), strict=True)) == [(0, 0), (1, 4), (2, 3)]
    assert results[0].best == points[0]


def test_the_trial_tells_how_many_updates_fit(race):
    race("--trial", "50", "--points", "4")
    (trial, trial_seconds), (plan, limit) = race.plans
    # Two updates a second, after a start of ten seconds.
    assert (trial_seconds, limit) == (50.0, 120.0)
    assert plan.updates == int(0.97 * 2 * (120 - 10))
    assert plan.every == plan.updates // 4
    assert trial.every > plan.updates


def test_a_finished_racer_is_used_again_in_the_same_race_only(race, capsys):
    assert race("--page", "never") == 0
    assert race("--page", "never") == 0
    assert "A fake has finished before. To race it again, remove " in capsys.readouterr().err
    assert len(race.plans) == 2
    assert race("--page", "never", "--points", "3") == 0
    assert len(race.plans) == 4


def test_a_racer_that_fails_is_left_out(race, monkeypatch, capsys):
    def fail(*_):
        raise race.module.clock.RacerFailed("A fake ended with exit code 5.")

    monkeypatch.setattr(race.module.clock, "train", fail)
    assert race() == 1
    assert "A fake is left out. A fake ended with exit code 5." in capsys.readouterr().err


def test_an_interrupted_race_says_so(race, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(race.module.clock, "train", interrupt)
    assert race() == 130
    assert "The same command goes on" in capsys.readouterr().err


def test_a_trial_that_is_too_short_is_reported(race, monkeypatch, capsys):
    run = race.module.clock.Run({}, [(9.0, 1)], 10.0, 0.0, 10.0)
    monkeypatch.setattr(race.module.clock, "train", lambda *_: run)
    assert race() == 1
    assert "Give it more time with --trial or --minutes." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--minutes", "0"), "0 is not a number above 0"),
        (("--minutes", "ten"), "ten is not a number above 0"),
        (("--points", "0"), "0 is not a whole number from 1 on"),
        (("--racers", "nobody"), "invalid choice: 'nobody'"),
    ],
)
def test_wrong_flags_end_the_program(race, capsys, flags, message):
    with pytest.raises(SystemExit) as error:
        race(*flags)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_corpus_ends_the_program(race, tmp_path, capsys):
    assert race("--corpus", str(tmp_path / "none")) == 2
    assert "none is not a folder. Make the catalogues" in capsys.readouterr().err


def test_dev_text_is_raw_and_has_no_empty_side(load, tmp_path):
    text = load("racers.text")
    write_pairs(tmp_path / "fr-en", "dev", "fr", "en", [("un", "one"), ("", "two"), ("3", "3")])
    write_pairs(tmp_path / "de-en", "train", "de", "en", [("eins", "one")])
    assert text.dev_rows(tmp_path, "fr", 500) == [("un", "one"), ("3", "3")]
    with pytest.raises(UserError, match="has no folder it-en"):
        text.dev_rows(tmp_path, "it", 500)
    with pytest.raises(UserError, match="has no dev text"):
        text.dev_rows(tmp_path, "de", 500)


def test_the_training_text_is_that_of_the_prepared_data(load, tmp_path):
    class Words:
        """A vocabulary whose words are numbers, without the end of a sentence."""

        def decode(self, sentences):
            return [" ".join(map(str, ids[:-1])) for ids in sentences]

    data = write_prepared_data(tmp_path / "data", Data(), {"fr": 9})
    pair = data.pairs[0]
    (first,) = data.reader(pair, "train").read(np.array([0]))
    rows = load("racers.text").train_rows(data, Words())
    expected = tuple(" ".join(map(str, ids[:-1].tolist())) for ids in (first.source, first.target))
    assert rows[0] == expected
    assert all(source and target for source, target in rows)


@pytest.mark.parametrize("name", ["experts", "dense"])
def test_our_settings_make_a_model_of_the_stated_size(load, plan, name):
    from gshard_nmt.settings.gin_reader import load_config

    settings = load("race").RACERS[name].settings(plan)
    config = "demo" if name == "experts" else "baseline"
    config = load_config(config, [f"{key} = {value!r}" for key, value in settings.items()])
    model = config.model
    assert (model.model_dim, model.hidden_dim, model.heads) == (256, 1024, 4)
    assert (model.encoder_layers, model.decoder_layers) == (4, 2)
    assert model.experts == (8 if name == "experts" else 0)
    assert (config.train.steps, config.train.keep_every) == (20, 5)
    assert config.optimizer.learning_rate == 1.0


def test_the_peers_get_the_same_sizes_and_text(load, plan, tmp_path):
    racers = load("race").RACERS
    for name in ("joeynmt-shipped", "joeynmt-short"):
        configuration = racers[name].configuration(plan)
        for stack, layers in (("encoder", 4), ("decoder", 2)):
            own = configuration["model"][stack]
            assert (own["num_layers"], own["hidden_size"], own["ff_size"]) == (layers, 256, 1024)
        assert configuration["data"]["train"] == str(plan.text.folder / "train")
        assert configuration["training"]["batch_type"] == "token"
        assert configuration["training"]["validation_freq"] % 5 == 0
        assert "test" not in configuration["data"]
        # PyYAML reads a number with an exponent but without a dot as text.
        assert not re.search(r"[ \[]\d+e", json.dumps(configuration))
    plan.text.vocabulary.write_bytes(b"model")
    command = " ".join(racers["marian"].command(plan))
    assert "--dim-emb 256 --transformer-dim-ffn 1024" in command
    assert "--enc-depth 4 --dec-depth 2" in command
    assert f"--train-sets {plan.text.folder}/train.fr {plan.text.folder}/train.en" in command


LOGS = {
    "dense": "step 1240/2000  nll 7.914  aux 0.00\n",
    "joeynmt-short": "Epoch   1, Step:     1240, Batch Loss:  3\nGeneration took 2.5000[sec].\n"
    "Evaluation result (greedy): bleu:   1.00, 0.5000[sec]\n",
    "marian": "[time] Ep. 1 : Up. 1240 : Sen. 640\n",
}


@pytest.mark.parametrize("name", LOGS)
def test_the_log_of_a_racer_tells_its_updates(load, plan, name):
    racer = load("race").RACERS[name]
    assert racer.updates(plan) == 0
    plan.log.write_text(LOGS[name])
    assert racer.updates(plan) == 1240
    assert racer.validation_seconds(plan) == (3.0 if "joey" in name else 0.0)


def test_checkpoints_are_those_that_are_whole(load, plan):
    racers = load("race").RACERS
    names = (
        "run/checkpoints/5/manifest.json",
        "run/checkpoints/10/d",  # not committed
        *("run/5.ckpt", "run/latest.ckpt", "model.iter5.npz", "model.iter10.npz.tmp"),
    )
    for path in (Path(plan.folder / name) for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (plan.folder / "model.npz.progress.yml").write_text("epochs: 1\nbatches: 7\n")
    assert racers["dense"].checkpoints(plan) == [5]
    assert racers["joeynmt-short"].checkpoints(plan) == [5]
    assert racers["marian"].checkpoints(plan) == []
    plan.log.write_text("Saving training checkpoint to model.npz")
    assert racers["marian"].checkpoints(plan) == [5, 7]
