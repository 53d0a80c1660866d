"""Message catalogues: reading .mo and .po files, and cleaning messages."""

import pytest

from gshard_nmt.data.catalogues import messages
from gshard_nmt.data.catalogues.messages import Message, clean
from tests.data.catalogues.mo_file import mo


@pytest.mark.parametrize("order", ["<", ">"])
def test_contexts_and_plurals_of_a_mo_file(tmp_path, order):
    path = tmp_path / "a.mo"
    path.write_bytes(
        mo([("menu\x04Open", "Ouvrir"), ("%d file\0%d files", "%d fichier\0%d fichiers")], order)
    )
    assert list(messages.read_catalogue(path)) == [
        Message("%d file", "%d fichier"),
        Message("%d files", "%d fichiers", "%d file"),
        Message("Open", "Ouvrir"),
    ]


def test_a_language_without_plural_pairs_its_form_with_many(tmp_path):
    path = tmp_path / "a.mo"
    path.write_bytes(mo([("%d file\0%d files", "%d ファイル")]))
    assert list(messages.read_catalogue(path)) == [Message("%d files", "%d ファイル", "%d file")]


def test_fuzzy_entries_of_a_po_file_are_left_out(tmp_path):
    path = tmp_path / "fr.po"
    path.write_text(
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
        'msgid "Open"\nmsgstr "Ouvrir"\n\n#, fuzzy\nmsgid "Close"\nmsgstr "Ouvrir"\n'
    )
    assert list(messages.read_catalogue(path)) == [Message("Open", "Ouvrir")]


@pytest.mark.parametrize("cut", [0, 3, 19, 40, 60])
def test_a_damaged_file_is_an_error(tmp_path, cut):
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
        ("Copy to <name>", "Copier vers <nom>", ("Copy to <name>", "Copier vers <nom>")),
        ("Copy to &lt;dir&gt;", "Vers &lt;dir&gt;", ("Copy to <dir>", "Vers <dir>")),
        (
            "<name>: no _such {FILE_A}",
            "<nom> {FILE_A}",
            ("<name>: no such {FILE_A}", "<nom> {FILE_A}"),
        ),
        ("See <x>this</x><br>%s", "Voir <x>ici</x><br/>%s", ("See this %s", "Voir ici %s")),
        ("See <a href='x'>this", "Voir <!-- x -->ici", ("See this", "Voir ici")),
        ("<name> <b>%s</b>", "<nom> <b>%s</b>", "no letters"),
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
    result = expected if isinstance(expected, str) else Message(*expected)
    assert clean(Message(english, translation)) == result
