"""Finding catalogues, recognizing lists of names, and splitting without overlap."""

import os
import re
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.catalogues import finding
from gshard_nmt.data.catalogues.finding import Catalogue
from gshard_nmt.data.text.normal_form import message_form
from gshard_nmt.errors import UserError
from tests.data.catalogues.mo_file import mo


def test_lists_of_names_do_not_look_like_sentences():
    countries = [f"Republic of Land{chr(65 + i % 26)}{i}" for i in range(60)]
    labels = ["Open the file", "Cannot read %s", "Save As", "Quit", "Delete this item?"] * 12
    assert finding.name_share(countries) > 0.9
    assert finding.name_share(labels) < 0.5


def write_mo(root, language: str, domain: str, entries) -> None:
    folder = root / language / "LC_MESSAGES"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{domain}.mo").write_bytes(mo(entries))


words = st.text("abc deF.!", min_size=3, max_size=12).filter(lambda t: t.strip(" .!"))


@settings(deadline=None, max_examples=20)
@given(st.lists(words, min_size=5, max_size=40, unique=True))
def test_no_english_sentence_is_in_two_splits(tmp_path_factory, english):
    root = tmp_path_factory.mktemp("locale")
    for language in ("fr", "de"):
        write_mo(root, language, "app", [(text, f"{language} {text}") for text in english])
    harvest = finding.read_and_split(finding.find_catalogues([root]), 0.2, 0.3, workers=1)
    places: dict[str, set[str]] = {}
    for (_, split), rows in harvest.rows.items():
        for _, text in rows:
            places.setdefault(message_form(text), set()).add(split)
    assert all(len(splits) == 1 for splits in places.values())


NOUNS = [f"{chr(97 + i)}{chr(98 + j)}o" for i in range(20) for j in range(20)]


def test_the_variants_of_a_message_are_in_the_same_split(tmp_path):
    entries = []
    for noun in NOUNS:
        singular, plural = f"One {noun}y is left on {noun}", f"%d {noun}ies are left on {noun}"
        entries.append((f"{singular}\0{plural}", f"un {noun}\0des {noun}"))
        entries.append((f"{{count}} {noun}y is LEFT on <place> {noun}!", f"{noun} {{count}}"))
    write_mo(tmp_path, "fr", "app", entries)
    harvest = finding.read_and_split(finding.find_catalogues([tmp_path]), 0.2, 0.3, workers=1)
    assert len(splits_of(harvest, NOUNS)) == len(NOUNS)
    for noun, splits in splits_of(harvest, NOUNS).items():
        assert len(splits) == 1, noun
    # The splits keep about their shares of the messages: 0.3 of 400 messages are 120.
    tests = sum(splits == {"test"} for splits in splits_of(harvest, NOUNS).values())
    assert 90 < tests < 150


def test_the_two_forms_of_a_plural_are_in_the_same_split_whatever_their_words(tmp_path):
    entries = [
        (f"Once a {noun}\0Every %d long {noun}s", f"un {noun}\0des {noun}") for noun in NOUNS
    ]
    write_mo(tmp_path, "fr", "app", entries)
    harvest = finding.read_and_split(finding.find_catalogues([tmp_path]), 0.2, 0.3, workers=1)
    assert all(len(splits) == 1 for splits in splits_of(harvest, NOUNS).values())


def splits_of(harvest, nouns) -> dict[str, set[str]]:
    """Returns the splits that have English sides with each noun."""
    result: dict[str, set[str]] = {}
    for (_, split), rows in harvest.rows.items():
        for _, english in rows:
            noun = next(n for n in nouns if re.search(rf"\b{n}", english.casefold()))
            result.setdefault(noun, set()).add(split)
    return result


def test_a_family_is_the_same_in_any_order():
    links = [("c", "d"), ("a", "b"), ("d", "b"), ("x", "y")]
    for order in (links, links[::-1], [(b, a) for a, b in links]):
        families = finding.Families()
        for link in order:
            families.join(*link)
        assert {families.first(form) for form in "abcd"} == {"a"}
        assert families.first("y") == "x"
        assert families.first("z") == "z"


def test_english_variants_are_left_out_and_order_does_not_depend_on_files(tmp_path):
    entries = [(f"Message number {chr(97 + i)} is here", f"Le message {i}") for i in range(20)]
    write_mo(tmp_path / "a", "fr", "one", entries[:10])
    write_mo(tmp_path / "a", "fr", "two", entries[10:])
    write_mo(tmp_path / "a", "en_GB", "one", entries)
    write_mo(tmp_path / "b", "fr", "all", entries[::-1])
    first, second = (
        finding.read_and_split(finding.find_catalogues([tmp_path / name]), workers=1)
        for name in "ab"
    )
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
    assert set(finding.find_catalogues([tmp_path])) == {
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
    harvest = finding.read_and_split(finding.find_catalogues([tmp_path]), workers=1)
    assert harvest.list_domains == ("iso_3166",)
    # A pair that is also a sentence of a program is not repeated among the names.
    assert sorted(harvest.rows["fr", "names"]) == sorted((fr, en) for en, fr in countries)
    assert finding.write_corpus(harvest, tmp_path / "corpus") == ["fr"]
    folders = [path.relative_to(tmp_path / "corpus") for path in tmp_path.glob("corpus/**/train.*")]
    assert {str(folder) for folder in folders} == {
        "fr-en/train.en.gz",
        "fr-en/train.fr.gz",
        "names/fr-en/train.en.gz",
        "names/fr-en/train.fr.gz",
    }
    assert finding.write_corpus(harvest, tmp_path / "none", minimum_pairs=100) == []


def test_a_worker_that_is_killed_is_said(tmp_path, monkeypatch):
    for number in range(8):
        write_mo(tmp_path, "fr", f"app{number}", [("Open", "Ouvrir")])
    monkeypatch.setattr(finding, "_PART", 2)
    monkeypatch.setattr(finding, "_read_part", _die)
    with pytest.raises(UserError, match="a worker process was ended from outside"):
        finding.read_and_split(finding.find_catalogues([tmp_path]), workers=2)


def _die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_message_is_counted_once_as_kept_or_left_out(tmp_path):
    entries = [("Open the file", "Ouvrir"), ("OK", "OK"), ("%d", "1"), ("Close", "Fermer")]
    write_mo(tmp_path, "fr", "one", entries)
    write_mo(tmp_path, "fr", "two", entries[:1])
    harvest = finding.read_and_split(finding.find_catalogues([tmp_path]), workers=1)
    assert sum(len(rows) for rows in harvest.rows.values()) == 2
    reasons = {reason: number for reason, number in harvest.dropped.items() if number}
    assert reasons == {"identical": 1, "no letters": 1, "duplicate": 1}
