"""What must stay the same in a run: what changes a hash, and what does not."""

import dataclasses

import pytest

from gshard_nmt.run.identity import (
    hash_of_manifest,
    identity_of,
)
from gshard_nmt.settings.gin_reader import load_config
from tests.data.synthetic import write_prepared_data

DEMO = load_config("demo")


@pytest.fixture
def data(tmp_path):
    return write_prepared_data(tmp_path / "data", DEMO.data, {"fr": 8})


def changed_names(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"model": {"model_dim": 64}}, {"config"}),
        ({"data": {"seed": 9}}, {"config"}),
        ({"optimizer": {"learning_rate": 0.5}}, {"config"}),
        ({"mesh": {"shape": (4,)}}, set()),
        ({"train": {"steps": 5}}, set()),
        ({"decode": {"beam": 2}}, set()),
    ],
)
def test_model_data_and_optimizer_are_part_of_the_identity(data, change, names):
    before = identity_of(DEMO, data)
    assert changed_names(before, identity_of(DEMO.replace(**change), data)) == names


def test_vocabularies_and_manifest_are_part_of_the_identity(data):
    before = identity_of(DEMO, data)
    other = dataclasses.replace(data, manifest=data.manifest | {"pairs": []})
    assert changed_names(before, identity_of(DEMO, other)) == {"data"}
    (data.folder / "target.model").write_bytes(b"another")
    assert changed_names(before, identity_of(DEMO, data)) == {"target.model"}


def test_the_place_of_the_data_and_the_order_of_its_manifest_do_not_matter(data, tmp_path):
    moved = dataclasses.replace(data, folder=data.folder.rename(tmp_path / "moved"))
    assert set(identity_of(DEMO, moved)) == {"source.model", "target.model", "data", "config"}
    backwards = dict(reversed(data.manifest.items()))
    assert hash_of_manifest(backwards) == hash_of_manifest(data.manifest)
