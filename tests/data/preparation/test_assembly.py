"""The new folder: what can be taken from old data, and files without hard links."""

import os

import pytest
from gshard_nmt.data.preparation.texts import Direction

from gshard_nmt.data.preparation.assembly import NewFolder, reusable
from gshard_nmt.data.preparation.job import Options
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.data.sets.manifest import read_manifest
from gshard_nmt.prepare import prepare
from tests.data.preparation.small_corpus import CLEANING, CONFIG, write_corpus


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    root = tmp_path_factory.mktemp("assembly")
    corpus = write_corpus(root / "corpus")
    prepare(CONFIG, corpus, root / "out", Options(1, cleaning=CLEANING))
    return root / "out"


def test_shards_of_another_key_or_that_are_damaged_are_not_taken(out):
    old = read_manifest(out)
    keys = {name: key for name, key in old["keys"].items() if name != "vocabulary"}
    assert reusable(out, old, keys) == {"fr-en", "de-en"}
    assert reusable(out, None, keys) == set()
    assert reusable(out, old, keys | {"fr-en": "other"}) == {"de-en"}
    assert reusable(out, {**old, "keys": {}}, keys) == set()
    assert reusable(out / "nowhere", old, keys) == set()


@pytest.mark.parametrize("has_links", [True, False])
def test_shards_are_linked_or_copied(tmp_path, out, monkeypatch, has_links):
    if not has_links:

        def refuse(*_):
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    (pair,) = [p for p in find_pairs(out.parent / "corpus") if p.source == "fr"]
    old = read_manifest(out)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "left over").write_text("from a killed program")
    folder = NewFolder(tmp_path / "new", out, old)
    folder.take_over(Direction(pair, "fr", "en"))
    models = {side: (out / f"{side}.model").read_bytes() for side in ("source", "target")}
    assert folder.put_vocabularies(models) == (
        old["source_vocabulary"],
        old["target_vocabulary"],
    )
    names = ("corpus_fingerprint", "data", "direction", "temperature", "keys", "texts")
    sizes = ("source_vocabulary", "target_vocabulary")
    folder.finish({name: old[name] for name in (*names, *sizes)})
    new = read_manifest(tmp_path / "new")
    assert new["pairs"] == [p for p in old["pairs"] if p["source"] == "fr"]
    assert new["checksums"].items() <= old["checksums"].items()
    shard = "fr-en/train-00000.ids"
    assert (tmp_path / "new" / shard).samefile(out / shard) == has_links
    assert (tmp_path / "new" / shard).read_bytes() == (out / shard).read_bytes()
