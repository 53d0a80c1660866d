"""The whole preparation: the same bytes however the work is done, and no work done twice."""

import collections
import dataclasses
import json

import numpy as np
import pytest

from gshard_nmt.data.preparation import chunks, work
from gshard_nmt.data.preparation.job import Options, partial_folder
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.prepare import prepare
from tests.data.preparation.small_corpus import CLEANING, CONFIG, content, sentences, write_corpus

ALONE = Options(1, cleaning=CLEANING)


@pytest.fixture
def calls(monkeypatch):
    """Counts the units that are done, by their stage."""
    counts = collections.Counter()
    usual = work.do_unit

    def counted(call, place, scratch):
        counts[place.parent.name] += 1
        return usual(call, place, scratch)

    monkeypatch.setattr(work, "do_unit", counted)
    return counts


def texts(out, pair, side="target"):
    """Returns one side of all training examples."""
    data = PreparedData.open(out)
    (prepared,) = [p for p in data.pairs if p.folder == pair]
    reader = data.reader(prepared, "train")
    ids = [getattr(e, side).tolist() for e in reader.read(np.arange(len(reader)))]
    return Vocabulary.load(out / f"{side}.model").decode(ids)


def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "_CHECKED_ROWS", 8)
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 16)


def test_the_bytes_do_not_depend_on_processes(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")
    prepare(CONFIG, corpus, tmp_path / "alone", ALONE)
    expected = content(tmp_path / "alone")
    assert {"cleaning.json", "manifest.json", "fr-en/train-00000.ids"} <= set(expected)
    monkeypatch.setattr(work, "_SMALL", 0)
    prepare(CONFIG, corpus, tmp_path / "two", dataclasses.replace(ALONE, workers=2))
    assert content(tmp_path / "two") == expected


def test_work_that_is_finished_is_not_done_again(tmp_path, monkeypatch, calls):
    small_chunks(monkeypatch)
    corpus = write_corpus(tmp_path / "corpus")
    prepare(CONFIG, corpus, tmp_path / "whole", ALONE)
    total = calls.copy()
    assert total["clean"] > 8
    assert total["tokenize"] > 8
    calls.clear()
    out = tmp_path / "out"
    usual = work.do_unit
    with monkeypatch.context() as patch:

        def interrupted(*arguments):
            if calls["tokenize"] == 3:
                raise KeyboardInterrupt
            return usual(*arguments)

        patch.setattr(work, "do_unit", interrupted)
        with pytest.raises(KeyboardInterrupt) as error:
            prepare(CONFIG, corpus, out, ALONE)
    partial = partial_folder(out)
    assert str(error.value) == (
        f"interrupted. Finished work is in {partial}; the same command goes on from there."
    )
    assert not out.exists()
    prepare(CONFIG, corpus, out, ALONE)
    assert calls == total
    assert content(out) == content(tmp_path / "whole")
    assert not partial.exists()


def test_a_new_language_with_the_old_vocabularies_is_prepared_alone(tmp_path, capsys, calls):
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "out"
    prepare(CONFIG, corpus, out, ALONE)
    shard = out / "fr-en" / "train-00000.ids"
    models = {name: (out / name).read_bytes() for name in ("source.model", "target.model")}
    before = shard.stat().st_ino
    write_corpus(corpus, ["it"])
    calls.clear()
    capsys.readouterr()
    prepare(CONFIG, corpus, out, dataclasses.replace(ALONE, vocabulary_of=out))
    assert "taken from the old data: de-en, fr-en" in capsys.readouterr().err
    assert calls["clean"] == 2
    assert calls["tokenize"] == 2
    assert not calls["vocabulary"]
    assert shard.stat().st_ino == before
    assert {name: (out / name).read_bytes() for name in models} == models
    data = PreparedData.open(out)
    assert {pair.folder for pair in data.pairs} == {"fr-en", "de-en", "it-en"}
    assert not list(data.changed_files())
    names = [d["source"] for d in json.loads((out / "cleaning.json").read_text())["directions"]]
    assert sorted(names) == ["de", "fr", "it"]
    # The same as if all had been prepared at once with these vocabularies.
    (tmp_path / "models").mkdir()
    for name, model in models.items():
        (tmp_path / "models" / name).write_bytes(model)
    options = dataclasses.replace(ALONE, vocabulary_of=tmp_path / "models")
    prepare(CONFIG, corpus, tmp_path / "once", options)
    assert content(out) == content(tmp_path / "once")


def test_without_the_old_vocabularies_everything_is_made_again_and_it_is_said(
    tmp_path, capsys, calls
):
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "out"
    prepare(CONFIG, corpus, out, ALONE)
    write_corpus(corpus, ["it"])
    capsys.readouterr()
    calls.clear()
    prepare(CONFIG, corpus, out, ALONE)
    assert calls["tokenize"] == 6
    assert (
        "The text or a setting has changed, so the vocabularies are trained again and everything is "
        f"tokenized again. To keep the vocabularies of {out}, give --vocabulary_of {out}."
        in capsys.readouterr().err
    )


def test_the_same_training_pairs_are_drawn_at_random_for_any_chunks(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus", ["fr"], 100)
    config = dataclasses.replace(CONFIG, maximum_pairs=30)
    prepare(config, corpus, tmp_path / "a", ALONE)
    chosen = texts(tmp_path / "a", "fr-en")
    every = [target for _, target in sentences("fr", "train", 100)]
    assert len(chosen) == 30
    assert sorted(chosen, key=every.index) == chosen
    assert chosen != every[:30]
    # About as many of each third of the text.
    assert all(sum(every.index(text) // 34 == third for text in chosen) >= 4 for third in range(3))
    small_chunks(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    prepare(config, corpus, tmp_path / "b", ALONE)
    assert texts(tmp_path / "b", "fr-en") == chosen
    other = dataclasses.replace(config, seed=2)
    prepare(other, corpus, tmp_path / "c", ALONE)
    assert texts(tmp_path / "c", "fr-en") != chosen


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
        reader = data.reader(pair, "train")
        ids = [example.source.tolist() for example in reader.read(np.arange(len(reader)))]
        tagged[pair.subset] = {(row[0] == tag, row.count(tag)) for row in ids}
    assert tagged == {"": {(False, 0)}, "back": {(True, 1)}, "web": {(False, 0)}}


def test_a_subset_is_beside_the_main_corpus_without_its_duplicates(tmp_path, calls):
    corpus, out = write_corpus(tmp_path / "corpus", ["fr"]), tmp_path / "out"
    prepare(CONFIG, corpus, out, ALONE)
    main = texts(out, "fr-en")
    back = [*sentences("back", "train", 20), *sentences("fr", "train", 7)]
    write_pairs(tmp_path / "back" / "en-fr", "train", "en", "fr", [row[::-1] for row in back])
    corpora = {"": corpus, "back": tmp_path / "back"}
    options = dataclasses.replace(ALONE, vocabulary_of=out)
    calls.clear()
    prepare(CONFIG, corpora, out, options)
    assert calls["tokenize"] == 1
    data = PreparedData.open(out)
    assert [(p.folder, p.subset, p.splits["train"].examples) for p in data.pairs] == [
        ("fr-en", "", 60),
        ("fr-en.back", "back", 20),
    ]
    assert data.pairs[1].splits["train"].removed == {"duplicate pair": 7}
    assert texts(out, "fr-en") == main
    assert texts(out, "fr-en.back") == [target for _, target in back[:20]]


def test_a_folder_of_the_user_is_not_taken_for_unfinished_work(tmp_path):
    corpus, out = write_corpus(tmp_path / "corpus", ["fr"]), tmp_path / "out"
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="it has files of another program"):
        prepare(CONFIG, corpus, out, ALONE)
    assert (tmp_path / "out.partial" / "thesis.txt").exists()
