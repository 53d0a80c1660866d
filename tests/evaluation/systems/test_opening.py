"""What can be compared with a run, and the messages about the rest."""

import json

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report.report import Report
from gshard_nmt.evaluation.systems.opening import Others, open_baselines, open_systems, read_scores
from gshard_nmt.evaluation.systems.systems import Budget, Systems, text_digest
from gshard_nmt.evaluation.texts import translations
from tests.evaluation.made_systems import system_of
from tests.evaluation.run_folders import make_run

TESTS = [
    translations.TestSet(tag, tag, "en", 9, ["UN", "DEUX"], ["one", "two"]) for tag in ("fr", "de")
]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def opened(run, **others):
    return open_systems(run, TESTS, Others(**others))


def scores_file(folder, **content):
    file = folder / "scores.json"
    file.write_text(json.dumps({"name": "paper", "bleu": {"fr": 30.0}} | content))
    return file


def names(systems):
    return [system.name for system in systems.compared]


def test_names_are_those_of_the_folders_unless_they_are_given_and_differ(tmp_path, run):
    others = [make_run(tmp_path / name / "run").path for name in ("a", "b")]
    assert names(opened(run, workdirs=others)) == ["run", "run (2)", "run (3)"]
    given = {"names": ["MoE", "paper"], "scores": [scores_file(tmp_path)]}
    systems = opened(run, workdirs=others, **given)
    assert names(systems) == ["MoE", "paper", "run", "paper (2)"]
    with pytest.raises(UserError, match="there are 2 --name and 1 --workdir"):
        opened(run, names=["a", "b"])


def test_only_shared_directions_are_compared(tmp_path, run):
    other = make_run(tmp_path / "other", ["de", "pl"])
    (system,) = opened(run, workdirs=[other.path]).others
    assert [test.language for test in system.tests] == ["de"]
    assert system.run == other
    alien = make_run(tmp_path / "alien", ["pl"])
    message = r"alien translates pl-en, and .*run translates de-en, fr-en"
    with pytest.raises(UserError, match=message):
        opened(run, workdirs=[alien.path])


def test_published_scores_are_by_language_or_direction(tmp_path, run):
    file = scores_file(tmp_path, bleu={"fr-en": 1, "de": 2, "xx": 3})
    (system,) = opened(run, scores=[file]).others
    assert [test.language for test in system.tests] == ["fr", "de"]
    assert system.run is None
    with pytest.raises(UserError, match="has scores of xx, and the test set has fr, de"):
        opened(run, scores=[scores_file(tmp_path, bleu={"xx": 3})])


def test_scores_of_another_text_are_refused(tmp_path, run):
    assert opened(run, scores=[scores_file(tmp_path, sentences={"fr": 2, "de": 9})])
    with pytest.raises(UserError, match="on 3 sentences of fr-en, and this test set has 2"):
        opened(run, scores=[scores_file(tmp_path, sentences={"fr": 3})])
    row = {"source": "fr", "target": "en", "bleu": 1, "sentences": 2}
    for digest, is_same in ((text_digest(TESTS[0]), True), ("0123", False)):
        systems = [{"name": "a", "languages": [row | {"text_digest": digest}]}]
        file = scores_file(tmp_path, signature={"bleu": "v"}, systems=systems)
        if is_same:
            assert names(opened(run, scores=[file])) == ["run", "a"]
        else:
            with pytest.raises(UserError, match="measured on another test text of fr-en"):
                opened(run, scores=[file])
    digests = {
        text_digest(translations.TestSet("fr", "fr", "en", 9, sources, references))
        for sources, references in ((["a"], ["b"]), (["a"], ["c"]), (["c"], ["b"]))
    }
    assert len(digests) == 3


def test_scores_and_costs_are_read(tmp_path):
    content = {"bleu": {"fr": 44.3}, "weights": 600, "device_years": 22.4, "sentences": {"fr": 10}}
    system = read_scores(scores_file(tmp_path, **content))
    scores = system.published
    assert (system.name, scores.bleu, scores.sentences) == ("paper", {"fr": 44.3}, {"fr": 10})
    assert system.budget == Budget(weights=600, device_years=22.4)
    assert (scores.signature, scores.text_digests) == ("", {})


def test_the_first_system_of_a_report_is_read(tmp_path):
    main = system_of("a", {0: 30.5, 1: 20.0})
    content = Report(Systems(main, [system_of("b", {0: 1.0})]), "t").as_json()
    (tmp_path / "bleu.json").write_text(json.dumps(content | {"signature": {"bleu": "v:1"}}))
    system = read_scores(tmp_path / "bleu.json")
    assert (system.name, system.published.signature) == ("a", "v:1")
    assert system.published.bleu == {"l0-en": 30.5, "l1-en": 20.0}
    assert system.published.sentences == {"l0-en": 50, "l1-en": 50}
    assert system.budget == main.budget


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"bleu": {"fr": 1}}', '{"name": "a", "bleu": {"fr": 101}}'),
        *('{"name": "a", "bleu": [1]}', '{"name": "a", "bleu": {}, "wieghts": 3}'),
        *('{"systems": []}', '{"signature": {"bleu": "v"}, "systems": [{"name": "a"}]}'),
    ],
)
def test_other_content_is_an_error(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"--scores .*x.json is not JSON like \{"):
        read_scores(tmp_path / "x.json")


def test_baselines_are_runs_that_are_named_by_language(tmp_path):
    fr = make_run(tmp_path / "fr", ["fr"])
    (system,) = open_baselines(tmp_path, TESTS)
    assert (system.name, system.run, system.tests) == ("fr", fr, TESTS[:1])
    with pytest.raises(UserError, match="has no run folder of de; name each folder"):
        open_baselines(tmp_path, TESTS[1:])
    assert open_baselines(None, TESTS) == []


@pytest.mark.parametrize("text", ["[1, 2]", '{"fr": "high"}', '{"fr": 101}', "{", "[" * 99999])
def test_unreadable_scores_of_baselines_are_an_error(tmp_path, text):
    (tmp_path / "scores.json").write_text(text)
    with pytest.raises(UserError, match=r"--baselines .* is not JSON like \{"):
        open_baselines(tmp_path / "scores.json", TESTS)


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(UserError, match="there is no such file; give a JSON file"):
        read_scores(tmp_path / "x.json")
    with pytest.raises(UserError, match=r"--baselines .*: there is no such folder or file; give"):
        open_baselines(tmp_path / "x.json", TESTS)
    (tmp_path / "scores.json").write_text('{"xx": 30}')
    with pytest.raises(UserError, match="has scores of xx but of none of fr-en, de-en"):
        open_baselines(tmp_path / "scores.json", TESTS)
