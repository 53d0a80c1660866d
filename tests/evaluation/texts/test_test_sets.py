"""Published test sets are recognized by their files, and only the run's directions are read."""

import gzip
import json
import sys
import types

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.texts import test_sets


def make(folder, names, lines=3):
    """Writes files whose lines name the file."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name} {n}\n" for n in range(lines)).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)


def pairs(*directions):
    return [
        {"language": source if source != "en" else target, "source": source, "target": target}
        | {"train_pairs": 7}
        for source, target in (direction.split(">") for direction in directions)
    ]


FLORES = ["fra_Latn", "eng_Latn", "zho_Hans", "zho_Hant", "srp_Cyrl", "nob_Latn"]


@pytest.mark.parametrize("form", [None, "flores"])
@pytest.mark.parametrize("split", ["test", "dev"])
def test_flores(tmp_path, form, split):
    for name in ("dev", "devtest"):
        make(tmp_path, [f"{name}/{code}.{name}" for code in FLORES])
    published = test_sets.open_folder(tmp_path, form, split)
    assert published.tags == ["en", "fr", "nb", "sr", "zh", "zh-Hant"]
    assert published.notes == ()
    assert len(published.directions) == 6 * 5
    name = "devtest" if split == "test" else "dev"
    assert published.name == f"flores.{name}"
    run = pairs("fr>en", "en>zh-TW", "zh-CN>en")
    (french, chinese, simplified), notes = test_sets.read(published, run, 2)
    assert (french.language, french.source, french.target) == ("fr", "fr", "en")
    assert french.train_pairs == 7
    assert french.sources == [f"{name}/fra_Latn.{name} {n}" for n in range(2)]
    assert french.references == [f"{name}/eng_Latn.{name} {n}" for n in range(2)]
    assert (chinese.source, chinese.target) == ("en", "zh-TW")
    assert chinese.references[0].startswith(f"{name}/zho_Hant")
    assert simplified.sources[0].startswith(f"{name}/zho_Hans")
    assert notes == ["the run was not trained on nb, sr, so they are left out"]


def test_the_folder_of_one_split_of_flores_plus(tmp_path):
    make(tmp_path, ["devtest.fra_Latn", "devtest.eng_Latn", "devtest.cat_Latn_vale1252", "x.md"])
    published = test_sets.open_folder(tmp_path)
    assert published.tags == ["ca-valencia", "en", "fr"]


def test_ntrex_has_both_directions_and_several_references(tmp_path):
    names = ["src.eng", "ref.fra", "ref.spa", "ref-2.spa", "ref.por", "ref.por-BR", "ref.eng-GB"]
    make(tmp_path, [f"NTREX-128/newstest2019-{name}.txt" for name in names])
    make(tmp_path, ["README.md"])
    published = test_sets.open_folder(tmp_path)
    assert published.name == "ntrex"
    assert published.tags == ["en", "en-GB", "es", "fr", "pt", "pt-BR"]
    (spanish, back, brazilian), _ = test_sets.read(published, pairs("en>es", "es>en", "pt-BR>en"))
    assert [lines[0] for lines in spanish.all_references] == [
        "NTREX-128/newstest2019-ref.spa.txt 0",
        "NTREX-128/newstest2019-ref-2.spa.txt 0",
    ]
    assert back.sources[0] == "NTREX-128/newstest2019-ref.spa.txt 0"
    assert [lines[0] for lines in back.all_references] == ["NTREX-128/newstest2019-src.eng.txt 0"]
    assert brazilian.sources[0] == "NTREX-128/newstest2019-ref.por-BR.txt 0"


def test_wmt_has_the_directions_of_its_names(tmp_path):
    names = ["deen-src.de", "deen-ref.en", "deen-refB.en", "ende-src.en", "ende-ref.de.gz"]
    make(tmp_path, [f"newstest2014-{name}" for name in names])
    published = test_sets.open_folder(tmp_path)
    assert published.name == "wmt"
    assert sorted(published.directions) == [("de", "en"), ("en", "de")]
    (test,), notes = test_sets.read(published, pairs("de>en"))
    assert [lines[0] for lines in test.all_references] == [
        "newstest2014-deen-ref.en 0",
        "newstest2014-deen-refB.en 0",
    ]
    assert notes == []
    make(tmp_path, ["newstest2019-deen-src.de", "newstest2019-deen-ref.en"])
    with pytest.raises(
        UserError, match=r"has two test sets of de-en: newstest2014-deen-src.de and"
    ):
        test_sets.open_folder(tmp_path)


def test_plain_files(tmp_path):
    make(tmp_path, ["SRC.de", "REF.en", "REF2.en", "ref.fr.txt"])
    published = test_sets.open_folder(tmp_path)
    (test,), notes = test_sets.read(published, pairs("de>en", "it>en"))
    assert test.sources[0] == "SRC.de 0"
    assert [lines[0] for lines in test.all_references] == ["REF.en 0", "REF2.en 0"]
    assert notes == [
        "the test set has no text of it-en, which the run was trained on",
        "the run was not trained on fr, so they are left out",
    ]


def test_unknown_codes_are_named(tmp_path):
    make(tmp_path, [f"devtest/{code}.devtest" for code in ("eng_Latn", "qqq_Latn", "qqr", "x!")])
    make(tmp_path, ["devtest/eng.devtest"])
    published = test_sets.open_folder(tmp_path)
    assert published.notes == (
        "eng_Latn.devtest is left out, because eng is en too",
        "the code qqq_Latn of qqq_Latn.devtest is unknown; it is used as qqq",
        "the code qqr of qqr.devtest is unknown; it is used as qqr",
        "x!.devtest is left out, because 'x!' is not a language code",
    )


def test_a_folder_without_a_test_set_is_an_error(tmp_path):
    make(tmp_path, ["readme.txt"])
    with pytest.raises(UserError, match=r"has no known test set. It must have files such as dev"):
        test_sets.open_folder(tmp_path)
    make(tmp_path, ["src.de", "ref.en"])
    with pytest.raises(UserError, match="has no test set with --format wmt"):
        test_sets.open_folder(tmp_path, "wmt")


def test_a_test_set_of_other_directions_is_an_error(tmp_path):
    make(tmp_path, ["src.de", "ref.en"])
    with pytest.raises(UserError) as raised:
        test_sets.read(test_sets.open_folder(tmp_path), pairs("fr>en"))
    assert str(raised.value) == (
        f"--test_set {tmp_path} has de, en, and the run was trained on fr-en. Give a test set with a "
        "direction of the run."
    )


def test_files_of_other_lengths_and_empty_files_are_errors(tmp_path):
    make(tmp_path, ["src.de", "ref.en"])
    make(tmp_path, ["ref2.en"], lines=2)
    published = test_sets.open_folder(tmp_path)
    with pytest.raises(UserError) as raised:
        test_sets.read(published, pairs("de>en"))
    assert str(raised.value) == (
        f"the files have different lengths: {tmp_path}/src.de has 3 lines, {tmp_path}/ref2.en has 2. "
        "Line N of one file must translate line N of the other."
    )
    make(tmp_path, ["src.de"], lines=0)
    with pytest.raises(UserError, match=r"src.de is empty; it must have a line for each sentence."):
        test_sets.read(published, pairs("de>en"))


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
    assert test_sets._flores_plus(tmp_path / name) == ["un a", "deux"]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pyarrow is not installed\. Install it with: pip install"):
        test_sets._flores_plus(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "un"}\n{"text": \n', "a.jsonl cannot be read (Expecting value"),
        (
            "a.jsonl",
            b'{"text": "un"}\n[1]\n',
            "a.jsonl, row 2 is [1]; it must have a text named text.",
        ),
        ("a.jsonl", b'{"words": "un"}\n', "a.jsonl, row 1 is {'words': 'un'}; it must have a text"),
        ("a.parquet", b"PAR", "a.parquet cannot be read (Expecting value"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, pyarrow, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as raised:
        test_sets._flores_plus(tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path}/{message}")
