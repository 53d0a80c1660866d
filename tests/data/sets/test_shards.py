"""Prepared data on disk: every example comes back, and damage is an error that says what to do."""

import dataclasses
import errno
import json
import os
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.config import ONLY_PREPARED, Data
from gshard_nmt.data.sets import shards
from gshard_nmt.data.sets.manifest import read_manifest
from gshard_nmt.data.sets.records import LocalCopies, ShardReader, ShardWriter
from gshard_nmt.data.sets.shards import PreparedData, word_type
from gshard_nmt.errors import TryAgain, UserError
from tests.data.synthetic import write_prepared_data

CONFIG = Data(source_length=24, target_length=20)
ids = st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=5)


@pytest.fixture
def data(tmp_path):
    return write_prepared_data(tmp_path / "prepared", CONFIG, {"fr": 12, "de": 8})


@settings(deadline=None, max_examples=20)
@given(examples=st.lists(st.tuples(ids, ids), min_size=1, max_size=11), order=st.randoms())
def test_examples_come_back_in_any_order_from_several_shards(tmp_path_factory, examples, order):
    folder = tmp_path_factory.mktemp("shards")
    word, files = word_type(2**16), []
    for number, first in enumerate(range(0, len(examples), 4)):
        writer = ShardWriter(folder, "train", word, number)
        writer.write(examples[first : first + 1])
        writer.write(examples[first + 1 : first + 4])
        files += writer.close()
    named = [(f"{folder.name}/{name}", *sizes) for name, *sizes in files]
    reader = ShardReader(LocalCopies(folder.parent, folder.parent), named, word)
    assert sum(count for *_, count in named) == len(examples)
    indices = list(range(len(examples))) * 2
    order.shuffle(indices)
    read = reader.read(np.array(indices))
    assert [(e.source.tolist(), e.target.tolist()) for e in read] == [examples[i] for i in indices]


def test_the_manifest_keeps_its_names_and_comes_back_as_it_was_written(data):
    manifest = json.loads((data.folder / "manifest.json").read_text())
    names = "pairs examples source_tokens target_tokens spelled_tokens files removed"
    assert list(manifest["pairs"][0]["splits"]["train"]) == names.split()
    assert read_manifest(data.folder) == manifest == data.manifest
    again = json.loads(json.dumps([dataclasses.asdict(pair) for pair in data.pairs]))
    assert again == manifest["pairs"]


def test_a_run_uses_the_prepared_languages_that_it_names(data):
    assert data.languages(CONFIG) == ["fr", "de"]
    german = dataclasses.replace(CONFIG, languages=("de",))
    assert data.languages(german) == ["de"]
    assert [pair["language"] for pair in data.summary(CONFIG)["pairs"]] == ["fr", "de"]
    assert data.summary(german) == {
        "direction": "xx-en",
        "source_vocabulary": 500,
        "target_vocabulary": 500,
        "corpus_fingerprint": "0123456789abcdef",
        "pairs": [
            {
                "source": "de",
                "target": "en",
                "language": "de",
                "train_pairs": 8,
                "dev_pairs": 2,
                "test_pairs": 3,
            }
        ],
    }


def test_the_subsets_of_a_direction_are_one_entry_of_the_facts(data):
    (french, german) = data.manifest["pairs"]
    pairs = [french, german, french | {"subset": "back"}]
    with_subset = dataclasses.replace(data, manifest=data.manifest | {"pairs": pairs})
    facts = with_subset.summary(CONFIG)
    counts = [(pair["language"], pair["train_pairs"], pair["dev_pairs"]) for pair in facts["pairs"]]
    assert counts == [("fr", 24, 6), ("de", 8, 2)]
    wrong = dataclasses.replace(CONFIG, schedule=({"from_step": 0, "weights": {"zz": 1}},))
    with pytest.raises(UserError, match="a weight names 'zz', which the data does not have"):
        with_subset.pairs_of(wrong)
    nothing = ({"from_step": 5, "weights": {"fr": 0, "de": 0}},)
    with pytest.raises(UserError, match="leaves nothing to train on from step 5"):
        data.summary(dataclasses.replace(CONFIG, schedule=nothing))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"source_length": 16},
            "has examples of up to 24 tokens, but Data.source_length is 16; set it to 24 or more, or "
            "prepare the data again.",
        ),
        (
            {"source_vocabulary": 9000},
            "was prepared with Data.source_vocabulary = 8000, but the config has 9000; use the same "
            "value, or prepare the data again.",
        ),
        ({"languages": ("frr",)}, "does not have; did you mean 'fr'? It has: de, fr."),
    ],
)
def test_a_config_that_does_not_fit_the_data_is_an_error(data, changes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        data.pairs_of(dataclasses.replace(CONFIG, **changes))


def test_settings_that_only_prepare_reads_are_those_of_the_data(data):
    """Otherwise a run would record what never held."""
    others = {"minimum_pairs": 9, "romanize_source": True, "subset_tags": ("back",)}
    config = dataclasses.replace(CONFIG, **others, seed=7)
    assert data.fitted(config) == dataclasses.replace(CONFIG, seed=7)
    assert data.fitted(dataclasses.replace(CONFIG, seed=7), others) == data.fitted(config)
    for name in others:
        words = f"was prepared with Data.{name} = {getattr(CONFIG, name)!r}, but the config has "
        words = words.replace("()", "[]")
        with pytest.raises(UserError, match=re.escape(words)):
            data.fitted(config, [name])


def test_each_setting_that_shapes_the_data_is_compared_with_it_or_read_by_training():
    compared = {*shards._ID_SETTINGS, *ONLY_PREPARED, "source_length", "target_length"}
    assert CONFIG.shaping().keys() == compared | {"languages", "seed"}


def test_a_folder_that_is_not_prepared_data_is_an_error(tmp_path):
    with pytest.raises(UserError, match="there is no such folder; make it with gshard-data"):
        PreparedData.open(tmp_path / "gone")
    with pytest.raises(UserError, match=r"is not prepared data: it has no manifest\.json"):
        PreparedData.open(tmp_path)
    for content in ("not JSON", "[]", '{"format": "of another program"}'):
        (tmp_path / "manifest.json").write_text(content)
        assert read_manifest(tmp_path) is None
    (tmp_path / "manifest.json").write_text('{"format": "gshard-nmt data 0"}')
    with pytest.raises(UserError, match="has the format 'gshard-nmt data 0', but this version"):
        PreparedData.open(tmp_path)


def test_a_missing_or_shortened_file_is_an_error(data):
    (shard,) = (data.folder / "fr-en").glob("train-*")
    size = shard.stat().st_size
    with shard.open("ab") as file:
        file.truncate(size - 1)
    with pytest.raises(UserError) as error:
        PreparedData.open(data.folder)
    assert str(error.value) == (
        f"--data {data.folder} is damaged: fr-en/{shard.name} has {size - 1} bytes instead of {size}; "
        "remove the folder and make it again with gshard-data prepare."
    )
    (data.folder / "source.model").unlink()
    with pytest.raises(UserError, match=r"is damaged: source\.model is missing"):
        PreparedData.open(data.folder)


def test_a_process_that_does_not_look_at_each_file_finds_damage_when_it_reads(data):
    (shard,) = (data.folder / "fr-en").glob("train-*")
    size = shard.stat().st_size
    with shard.open("ab") as file:
        file.write(b"more")
    opened = PreparedData.open(data.folder, check_files=False)
    with pytest.raises(UserError) as error:
        opened.reader(opened.pairs[0], "train").read(np.arange(2))
    assert str(error.value).startswith(
        f"--data {data.folder} is damaged: fr-en/{shard.name} cannot be read (it has {size + 4} bytes "
        f"instead of {size})"
    )
    (data.folder / "source.model").unlink()
    with pytest.raises(UserError, match=r"is damaged: source\.model is missing"):
        PreparedData.open(data.folder, check_files=False)


def test_a_changed_byte_of_a_shard_is_an_error_that_names_the_shard_or_does_no_harm(data):
    (shard,) = (data.folder / "fr-en").glob("train-*")
    content = shard.read_bytes()
    records = len(content.rstrip(b"\0"))
    (pair, _) = data.pairs
    expected = data.reader(pair, "train").read(np.arange(12))
    errors: list[str] = []
    for place in [*range(0, 700, 3), *range(700, records, max(1, records // 300))]:
        flipped = content[place] ^ 1 << place % 8
        shard.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
        try:
            read = data.reader(pair, "train").read(np.arange(12))
        except UserError as error:
            errors.append(str(error))
            continue
        for before, after in zip(expected, read, strict=True):
            assert before.source.tolist() == after.source.tolist()
            assert before.target.tolist() == after.target.tolist()
    assert len(errors) > 200
    named = f"--data {data.folder} is damaged: fr-en/{shard.name} "
    assert all(error.startswith(named) for error in errors)
    assert list(data.changed_files()) == [f"fr-en/{shard.name}"]


@pytest.mark.parametrize("call", ["open", "pread"])
@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EIO, TryAgain, "may be sound, so it was not touched. Start the same command again"),
        (errno.ESTALE, TryAgain, "Start the same command again"),
        (errno.ETIMEDOUT, TryAgain, "Start the same command again"),
        (errno.EACCES, UserError, "Give this user permission for all files in it"),
        (errno.EMFILE, UserError, "Raise the limit of open files"),
    ],
)
def test_an_error_of_reading_a_shard_is_not_damage(data, monkeypatch, call, number, kind, words):
    """It may pass, as that of a file server; then nobody sees it. A stale file is opened anew."""
    monkeypatch.setattr("gshard_nmt.reading.time.sleep", lambda _: None)
    (pair, _) = data.pairs
    real, reader, failures = getattr(os, call), data.reader(pair, "train"), [True] * 99

    def fail(*arguments):
        if failures:
            failures.pop()
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(kind, match=f"cannot be read: {os.strerror(number)}.*{words}") as error:
        reader.read(np.arange(3))
    assert str(error.value).startswith(f"--data {data.folder}: train-00000.ids ")
    assert "damaged" not in str(error.value)
    failures[:] = [True] * (kind is TryAgain)
    assert len(reader.read(np.arange(3))) == 3


def test_an_error_of_reading_a_small_file_of_the_data_is_not_damage(data, monkeypatch):
    monkeypatch.setattr("gshard_nmt.reading.time.sleep", lambda _: None)
    for name in ("manifest.json", "source.model", f"{data.pairs[0].folder}/train-00000.ids"):
        file = data.folder / name
        content = file.read_bytes()
        file.unlink()
        file.symlink_to(file)  # as if a server failed: without root, and even for root
        with pytest.raises(TryAgain, match=f"{file.name} cannot be read: Too many levels"):
            PreparedData.open(data.folder)
        file.unlink()
        file.write_bytes(content)
    PreparedData.open(data.folder)
