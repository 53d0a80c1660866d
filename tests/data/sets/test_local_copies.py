"""Copies of shards that lie in a bucket."""

import numpy as np
import pytest

from gshard_nmt import paths
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.records import LocalCopies, OpenShards
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import TryAgain, UserError
from tests.data.synthetic import write_prepared_data

CONFIG = Data(source_length=8, target_length=8)


@pytest.fixture
def bucket(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return bucket


@pytest.fixture
def local(tmp_path):
    return write_prepared_data(tmp_path / "data", CONFIG, {"fr": 30})


def upload(bucket, data: PreparedData) -> None:
    for file in data.folder.rglob("*"):
        if file.is_file():
            bucket.write(f"bucket/data/{file.relative_to(data.folder)}", file.read_bytes())


def opened() -> PreparedData:
    return PreparedData.open(paths.folder_path("data", "gs://bucket/data"))


def copies(folder) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))


def test_examples_from_a_bucket_are_those_of_the_folder(bucket, local, tmp_path):
    upload(bucket, local)
    remote = opened()
    assert remote.manifest == local.manifest
    assert not copies(tmp_path / "cache")
    for split in ("train", "dev"):
        near, far = (data.reader(data.pairs[0], split) for data in (local, remote))
        for a, b in zip(near.read(np.arange(7)), far.read(np.arange(7)), strict=True):
            np.testing.assert_array_equal(a.source, b.source)
            np.testing.assert_array_equal(a.target, b.target)
    assert copies(tmp_path / "cache") == ["dev-00000.ids", "train-00000.ids"]


def test_a_copy_that_was_removed_is_made_again(bucket, local, tmp_path):
    upload(bucket, local)
    shards = OpenShards()
    reader = opened().reader_of_all(local.pairs, "train", shards)
    lengths = [len(example.source) for example in reader.read(np.arange(9))]
    shards.close()
    for copy in (tmp_path / "cache").rglob("train-*"):
        copy.unlink()
    assert [len(example.source) for example in reader.read(np.arange(9))] == lengths


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_a_home_folder_reads_local_data_and_is_told_about_a_bucket(
    bucket, local, monkeypatch
):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(paths.Path, "home", no_home)
    reopened = PreparedData.open(local.folder)
    assert len(reopened.reader(local.pairs[0], "train").read(np.arange(2))) == 2
    upload(bucket, local)
    with pytest.raises(UserError, match=r"no home folder.* Set XDG_CACHE_HOME to a folder"):
        opened().reader(local.pairs[0], "train").read(np.arange(2))


@pytest.fixture
def far(bucket):
    bucket.write("bucket/data/a", b"12345")
    return paths.folder_path("data", "gs://bucket/data")


@pytest.mark.parametrize("failures", [1, 99])
def test_a_bucket_that_does_not_answer_for_a_moment_is_asked_again(far, monkeypatch, failures):
    monkeypatch.setattr("gshard_nmt.reading.time.sleep", lambda _: None)
    errors, usual = [RuntimeError("503")] * failures, type(far).read_bytes

    def failing(path):
        if errors:
            raise errors.pop()
        return usual(path)

    monkeypatch.setattr(type(far), "read_bytes", failing)
    own = LocalCopies.open(far, "hash", {})
    if failures == 1:
        assert own.path("a", 5).read_bytes() == b"12345"
        return
    with pytest.raises(TryAgain, match="--data gs://bucket/data: a cannot be read: 503"):
        own.path("a", 5)
    assert not copies(own.folder)


def test_a_byte_that_changed_in_the_bucket_is_noticed_when_the_shard_is_copied(bucket, local):
    upload(bucket, local)
    name = "bucket/data/fr-en/train-00000.ids"
    content = bytearray(bucket.read(name)[0])
    content[len(content) // 2] ^= 1
    bucket.write(name, bytes(content))
    data = opened()
    with pytest.raises(UserError, match=r"damaged: fr-en/train-00000\.ids differs"):
        data.reader(data.pairs[0], "train").read(np.arange(3))


def test_a_full_disk_is_reported_with_the_way_to_another_one(far):
    own = LocalCopies.open(far, "hash", {})
    own.folder.rmdir()
    own.folder.touch()
    with pytest.raises(UserError, match=r"hash/a, a copy of .* or set XDG_CACHE_HOME to a folder"):
        own.path("a", 5)
