"""The paper in miniature: what is said of a family of models follows from their scores."""

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.settings.gin_reader import load_config
from scripts import family, family_results
from scripts.family import Deadline
from scripts.family_results import Interval, Member, contrast, difference, thirds, tokens_to_reach
from tests.evaluation.sentences import noisy, sentences
from tests.run.facts import data_facts

SCRIPT = Path(__file__).parents[1] / "scripts" / "family.py"
LANGUAGES = [f"l{i}" for i in range(9)]
PAIRS = {language: 1000 - 100 * i for i, language in enumerate(LANGUAGES)}
BASE = {language: 20.0 + i for i, language in enumerate(LANGUAGES)}
CURVE = [(100, 5.0), (200, 4.0), (400, 3.0)]


def shifted(by: float, noise: float = 0.0, seed: int = 0) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    return {language: score + by + noise * rng.normal() for language, score in BASE.items()}


def test_an_interval_is_exact_for_equal_gains_and_holds_zero_for_noise():
    same = difference(shifted(2.0), BASE, LANGUAGES)
    assert (same.mean, same.low, same.high) == pytest.approx((2.0, 2.0, 2.0))
    assert same.verdict() == "for it"
    assert difference(BASE, shifted(2.0), LANGUAGES).verdict() == "against it"
    noise = difference(shifted(0.0, 5.0), BASE, LANGUAGES)
    assert noise.low < 0 < noise.high
    assert noise.verdict() == "not decided"
    single = difference(shifted(2.0), BASE, ["l3"])
    assert (single.text(), single.verdict()) == ("+2.0", "not decided")
    assert difference(BASE, BASE, LANGUAGES).text() == "+0.0 (+0.0 to +0.0)"


@pytest.mark.parametrize("number", [5, 16])
def test_an_interval_holds_the_true_mean_in_95_of_100_samples_of_languages_and_strings(number):
    """Languages differ in their true gain, and each gain is measured on its own few test strings."""
    rng = np.random.default_rng(3)
    true = rng.normal(1.0, 0.8, (2000, number))
    strings = np.linspace(0.5, 2.0, number)  # the noise of small test sets is larger
    measured = true + strings * rng.normal(size=true.shape)
    intervals = [Interval.of(gains) for gains in measured]
    assert np.mean([i.low < 1.0 < i.high for i in intervals]) == pytest.approx(0.95, abs=0.015)
    halves = [Interval.of(gains[: number // 2], gains[number // 2 :]) for gains in measured]
    covered = np.mean([i.low < 0.0 < i.high for i in halves])
    assert 0.93 < covered < 0.985  # two samples of two and three languages are few for Welch


def test_a_contrast_compares_two_groups_of_languages():
    better = {
        language: BASE[language] + (3 if language in LANGUAGES[:3] else 1) for language in BASE
    }
    groups = thirds(PAIRS)
    assert contrast(better, BASE, groups["high"], groups["low"]).mean == pytest.approx(2.0)
    assert contrast(better, BASE, groups["low"], groups["high"]).mean == pytest.approx(-2.0)


@pytest.mark.parametrize("number", [3, 4, 5, 16])
def test_thirds_have_every_language_once_and_are_ordered_by_text(number):
    pairs = {f"l{i}": 10 * i for i in range(number)}
    groups = thirds(pairs)
    together = [language for name in ("high", "middle", "low") for language in groups[name]]
    assert together == sorted(pairs, key=pairs.get, reverse=True)
    assert len(groups["middle"]) == len(groups["low"]) == number // 3


def test_tokens_until_a_cross_entropy_lie_between_two_validations():
    assert tokens_to_reach(CURVE, 4.5) == 150
    assert tokens_to_reach(CURVE, 3.25) == 350
    assert tokens_to_reach(CURVE, 5.0) == 100
    assert tokens_to_reach(CURVE, 2.9) is None
    lines = [
        {"step": 1, "tokens": 7, "loss": 1.0},
        {"step": 2, "tokens": 9, "dev_nll/fr": 1.0, "dev_nll/de": 3.0, "dev_nll": 2.0},
    ]
    assert family_results.curves_of(lines) == {"fr": [(9, 1.0)], "de": [(9, 3.0)]}
    member = dataclasses.replace(members()[0], curves=family_results.curves_of(lines))
    assert member.curve == [(9, 2.0)]


def test_the_ratio_of_tokens_is_a_mean_over_languages_to_the_lowest_value_that_both_reach():
    slow = [(100, 5.0), (400, 3.5)]
    curves, others = {"a": CURVE, "b": CURVE}, {"a": slow, "b": [(50, 5.0), (100, 4.0)]}
    ratio = family_results.token_ratio(curves, others)
    # To 3.5 it takes 300 of 400 tokens, and to 4.0 it takes 200 of 100.
    assert np.exp(ratio.mean) == pytest.approx((0.75 * 2) ** 0.5)
    back = family_results.token_ratio(others, curves)
    assert (back.mean, back.low) == pytest.approx((-ratio.mean, -ratio.high))


def members() -> list[Member]:
    def curves(curve):
        return {language: [(t, loss + 0.01 * i) for t, loss in curve] for i, language in numbered}

    numbered = list(enumerate(LANGUAGES))
    dense = Member("dense-2", 2_000_000, 0, 2, 10, 3600.0, 1, 1000, BASE, curves(CURVE))
    few = dataclasses.replace(dense, name="moe4-2", experts=4, bleu=shifted(1.0))
    many = dataclasses.replace(few, name="moe16-2", experts=16, bleu=shifted(0.5))
    fast = curves([(tokens // 2, loss) for tokens, loss in CURVE])
    deep = dataclasses.replace(many, name="moe16-6", layers=6, bleu=shifted(2.0), curves=fast)
    low = set(thirds(PAIRS)["low"])
    bleu = {language: BASE[language] + (3 if language in low else -1) for language in BASE}
    return [dense, few, many, deep, dataclasses.replace(dense, name="d12", layers=12, bleu=bleu)]


def rows_of(page: str) -> dict[str, str]:
    return {line.split(" | ")[0][2:]: line for line in page.splitlines() if line.startswith("| ")}


def test_the_page_says_which_claims_hold():
    page = family_results.page(members(), PAIRS, shifted(-4.0))
    rows = rows_of(page)
    assert (
        "+0.5 (+0.5 to +0.5) | for it"
        in rows["16 experts are better than a dense model of the same depth"]
    )
    assert "against it" in rows["16 experts are better than 4"]
    assert "for it" in rows["6 layers are better than 2, with 16 experts"]
    depth = rows["6 layers need fewer tokens than 2 to the same cross-entropy"]
    assert "0.50 times the tokens (0.50 to 0.50) | for it" in depth
    deep = "the deep dense model (12 layers) helps the smallest languages, compared with 2 layers"
    assert "+3.0 (+3.0 to +3.0) | for it" in rows[deep]
    assert "| dense-2 | 2.0 M | dense | 2 + 2 | 0.0 | 100 | 1.00 | 1.00 | 24.0 |" in page
    assert "| dense-2 | +4.0 (+4.0 to +4.0) | +4.0 (+4.0 to +4.0) |" in page
    assert "They do not cover the seed" in page
    assert "There are 7 claims, and one interval in twenty misses by chance." in page
    worse = family_results.page([members()[0], members()[4]], PAIRS, {})
    assert "compared with the baselines | - | not decided" in worse


def test_depth_that_costs_tokens_is_said():
    dense, _, shallow, deep, _ = members()
    swapped = dataclasses.replace(deep, curves=shallow.curves)
    page = family_results.page(
        [dataclasses.replace(shallow, curves=deep.curves), swapped], PAIRS, BASE
    )
    depth = rows_of(page)["6 layers need fewer tokens than 2 to the same cross-entropy"]
    assert "2.00 times the tokens (2.00 to 2.00) | against it" in depth
    assert dense.name not in page


def test_a_second_seed_shows_the_noise_and_makes_no_claim():
    dense, *others = members()
    again = dataclasses.replace(dense, name="dense-2-again", seed=2, bleu=shifted(0.3))
    page = family_results.page([dense, *others, again], PAIRS, BASE)
    assert "dense-2-again is dense-2 with another seed: +0.3 (+0.3 to +0.3) BLEU, +0.000" in page
    without = family_results.page([dense, *others], PAIRS, BASE)
    claims = [{row for row in rows_of(text) if "better" in row} for text in (page, without)]
    assert claims[0] == claims[1]


def test_missing_scores_are_dashes_and_one_model_makes_no_claim_about_others():
    fewer = dataclasses.replace(members()[0], bleu={"l0": 20.0}, curves={})
    page = family_results.page([fewer], PAIRS, BASE)
    assert "| l1 | 900 | 21.0 | - |" in page
    assert "experts are better" not in page


def test_every_member_is_a_config_that_loads():
    def load(name, settings):
        return load_config(
            name, [flag.removeprefix("--gin=") for flag in family.gin_flags(settings)]
        )

    for name, plan in family.FAMILY.items():
        config = load("family", plan.settings(100))
        model = config.model
        kind, layers = name.split("-")[:2]
        assert (model.encoder_layers, model.decoder_layers) == (int(layers), int(layers))
        assert f"moe{model.experts}" == kind if model.experts else kind == "dense"
        assert config.mesh.num_devices == 1
        assert config.train.dev_every % config.train.log_every == 0
        assert config.train.seed == 1 + name.endswith("again")
    # The data of the demo is used again.
    assert load_config("family").data.shaping() == load_config("demo").data.shaping()
    baseline, dense = load("bilingual", family.BASELINES), load("family", {"EXPERTS": 0})
    assert baseline.model.model_dim == dense.model.model_dim
    assert baseline.model.hidden_dim == dense.model.hidden_dim


def test_the_script_explains_itself():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True
    )
    assert "moe64-2" in done.stdout
    page = (SCRIPT.parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    assert page.count("<!-- begin family -->\n") == page.count("<!-- end family -->\n") == 1


class FakeRuns:
    """Stands for the programs: a baseline converges when it has its own minutes.

    Attributes:
      minutes: the minutes of training that each baseline needs.
      commands: the flags of each start, by name.
    """

    def __init__(self, minutes):
        self.minutes, self.commands = minutes, []

    def __call__(self, jobs, at_a_time=1):
        return [self.start([str(word) for word in job.command]) for job in jobs]

    def start(self, command):
        flags = dict(word.removeprefix("--").split("=", 1) for word in command if "=" in word)
        workdir = Path(command[command.index("--workdir") + 1])
        self.commands.append(flags)
        part, parts = map(int, flags["shard"].split("/"))
        for language in flags["languages"].split(",")[part - 1 :: parts]:
            ends = float(flags["max_minutes_each"]) >= self.minutes[language]
            (workdir / language).mkdir(parents=True, exist_ok=True)
            record = {"ended": "patience" if ends else "minutes", "limits": {}}
            record |= dict.fromkeys(("kind", "language", "size", "vocabulary", "key"), "")
            record |= dict.fromkeys(("weights", "steps", "tokens", "train_pairs", "seconds"), 1)
            (workdir / language / "baseline.json").write_text(json.dumps(record))
        return 0


@pytest.fixture
def member(tmp_path):
    folder = tmp_path / "dense-2"
    folder.mkdir()
    pairs = [("fr", 40_000), ("de", 20_000), ("br", 2_000)]
    content = {"pairs": [{"language": name, "train_pairs": count} for name, count in pairs]}
    (folder / "data.json").write_text(json.dumps(content))
    return folder


class FakeDeadline(Deadline):
    """Has some minutes less at each look."""

    def __init__(self, minutes, each):
        super().__init__(minutes)
        self.looks, self.each = 0, each

    def spent(self):
        self.looks += 1
        return self.each * self.looks


def test_members_start_while_there_is_time_and_finished_ones_always(tmp_path, capsys):
    arguments = argparse.Namespace(
        members=["dense-2", "moe4-2", "moe16-2"], folder=tmp_path, steps=100
    )
    for name, steps in (("moe16-2", 100), ("moe4-2", 200)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "budget.json").write_text(json.dumps({"steps": steps}))
    jobs = list(family.member_jobs(arguments, tmp_path / "data", FakeDeadline(100, 50)))
    assert [job.log.stem for job in jobs] == ["dense-2", "moe16-2"]
    assert "--max_minutes=5.0" in jobs[0].command
    assert "no time is left for moe4-2" in capsys.readouterr().out


def test_baselines_get_twice_the_minutes_in_each_round_until_they_converge(member, monkeypatch):
    runs = FakeRuns({"fr": 3.5, "de": 1.0, "br": 1.5})
    monkeypatch.setattr(family, "run", runs)
    family.train_baselines(member.parent, member, member, FakeDeadline(100, 1))
    names = ("languages", "shard", "max_minutes_each")
    assert [tuple(flags[name] for name in names) for flags in runs.commands] == [
        *(("fr,de", "1/2", "1"), ("br", "1/1", "1")),
        ("fr,de", "2/2", "1"),
        *(("fr", "1/1", "2"), ("br", "1/1", "2")),
        ("fr", "1/1", "4"),
    ]


def test_large_and_small_languages_take_turns_in_groups_of_like_size():
    pairs = {f"large{i}": 20_000 for i in range(7)} | {f"small{i}": 2_000 for i in range(3)}
    groups = [*family.groups_of(pairs)]
    rates = [group[-1].rpartition(" ")[2] for group in groups]
    assert rates == ["0.1", "0.3"] * 3 + ["0.1"]
    for size, parts in (("large", 4), ("small", 3)):
        names = ",".join(name for name in pairs if name.startswith(size))
        shards = [group[1] for group in groups if group[0] == f"--languages={names}"]
        assert shards == [f"--shard={n}/{parts}" for n in range(1, parts + 1)]


def test_baselines_end_with_their_share_of_the_time(member, monkeypatch):
    runs = FakeRuns({"fr": 1000.0, "de": 1.0, "br": 1.0})
    monkeypatch.setattr(family, "run", runs)
    family.train_baselines(member.parent, member, member, FakeDeadline(20, 2))
    rounds = [flags["max_minutes_each"] for flags in runs.commands]
    assert rounds == ["1", "1", "1", "2", "4", "7.6"]
    assert float(runs.commands[-1]["max_minutes"]) < 20


def test_a_baseline_that_fails_ends_the_family(member, monkeypatch):
    monkeypatch.setattr(family, "run", lambda jobs, at_a_time: [0, 2])
    with pytest.raises(family.Failed) as error:
        family.train_baselines(member.parent, member, member, FakeDeadline(20, 1))
    assert error.value.code == 2


def test_the_page_keeps_what_is_outside_of_its_markers(tmp_path):
    file = tmp_path / "results.md"
    begin, end = family.MARKERS
    file.write_text(f"before\n{begin}old\n{end}after\n")
    family.write_page(file, "new")
    assert file.read_text() == f"before\n{begin}\nnew\n\n{end}after\n"
    file.write_text("no markers")
    with pytest.raises(ValueError, match="must have <!-- begin family -->"):
        family.read_page(file)


def write_json(file: Path, content) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


def test_the_page_is_made_of_the_report_and_the_run_folders(tmp_path):
    tokens = {"fr": 3_000_000, "de": 1_000_000, "br": 500_000}
    for number, name in enumerate(["dense-2", "moe16-2"]):
        budget = {"steps": 100, "parameters": 2_000_000, "seconds": 1800.0}
        write_json(tmp_path / name / "budget.json", {**budget, "tokens_by_language": tokens})
        losses = {f"dev_nll/{language}": 3.0 - number for language in tokens}
        lines = [{"step": 100, "tokens": 4_500_000}, {"step": 100, **losses}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / name / "metrics.jsonl").write_text(text)
    record = dict.fromkeys(("kind", "language", "size", "vocabulary", "key"), "converged")
    record |= dict.fromkeys(("weights", "steps", "tokens", "train_pairs", "seconds"), 1)
    for language, ended in (("fr", "minutes"), ("de", "patience")):
        of_language = {**record, "ended": ended, "limits": {}}
        write_json(tmp_path / "baselines" / language / "baseline.json", of_language)
    systems = [
        {"name": name, "devices": 1, "languages": [{"lang": tag, "bleu": bleu} for tag in tokens]}
        for name, bleu in (("dense-2", 10.0), ("moe16-2", 12.0))
    ]
    rows = [
        {"lang": tag, "train_pairs": count, "baseline_bleu": bleu, "sentences": 100}
        for tag, count, bleu in (("fr", 90, 9.0), ("de", 60, 8.0), ("br", 30, None))
    ]
    text = family.page_of({"systems": systems, "languages": rows}, tmp_path, 100, ["moe64-2"], 12.3)
    assert (
        "100 steps and 4.5 million tokens for each model, 12 minutes in the last start. 300" in text
    )
    assert "Not finished, and left out: moe64-2. 1 of 2 baselines were trained until dev" in text
    assert "The gains of fr would be smaller with more time." in text
    assert "| dense-2 | 2.0 M | dense | 2 + 2 | 0.1 | 45,000 | 0.50 | 0.50 | 10.0 |" in text
    assert "| br | 30 | - | 10.0 | 12.0 |" in text
    claim = rows_of(text)["16 experts are better than a dense model of the same depth"]
    assert "+2.0 (+2.0 to +2.0) | for it | +1.000 (+1.000 to +1.000) | for it" in claim


def test_intervals_of_stored_translations_know_that_languages_share_strings(tmp_path):
    references = sentences(0, 40)
    for tag in ("fr", "de", "br"):
        for side, lines in ((tag, [f"{tag} {line}" for line in references]), ("en", references)):
            write_lines(tmp_path / "corpus" / f"{tag}-en" / f"test.{side}", lines)
        for name, rate in (("dense-2", 0.5), ("moe16-2", 0.2), (f"baselines/{tag}", 0.6)):
            file = tmp_path / name / "decodes" / f"test.{tag}-en.txt"
            write_lines(file, noisy(references, ord(tag[0]), rate))
    write_json(tmp_path / "dense-2" / "data.json", data_facts(["fr", "de", "br"]))
    drawn = family.drawn_scores_of(tmp_path / "corpus", tmp_path, ["dense-2", "moe16-2"])
    assert [set(rows) for rows in drawn.values()] == [{"fr", "de", "br"}] * 3
    gains = {"fr": 20.0, "de": 21.0, "br": 22.0}
    zero = dict.fromkeys(gains, 0.0)
    student = difference(gains, zero, gains)
    shared = difference(gains, zero, gains, drawn["moe16-2"], drawn["dense-2"])
    assert shared.mean == student.mean
    assert shared.high - shared.low > 1.5 * (student.high - student.low)
    assert difference(gains, zero, gains, drawn["moe16-2"], {}) == student


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
