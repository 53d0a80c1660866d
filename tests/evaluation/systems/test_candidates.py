"""What can be compared with a run, and the messages about the rest."""

import json

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.systems.candidates import Others, read_candidates, text_digest
from gshard_nmt.evaluation.texts import translations
from tests.evaluation.run_folders import make_run

TESTS = [
    translations.TestSet(tag, tag, "en", 9, ["UN", "DEUX"], ["one", "two"]) for tag in ("fr", "de")
]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def read(run, **others):
    return read_candidates(run, TESTS, Others(**others))


def scores_file(folder, **content):
    file = folder / "scores.json"
    file.write_text(json.dumps({"name": "paper", "bleu": {"fr": 30.0}} | content))
    return file


def test_names_are_those_of_the_folders_unless_they_are_given_and_differ(tmp_path, run):
    others = [make_run(tmp_path / name / "run").path for name in ("a", "b")]
    name, candidates = read(run, workdirs=others)
    assert (name, [c.name for c in candidates]) == ("run", ["run (2)", "run (3)"])
    name, candidates = read(
        run, workdirs=others, names=["MoE", "paper"], scores=[scores_file(tmp_path)]
    )
    assert (name, [c.name for c in candidates]) == ("MoE", ["paper", "run", "paper (2)"])


def test_there_are_no_more_names_than_runs(run):
    with pytest.raises(UserError, match="there are 2 --name and 1 --workdir"):
        read(run, names=["a", "b"])


def test_only_shared_directions_are_compared(tmp_path, run):
    other = make_run(tmp_path / "other", ["de", "pl"])
    _, (candidate,) = read(run, workdirs=[other.path])
    assert [test.language for test in candidate.tests] == ["de"]
    assert candidate.run == other


def test_a_run_without_a_shared_direction_is_refused(tmp_path, run):
    other = make_run(tmp_path / "other", ["pl"])
    with pytest.raises(
        UserError, match=r"other translates pl-en, and .*run translates de-en, fr-en"
    ):
        read(run, workdirs=[other.path])


def test_published_scores_are_by_language_or_direction(tmp_path, run):
    file = scores_file(tmp_path, bleu={"fr-en": 1, "de": 2, "xx": 3})
    _, (candidate,) = read(run, scores=[file])
    assert [test.language for test in candidate.tests] == ["fr", "de"]
    assert candidate.run is None
    with pytest.raises(UserError, match="has scores of xx, and the test set has fr, de"):
        read(run, scores=[scores_file(tmp_path, bleu={"xx": 3})])


def test_scores_of_another_number_of_sentences_are_refused(tmp_path, run):
    file = scores_file(tmp_path, sentences={"fr": 2, "de": 9})
    assert read(run, scores=[file])
    with pytest.raises(UserError, match="on 3 sentences of fr-en, and this test set has 2"):
        read(run, scores=[scores_file(tmp_path, sentences={"fr": 3})])


def test_scores_of_another_text_are_refused(tmp_path, run):
    row = {"source": "fr", "target": "en", "bleu": 1, "sentences": 2}
    for digest, is_same in ((text_digest(TESTS[0]), True), ("0123", False)):
        systems = [{"name": "a", "languages": [row | {"text_digest": digest}]}]
        file = scores_file(tmp_path, signature={"bleu": "v"}, systems=systems)
        if is_same:
            assert read(run, scores=[file])[1][0].name == "a"
        else:
            with pytest.raises(UserError, match="measured on another test text of fr-en"):
                read(run, scores=[file])


def test_the_digest_changes_with_each_side_of_the_text():
    digests = {
        text_digest(translations.TestSet("fr", "fr", "en", 9, sources, references))
        for sources, references in ((["a"], ["b"]), (["a"], ["c"]), (["c"], ["b"]))
    }
    assert len(digests) == 3
