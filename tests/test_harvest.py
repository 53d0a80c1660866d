import json

import pytest

from gshard_nmt.data.sets.corpus import find_pairs, read_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.harvest import harvest

CATALOGUE = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgid "File {number} was not found"
msgstr "{text} {number}"
"""


def write_catalogue(root, locale: str, text: str, number: int) -> None:
    folder = root / locale / "LC_MESSAGES"
    folder.mkdir(parents=True, exist_ok=True)
    entries = CATALOGUE.replace("{text}", text).replace("{number}", "word " * number)
    (folder / f"program{number}.po").write_text(entries, encoding="utf-8")


@pytest.fixture
def root(tmp_path):
    """A locale folder: French, Brazilian Portuguese, and British English, which is left out."""
    for number in range(1, 30):
        write_catalogue(tmp_path / "locale", "fr", "Fichier introuvable", number)
    write_catalogue(tmp_path / "locale", "pt_BR", "Arquivo", 1)
    write_catalogue(tmp_path / "locale", "en_GB", "File", 1)
    return tmp_path / "locale"


def test_a_corpus_of_all_languages_with_its_counts(root, tmp_path, capsys):
    harvest(tmp_path / "corpus", [root], system=False)
    report = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    assert (report["catalogues"], report["unreadable"]) == (30, 0)
    assert list(report["languages"]) == ["fr", "pt-BR"]
    english = {}
    for pair in find_pairs(tmp_path / "corpus"):
        for split in ("train", "dev", "test"):
            rows = list(read_pairs(pair, split, pair.language, "en")) if pair.inputs(split) else []
            assert len(rows) == report["languages"][pair.language][split]
            english[pair.language, split] = {row[1] for row in rows}
    assert sum(len(english["fr", split]) for split in ("train", "dev", "test")) == 29
    # One English sentence is in one split, whatever the language.
    (brazilian,) = set().union(*(english["pt-BR", s] for s in ("train", "dev", "test")))
    split = next(s for s in ("train", "dev", "test") if brazilian in english["pt-BR", s])
    assert brazilian in english["fr", split]
    out = " ".join(capsys.readouterr().out.split())
    assert "fr" in out
    assert "Read 30 catalogues; 0 of them are damaged. Messages left out: none." in out


def test_a_harvest_replaces_an_earlier_one(root, tmp_path):
    harvest(tmp_path / "corpus", [root], system=False)
    before = (tmp_path / "corpus" / "corpus.json").read_text()
    harvest(tmp_path / "corpus", [root], system=False)
    assert (tmp_path / "corpus" / "corpus.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_no_catalogues_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"no message catalogues \(\.mo, \.po\) below .*--root DIR"):
        harvest(tmp_path / "corpus", [tmp_path], system=False)
    assert not (tmp_path / "corpus").exists()


def test_a_folder_with_other_files_is_not_replaced(root, tmp_path):
    (tmp_path / "writing").mkdir()
    (tmp_path / "writing" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not empty and not a harvested corpus"):
        harvest(tmp_path / "writing", [root], system=False)
    assert (tmp_path / "writing" / "thesis.txt").exists()


def test_a_damaged_catalogue_is_named_and_left_out(root, tmp_path, capsys):
    folder = root / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "broken.mo").write_bytes(b"\xde\x12\x04\x95\x00\x00")
    harvest(tmp_path / "corpus", [root], system=False)
    report = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    assert report["unreadable"] == 1
    assert (
        f"note: 1 catalogue is damaged and left out: {folder}/broken.mo." in capsys.readouterr().err
    )
    assert "de" not in report["languages"]


def test_languages_without_enough_pairs_are_an_error_that_says_what_to_do(root, tmp_path):
    with pytest.raises(UserError) as error:
        harvest(tmp_path / "corpus", [root], system=False, minimum_pairs=1000)
    assert str(error.value) == (
        f"no language has 1000 or more training pairs in the 30 catalogues below {root}. Name more "
        "folders with --root DIR."
    )
    assert not (tmp_path / "corpus").exists()


def test_a_missing_root_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"--root .*gone: there is no such folder"):
        harvest(tmp_path / "corpus", [tmp_path / "gone"], system=False)


@pytest.mark.parametrize("file", ["fr-en/train.fr", "it-en/train.it.gz", "notes.txt"])
def test_a_corpus_with_a_file_of_the_user_is_not_replaced(root, tmp_path, file):
    harvest(tmp_path / "corpus", [root], system=False)
    added = tmp_path / "corpus" / file
    added.parent.mkdir(exist_ok=True)
    added.write_text("own text")
    with pytest.raises(
        UserError, match=f"would be replaced, but {file} in it is not from gshard-data"
    ):
        harvest(tmp_path / "corpus", [root], system=False)
    assert added.read_text() == "own text"
