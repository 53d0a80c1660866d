"""The baselines of a comparison: their folders, their known scores, and the directions without one."""

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import baselines
from gshard_nmt.evaluation.texts import translations
from tests.evaluation.run_folders import make_run

TESTS = [translations.TestSet(tag, tag, "en", 9, ["a"], ["b"]) for tag in ("fr", "de")]


def test_run_folders_are_named_by_language(tmp_path):
    make_run(tmp_path / "fr", ["fr"])
    folders = baselines.read_baselines(tmp_path, ["fr", "de"])
    assert folders.folders == {"fr": tmp_path / "fr"}
    assert baselines.directions_without(folders, tmp_path, TESTS) == ["de-en"]
    with pytest.raises(UserError, match="has no run folder of pl"):
        baselines.read_baselines(tmp_path, ["pl"])


def test_scores_are_by_language_or_direction(tmp_path):
    file = tmp_path / "scores.json"
    file.write_text('{"fr": 30, "fr-en": 31, "de": 20}')
    known = baselines.read_baselines(file, ["fr"])
    assert [known.score_of(test) for test in TESTS] == [31, 20]
    assert baselines.directions_without(known, file, TESTS) == []
    file.write_text('{"xx": 30}')
    with pytest.raises(UserError, match="has scores of xx but of none of fr-en, de-en"):
        baselines.directions_without(baselines.read_baselines(file, ["fr"]), file, TESTS)


def test_without_the_flag_nothing_is_missing():
    assert baselines.directions_without(baselines.read_baselines(None, ["fr"]), None, TESTS) == []


def test_the_facts_say_the_budgets_of_the_run_and_of_all_baselines(tmp_path):
    run = make_run(tmp_path / "run")
    for tag in ("fr", "de"):
        make_run(tmp_path / "baselines" / tag, [tag])
    known = baselines.read_baselines(tmp_path / "baselines", ["fr", "de"])
    facts = dict(baselines.budget_facts(run, known))
    assert facts["multilingual model"] == "5 parameters, 9 steps, 900 tokens, 86400 s"
    assert facts["baselines"].startswith("2 bilingual models of 5 parameters each; 900 tokens in")
