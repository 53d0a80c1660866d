"""What can be compared with a run, and the messages about the rest."""

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import translations
from gshard_nmt.evaluation.opening import _open_baselines, open_systems
from tests.evaluation.run_folders import make_run

TESTS = [
    translations.TestSet(tag, tag, "en", 9, ["UN", "DEUX"], ["one", "two"]) for tag in ("fr", "de")
]
BACK = translations.TestSet("fr", "en", "fr", 9, ["one"], ["UN"])


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def opened(run, others=(), names=()):
    return open_systems(run, TESTS, others, names)


def names(systems):
    return [system.name for system in systems.compared]


def test_names_are_those_of_the_folders_unless_they_are_given_and_differ(tmp_path, run):
    others = [make_run(tmp_path / name / "run").path for name in ("a", "b")]
    assert names(opened(run, others=others)) == ["run", "run (2)", "run (3)"]
    assert names(opened(run, others, ["MoE", "run"])) == ["MoE", "run", "run (2)"]
    with pytest.raises(UserError, match="there are 2 --name and 1 --workdir"):
        opened(run, names=["a", "b"])


def test_only_shared_directions_are_compared(tmp_path, run):
    other = make_run(tmp_path / "other", ["de", "pl"])
    (system,) = opened(run, others=[other.path]).others
    assert [test.language for test in system.tests] == ["de"]
    assert system.run == other
    alien = make_run(tmp_path / "alien", ["pl"])
    message = r"alien translates pl-en, and .*run translates de-en, fr-en"
    with pytest.raises(UserError, match=message):
        opened(run, others=[alien.path])


def test_baselines_are_runs_that_are_named_by_language(tmp_path):
    fr = make_run(tmp_path / "fr", ["fr"])
    (make_run(tmp_path / "de", ["de"]).path / "budget.json").unlink()
    (system,) = _open_baselines(tmp_path, TESTS)
    assert (system.name, system.run, system.tests) == ("fr", fr, TESTS[:1])
    assert _open_baselines(tmp_path, [*TESTS, BACK])[0].tests == TESTS[:1]
    with pytest.raises(UserError, match="has no run that translates en-fr; give"):
        _open_baselines(tmp_path, [BACK])
    with pytest.raises(UserError, match="has no run folder with a checkpoint of de; name"):
        _open_baselines(tmp_path, TESTS[1:])
    assert _open_baselines(None, TESTS) == []


@pytest.mark.parametrize("text", ["[1, 2]", '{"fr": "high"}', '{"fr": 101}', "{", "[" * 99999])
def test_unreadable_scores_of_baselines_are_an_error(tmp_path, text):
    (tmp_path / "scores.json").write_text(text)
    with pytest.raises(UserError, match=r"--baselines .* is not JSON like \{"):
        _open_baselines(tmp_path / "scores.json", TESTS)


def test_scores_of_baselines_are_by_language_or_direction(tmp_path):
    (tmp_path / "scores.json").write_text('{"fr-en": 30, "xx": 2}')
    (system,) = _open_baselines(tmp_path / "scores.json", TESTS)
    assert (system.tests, system.run, system.bleu["fr-en"]) == (TESTS[:1], None, 30)
    (tmp_path / "fr.json").write_text('{"fr": 30}')
    with pytest.raises(UserError, match=r"fr is the score of several directions.* such as fr-en"):
        _open_baselines(tmp_path / "fr.json", [*TESTS, BACK])
    with pytest.raises(UserError, match=r"--baselines .*: there is no such folder or file; give"):
        _open_baselines(tmp_path / "x.json", TESTS)
    (tmp_path / "scores.json").write_text('{"xx": 30}')
    with pytest.raises(UserError, match="has scores of xx, and of none of fr-en, de-en"):
        _open_baselines(tmp_path / "scores.json", TESTS)
