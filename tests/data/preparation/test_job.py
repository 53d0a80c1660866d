"""The whole preparation: the same bytes however the work is done, and no work done twice."""

import collections
import dataclasses
import os

import numpy as np
import pytest

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.preparation import chunks, work
from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.preparation.job import Options
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.outputs import partial_path
from gshard_nmt.prepare import prepare
from tests.data.preparation.small_corpus import CLEANING, CONFIG, content, sentences, write_corpus

ALONE = Options(1, cleaning=CLEANING)


def texts(out, pair, side="target"):
    """Returns one side of all training examples."""
    data = PreparedData.open(out)
    (prepared,) = [p for p in data.pairs if p.folder == pair]
    places = np.arange(prepared.splits["train"].examples)
    ids = [getattr(e, side).tolist() for e in data.reader(prepared, "train").read(places)]
    return Vocabulary.load(out / f"{side}.model").decode(ids)


def test_the_bytes_do_not_depend_on_processes(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")
    prepare(CONFIG, corpus, tmp_path / "alone", ALONE)
    expected = content(tmp_path / "alone")
    assert {"cleaning.json", "manifest.json", "fr-en/train-00000.ids"} <= set(expected)
    monkeypatch.setattr(work, "_SMALL", 0)
    prepare(CONFIG, corpus, tmp_path / "two", dataclasses.replace(ALONE, workers=2))
    assert content(tmp_path / "two") == expected


def test_work_that_is_finished_is_not_done_again(tmp_path, monkeypatch):
    calls, usual = collections.Counter(), work.do_unit

    def counted(call, place, scratch):
        calls[place.parent.name] += 1
        return usual(call, place, scratch)

    monkeypatch.setattr(work, "do_unit", counted)
    monkeypatch.setattr(chunks, "_FEW_ROWS", 8)
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 16)
    corpus = write_corpus(tmp_path / "corpus")
    prepare(CONFIG, corpus, tmp_path / "whole", ALONE)
    total = calls.copy()
    assert total["clean"] > 8
    assert total["tokenize"] > 8
    calls.clear()
    out = tmp_path / "out"
    with monkeypatch.context() as patch:

        def interrupted(*arguments):
            if calls["tokenize"] == 3:
                raise KeyboardInterrupt
            return counted(*arguments)

        patch.setattr(work, "do_unit", interrupted)
        with pytest.raises(KeyboardInterrupt) as error:
            prepare(CONFIG, corpus, out, ALONE)
    partial = partial_path(out)
    assert str(error.value) == (
        f"interrupted. Finished work is in {partial}; the same command goes on from there."
    )
    assert not out.exists()
    prepare(CONFIG, corpus, out, ALONE)
    assert calls == total
    assert content(out) == content(tmp_path / "whole")
    assert not partial.exists()


def test_without_hard_links_the_shards_are_copied(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")
    prepare(CONFIG, corpus, tmp_path / "linked", ALONE)

    def refuse(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    prepare(CONFIG, corpus, tmp_path / "copied", ALONE)
    assert content(tmp_path / "copied") == content(tmp_path / "linked")


def test_a_new_language_with_the_old_vocabularies_changes_no_other_shard(tmp_path):
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "out"
    prepare(CONFIG, corpus, out, ALONE)
    before = content(out)
    write_corpus(corpus, ["it"])
    prepare(CONFIG, corpus, out, dataclasses.replace(ALONE, vocabulary_of=out))
    after = content(out)
    names = [name for name in before if name.endswith((".ids", ".model"))]
    assert {name: after[name] for name in names} == {name: before[name] for name in names}
    assert {pair.folder for pair in PreparedData.open(out).pairs} == {"fr-en", "de-en", "it-en"}
    assert not list(PreparedData.open(out).changed_files())


def test_only_the_sentences_of_a_tagged_subset_begin_with_its_tag(tmp_path):
    corpora = {
        "": write_corpus(tmp_path / "corpus", ["fr"]),
        "back": tmp_path / "back",
        "web": tmp_path / "web",
    }
    for name in ("back", "web"):
        write_pairs(corpora[name] / "fr-en", "train", "fr", "en", sentences(name, "train", 20))
    config = dataclasses.replace(CONFIG, subset_tags=("back",), source_vocabulary=350)
    prepare(config, corpora, tmp_path / "out", ALONE)
    data = PreparedData.open(tmp_path / "out")
    tag = Vocabulary.load(tmp_path / "out" / "source.model").tag("<subset:back>")
    assert tag is not None
    tagged = {}
    for pair in data.pairs:
        examples = data.reader(pair, "train").read(np.arange(pair.splits["train"].examples))
        ids = [example.source.tolist() for example in examples]
        tagged[pair.subset] = {(row[0] == tag, row.count(tag)) for row in ids}
    assert tagged == {"": {(False, 0)}, "back": {(True, 1)}, "web": {(False, 0)}}


def test_a_subset_is_beside_the_main_corpus_without_its_duplicates(tmp_path):
    corpus, out = write_corpus(tmp_path / "corpus", ["fr"]), tmp_path / "out"
    back = [*sentences("back", "train", 20), *sentences("fr", "train", 7)]
    write_pairs(tmp_path / "back" / "en-fr", "train", "en", "fr", [row[::-1] for row in back])
    prepare(CONFIG, {"": corpus, "back": tmp_path / "back"}, out, ALONE)
    data = PreparedData.open(out)
    assert [(p.folder, p.subset, p.splits["train"].examples) for p in data.pairs] == [
        ("fr-en", "", 60),
        ("fr-en.back", "back", 20),
    ]
    assert data.pairs[1].splits["train"].removed == {"duplicate pair": 7}
    assert texts(out, "fr-en") == [target for _, target in sentences("fr", "train", 60)]
    assert texts(out, "fr-en.back") == [target for _, target in back[:20]]
    assert list(data.manifest["subset_fingerprints"]) == ["back"]
    assert data.manifest["corpus_fingerprint"] == fingerprint(find_pairs(corpus))
    # The first of equal pairs stays, so another order of the corpora gives other data.
    for first, second in (("back", "web"), ("web", "back")):
        corpora = {"": corpus, first: tmp_path / "back", second: tmp_path / "back"}
        prepare(CONFIG, corpora, out, ALONE)
        assert [pair.subset for pair in PreparedData.open(out).pairs] == ["", first]


def test_a_folder_of_the_user_is_not_taken_for_unfinished_work(tmp_path):
    corpus, out = write_corpus(tmp_path / "corpus", ["fr"]), tmp_path / "out"
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="it has files of another program"):
        prepare(CONFIG, corpus, out, ALONE)
    assert (tmp_path / "out.partial" / "thesis.txt").exists()


RAW = Options(1, cleaning=Cleaning(filters=("empty", "identical")))
COPIES = [(f"the same text {i}", f"the same text {i}") for i in range(30)]
LONG = [(" ".join(str(i * n) for n in range(90)), f"{i} of {i}") for i in range(9)]


@pytest.fixture
def corpora(tmp_path):
    """French text; German and Italian without a good pair; a subset that has duplicates alone."""
    main = write_corpus(tmp_path / "corpus", ["fr"])
    write_pairs(main / "de-en", "train", "de", "en", [*COPIES, ("un", "")])
    write_pairs(main / "it-en", "train", "it", "en", [])
    write_pairs(tmp_path / "back" / "fr-en", "train", "fr", "en", sentences("fr", "train", 7))
    return {"": main, "back": tmp_path / "back"}


def shards(folder):
    return {k: v for k, v in content(folder).items() if k.endswith((".ids", ".model"))}


def test_the_rest_is_prepared_as_if_what_is_left_out_were_not_there(corpora, tmp_path, capsys):
    out, both = tmp_path / "out", dataclasses.replace(CONFIG, direction="many-to-many")
    prepare(both, corpora, out, RAW)
    said = capsys.readouterr()
    assert (
        "note: 1 language (it) is left out: fewer than 1 training pairs (Data.minimum_pairs)."
        in said.err
    )
    german = "none of its 31 training pairs is left (empty 1, identical 30)"
    assert f"Left out: de-en, because {german}." in said.out
    back = "none of its 7 training pairs is left (duplicate pair 7)"
    reasons = {"fr-en.back": back, "en-fr.back": back, "de-en": german, "en-de": german}
    assert PreparedData.open(out).manifest["left_out"] == reasons
    assert [pair.folder for pair in PreparedData.open(out).pairs] == ["en-fr", "fr-en"]
    # Only the text of languages that are kept is compared with a corpus.
    french = [pair for pair in find_pairs(corpora[""]) if pair.language == "fr"]
    assert PreparedData.open(out).manifest["corpus_fingerprint"] == fingerprint(french)
    assert "the same text" in (out / "cleaning.json").read_text(encoding="utf-8")
    prepare(both, write_corpus(tmp_path / "good", ["fr"]), tmp_path / "alone", RAW)
    assert shards(out) == shards(tmp_path / "alone")
    capsys.readouterr()
    prepare(both, corpora, out, RAW)
    said = capsys.readouterr()
    assert "is up to date" in said.err
    assert "Left out: de-en, because" in said.out


def test_nothing_left_is_an_error_with_the_reasons(tmp_path):
    for language, rows in (("de", COPIES), ("fr", LONG)):
        write_pairs(tmp_path / "corpus" / f"{language}-en", "train", language, "en", rows)
    with pytest.raises(UserError) as error:
        prepare(CONFIG, tmp_path / "corpus", tmp_path / "out", RAW)
    assert str(error.value) == (
        "no training pair is left (de-en: none of its 30 training pairs is left (identical 30); fr-en: "
        "none of its 9 training pairs is left (too long 9)). Add text, turn filters off with "
        "Cleaning.without or Cleaning.duplicates, or raise Data.source_length and Data.target_length."
    )
    assert not (tmp_path / "out").exists()
    notes = error.value.__notes__
    assert notes == [f"Finished work is in {tmp_path / 'out'}.partial, and is not done again."]


def test_a_corpus_without_training_text_gives_its_dev_and_test_text(corpora, tmp_path, capsys):
    french = corpora[""] / "fr-en"
    for file in french.glob("train*"):
        file.unlink()
    corpora["more"] = tmp_path / "more"
    write_pairs(corpora["more"] / "fr-en", "train", "fr", "en", sentences("fr", "more", 9))
    both = dataclasses.replace(CONFIG, direction="many-to-many")
    prepare(both, corpora, tmp_path / "out", RAW)
    said = capsys.readouterr().out
    assert "fr-en, because there is no training text." in said
    assert "No dev text" not in said
    assert "No test text" not in said
    data = PreparedData.open(tmp_path / "out")
    for pair in data.pairs:
        sizes = pair.splits["dev"].examples, pair.splits["test"].pairs
        assert sizes == ((6, 5) if pair.subset == "back" else (0, 0))
    from_english = next(pair for pair in data.pairs if pair.folder == "en-fr.back")
    ids = data.reader(from_english, "dev").read(np.arange(1))[0].target.tolist()
    french_text = Vocabulary.load(tmp_path / "out" / "target.model").decode([ids])[0]
    assert french_text == sentences("fr", "dev", 1)[0][0]


@pytest.mark.parametrize("split", ["dev", "test"])
def test_dev_and_test_text_that_is_not_there_is_named(corpora, tmp_path, capsys, split):
    for file in (corpora[""] / "fr-en").glob(f"{split}*"):
        file.unlink()
    prepare(CONFIG, corpora, tmp_path / "out", RAW)
    assert f"No {split} text, so no " in capsys.readouterr().out
