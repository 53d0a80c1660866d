"""Message catalogues: reading .mo and .po files, and cleaning messages."""

import pytest

from gshard_nmt.data.reading.gettext import Message, clean, read_catalogue
from tests.data.reading.mo_file import mo

PO = """
msgid ""
msgstr "Content-Type: text/plain; charset={charset}"

msgid "a café"
msgstr "un café"

msgid "one file"
msgid_plural "%d files"
msgstr[0] "un fichier"
msgstr[1] "%d fichiers"

msgid "untranslated"
msgstr ""

#, fuzzy
msgid "doubtful"
msgstr "douteux"
"""


@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-15"])
def test_translated_messages_of_a_po_file(tmp_path, charset):
    path = tmp_path / "fr.po"
    path.write_text(PO.replace("{charset}", charset), encoding=charset)
    messages, _ = read_catalogue(path)
    assert [message for message in messages if message.translation] == [
        Message("a café", "un café"),
        Message("one file", "un fichier"),
        Message("%d files", "%d fichiers", "one file"),
    ]


@pytest.mark.parametrize("order", ["<", ">"])
def test_contexts_and_plurals_of_a_mo_file(tmp_path, order):
    path = tmp_path / "a.mo"
    path.write_bytes(
        mo([("menu\x04Open", "Ouvrir"), ("%d file\0%d files", "%d fichier\0%d fichiers")], order)
    )
    assert read_catalogue(path)[0] == [
        Message("%d file", "%d fichier"),
        Message("%d files", "%d fichiers", "%d file"),
        Message("Open", "Ouvrir"),
    ]


SLOVENIAN = "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);"
SERBIAN = (
    "nplurals=4; plural=n==1? 3 : n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || "
    "n%100>=20) ? 1 : 2;"
)
ARABIC = (
    "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 "
    ": n%100>=11 ? 4 : 5;"
)


@pytest.mark.parametrize("form", ["po", "mo"])
@pytest.mark.parametrize(
    ("rule", "forms", "one", "many"),
    [
        (SLOVENIAN, "abcd", "b", "a"),
        (SERBIAN, "abcd", "d", "c"),
        (ARABIC, "abcdef", "b", "e"),
        ("nplurals=2; plural=(n > 1);", "ab", "a", "b"),
        ("nplurals=1; plural=0;", "a", None, "a"),
        # GNU's rule of a header without a rule.
        (None, "ab", "a", "b"),
        (None, "abc", "a", "c"),
        ("nplurals=3; plural=n % 0;", "abc", "a", "c"),
        ("nplurals=3; plural=__import__('os');", "abc", "a", "c"),
        ("nplurals=2; plural=n == 1 ? 0 : 7;", "ab", "a", "b"),
    ],
)
def test_the_rule_of_the_header_chooses_the_forms(tmp_path, form, rule, forms, one, many):
    path = tmp_path / f"a.{form}"
    header = "Content-Type: text/plain; charset=UTF-8\n" + (
        f"Plural-Forms: {rule}\n" if rule else ""
    )
    if form == "mo":
        path.write_bytes(mo([("cat\0cats", "\0".join(forms))], header=header))
    else:
        escaped = header.replace("\n", "\\n")
        lines = [f'msgstr[{i}] "{text}"' for i, text in enumerate(forms)]
        entry = ['msgid "cat"', 'msgid_plural "cats"', *lines]
        path.write_text("\n".join(['msgid ""', f'msgstr "{escaped}"', "", *entry]))
    singular = [Message("cat", one)] if one else []
    assert read_catalogue(path)[0] == [*singular, Message("cats", many, "cat")]


def test_a_plural_on_one_side_only_is_left_out_and_counted(tmp_path):
    path = tmp_path / "ru.po"
    path.write_text(
        'msgid "%d cats"\nmsgstr[0] "a"\nmsgstr[1] "b"\n\n'
        'msgid "dog"\nmsgid_plural "dogs"\nmsgstr "c"\n\n'
        'msgid "cow"\nmsgstr[0] ""\nmsgstr[1] ""\n\nmsgid "Close"\nmsgstr "d"\n'
    )
    assert read_catalogue(path) == ([Message("Close", "d")], 2)


@pytest.mark.parametrize("cut", [0, 3, 19, 40, 60, -4])
def test_a_damaged_file_is_an_error(tmp_path, cut):
    path = tmp_path / "a.mo"
    path.write_bytes(mo([("Open", "Ouvrir"), ("Close", "Fermer")])[:cut])
    with pytest.raises(ValueError):  # noqa: PT011
        read_catalogue(path)


def test_half_of_a_character_is_damage(tmp_path):
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=utf-7\\n"\n\n'
    path = tmp_path / "a.po"
    path.write_text(header + 'msgid "open"\nmsgstr "ouvre +2AA-"\n')
    with pytest.raises(ValueError, match="surrogates not allowed"):
        read_catalogue(path)


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
        ("<name>: no _such {FILE_A}", "<nom> {FILE_A}", ("<name>: no such {FILE_A}", "<nom> {FILE_A}")),
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
)  # fmt: skip
def test_cleaning(english, translation, expected):
    result = expected if isinstance(expected, str) else Message(*expected)
    assert clean(Message(english, translation)) == result
