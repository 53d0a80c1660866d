"""Prepared data of a run and of a new language in one folder."""

import dataclasses

import numpy as np
import pytest

from gshard_nmt.data.sets.manifest import FORMAT, read_manifest
from gshard_nmt.data.sets.shards import ADDED, PreparedData, join
from gshard_nmt.errors import UserError
from gshard_nmt.settings.gin_reader import load_config
from tests.data.synthetic import write_prepared_data

DATA = load_config("demo").replace(data={"source_length": 24, "target_length": 20}).data


@pytest.fixture
def folders(tmp_path):
    """Prepared data of two languages, and of a third one with larger vocabularies."""
    old = write_prepared_data(tmp_path / "old", DATA, {"fr": 40, "de": 20})
    new = write_prepared_data(tmp_path / "new", DATA, {"nn": 30})
    new.manifest.update(source_vocabulary=510, subset_fingerprints={"added-nn": "abc"})
    return old, new


def test_all_shards_are_there_and_the_vocabularies_are_the_new_ones(folders, tmp_path):
    old, new = folders
    (new.folder / "source.model").write_bytes(b"a larger vocabulary")
    new.manifest["checksums"].pop("source.model")
    old.manifest.update(key="0", left_out={"it-en": "too small"})
    data = join(old, new, "nn", tmp_path / "both")
    assert [pair.folder for pair in data.pairs] == ["fr-en", "nn-en", "de-en"]
    for part in (old, new):
        for pair in part.pairs:
            (twin,) = [p for p in data.pairs if p.folder == pair.folder]
            assert twin == pair
            for split in ("train", "dev"):
                places = np.arange(pair.splits[split].examples)
                before, after = (d.reader(pair, split).read(places) for d in (part, data))
                assert [e.source.tolist() for e in before] == [e.source.tolist() for e in after]
    assert (data.folder / "source.model").read_bytes() == b"a larger vocabulary"
    assert (data.source_vocabulary, data.target_vocabulary) == (510, 500)
    assert data.manifest["corpus_fingerprint"] == old.manifest["corpus_fingerprint"]
    assert data.manifest["subset_fingerprints"] == {"added-nn": "abc"}
    assert data.manifest["left_out"] == {"it-en": "too small"}
    assert (data.manifest[ADDED], data.manifest["format"]) == ("nn", FORMAT)
    # gshard-data prepare must not take it for its own.
    assert "key" not in data.manifest
    assert list(data.changed_files()) == []
    assert read_manifest(old.folder) != data.manifest


def test_the_old_folder_may_be_removed_and_the_new_one_made_again(folders, tmp_path):
    old, new = folders
    for _ in range(2):
        data = join(old, new, "nn", tmp_path / "both")
    for part in (old, new):
        for file in sorted(part.folder.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
    assert list(PreparedData.open(data.folder).changed_files()) == []


def test_ids_that_do_not_fit_the_old_shards_are_refused(folders, tmp_path):
    old, new = folders
    large = dataclasses.replace(new, manifest={**new.manifest, "source_vocabulary": 65_537})
    with pytest.raises(UserError, match=r"65,537 and 500 pieces, but .* smaller --new_pieces"):
        join(old, large, "nn", tmp_path / "both")
    assert not (tmp_path / "both").exists()
