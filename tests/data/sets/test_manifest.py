"""The manifest of prepared data: each kind of damage is an error that names the key."""

import copy
import json

import pytest

from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.manifest import checksum, files_of
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError
from tests.data.synthetic import write_prepared_data

CONFIG = Data(source_length=24, target_length=20)
WRONG = (None, -1, 1.5, "", [None], {"x": 1}, 10**30)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "prepared"
    return write_prepared_data(folder, CONFIG, {"fr": 12, "de": 8})


@pytest.fixture
def damaged(data):
    """Returns a function that reads prepared data with another manifest; the old one comes back."""
    file = data.folder / "manifest.json"
    content = file.read_bytes()

    def read(manifest) -> PreparedData:
        file.write_bytes(manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode())
        return PreparedData.open(data.folder)

    yield read
    file.write_bytes(content)


def places(value, place=()):
    """Yields the place of every entry of a JSON value."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*place, key)
            yield from places(value[key], (*place, key))


def use(prepared: PreparedData) -> None:
    """Does what the programs do with prepared data."""
    list(prepared.misfits(CONFIG))
    prepared.summary(CONFIG)
    list(prepared.changed_files())
    for pair in prepared.pairs_of(CONFIG):
        prepared.reader(pair, "train")


def test_an_entry_that_is_missing_or_wrong_is_an_error_or_does_no_harm(data, damaged):
    errors = tried = 0
    one_pair = data.manifest | {"pairs": data.manifest["pairs"][:1]}
    for place in places(one_pair):
        for wrong in ("missing", *WRONG):
            manifest = copy.deepcopy(one_pair)
            parent = manifest
            for key in place[:-1]:
                parent = parent[key]
            if wrong == "missing":
                del parent[place[-1]]
            else:
                parent[place[-1]] = wrong
            tried += 1
            try:
                use(damaged(manifest))
            except UserError:
                errors += 1
    assert errors > tried / 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.pop("data"), "in manifest.json, data is missing"),
        (lambda m: m["pairs"][1].pop("source"), "in manifest.json, pairs[1].source is missing"),
        (lambda m: m["pairs"][0].update(source="../x"), 'pairs[0].source is "../x"; it must be a name'),
    ],
)  # fmt: skip
def test_the_error_names_the_key(data, damaged, change, words):
    manifest = copy.deepcopy(data.manifest)
    change(manifest)
    with pytest.raises(UserError) as error:
        damaged(manifest)
    assert str(error.value).startswith(f"--data {data.folder} is damaged: ")
    assert words in str(error.value)
    assert str(error.value).endswith(
        "; remove the folder and make it again with gshard-data prepare."
    )


def test_a_cut_manifest_is_an_error_wherever_it_is_cut(data, damaged):
    content = (data.folder / "manifest.json").read_bytes()
    for end in range(0, len(content) - 2, 31):
        with pytest.raises(UserError, match=r"manifest\.json is (not JSON|of another program)"):
            damaged(content[:end])
    with pytest.raises(UserError, match=r"manifest\.json is not JSON"):
        damaged(content[:200] + b"\xff" + content[200:])


def test_the_manifest_lists_every_file_with_its_checksum(data):
    files = {f.relative_to(data.folder).as_posix() for f in data.folder.rglob("*") if f.is_file()}
    assert (
        set(files_of(data.manifest)) == set(data.manifest["checksums"]) == files - {"manifest.json"}
    )
    for name, recorded in data.manifest["checksums"].items():
        assert checksum(data.folder / name) == recorded
    assert list(data.changed_files()) == []
