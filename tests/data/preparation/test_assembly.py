"""The new folder: what can be taken from old data, files without hard links, and what is left out."""

import dataclasses
import os
import shutil

import pytest

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.preparation import job
from gshard_nmt.data.preparation.job import Options
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.data.sets.manifest import read_manifest
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.prepare import prepare
from tests.data.preparation.small_corpus import CLEANING, CONFIG, content, sentences, write_corpus

BOTH = dataclasses.replace(CONFIG, direction="many-to-many")
OPTIONS = Options(1, cleaning=Cleaning(filters=("empty", "identical")))
COPIES = [(f"the same text {i}", f"the same text {i}") for i in range(30)]
LONG = [(" ".join(str(i * n) for n in range(90)), f"{i} of {i}") for i in range(9)]


@pytest.mark.parametrize("has_links", [True, False])
def test_old_shards_are_linked_or_copied(tmp_path, monkeypatch, has_links):
    if not has_links:

        def refuse(*_):
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "out"
    prepare(CONFIG, corpus, out, Options(1, cleaning=CLEANING))
    old, before = read_manifest(out), content(out)
    shard = out / "fr-en/train-00000.ids"
    number = shard.stat().st_ino
    shutil.rmtree(corpus / "de-en")
    prepare(CONFIG, corpus, out, Options(1, vocabulary_of=out, cleaning=CLEANING))
    new = read_manifest(out)
    assert new["pairs"] == [p for p in old["pairs"] if p["source"] == "fr"]
    assert new["checksums"].items() <= old["checksums"].items()
    assert (shard.stat().st_ino == number) == has_links
    after = content(out)
    names = [name for name in before if name.endswith((".ids", ".model")) and "de-en" not in name]
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


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
    out = tmp_path / "out"
    prepare(BOTH, corpora, out, OPTIONS)
    said = capsys.readouterr()
    assert "note: 1 language (it) is left out: no training text." in said.err
    german = "cleaning left out all 31 training pairs (empty 1, identical 30)"
    assert f"Left out: de-en, because {german}." in said.out
    back = "cleaning left out all 7 training pairs (duplicate pair 7)"
    data = PreparedData.open(out)
    assert data.manifest["left_out"] == {
        "fr-en.back": back,
        "en-fr.back": back,
        "de-en": german,
        "en-de": german,
    }
    assert [pair.folder for pair in data.pairs] == ["en-fr", "fr-en"]
    assert "the same text" in (out / "cleaning.json").read_text(encoding="utf-8")
    prepare(BOTH, write_corpus(tmp_path / "good", ["fr"]), tmp_path / "alone", OPTIONS)
    assert shards(out) == shards(tmp_path / "alone")
    capsys.readouterr()
    prepare(BOTH, corpora, out, OPTIONS)
    said = capsys.readouterr()
    assert "is up to date" in said.err
    assert "Left out: de-en, because" in said.out


def test_what_is_left_out_is_not_cleaned_again_until_something_changes(
    corpora, tmp_path, monkeypatch
):
    out, cleaned, usual = tmp_path / "out", [], job.clean_all

    def counted(work, plan, every):
        cleaned.append({name for languages in every for name in languages.names})
        return usual(work, plan, every)

    monkeypatch.setattr(job, "clean_all", counted)
    prepare(CONFIG, corpora, out, OPTIONS)
    write_corpus(corpora[""], ["es"])
    kept = dataclasses.replace(OPTIONS, vocabulary_of=out)
    prepare(CONFIG, corpora, out, kept)
    assert cleaned == [{"fr-en", "fr-en.back", "de-en"}, {"es-en"}]
    assert list(PreparedData.open(out).manifest["left_out"]) == ["fr-en.back", "de-en"]
    changed = dataclasses.replace(kept, cleaning=Cleaning(filters=("empty",)))
    prepare(CONFIG, corpora, out, changed)
    data = PreparedData.open(out)
    assert list(data.manifest["left_out"]) == ["fr-en.back"]
    assert {pair.folder for pair in data.pairs} == {"es-en", "fr-en", "de-en"}


def test_nothing_left_is_an_error_with_the_reasons(tmp_path):
    for language, rows in (("de", COPIES), ("fr", LONG)):
        folder = tmp_path / "corpus" / f"{language}-en"
        write_pairs(folder, "train", language, "en", rows)
    with pytest.raises(UserError) as error:
        prepare(CONFIG, tmp_path / "corpus", tmp_path / "out", OPTIONS)
    assert str(error.value) == (
        "no training pair is left (de-en: cleaning left out all 30 training pairs (identical 30); fr-en: "
        "all training pairs have more than 64 source or 64 target tokens). Add text, turn filters off "
        "with Cleaning.without or Cleaning.duplicates, or raise Data.source_length and "
        "Data.target_length."
    )
    assert not (tmp_path / "out").exists()
    notes = error.value.__notes__
    assert notes == [f"Finished work is in {tmp_path / 'out'}.partial, and is not done again."]
    # Work that does not stay is not promised.
    with pytest.raises(UserError) as error:
        prepare(
            CONFIG,
            tmp_path / "corpus",
            tmp_path / "other",
            dataclasses.replace(OPTIONS, keeps_work=False),
        )
    assert not hasattr(error.value, "__notes__")
    assert not (tmp_path / "other.partial").exists()


def test_dev_and_test_text_without_training_text_is_named(corpora, tmp_path, capsys):
    for file in (corpora[""] / "fr-en").glob("train*"):
        file.unlink()
    prepare(CONFIG, corpora, tmp_path / "out", OPTIONS)
    said = capsys.readouterr().out
    assert "fr-en, because there is no training text beside its dev and test text." in said
    assert "No dev text, so no validation: fr-en. No test text, so no evaluation: fr-en." in said
