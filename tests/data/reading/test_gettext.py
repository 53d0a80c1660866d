"""Message catalogues in the folder of a pair."""

import gzip

import pytest

from gshard_nmt.data.reading.gettext import read_gettext
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.errors import UserError

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


def test_a_catalogue_may_be_compressed(tmp_path):
    (tmp_path / "fr-en").mkdir()
    (tmp_path / "fr-en" / "fr.po.gz").write_bytes(gzip.compress(PO.encode()))
    (pair,) = find_pairs(tmp_path)
    (block,) = read_gettext(*pair.inputs("train"))
    assert [row.source for row in block] == ["un chat", "un fichier", "%d fichiers"]


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
