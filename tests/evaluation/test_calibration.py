"""The confidence of translations: what is fitted on dev text, and what test text says about it."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.decoding.confidence import Confidence, Evidence
from gshard_nmt.decoding.source_lines import Hypothesis, rendered
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import calibration
from gshard_nmt.evaluation.calibration import Row, calibrate, fit, measure
from gshard_nmt.evaluation.systems import System
from tests.evaluation.run_folders import make_run


def world(number: int, seed: int) -> list[Row]:
    """Returns translations whose chance to be good is known: worse from German, whatever the score."""
    random, rows = np.random.default_rng(seed), []
    for _ in range(number):
        tokens, mean = int(random.integers(2, 30)), -float(random.exponential(1.0))
        direction = "de-en" if random.random() < 0.5 else "fr-en"
        chance = 1 / (1 + math.exp(-(2 + 3 * mean - 2 * (direction == "de-en"))))
        evidence = Evidence(mean * tokens, tokens, 10)
        rows.append(Row(evidence, direction, mean * tokens**0.6, bool(random.random() < chance)))
    return rows


def test_the_confidence_is_the_share_of_good_translations():
    rows = world(3000, seed=1)
    rows += [Row(Evidence(-9.0, 9, 9), "nn-en", -9.0, True)] * 3
    bias, weights, directions = fit(rows)
    assert directions["fr-en"] - directions["de-en"] == pytest.approx(2, abs=0.3)
    # Three sentences say little about a language, but they do say something.
    assert 0 < directions["nn-en"] < 1
    measured = measure(Confidence("", "", bias, weights, directions), world(4000, seed=2))
    assert measured["ece"] < 0.03
    assert measured["auc"] > measured["auc_of_score"] + 0.03
    assert sum(count for *_, count in measured["bins"]) == measured["sentences"] == 4000


@pytest.mark.parametrize("is_good", [False, True])
def test_a_loss_is_never_a_merit(is_good):
    lost = Row(Evidence(-3.0, 3, 9, has_lost=True), "fr-en", -1.0, is_good)
    _, weights, _ = fit([*world(1000, seed=1), lost])
    assert -3 < weights[-1] <= 0


def test_the_table_is_what_one_counts_by_hand():
    def row(logit, is_good, score):
        return Row(Evidence(-1.0, 1, 1), f"{logit}", score, is_good)

    shares = [0.11, 0.19, 0.18, 0.75, 1.0]
    logits = {str(p): math.log(p / (1 - p)) if p < 1 else 900.0 for p in shares}
    goods, scores = [True, False, False, True, True], [-1.0, -1.0, -3.0, -2.0, -0.5]
    rows = [row(*each) for each in zip(shares, goods, scores, strict=True)]
    measured = measure(Confidence("", "", 0.0, [0.0] * 4, logits), rows)
    assert measured["bins"] == [[0.16, 0.3333, 3], [0.75, 1.0, 1], [1.0, 1.0, 1]]
    assert measured["ece"] == pytest.approx((3 * (1 / 3 - 0.16) + 0.25) / 5, abs=1e-4)
    for key, values in (("auc", shares), ("auc_of_score", scores)):
        pairs = [
            (a > b) + (a == b) / 2
            for (a, good), (b, other) in itertools.product(
                zip(values, goods, strict=True), repeat=2
            )
            if good and not other
        ]
        assert measured[key] == pytest.approx(np.mean(pairs), abs=1e-4)


@pytest.fixture
def folders(tmp_path):
    """A run and a corpus with dev and test text."""
    for split, count in (("dev", 60), ("test", 40)):
        rows = [(f"phrase {split} {n}", f"the {split} sentence {n}") for n in range(count)]
        write_pairs(tmp_path / "corpus" / "fr-en", split, "fr", "en", rows)
    return make_run(tmp_path / "run", ["fr"]), {"": tmp_path / "corpus"}


def work(right="0123"):
    """Translates a line right if its last digit is among some; the score of these is mostly higher."""

    def translate(workdir, source, target, lines, checkpoint):
        assert (source, target, checkpoint) == ("fr", "en", "best")
        best = []
        for line in lines:
            _, split, number = line.split()
            is_right = number[-1] in right
            evidence = Evidence(-0.5 if number[-1] in "0124" else -3.0, 3, 3)
            text = f"the {split} sentence {number}" if is_right else "???"
            best.append(Hypothesis(text, evidence.log_prob, evidence=evidence))
        best[0] = Hypothesis(best[0].text, 0.0, evidence=Evidence(0.0, 0, 0))  # copied
        return best, "step 5, beam 4", "step 5, abc"

    return translate


def test_a_run_is_calibrated_on_dev_text_alone(folders, capsys):
    run, corpus = folders
    calibrate(run, corpus, 0, work(), "best")
    assert "of 39 test sentences have chrF 50 or more" in capsys.readouterr().out
    confidence = Confidence.fitting(run.path, "step 5, abc", "step 5, beam 4")
    likely = confidence.of(Evidence(-0.5, 3, 3), "fr-en")
    assert likely > 0.6 > 0.4 > confidence.of(Evidence(-3.0, 3, 3), "fr-en")
    assert confidence.of(Evidence(0.0, 0, 0), "fr-en") == 1

    dev_only = work()

    def other_test_text(*arguments):
        is_test = " test " in arguments[3][0]
        return (work(right) if is_test else dev_only)(*arguments)

    right = ""
    with pytest.raises(UserError, match="no test translation has chrF 50, or all have"):
        calibrate(run, corpus, 0, other_test_text, "best")
    right = "9"
    calibrate(run, corpus, 0, other_test_text, "best")
    again = Confidence.read(run.path)
    assert dataclasses.replace(again, measured=confidence.measured) == confidence
    assert again.measured["good"] < confidence.measured["good"]


def test_the_report_has_the_table_of_its_own_translations(folders):
    run, corpus = folders
    calibrate(run, corpus, 0, work(), "best")
    system = System("run", [], run, made_by="step 5, beam 4")
    section = calibration.section(system)
    assert "39 test sentences" in section.html
    assert section.data == Confidence.read(run.path).measured
    assert calibration.section(dataclasses.replace(system, made_by="step 6, beam 4")) is None


def test_a_confidence_of_other_weights_or_a_damaged_one_is_not_used(folders, capsys):
    run, corpus = folders
    assert Confidence.fitting(run.path, "step 5, abc", "step 5, beam 4") is None
    assert capsys.readouterr().err == ""
    calibrate(run, corpus, 0, work(), "best")
    for label, made_by in (("step 5, abd", "step 5, beam 4"), ("step 5, abc", "step 5, beam 2")):
        assert Confidence.fitting(run.path, label, made_by) is None
        assert "is of another checkpoint or search (step 5, beam 4)" in capsys.readouterr().err
    values = json.loads((run.path / "confidence.json").read_text())
    (run.path / "confidence.json").write_text(json.dumps(values | {"weights": [1]}))
    with pytest.raises(UserError, match=r"damaged: weights.* Make it again with gshard-eval"):
        Confidence.read(run.path)


def test_too_little_dev_text_is_named(folders):
    run, corpus = folders
    with pytest.raises(UserError, match=r"^0 of 59 translations of dev text have a chrF of 50"):
        calibrate(run, corpus, 0, work(""), "best")
    assert not (run.path / "confidence.json").exists()


def test_json_lines_have_the_confidence_of_the_best():
    best = [Hypothesis("x", -1.0, confidence=0.123456), Hypothesis("y", -2.0, confidence=0.1)]
    assert json.loads(rendered("jsonl", 1, "a", best))["confidence"] == 0.1235
    assert "confidence" not in json.loads(rendered("jsonl", 1, "a", [Hypothesis("x", -1.0)]))
