"""The race: its text, its clock, its search, and what it does again after an interruption."""

import dataclasses
import json
import re
import signal
import sys
import time
from unittest import mock

import pytest

PROGRAM = """
import pathlib, signal, sys, time
folder, updates, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
for step in range(1, updates + 1):
    time.sleep(seconds)
    print(f"Up. {step}", flush=True)
    if step == updates or stopped:
        (folder / f"{step}.fake").touch()
    if stopped:
        break
"""


@dataclasses.dataclass(frozen=True)
class Fake:
    """A racer that counts its updates. A trial says how well it translates, and a seed changes it."""

    changes: dict = dataclasses.field(default_factory=dict)
    seed: int = 1
    seconds: float = 0.01
    validation: float = 0.0
    program: str = PROGRAM
    name = "fake"
    requirements = None
    stop_signal = signal.SIGTERM
    variables = {"FAKE": "1"}  # noqa: RUF012

    def command(self, plan):
        numbers = (plan.updates, self.seconds)
        return [plan.python, "-c", self.program, str(plan.folder), *map(str, numbers)]

    def updates(self, plan):
        return plan.log_text().count("Up. ")

    def validation_seconds(self, plan):
        return self.validation

    def checkpoints(self, plan):
        return sorted(int(path.stem) for path in plan.folder.glob("*.fake"))

    def decoder(self, plan, step):
        return [plan.python, "-c", "import sys; print('noise'); sys.stdout.write(sys.stdin.read())"]


@pytest.fixture
def text(load, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    lines = "".join(f"a b c d e {n}\n" for n in range(20))
    for split in ("train", "dev", "test"):
        for language in ("fr", "en"):
            (folder / f"{split}.{language}").write_text(lines)
    return load("racers.plan").Text(folder, "fr", folder, folder / "source.model", "abc")


@pytest.fixture
def plan(load, text, tmp_path):
    (tmp_path / "run").mkdir()
    return load("racers.plan").Plan(text, tmp_path / "run", sys.executable, 2, 20)


def test_the_clock_knows_the_speed_and_the_start(load, plan):
    clock = load("racers.clock")
    run = clock.Run(24, [(0.5, 2), (0.75, 8), (1.5, 22)], seconds=1.75, validation_seconds=0.0)
    assert (run.speed, run.start_seconds) == (20.0, pytest.approx(0.4))
    run = clock.train(Fake(seconds=0.05), plan, 60.0)
    assert run.updates == 20
    assert run.speed > 0
    assert run.start_seconds < run.seconds


def test_the_clock_stops_a_racer_which_saves_what_it_has(load, plan):
    plan = dataclasses.replace(plan, updates=10_000)
    run = load("racers.clock").train(Fake(seconds=0.05), plan, 0.8)
    assert 0 < run.updates < 40
    assert 0.8 <= run.seconds < 5


def test_a_translation_is_what_follows_the_noise(load, plan, text):
    assert load("racers.clock").translate(Fake(), plan, 20, "test") == text.lines("test", "fr")


def test_validations_are_not_counted(load, plan):
    plan = dataclasses.replace(plan, updates=10_000)
    began = time.monotonic()
    run = load("racers.clock").train(Fake(seconds=0.05, validation=0.7), plan, 0.3)
    assert time.monotonic() - began > 0.99
    assert run.validation_seconds == 0.7


def test_a_racer_that_fails_is_reported_with_the_end_of_its_log(load, plan):
    clock = load("racers.clock")
    with pytest.raises(clock.RacerFailed, match=r"fake ended with exit code 3.*\n.*no memory"):
        clock.train(Fake(program="import sys; print('no memory'); sys.exit(3)"), plan, 9.0)


@pytest.fixture
def race(load, text, tmp_path, monkeypatch):
    """Runs the program with two trials of a fake, and a clock of its own; returns the exit code."""
    module = load("race")
    trials = tmp_path / "trials.json"
    trials.write_text(json.dumps({"fake": [{"right": 10}, {"right": 15}]}))
    monkeypatch.setattr(module, "RACERS", {"fake": Fake})
    monkeypatch.setattr(module, "TRIALS", trials)
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(module, "make_text", lambda *_: text)
    monkeypatch.setattr(module.environment, "busy", lambda: "")
    monkeypatch.setattr(module.page, "PAGE", tmp_path / "docs.md")
    monkeypatch.setattr(load("harness.records"), "RESULTS", tmp_path / "results.json")
    (tmp_path / "docs.md").write_text("<!-- begin race -->\n<!-- end race -->\n")

    def fail(what):
        if what in run.failing:
            raise module.clock.RacerFailed("no memory")

    def train(racer, plan, limit):
        run.plans.append((plan, limit))
        fail(racer.changes["right"])
        return module.clock.Run(200, [(20.0, 20), (70.0, 120)], 120.0, 30.0)

    def translate(racer, plan, step, split):
        fail(split)
        run.translated.append((racer.changes["right"], racer.seed, split))
        right, lines = racer.changes["right"] + racer.seed, text.lines(split, "en")
        return [*lines[:right], *["nothing at all"] * (len(lines) - right)]

    def run(*flags):
        command = ["race.py", "--corpus", str(tmp_path), "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", [*command, "--minutes", "2", *flags])
        return module.main()

    monkeypatch.setattr(module.clock, "train", train)
    monkeypatch.setattr(module.clock, "translate", translate)
    run.module, run.plans, run.translated, run.failing = module, [], [], set()
    return run


def test_only_the_best_trial_gets_more_seeds_and_reads_test_text(race, tmp_path, capsys):
    assert race("--page", "always") == 0
    of_the_best = [(15, seed, split) for seed in (1, 2, 3) for split in ("dev", "test")]
    assert race.translated == [(10, 1, "dev"), *of_the_best]
    out = capsys.readouterr().out
    assert "20 training pairs of fr-en, 20 dev and 20 test sentences, 2 minutes" in out
    assert "sacreBLEU `nrefs:1|" in out
    (row,) = [line.split(" | ") for line in out.splitlines() if line.startswith("| fake")]
    first, second = map(float, row[1].split(", "))
    assert first < second
    assert [cell.strip() for cell in row[2:5]] == ['`{"right": 15}`', "200", "2.0"]
    mean, low, high = map(float, re.findall(r"[\d.]+", row[5]))
    assert low < mean < high
    (published,) = json.loads((tmp_path / "results.json").read_text())
    assert (published["part"], published["name"]) == ("race", "fake")
    assert published["interval"][0] < mean < published["interval"][1]
    assert "| fake " in (tmp_path / "docs.md").read_text()


def test_the_speed_tells_how_many_updates_fit(race):
    race("--pace", "50")
    (pace, pace_seconds), (plan, limit) = race.plans[:2]
    # Two updates a second, after a start of ten seconds.
    assert (pace_seconds, limit) == (50.0, 120.0)
    assert plan.updates == int(0.97 * 2 * (120 - 10))
    assert pace.updates > plan.updates


def test_a_finished_run_is_used_again_in_the_same_race_only(race):
    assert race("--page", "never") == 0
    count = len(race.plans)
    assert race("--page", "never") == 0
    assert race("--page", "never", "--seeds", "4") == 0
    assert len(race.plans) == count + 2
    assert race("--page", "never", "--minutes", "3") == 0
    assert len(race.plans) == 2 * count + 2


def test_a_trial_that_fails_counts_as_0_and_is_not_tried_again(race, capsys):
    race.failing = {15}
    assert race("--page", "never") == 0
    assert "fake-2-1 has failed. no memory" in capsys.readouterr().err
    race.failing.clear()
    assert race("--page", "never") == 0
    assert set(race.translated) == {(10, s, split) for s in (1, 2, 3) for split in ("dev", "test")}


@pytest.mark.parametrize(("failing", "translated"), [({10, 15}, []), ({"test"}, [10, 15, 15, 15])])
def test_if_all_fail_the_score_is_0(race, capsys, failing, translated):
    race.failing = failing
    assert race("--page", "never") == 0
    assert [right for right, *_ in race.translated] == translated
    assert "**0.0** (0.0 to 0.0)" in capsys.readouterr().out


def test_a_racer_that_cannot_be_installed_is_left_out(race, monkeypatch, capsys):
    no_wheel = mock.Mock(side_effect=race.module.environment.NoPeers("no wheel"))
    monkeypatch.setattr(race.module, "interpreter", no_wheel)
    assert (race("--page", "never"), race.plans) == (1, [])
    assert "fake is left out. no wheel" in capsys.readouterr().err


def test_a_run_of_another_process_is_left_to_it(race, tmp_path, monkeypatch):
    folder = tmp_path / "out" / "fr" / "fake-1-1"
    folder.mkdir(parents=True)
    other = race.module.RunLock(folder)
    other.__enter__()
    waits = []

    def sleep(seconds):
        waits.append(list(race.translated))
        other.__exit__(None, None, None)

    monkeypatch.setattr(race.module.time, "sleep", sleep)
    assert race("--page", "never") == 0
    assert waits == [[(15, 1, "dev")]]
    assert race.translated[1] == (10, 1, "dev")


def test_every_trial_has_the_same_sizes_and_text(load, plan):
    race = load("race")
    trials = json.loads(race.TRIALS.read_text())
    plan.text.vocabulary.write_bytes(b"model")
    train = str(plan.text.folder / "train")
    for changes in trials["joeynmt"]:
        own = race.RACERS["joeynmt"](changes, 7).configuration(plan)
        for side in ("encoder", "decoder"):
            stack = own["model"][side]
            assert (stack["num_layers"], stack["hidden_size"], stack["ff_size"]) == (2, 128, 512)
            assert stack.items() >= changes.get("model", {}).items()
        assert (own["data"]["train"], own["random_seed"]) == (train, 7)
        assert "test" not in own["data"]
        assert own["training"].items() >= changes.get("training", {}).items()
        assert own["training"]["validation_freq"] == own["training"]["updates"] == 20
        # PyYAML reads a number with an exponent but without a dot as text.
        assert not re.search(r"[ \[]\d+e", json.dumps(own))
    for changes in trials["marian"]:
        command = " ".join([*race.RACERS["marian"](changes, 7).command(plan), ""])
        options = {"dim-emb": 128, "transformer-dim-ffn": 512, "enc-depth": 2, "dec-depth": 2}
        options |= {"seed": 7, "train-sets": f"{train}.fr {train}.en"}
        assert all(f"--{name} {value} " in command for name, value in (options | changes).items())
    for changes in trials["gshard-nmt"]:
        settings = race.RACERS["gshard-nmt"](changes, 7).settings(plan)
        sizes = {"Model.model_dim": 128, "Model.hidden_dim": 512, "Train.seed": 7}
        assert settings.items() >= (sizes | changes).items()


LOGS = {
    "gshard-nmt": "step 1240/2000  nll 7.914  aux 0.00\n",
    "joeynmt": "Epoch   1, Step:     1240, Batch Loss:  3\nGeneration took 2.5000[sec].\n"
    "Evaluation result (greedy): bleu:   1.00, 0.5000[sec]\n",
    "marian": "[time] Ep. 1 : Up. 1240 : Sen. 640\n",
}


@pytest.mark.parametrize("name", LOGS)
def test_the_log_of_a_racer_tells_its_updates(load, plan, name):
    racer = load("race").RACERS[name]()
    assert racer.updates(plan) == 0
    plan.log.write_text(LOGS[name])
    assert racer.updates(plan) == 1240
    assert racer.validation_seconds(plan) == (3.0 if "joey" in name else 0.0)
