import json

import pytest

from gshard_nmt.data.corpus import find_pairs, read_pairs
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
    found = {}
    for pair in find_pairs(tmp_path / "corpus"):
        for split in ("train", "dev", "test"):
            rows = list(read_pairs(pair, split, pair.language, "en")) if pair.files(split) else []
            assert len(rows) == report["languages"][pair.language][split]
            found[pair.language, split] = {english for _, english in rows}
    assert sum(len(found["fr", split]) for split in ("train", "dev", "test")) == 29
    # One English sentence is in one split, whatever the language.
    (brazilian,) = set().union(*(found["pt-BR", s] for s in ("train", "dev", "test")))
    split = next(s for s in ("train", "dev", "test") if brazilian in found["pt-BR", s])
    assert brazilian in found["fr", split]
    assert "fr" in capsys.readouterr().out


def test_a_harvest_replaces_the_one_before_it(root, tmp_path):
    harvest(tmp_path / "corpus", [root], system=False)
    before = (tmp_path / "corpus" / "corpus.json").read_text()
    harvest(tmp_path / "corpus", [root], system=False)
    assert (tmp_path / "corpus" / "corpus.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_no_catalogues_is_a_mistake_with_a_way_out(tmp_path):
    with pytest.raises(UserError, match=r"no message catalogues \(\.mo, \.po\) below .*--root DIR"):
        harvest(tmp_path / "corpus", [tmp_path], system=False)
    assert not (tmp_path / "corpus").exists()


def test_what_is_no_corpus_is_not_replaced(root, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not empty and not a harvested corpus"):
        harvest(tmp_path / "mine", [root], system=False)
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_damaged_catalogue_is_counted_and_left_out(root, tmp_path):
    folder = root / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "broken.mo").write_bytes(b"\xde\x12\x04\x95\x00\x00")
    harvest(tmp_path / "corpus", [root], system=False)
    report = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    assert report["unreadable"] == 1
    assert "de" not in report["languages"]
