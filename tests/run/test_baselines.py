"""Baselines: their sizes, what makes a model another model, and how its end is read."""

import json

import numpy as np
import pytest

from gshard_nmt.data.sets.manifest import MANIFEST
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.run import baselines as files
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.training_state import write_budget
from gshard_nmt.settings.gin_reader import load_config
from tests.data.synthetic import write_prepared_data

CONFIG = load_config("bilingual").replace(
    data={"source_length": 24, "target_length": 20, "languages": ("fr",)}
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "prepared"
    return write_prepared_data(folder, CONFIG.data, {"fr": 40, "de": 20})


def with_checksum(prepared, start):
    """Returns the data as if the files whose names begin so had other contents."""
    manifest = json.loads((prepared.folder / MANIFEST).read_text())
    changed = {name: "0" * 64 for name in manifest["checksums"] if name.startswith(start)}
    assert changed
    return PreparedData(prepared.folder, manifest | {"checksums": manifest["checksums"] | changed})


def test_the_key_changes_with_the_text_the_settings_and_the_version(prepared, monkeypatch):
    key = files.content_key(CONFIG, prepared, "budget")
    assert files.content_key(CONFIG, prepared, "budget") == key
    assert files.content_key(CONFIG, prepared, "converged") != key
    for start in ("fr-en/train", "fr-en/dev", "source.model", "target.model"):
        assert files.content_key(CONFIG, with_checksum(prepared, start), "budget") != key
    for part in (
        {"model": {"input_dropout": 0.2}},
        {"data": {"rows": 8}},
        {"optimizer": {"warmup_steps": 7}},
        {"train": {"seed": 7}},
        {"train": {"dev_every": 7}},
        {"decode": {"beam": 1}},
    ):
        assert files.content_key(CONFIG.replace(**part), prepared, "budget") != key
    monkeypatch.setattr(files.gshard_nmt, "__version__", "99")
    assert files.content_key(CONFIG, prepared, "budget") != key


def test_the_key_does_not_change_with_other_languages_the_mesh_and_the_limits(prepared):
    key = files.content_key(CONFIG, prepared, "budget")
    assert files.content_key(CONFIG, with_checksum(prepared, "de-en/train"), "budget") == key
    for part in (
        {"mesh": {"shape": (1,)}},
        {"train": {"steps": 7, "tokens": 7, "patience": 7}},
        {"train": {"log_every": 7, "checkpoint_every": 7, "keep_last": 3}},
    ):
        assert files.content_key(CONFIG.replace(**part), prepared, "budget") == key


def test_the_end_of_a_run_is_read_from_its_newest_checkpoint(tmp_path):
    checkpoints = CheckpointWriter(tmp_path / "checkpoints")
    patience = {"metric": "dev_bleu", "best": 12.5, "scored_with": {}, "validations": 3}
    facts = {"step": 7, "tokens": {"fr": 90}, "seconds": 1.5, "patience": patience}
    checkpoints.save(7, {"parameters": {"w": np.zeros((4, 2), np.float32)}}, {}, facts)
    checkpoints.close()
    write_budget(RunFolder(tmp_path), checkpoints.newest())
    of = files.outcome(tmp_path, CONFIG)
    end = {"weights": 8, "steps": 7, "tokens": 90, "seconds": 1.5}
    assert of == end | {"dev_bleu": 12.5, "ended": "minutes"}
    for limits, ended in (
        ({"patience": 3}, "patience"),
        ({"patience": 3, "tokens": 90}, "patience"),
        ({"tokens": 90}, "tokens"),
        ({"tokens": 91}, "minutes"),
        ({"steps": 7}, "steps"),
    ):
        assert files.outcome(tmp_path, CONFIG.replace(train=limits))["ended"] == ended


def test_a_score_that_is_not_bleu_is_not_called_bleu(tmp_path, monkeypatch):
    patience = {"metric": "dev_nll", "best": 1.5}
    monkeypatch.setattr(files, "patience_of", lambda run: patience)
    assert files.outcome(tmp_path, CONFIG)["dev_bleu"] is None


@pytest.mark.parametrize(
    ("pairs", "size"),
    [
        (0, "small"), (99_999, "small"), (100_000, "base"), (1_999_999, "base"), (2_000_000, "big"),
    ],
)  # fmt: skip
def test_the_size_follows_the_training_pairs(pairs, size):
    sizes = files.parse_sizes(files.SIZE_RULE)
    assert files.size_of(pairs, sizes) == size
    assert files.size_of(pairs, files.parse_sizes("config")) == "config"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("smal", "there is no size 'smal'; did you mean 'small'?"),
        ("small:many", "'many' is not a number of training pairs. Give the sizes as in small:0,"),
        ("small:5", "must begin with 0 and rise"),
        ("small:0,base:0", "must begin with 0 and rise"),
        ("small:0,small:9", "each size has one number"),
    ],
)
def test_a_wrong_rule_is_refused(text, message):
    with pytest.raises(UserError) as error:
        files.parse_sizes(text)
    assert str(error.value).startswith(f"--sizes {text}: ")
    assert message in str(error.value)


def test_a_damaged_record_names_the_file(tmp_path):
    (tmp_path / "baseline.json").write_text('{"kind": 3}')
    with pytest.raises(UserError, match=r"baseline\.json"):
        files.read_record(tmp_path)
    assert files.read_record(tmp_path / "none") is None
