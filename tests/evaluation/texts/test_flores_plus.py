"""FLORES+ is read as it is published, and damaged files are named with their lines."""

import gzip
import json
import sys
import types

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.texts import flores_plus, test_sets

ROWS = [
    {"id": 2, "iso_639_3": "fra", "text": "deux"},
    {"id": 1, "iso_639_3": "fra", "text": "un\u2028a"},
]


def lines_of(rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def pyarrow(monkeypatch):
    """Replaces pyarrow by a module that reads JSON."""
    package, parquet = types.ModuleType("pyarrow"), types.ModuleType("pyarrow.parquet")

    def read_table(path):
        rows = json.loads(path.read_text(encoding="utf-8"))
        return types.SimpleNamespace(to_pylist=lambda: rows)

    parquet.read_table = read_table
    package.parquet = parquet
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_sentences_have_the_order_of_their_ids(tmp_path, pyarrow, name):
    text = json.dumps(ROWS) if name.endswith(".parquet") else lines_of(ROWS)
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert flores_plus.is_one(tmp_path / name)
    assert flores_plus.read(tmp_path / name) == ["un a", "deux"]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pyarrow is not installed\. Install it with: pip install"):
        flores_plus.read(tmp_path / "a.parquet")


# A header without the time: the content is part of the test's name, which must not change.
CUT_GZIP = gzip.compress(b'{"text": "un"}\n', mtime=0)[:-9]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "un"}\n{"text": \n',
            "a.jsonl, line 2 cannot be read (Expecting value",
        ),
        ("a.jsonl", b'{"text": "un"}\n[1]\n', "a.jsonl, line 2 cannot be read (it is no object)"),
        (
            "a.jsonl",
            b'{"text": "un"}\n{"text": 1}\n',
            "a.jsonl, line 2: text is 1; it must be text",
        ),
        (
            "a.jsonl",
            b'{"words": "un"}\n',
            "a.jsonl has the columns words; the sentences must be in",
        ),
        ("a.jsonl", b"\xff\n", "a.jsonl cannot be read ('utf-8' codec"),
        ("a.jsonl.gz", CUT_GZIP, "a.jsonl.gz cannot be read (Comp"),
        ("a.parquet", b"PAR", "a.parquet cannot be read (Expecting value"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, pyarrow, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as raised:
        flores_plus.read(tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize("prefix", ["", "devtest."])
def test_a_folder_of_flores_plus_is_a_test_set(tmp_path, prefix):
    place = tmp_path / "devtest"
    place.mkdir()
    for code, text in (("fra_Latn", "un"), ("eng_Latn", "one")):
        (place / f"{prefix}{code}.jsonl").write_text(lines_of([{"id": 1, "text": text}]))
    published = test_sets.open_folder(tmp_path)
    assert published.name == "flores.devtest"
    pairs = [{"language": "fr", "source": "fr", "target": "en", "train_pairs": 9}]
    ((test,), _) = test_sets.read(published, pairs)
    assert (test.sources, test.references) == (["un"], ["one"])


def test_other_json_in_a_folder_of_plain_files_is_no_test_set(tmp_path):
    for name in ("src.fr", "ref.en"):
        (tmp_path / name).write_text("a\n")
    for name in ("fr.jsonl", "en.jsonl"):
        (tmp_path / name).write_text(lines_of(ROWS))
    assert test_sets.open_folder(tmp_path).name == "plain"
