"""Message catalogues: reading .mo and .po files, cleaning messages, and the folder of a pair."""

import contextlib
import encodings.aliases

import pytest

from gshard_nmt.data.reading.gettext import (
    Message,
    UnreadableError,
    clean,
    read_catalogue,
    read_gettext,
)
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.errors import UserError
from tests.data.reading.mo_file import mo

PO = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8"

msgid "a cat"
msgstr "un chat"

msgid "one file"
msgid_plural "%d\\nfiles"
msgstr[0] "un fichier"
msgstr[1] "%d fichiers"

msgid "untranslated"
msgstr ""

#, fuzzy
msgid "doubtful"
msgstr "douteux"
"""


def rows(tmp_path, name, text=PO):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "fr.po").write_text(text)
    (pair,) = find_pairs(tmp_path)
    (catalogue,) = pair.inputs("train")
    return [row for block in read_gettext(catalogue) for row in block]


def test_translated_messages_are_rows(tmp_path):
    expected = [("un chat", "a cat"), ("un fichier", "one file"), ("%d fichiers", "%d files")]
    assert [row[:2] for row in rows(tmp_path, "fr-en")] == expected
    turned = rows(tmp_path / "other", "en-fr")
    assert [row[1::-1] for row in turned] == expected


def test_what_is_left_out_and_what_is_unclear_is_said(tmp_path, capsys):
    forms = "".join(f'msgstr[{i}] "{i}"\n' for i in range(3))
    text = f'msgid "Cats"\n{forms}\nmsgid "dog"\nmsgid_plural "dogs"\n{forms}'
    assert [row[:2] for row in rows(tmp_path, "fr-en", text)] == [("0", "dog"), ("2", "dogs")]
    notes = capsys.readouterr().err.splitlines()
    assert notes[0].endswith("on one side only, which are left out: 'Cats'.")
    assert "1 plurals without a right Plural-Forms" in notes[1]


def test_text_with_another_charset_than_the_header_is_refused_with_its_line(tmp_path):
    (tmp_path / "fr-en").mkdir()
    header = b'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    (tmp_path / "fr-en" / "fr.po").write_bytes(header + b'msgid "summer"\nmsgstr "\xe9t\xe9"\n')
    (pair,) = find_pairs(tmp_path)
    with pytest.raises(UserError) as error:
        list(read_gettext(*pair.inputs("train")))
    assert "fr.po cannot be read: line 5 is not UTF-8, the charset of its header. Write" in str(
        error.value
    )


def test_a_catalogue_needs_english_and_must_be_whole(tmp_path):
    with pytest.raises(UserError, match="its folder is of fr and de"):
        rows(tmp_path, "fr-de")
    with pytest.raises(UserError, match=r"fr.po cannot be read: .*line 2"):
        rows(tmp_path / "other", "fr-en", 'msgid "a"\nnonsense\n')


@pytest.mark.parametrize("order", ["<", ">"])
def test_contexts_and_plurals_of_a_mo_file(tmp_path, order):
    path = tmp_path / "a.mo"
    path.write_bytes(
        mo([("menu\x04Open", "Ouvrir"), ("%d file\0%d files", "%d fichier\0%d fichiers")], order)
    )
    assert read_catalogue(path).messages == [
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
    ("rule", "forms", "one", "many", "unclear"),
    [
        (SLOVENIAN, "abcd", "b", "a", 0),
        (SERBIAN, "abcd", "d", "c", 0),
        (ARABIC, "abcdef", "b", "e", 0),
        ("nplurals=2; plural=(n > 1);", "ab", "a", "b", 0),
        ("nplurals=1; plural=0;", "a", None, "a", 0),
        # GNU's rule of a header without a rule, and what is said to be unclear.
        (None, "ab", "a", "b", 0),
        (None, "abc", "a", "c", 1),
        ("nplurals=3; plural=n % 0;", "abc", "a", "c", 1),
        ("nplurals=3; plural=__import__('os');", "abc", "a", "c", 1),
        ("nplurals=2; plural=n == 1 ? 0 : 7;", "ab", "a", "b", 1),
    ],
)
def test_the_rule_of_the_header_chooses_the_forms(tmp_path, form, rule, forms, one, many, unclear):
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
    contents = read_catalogue(path)
    singular = [Message("cat", one)] if one else []
    assert contents.messages == [*singular, Message("cats", many, "cat")]
    assert contents.unclear == unclear


def test_a_plural_on_one_side_only_is_named(tmp_path):
    path = tmp_path / "ru.po"
    path.write_text(
        'msgid "%d cats"\nmsgstr[0] "a"\nmsgstr[1] "b"\n\n'
        'msgid "dog"\nmsgid_plural "dogs"\nmsgstr "c"\n\n'
        'msgid "cow"\nmsgstr[0] ""\nmsgstr[1] ""\n\nmsgid "Close"\nmsgstr "d\u2028e"\n'
    )
    contents = read_catalogue(path)
    assert contents.incomplete == ["%d cats", "dog"]
    assert contents.messages == [Message("Close", "d e")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted({*encodings.aliases.aliases.values(), "undefined", "ANSI"}))
def test_any_charset_of_a_header_is_read_or_refused(tmp_path, name):
    header = f"Content-Type: text/plain; charset={name}\n"
    (tmp_path / "a.mo").write_bytes(mo([("Open", "Fermé \\ud83d")], header=header))
    (tmp_path / "a.po").write_text(
        f'msgid ""\nmsgstr "{header[:-1]}\\n"\n\nmsgid "é"\nmsgstr "ü"\n'
    )
    for path in tmp_path.iterdir():
        with contextlib.suppress(UnreadableError):
            read = read_catalogue(path).messages
            "".join(message.translation for message in read).encode()


@pytest.mark.parametrize("cut", [0, 3, 19, 40, 60])
def test_a_damaged_file_is_an_error(tmp_path, cut):
    path = tmp_path / "a.mo"
    path.write_bytes(mo([("Open", "Ouvrir"), ("Close", "Fermer")])[:cut])
    with pytest.raises(UnreadableError):
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
