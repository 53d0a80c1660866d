import pytest

from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.sets.corpus import list_corpus, write_pairs
from gshard_nmt.data.sets.directions import candidates
from gshard_nmt.evaluation import corpora
from gshard_nmt.evaluation.corpora import facts, pairs_of
from tests.evaluation.run_folders import make_run


def test_another_corpus_is_told_from_one_that_cannot_be_compared(tmp_path):
    for language in ("fr", "de"):
        write_pairs(tmp_path / "corpus" / f"{language}-en", "train", language, "en", [("a", "b")])
    folders = {"": tmp_path / "corpus"}
    text, alarms = verdict(make_run(tmp_path / "other"), folders)
    assert (text, len(alarms)) == ("another corpus", 1)
    some = make_run(tmp_path / "some", config="Data.languages = ['fr', 'de']\n")
    for run in (some, make_run(tmp_path / "more", ("fr", "de", "pl"))):
        text, alarms = verdict(run, folders)
        assert "does not tell whether the corpus is the same" in text
        assert alarms == []


def test_pairs_have_the_names_of_the_run(tmp_path):
    for name in ("fr-en", "en-fr", "de-fr", "it-en"):
        write_pairs(tmp_path / "corpus" / name, "test", *name.split("-"), [("a", "b")])
    run = make_run(tmp_path / "run")
    directions = [("fr", "en", "fr"), ("en", "fr", "fr"), ("fr", "de", "fr-de")]
    pairs = [dict(zip(("source", "target", "language"), d, strict=True)) for d in directions]
    run.data["pairs"] = pairs
    run.data["direction"] = "all"
    by_name = pairs_of(run, {"": tmp_path / "corpus"})
    assert list(by_name) == ["fr-de", "fr", "it"]
    assert [len(pair.inputs("test")) for pair in by_name["fr"]] == [2]
    # The name of each folder is a direction of its own.
    run.data["direction"] = "as-named"
    run.data["pairs"] = [{**p, "language": f"{p['source']}-{p['target']}"} for p in pairs]
    by_name = pairs_of(run, {"": tmp_path / "corpus"})
    assert list(by_name) == ["de-fr", "en-fr", "fr-en", "it"]
    assert [len(by_name[name][0].inputs("test")) for name in ("fr-en", "en-fr")] == [1, 1]


@pytest.fixture
def folders(tmp_path):
    """A main corpus with two languages, and a subset with one of them, which has test text too."""
    for place, languages in (("main", ("fr", "de")), ("back", ("fr",))):
        for language in languages:
            folder = tmp_path / place / f"{language}-en"
            write_pairs(folder, "train", language, "en", [(f"a {place}", "b")])
            write_pairs(folder, "test", language, "en", [(f"test {place}", "t")])
    return {"": tmp_path / "main", "back": tmp_path / "back"}


@pytest.fixture
def run(tmp_path, folders):
    """A run that was trained on both folders, as `gshard-data prepare` records them."""
    config = Data(vocabulary_sentences=100)
    listing = [p for name, place in folders.items() for p in list_corpus(place, name).pairs]
    pairs = candidates(config, listing).pairs
    main, back = (fingerprint([p for p in pairs if p.subset == name]) for name in ("", "back"))
    prints = {"corpus_fingerprint": main, "subset_fingerprints": {"back": back}}
    return make_run(tmp_path / "run", **prints, direction="xx-en")


def verdict(run, folders):
    (_, (_, text)), alarms = facts(run, folders, pairs_of(run, folders), "test")
    return text.removeprefix(f"fingerprint {run.data['corpus_fingerprint']}: "), alarms


def test_a_corpus_with_subsets_is_recognised_and_the_main_one_is_enough(run, folders):
    assert verdict(run, folders) == ("the same corpus", [])
    assert verdict(run, {"": folders[""]}) == ("the same corpus", [])


def test_a_changed_or_unknown_subset_is_named(run, folders):
    text, alarms = verdict(run, {"": folders[""], "mined": folders["back"]})
    assert text == "another corpus (mined)"
    assert alarms == [
        f"--corpus mined={folders['back']} is not the corpus that {run.path} was trained on."
    ]
    write_pairs(folders["back"] / "fr-en", "train", "fr", "en", [("more", "more")])
    text, alarms = verdict(run, folders)
    assert text == "another corpus (back)"
    assert alarms == [
        f"--corpus back={folders['back']} is not the corpus that {run.path} was trained on."
    ]


def test_test_text_comes_from_the_first_folder_that_has_it(run, folders):
    tests, notes = corpora.test_sets(run, folders, pairs_of(run, folders), "test", 0)
    assert [(test.source, test.sources) for test in tests] == [
        ("fr", ["test main"]),
        ("de", ["test main"]),
    ]
    assert notes == []


def test_an_imported_model_has_a_name_for_each_direction_of_a_pair(tmp_path):
    both = [("de-fr", "de", "fr"), ("fr-de", "fr", "de")]
    counts = dict.fromkeys(("train_pairs", "dev_pairs", "test_pairs"), 0)
    pairs = [{"language": name, "source": a, "target": b} | counts for name, a, b in both]
    run = make_run(tmp_path / "run", pairs=pairs, direction="all")
    write_pairs(tmp_path / "c" / "de-fr", "test", "de", "fr", [("Haus", "maison")])
    own = pairs_of(run, {"": tmp_path / "c"})
    assert {name: len(found) for name, found in own.items()} == {"de-fr": 1, "fr-de": 1}
