"""Catalogues: reading, cleaning, naming languages, telling lists from sentences, splitting."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.catalogues import finding, messages
from gshard_nmt.data.catalogues.locales import bcp47
from gshard_nmt.data.catalogues.messages import Message, clean

HEADER = ("", "Content-Type: text/plain; charset=UTF-8\n")


def mo(entries, order: str = "<") -> bytes:
    """A .mo file of (msgid, msgstr) in a byte order."""
    entries = sorted([HEADER, *entries])
    ids, strings = ([text[i].encode() + b"\0" for text in entries] for i in range(2))
    at = 28 + 16 * len(entries)
    tables = []
    for texts in (ids, strings):
        table = []
        for text in texts:
            table += [len(text) - 1, at]
            at += len(text)
        tables.append(table)
    first = 28
    header = [0x950412DE, 0, len(entries), first, first + 8 * len(entries), 0, 0]
    numbers = header + tables[0] + tables[1]
    return struct.pack(f"{order}{len(numbers)}I", *numbers) + b"".join(ids + strings)


@pytest.mark.parametrize("order", ["<", ">"])
def test_contexts_and_plurals_of_a_mo_file(tmp_path, order):
    path = tmp_path / "a.mo"
    path.write_bytes(
        mo([("menu\x04Open", "Ouvrir"), ("%d file\0%d files", "%d fichier\0%d fichiers")], order)
    )
    assert list(messages.read_catalogue(path)) == [
        Message("%d file", "%d fichier"),
        Message("%d files", "%d fichiers"),
        Message("Open", "Ouvrir"),
    ]


def test_a_language_without_plural_pairs_its_form_with_many(tmp_path):
    path = tmp_path / "a.mo"
    path.write_bytes(mo([("%d file\0%d files", "%d ファイル")]))
    assert list(messages.read_catalogue(path)) == [Message("%d files", "%d ファイル")]


def test_fuzzy_entries_of_a_po_file_are_left_out(tmp_path):
    path = tmp_path / "fr.po"
    path.write_text(
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
        'msgid "Open"\nmsgstr "Ouvrir"\n\n#, fuzzy\nmsgid "Close"\nmsgstr "Ouvrir"\n'
    )
    assert list(messages.read_catalogue(path)) == [Message("Open", "Ouvrir")]


@pytest.mark.parametrize("cut", [0, 3, 19, 40, 60])
def test_a_damaged_file_is_told(tmp_path, cut):
    path = tmp_path / "a.mo"
    path.write_bytes(mo([("Open", "Ouvrir"), ("Close", "Fermer")])[:cut])
    with pytest.raises(messages.UnreadableError):
        list(messages.read_catalogue(path))


@pytest.mark.parametrize(
    ("english", "translation", "expected"),
    [
        ("_File", "_Fichier", ("File", "Fichier")),
        ("&File", "ファイル(&F)", ("File", "ファイル")),
        ("Save _As…", "Enregistrer _sous…", ("Save As…", "Enregistrer sous…")),
        ("R&D costs", "coûts de R&D", ("R&D costs", "coûts de R&D")),
        ("set my_name", "régler my_name", ("set my_name", "régler my_name")),
        ("<b>Hi</b> %s", "<b>Salut</b> %s", ("Hi %s", "Salut %s")),
        ("Tom &amp; Jerry", "Tom et Jerry", ("Tom & Jerry", "Tom et Jerry")),
        ("two\n  lines", "deux\n lignes", ("two lines", "deux lignes")),
        ("OK", "OK", "identical"),
        (" ", "x", "empty"),
        ("a" * 500, "b", "overlong"),
        ("foo.bar.baz", "truc", "key"),
        ("%d", "1", "no letters"),
        ("Yes", "Oui, c'est bien cela, je crois que oui", "length ratio"),
    ],
)
def test_cleaning(english, translation, expected):
    found = clean(Message(english, translation))
    if isinstance(expected, str):
        assert found == expected
    else:
        assert found == Message(*expected)


@pytest.mark.parametrize(
    ("locale", "tag"),
    [
        ("pt_BR", "pt-BR"),
        ("pt_PT", "pt"),
        ("de_DE.UTF-8", "de"),
        ("sr@latin", "sr-Latn"),
        ("zh_Hant", "zh-TW"),
        ("zh_HK", "zh-HK"),
        ("ca@valencia", "ca-valencia"),
        ("iw", "he"),
        ("nb_NO", "nb"),
        ("es_MX", "es-MX"),
        ("en_GB", "en-GB"),
        ("l10n", None),
        ("C", None),
    ],
)
def test_locales_become_language_tags(locale, tag):
    assert bcp47(locale) == tag


def test_lists_of_names_are_told_from_sentences():
    countries = [f"Republic of Land{chr(65 + i % 26)}{i}" for i in range(60)]
    labels = ["Open the file", "Cannot read %s", "Save As", "Quit", "Delete this item?"] * 12
    assert finding.name_share(countries) > 0.9
    assert finding.name_share(labels) < 0.5


def tree(root, language: str, domain: str, entries) -> None:
    folder = root / language / "LC_MESSAGES"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{domain}.mo").write_bytes(mo(entries))


words = st.text("abc deF.!", min_size=3, max_size=12).filter(lambda t: t.strip(" .!"))


@settings(deadline=None, max_examples=20)
@given(st.lists(words, min_size=5, max_size=40, unique=True))
def test_no_english_sentence_is_in_two_splits(tmp_path_factory, english):
    root = tmp_path_factory.mktemp("locale")
    for language in ("fr", "de"):
        tree(root, language, "app", [(text, f"{language} {text}") for text in english])
    found = finding.read_and_split(finding.find_catalogues([root]), 0.2, 0.3, workers=1)
    places: dict[str, set[str]] = {}
    for (_, split), rows in found.rows.items():
        for _, text in rows:
            places.setdefault(finding.normalised(text), set()).add(split)
    assert all(len(splits) == 1 for splits in places.values())


def test_english_variants_are_left_out_and_order_does_not_depend_on_files(tmp_path):
    entries = [(f"Message number {chr(97 + i)} is here", f"Le message {i}") for i in range(20)]
    tree(tmp_path / "a", "fr", "one", entries[:10])
    tree(tmp_path / "a", "fr", "two", entries[10:])
    tree(tmp_path / "a", "en_GB", "one", entries)
    tree(tmp_path / "b", "fr", "all", entries[::-1])
    found = [
        finding.read_and_split(finding.find_catalogues([tmp_path / name]), workers=1)
        for name in "ab"
    ]
    assert {language for language, _ in found[0].rows} == {"fr"}
    assert found[0].rows == found[1].rows
    assert sum(len(rows) for rows in found[0].rows.values()) == 20
