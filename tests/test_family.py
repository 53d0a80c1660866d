"""The paper in miniature: what is said of a family of models follows from their scores."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.settings.gin_reader import load_config
from scripts import family_results
from scripts.family_results import Member, contrast, difference, thirds, tokens_to_reach

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
    assert same.verdict() == "holds here"
    assert difference(BASE, shifted(2.0), LANGUAGES).verdict() == "the opposite holds here"
    noise = difference(shifted(0.0, 5.0), BASE, LANGUAGES)
    assert noise.low < 0 < noise.high
    assert noise.verdict() == "not decided"


def test_the_interval_of_a_mean_has_the_width_of_its_standard_error():
    gains = np.random.default_rng(3).normal(1.0, 2.0, 400)
    better = {str(i): gain for i, gain in enumerate(gains)}
    interval = difference(better, dict.fromkeys(better, 0.0), better)
    expected = 2 * 1.96 * gains.std() / 20
    assert interval.high - interval.low == pytest.approx(expected, rel=0.05)
    assert interval.mean == pytest.approx(gains.mean())


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
        {"step": 2, "tokens": 9, "dev_nll/fr": 1.0, "dev_nll/de": 3.0},
    ]
    assert family_results.curve_of(lines) == [(9, 2.0)]


def family() -> list[Member]:
    dense = Member("dense-2", 2_000_000, 0, 2, 60.0, 1000, BASE, CURVE)
    few = dataclasses.replace(dense, name="moe4-2", experts=4, bleu=shifted(1.0))
    many = dataclasses.replace(few, name="moe16-2", experts=16, bleu=shifted(0.5))
    fast = [(tokens // 2, loss) for tokens, loss in CURVE]
    deep = dataclasses.replace(many, name="moe16-6", layers=6, bleu=shifted(2.0), curve=fast)
    low = set(thirds(PAIRS)["low"])
    bleu = {language: BASE[language] + (3 if language in low else -1) for language in BASE}
    return [dense, few, many, deep, dataclasses.replace(dense, name="d12", layers=12, bleu=bleu)]


def test_the_page_says_which_claims_hold():
    page = family_results.page(family(), PAIRS, shifted(-4.0))
    rows = {line.split(" | ")[0][2:]: line for line in page.splitlines() if line.startswith("| ")}
    assert (
        "+0.5 (+0.5 to +0.5) | holds here"
        in rows["16 experts are better than a dense model of the same depth"]
    )
    assert "the opposite holds here" in rows["16 experts are better than 4"]
    assert "holds here" in rows["6 layers are better than 2, with 16 experts"]
    assert "0.50 times the tokens" in rows["6 layers need fewer tokens than 2 to 3.0 nats"]
    deep = "the deep dense model (12 layers) helps the smallest languages, compared with 2 layers"
    assert "+3.0 (+3.0 to +3.0) | holds here" in rows[deep]
    assert "| dense-2 | 2.0 M | dense | 2 + 2 | 1 | 24.0 | +4.0 (+4.0 to +4.0) |" in page


def test_missing_scores_are_dashes_and_one_model_makes_no_claim_about_others():
    only = family()[0]
    fewer = dataclasses.replace(only, bleu={"l0": 20.0}, curve=())
    page = family_results.page([fewer], PAIRS, BASE)
    assert "| l1 | 900 | 21.0 | - |" in page
    assert "experts are better" not in page


def test_every_member_is_a_config_that_loads(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from family import FAMILY

    for name, plan in FAMILY.items():
        model = load_config("demo", plan.settings(100)).model
        kind, _, layers = name.partition("-")
        assert (model.encoder_layers, model.decoder_layers) == (int(layers), int(layers))
        assert f"moe{model.experts}" == kind if model.experts else kind == "dense"


def test_the_script_explains_itself():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True
    )
    assert "moe64-2" in done.stdout
    page = (SCRIPT.parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    assert page.count("<!-- begin family -->\n") == page.count("<!-- end family -->\n") == 1
