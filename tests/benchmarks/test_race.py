"""The race: its text, its clock, its curves, and what it does again after an interruption."""

import dataclasses
import json
import re
import signal
import sys
import time

import pytest

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
