"""The paper in miniature: what is said of a family of models follows from their scores."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.settings.gin_reader import load_config
from scripts import family, family_results
from scripts.family_results import Member, thirds, tokens_to_reach
from tests.evaluation.sentences import noisy, sentences
from tests.run.facts import data_facts

LANGUAGES = [f"l{i}" for i in range(9)]
PAIRS = {language: 1000 - 100 * i for i, language in enumerate(LANGUAGES)}
BASE = {language: 20.0 + i for i, language in enumerate(LANGUAGES)}
CURVE = [(100, 5.0), (200, 4.0), (400, 3.0)]


def shifted(by: float, noise: float = 0.0, seed: int = 0) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    return {language: score + by + noise * rng.normal() for language, score in BASE.items()}


def difference(better, worse, *groups):
    return family_results.difference(Member("a", better), Member("b", worse), *groups)


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


def test_a_contrast_compares_two_groups_of_languages():
    better = {
        language: BASE[language] + (3 if language in LANGUAGES[:3] else 1) for language in BASE
    }
    groups = thirds(PAIRS)
    assert difference(better, BASE, groups["high"], groups["low"]).mean == pytest.approx(2.0)
    assert difference(better, BASE, groups["low"], groups["high"]).mean == pytest.approx(-2.0)


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
    dense = Member("dense-2", BASE, {}, 2_000_000, 0, 2, 10, 3600.0, 1000, curves(CURVE))
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
    page = family_results.page(members(), PAIRS, Member("baselines", shifted(-4.0)))
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
    same = "+4.0 (+4.0 to +4.0)"
    assert f"| dense-2 | 2.0 M | dense | 2 + 2 | 0.0 | 1.00 | 24.0 | {same} | {same} |" in page
    assert "They do not cover the seed" in page
    assert "There are 7 claims, and one interval in twenty misses by chance." in page
    worse = family_results.page([members()[0], members()[4]], PAIRS, Member("baselines", {}))
    assert "compared with the baselines | - | not decided" in worse


def test_depth_that_costs_tokens_is_said():
    dense, _, shallow, deep, _ = members()
    swapped = dataclasses.replace(deep, curves=shallow.curves)
    page = family_results.page(
        [dataclasses.replace(shallow, curves=deep.curves), swapped],
        PAIRS,
        Member("baselines", BASE),
    )
    depth = rows_of(page)["6 layers need fewer tokens than 2 to the same cross-entropy"]
    assert "2.00 times the tokens (2.00 to 2.00) | against it" in depth
    assert dense.name not in page


def test_a_second_seed_shows_the_noise_and_makes_no_claim():
    dense, *others = members()
    again = dataclasses.replace(dense, name="dense-2-again", seed=2, bleu=shifted(0.3))
    page = family_results.page([dense, *others, again], PAIRS, Member("baselines", BASE))
    assert "dense-2-again is dense-2 with another seed: +0.3 (+0.3 to +0.3) BLEU, +0.000" in page
    without = family_results.page([dense, *others], PAIRS, Member("baselines", BASE))
    claims = [{row for row in rows_of(text) if "better" in row} for text in (page, without)]
    assert claims[0] == claims[1]


def test_every_member_is_a_config_that_loads():
    def load(name, settings):
        return load_config(
            name, [flag.removeprefix("--gin=") for flag in family.gin_flags(settings)]
        )

    for name in family.FAMILY:
        config = load("family", family.settings(name, 100))
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
    systems = [
        {"name": name, "devices": 1, "languages": [{"lang": tag, "bleu": bleu} for tag in tokens]}
        for name, bleu in (("dense-2", 10.0), ("moe16-2", 12.0))
    ]
    rows = [
        {"lang": tag, "train_pairs": count, "baseline_bleu": bleu, "sentences": 100}
        for tag, count, bleu in (("fr", 90, 9.0), ("de", 60, 8.0), ("br", 30, None))
    ]
    text = family.page_of({"systems": systems, "languages": rows}, tmp_path, 100, {})
    assert "100 steps and 4.5 million tokens for each model. 300 test strings" in text
    assert "| dense-2 | 2.0 M | dense | 2 + 2 | 0.1 | 0.50 | 10.0 | +1.5" in text
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
    drawn = family.drawn_scores(tmp_path / "corpus", tmp_path, ["dense-2", "moe16-2"])
    assert [set(rows) for rows in drawn.values()] == [{"fr", "de", "br"}] * 3
    gains = {"fr": 20.0, "de": 21.0, "br": 22.0}
    better, worse = Member("a", gains), Member("b", dict.fromkeys(gains, 0.0))
    student = family_results.difference(better, worse, list(gains))
    better = dataclasses.replace(better, drawn=drawn["moe16-2"])
    assert family_results.difference(better, worse, list(gains)) == student
    worse = dataclasses.replace(worse, drawn=drawn["dense-2"])
    shared = family_results.difference(better, worse, list(gains))
    assert shared.mean == student.mean
    assert shared.high - shared.low > 1.5 * (student.high - student.low)


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
