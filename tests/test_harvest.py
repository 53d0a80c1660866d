import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt import harvest as program
from gshard_nmt.data.sets.corpus import find_pairs, read_pairs
from gshard_nmt.data.text.normal_form import message_form
from gshard_nmt.errors import UserError
from gshard_nmt.harvest import Catalogue, find_catalogues, harvest, read_and_split
from tests.data.reading.mo_file import mo

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
    assert "Read 30 catalogues. Messages left out: none." in out


def test_no_catalogues_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"no message catalogues .* below .*--root DIR"):
        harvest(tmp_path / "corpus", [tmp_path], system=False)
    assert not (tmp_path / "corpus").exists()


def test_a_damaged_catalogue_is_named_and_left_out(root, tmp_path, capsys):
    folder = root / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "broken.mo").write_bytes(b"\xde\x12\x04\x95\x00\x00")
    harvest(tmp_path / "corpus", [root], system=False)
    report = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    assert report["unreadable"] == 1
    assert f"note: damaged catalogues are left out: {folder}/broken.mo." in capsys.readouterr().err
    assert "de" not in report["languages"]


def test_a_harvest_replaces_an_earlier_one_but_no_file_of_the_user(root, tmp_path):
    harvest(tmp_path / "corpus", [root], system=False)
    before = (tmp_path / "corpus" / "corpus.json").read_text()
    harvest(tmp_path / "corpus", [root], system=False)
    assert (tmp_path / "corpus" / "corpus.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    added = tmp_path / "corpus" / "it-en" / "train.it.gz"
    added.parent.mkdir()
    added.write_text("own text")
    message = "would be replaced, but it-en/train.it.gz in it is not from gshard-data"
    with pytest.raises(UserError, match=message):
        harvest(tmp_path / "corpus", [root], system=False)
    assert added.read_text() == "own text"


def write_mo(root, language: str, domain: str, entries) -> None:
    folder = root / language / "LC_MESSAGES"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{domain}.mo").write_bytes(mo(entries))


words = st.text("abc deF.!", min_size=3, max_size=12).filter(lambda t: t.strip(" .!"))


def with_large_held_out_splits(root) -> program.Harvest:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "_TEST", 300)
        patch.setattr(program, "_DEV", 200)
        return read_and_split(find_catalogues([root]), workers=1)


@settings(deadline=None, max_examples=20)
@given(st.lists(words, min_size=5, max_size=40, unique=True))
def test_no_english_sentence_is_in_two_splits(tmp_path_factory, english):
    root = tmp_path_factory.mktemp("locale")
    for language in ("fr", "de"):
        write_mo(root, language, "app", [(text, f"{language} {text}") for text in english])
    harvested = with_large_held_out_splits(root)
    places: dict[str, set[str]] = {}
    for (_, split), rows in harvested.rows.items():
        for _, text in rows:
            places.setdefault(message_form(text), set()).add(split)
    assert all(len(splits) == 1 for splits in places.values())


NOUNS = [f"{chr(97 + i)}{chr(98 + j)}o" for i in range(20) for j in range(20)]


def test_the_variants_of_a_message_are_in_the_same_split(tmp_path):
    entries = []
    for noun in NOUNS:
        # The two forms of a plural may have other words.
        forms = f"Once a {noun}y is left\0Every %d long {noun}ies are left on {noun}"
        entries.append((forms, f"un {noun}\0des {noun}"))
        entries.append(
            (f"EVERY {{count}} long {noun}y is left on <x> {noun}!", f"{noun} {{count}}")
        )
    write_mo(tmp_path, "fr", "app", entries)
    harvested = with_large_held_out_splits(tmp_path)
    assert len(splits_of(harvested, NOUNS)) == len(NOUNS)
    for noun, splits in splits_of(harvested, NOUNS).items():
        assert len(splits) == 1, noun
    # The splits keep about their shares of the messages: 0.3 of 400 messages are 120.
    assert 90 < sum(splits == {"test"} for splits in splits_of(harvested, NOUNS).values()) < 150


def splits_of(harvested, nouns) -> dict[str, set[str]]:
    """Returns the splits that have English sides with each noun."""
    result: dict[str, set[str]] = {}
    for (_, split), rows in harvested.rows.items():
        for _, english in rows:
            noun = next(n for n in nouns if re.search(rf"\b{n}", english.casefold()))
            result.setdefault(noun, set()).add(split)
    return result


def test_english_variants_are_left_out_and_order_does_not_depend_on_files(tmp_path):
    entries = [(f"Message number {chr(97 + i)} is here", f"Le message {i}") for i in range(20)]
    write_mo(tmp_path / "a", "fr", "one", entries[:10])
    write_mo(tmp_path / "a", "fr", "two", entries[10:])
    write_mo(tmp_path / "a", "en_GB", "one", entries)
    write_mo(tmp_path / "b", "fr", "all", entries[::-1])
    first, second = (read_and_split(find_catalogues([tmp_path / name]), workers=1) for name in "ab")
    assert {language for language, _ in first.rows} == {"fr"}
    assert first.rows == second.rows
    assert sum(len(rows) for rows in first.rows.values()) == 20


def test_catalogues_are_found_by_the_layout_of_their_folders(tmp_path):
    for name in (
        "locale/fr/LC_MESSAGES/app.mo",
        "locale/fr/LC_MESSAGES/app.po",  # the .mo file beside it was made from it
        "package/locale/de/LC_MESSAGES/django.po",
        "program/po/pt_BR.po",
        "messages/sv/plugin.po",
        "locale/en_GB/LC_MESSAGES/app.mo",
        "locale/l10n/LC_MESSAGES/app.mo",
        "locale/fr/LC_MESSAGES/readme.txt",
        "src/po/en@quot.po",
        "de/app.po",
        *("doc/x.mo", "bin/foo_long.mo", "src/x.po", "build/mo/x.mo"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert set(find_catalogues([tmp_path])) == {
        Catalogue(tmp_path / "locale/fr/LC_MESSAGES/app.mo", "app", "fr"),
        Catalogue(tmp_path / "package/locale/de/LC_MESSAGES/django.po", "package/django", "de"),
        Catalogue(tmp_path / "program/po/pt_BR.po", "program", "pt-BR"),
        Catalogue(tmp_path / "messages/sv/plugin.po", "plugin", "sv"),
        Catalogue(tmp_path / "de/app.po", "app", "de"),
    }


def test_lists_of_names_are_written_to_a_folder_of_their_own(tmp_path):
    words = [chr(97 + i) + "bc" for i in range(26)]
    sentences = [(f"The {word} cannot be read.", f"Lire {word}") for word in words]
    write_mo(tmp_path / "locale", "fr", "app", sentences)
    countries = [(f"Land of {word.title()}", f"Pays {word}") for word in words]
    write_mo(tmp_path / "locale", "fr", "iso_3166", [*countries, sentences[0]])
    harvested = read_and_split(find_catalogues([tmp_path]), workers=1)
    assert harvested.list_domains == ["iso_3166"]
    # A pair that is also a sentence of a program is not repeated among the names.
    assert sorted(harvested.rows["fr", "names"]) == sorted((fr, en) for en, fr in countries)
    program.harvest(tmp_path / "corpus", [tmp_path / "locale"], system=False)
    folders = [path.relative_to(tmp_path / "corpus") for path in tmp_path.glob("corpus/**/train.*")]
    assert {str(folder) for folder in folders} == {
        "fr-en/train.en.gz",
        "fr-en/train.fr.gz",
        "names/fr-en/train.en.gz",
        "names/fr-en/train.fr.gz",
    }


def test_each_message_is_counted_once_as_kept_or_left_out(tmp_path):
    entries = [("Open the file", "Ouvrir"), ("OK", "OK"), ("%d", "1"), ("Close", "Fermer")]
    write_mo(tmp_path, "fr", "one", entries)
    write_mo(tmp_path, "fr", "two", entries[:1])
    harvested = read_and_split(find_catalogues([tmp_path]), workers=1)
    assert sum(len(rows) for rows in harvested.rows.values()) == 2
    reasons = {reason: number for reason, number in harvested.dropped.items() if number}
    assert reasons == {"identical": 1, "no letters": 1, "duplicate": 1}
