"""Documents: what is translated, what stays, and that the output is valid."""

import re
import shutil
import subprocess

import polib
import pytest
from lxml import etree

from gshard_nmt.decoding.documents.document import is_document, read
from gshard_nmt.errors import UserError


def capitals(line):
    """Translates to capitals; tags and placeholders stay."""
    parts = re.split(r"(</?[gx]\d+/?>|%\w)", line)
    return "".join(part if i % 2 else part.upper() for i, part in enumerate(parts))


def translated(folder, name, content, target="de", everything=False, by=capitals):
    """Returns a document with its translations, and the lines that were translated."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    document = read(path, target, everything)
    return document.filled([by(line) for line in document.lines]).decode(), document.lines


HEADER = r'''# Its translators.
msgid ""
msgstr ""
"Project-Id-Version: demo 1.0\n"
"PO-Revision-Date: 2020-01-02 10:00+0000\n"
"Last-Translator: A. Person <a@example.org>\n"
"Language-Team: Russian\n"
"Language: ru\n"
"Content-Type: text/plain; charset=KOI8-R\n"
"Plural-Forms: nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && "
"(n%100<10 || n%100>=20) ? 1 : 2);\n"
'''  # fmt: skip
CATALOGUE = (
    HEADER
    + r"""
#. For translators
#: src/a.c:10
#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

#, c-format
msgid "%d dog"
msgid_plural "%d dogs"
msgstr[0] "%d собака"
msgstr[1] ""
msgstr[2] ""

msgctxt "menu"
msgid "Open"
msgstr ""

msgctxt "state"
msgid "Open"
msgstr "открыт"

#, fuzzy
#| msgid "Old text"
msgid "New text"
msgstr "старый"

msgid ""
"Usage:\n"
"  -h   help\n"
msgstr ""

#, c-format
msgid "lost %s"
msgstr ""

#, python-brace-format
msgid "50% of {n}"
msgstr ""

msgid "42"
msgstr ""

#~ msgid "gone"
#~ msgstr "нет"
"""
)


@pytest.fixture
def catalogue(tmp_path):
    def losing(line):
        return "LOST" if "lost" in line else capitals(line).replace("50% OF {N}", "50 % OF {n}")

    text, lines = translated(tmp_path, "a.po", CATALOGUE.encode("koi8-r"), "ru", by=losing)
    return polib.pofile(text), text, lines


def test_messages_without_a_translation_get_one_and_all_others_stay(catalogue):
    file, text, lines = catalogue
    dogs = ["%d dogs", "%d dogs"]
    assert lines == [
        "%d file",
        "%d files",
        "%d files",
        *dogs,
        "Open",
        "Usage:",
        "-h   help",
        "lost %s",
        "50% of {n}",
    ]
    file_entry, dog, menu, state, new, usage, lost, braces, number = file[:9]
    assert file_entry.msgstr_plural == {0: "%d FILE", 1: "%d FILES", 2: "%d FILES"}
    assert dog.msgstr_plural == {0: "%d собака", 1: "%d DOGS", 2: "%d DOGS"}
    assert (file_entry.flags, file_entry.comment) == (["c-format", "fuzzy"], "For translators")
    assert (menu.msgctxt, menu.msgstr, menu.fuzzy) == ("menu", "OPEN", True)
    assert (state.msgctxt, state.msgstr, state.fuzzy) == ("state", "открыт", False)
    assert (new.msgstr, new.previous_msgid) == ("старый", "Old text")
    assert usage.msgstr == "USAGE:\n  -H   HELP\n"
    # Its placeholder is lost, so a program that used the translation would crash.
    assert (lost.msgstr, lost.fuzzy) == ("", False)
    assert (number.msgstr, braces.msgstr) == ("42", "50 % OF {n}")
    assert [entry.msgid for entry in file.obsolete_entries()] == ["gone"]
    assert text.startswith("# Its translators.\n")


def test_the_header_says_what_was_done(catalogue):
    values = catalogue[0].metadata
    assert values["Last-Translator"] == "A. Person <a@example.org>"
    assert values["Language"] == "ru"
    assert values["X-Generator"].startswith("gshard-nmt ")
    assert values["PO-Revision-Date"] > "2026"
    assert values["Content-Type"] == "text/plain; charset=UTF-8"


def test_a_filled_catalogue_is_valid_when_its_marks_are_removed(catalogue, tmp_path):
    text = catalogue[1].replace(", fuzzy", "")
    for entry in polib.pofile(text):
        forms = list(entry.msgstr_plural.values()) or [entry.msgstr]
        assert len(forms) == (3 if entry.msgid_plural else 1)
        for form in filter(None, forms):
            assert form.count("%") == entry.msgid.count("%")
            assert form.endswith("\n") == entry.msgid.endswith("\n")
    (tmp_path / "b.po").write_text(text)
    if program := shutil.which("msgfmt"):
        command = [program, "-c", "-o", "/dev/null", tmp_path / "b.po"]
        subprocess.run(command, check=True, capture_output=True)


def test_a_template_gets_the_plural_forms_of_the_language(tmp_path):
    template = """#, fuzzy
msgid ""
msgstr ""
"Language: \\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"

msgid "a cat"
msgid_plural "cats"
msgstr[0] ""
msgstr[1] ""
"""
    for target, forms in (("ja", ["CATS"]), ("pt-BR", ["A CAT", "CATS"])):
        file = polib.pofile(translated(tmp_path, "a.pot", template, target)[0])
        assert list(file[0].msgstr_plural.values()) == forms
        assert file.metadata["Plural-Forms"].startswith(f"nplurals={len(forms)};")
        assert file.metadata["Language"] == target.replace("-", "_")
        assert not file.metadata_is_fuzzy


XLIFF = '''<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><!-- kept -->
 <file original="a.c" source-language="fr" datatype="plaintext"><body>
  <trans-unit id="1"><source>Open <g id="1">the file</g> <x id="2"/> &amp; go</source></trans-unit>
  <trans-unit id="2" approved="yes"><source>Done</source>
   <target state="final">fertig</target></trans-unit>
  <group translate="no"><trans-unit id="3"><source>Never</source></trans-unit>
  <trans-unit id="4" translate="yes"><source>Save</source><target/><note>n</note></trans-unit></group>
 </body></file></xliff>'''  # fmt: skip


def test_segments_of_xliff_get_targets_that_ask_for_a_review(tmp_path):
    text, lines = translated(tmp_path, "a.xlf", XLIFF)
    assert lines == ["Open <g1>the file</g1> <x2/> & go", "Save"]
    root = etree.fromstring(text.encode())
    done = '<target state="needs-review-translation">'
    for part in (
        f'{done}OPEN <g id="1">THE FILE</g> <x id="2"/> &amp; GO</target></trans-unit>',
        f"{done}SAVE</target><note>",
        '<target state="final">fertig',
        "<!-- kept -->",
    ):
        assert part in text
    assert root.find("{*}file").get("target-language") == "de"
    everything, _ = translated(tmp_path, "a.xlf", XLIFF, everything=True)
    assert f"{done}DONE</target>" in everything
    assert "approved" not in everything
    bare = XLIFF.replace(' xmlns="urn:oasis:names:tc:xliff:document:1.2"', "")
    assert f"{done}SAVE</target><note>" in translated(tmp_path, "a.xlf", bare)[0]
    new = XLIFF.replace("1.2", "2.0").replace("trans-unit", "segment")
    text, _ = translated(tmp_path, "a.xliff", new)
    assert (
        '<segment id="4" translate="yes" state="translated"><source>Save</source><target>SAVE</target>'
        in text
    )


SUBTITLES = (
    "1\r\n00:01,000 --> 00:02,000\r\n<i>It is a long sentence, so\r\nit has two lines</i>\r\n\r\n"
    "2\r\n00:03,000 --> 00:04,000\r\n- yes\r\n- {\\an8}no\r\n\r\n3\r\n00:05,000 --> 00:06,000\r\n42"
)
PAGE = """<!DOCTYPE html>
<html lang="fr"><meta charset="utf-8"><title>Le titre</title><!-- <p>non</p> -->
<script>var a = "<p>non</p>";</script>
<h1 class=x>Bonjour &eacute;t&eacute; &amp; <em>monde</em></h1>
<p>Lancez <code>ls -l</code> puis <a href="x?a=1&b=2" title="un titre">cliquez
  ici</a>. <img src=i.png data-alt='une image' alt='une image'> <br> fin
<pre>code</pre><ul title="la liste"><li>un<li><b>deux</b></ul>
<div translate="no">jamais <div>non</div> non</div> 12
"""
ARTICLE = """---
title: front
---
# Un titre #

Du `code`, [un lien](http://x.org/a_(b) "t") et
**du gras** ici.  
Voir [ref].

> citation
> suite

l'\\_\\_init\\_\\_ a-**b**-c

- [ ] une *belle* chose

```sh
non
```

| nom | a \\| b |
|-----|--------|
| x   | 12     |

[ref]: http://x.org
"""  # noqa: W291


CHANGES = [
    ("a.srt", SUBTITLES, {
        "<i>It is a long sentence, so\r\nit has two lines</i>":
            "<i>IT IS A LONG SENTENCE, SO IT\r\nHAS TWO LINES</i>",
        "- yes": "- YES", "}no": "}NO",
    }),
    ("a.htm", "<html data-x='a lang=fr' lang=fr xml:lang={{ x }}><p>ici</p></html>",
        {"lang=fr xml": 'lang="de" xml', "ici": "ICI"}),
    ("a.html", PAGE, {
        '"fr"': '"de"', "Le titre": "LE TITRE", "Bonjour &eacute;t&eacute;": "BONJOUR ÉTÉ",
        "monde": "MONDE", "Lancez": "LANCEZ", "puis": "PUIS", "un titre": "UN TITRE",
        "cliquez\n  ici": "CLIQUEZ ICI", " alt='une image'": ' alt="UNE IMAGE"', "fin": "FIN",
        "la liste": "LA LISTE", "<li>un": "<li>UN", "<b>deux": "<b>DEUX",
    }),
    ("a.md", ARTICLE, {
        "Un titre": "UN TITRE", "Du `": "DU `", "un lien": "UN LIEN", "et\n**du gras** ici":
        "ET **DU GRAS** ICI", "Voir": "VOIR", "citation\n> suite": "CITATION SUITE",
        "l'\\_\\_init\\_\\_": "L'\\_\\_INIT\\_\\_", "a-**b**-c": "A-**B**-C",
        "une *belle* chose": "UNE *BELLE* CHOSE", "nom": "NOM", "a \\": "A \\", "| b": "| B",
        "| x": "| X",
    }),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "changes"), CHANGES)
def test_only_sentences_change(tmp_path, name, content, changes):
    expected = content
    for old, new in changes.items():
        assert old in expected
        expected = expected.replace(old, new, 1)
    assert translated(tmp_path, name, content)[0] == expected
    # Without a translation every character is as before.
    assert read(tmp_path / name, "de", False).saved().decode() == (
        content.replace('"fr"', '"de"').replace("lang=fr xml", 'lang="de" xml')
    )


def test_escaped_text_of_subtitles_stays_escaped(tmp_path):
    cue = "00:01.000 --> 00:02.000\n{}\n"
    for text, expected in (("a &lt;b&gt; &amp; c", "A &lt;B&gt; &amp; C"), ("r & d", "R & D")):
        assert translated(tmp_path, "a.vtt", cue.format(text))[0] == cue.format(expected)


@pytest.mark.parametrize("name", ["a.md", "a.srt"])
def test_a_line_may_end_as_on_an_old_macintosh(tmp_path, name):
    text, lines = translated(tmp_path, name, "0:01 --> 0:02\rHello\r\r0:03 --> 0:04\r\nworld\r")
    assert len(lines) == 2
    assert "\r" not in text.replace("\r\n", "")
    assert {"HELLO", "WORLD"} <= set(re.findall("[A-Z]+", text))


def test_a_number_and_an_arrow_may_be_text_of_a_cue(tmp_path):
    cues = "0:01 --> 0:02\nIt was\n1984\n\n0:03 --> 0:04\nPress A --> B now\nand wait\n"
    assert translated(tmp_path, "a.vtt", cues)[1] == ["It was 1984", "Press A --> B now and wait"]


def test_lines_of_subtitles_are_not_broken_inside_a_tag(tmp_path):
    cue = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
    page = cue.format('Das ist ein <font color="red">roter\nSatz</font>')
    text, _ = translated(tmp_path, "a.srt", page, by=lambda line: f"wort wort wort {line}")
    assert text == cue.format('wort wort wort Das ist ein\n<font color="red">roter Satz</font>')


def test_a_part_whose_translation_is_empty_stays(tmp_path, capsys):
    (tmp_path / "a.srt").write_text(SUBTITLES)
    document = read(tmp_path / "a.srt", "de", False)
    assert b"- YES\n- {\\an8}no" in document.filled(["", "- YES", ""]).replace(b"\r", b"")
    assert "1 of 3 parts are translated" in capsys.readouterr().err


def test_a_page_of_ascii_stays_one(tmp_path):
    page = "<p>un &eacute;t&eacute;"
    assert translated(tmp_path, "a.html", page)[0] == "<p>UN &#201;T&#201;"
    page += "<meta charset=utf-8>"
    assert translated(tmp_path, "a.html", page)[0].startswith("<p>UN ÉTÉ<")


@pytest.mark.parametrize(
    ("name", "page"),
    [("a.md", "> eins  \n> zwei\n\ndrei\\\nvier\n"), ("a.po", 'msgid "eins"\nmsgstr ""\n')],
)
def test_lines_end_as_before(tmp_path, name, page):
    text, _ = translated(tmp_path, name, page.replace("\n", "\r\n"))
    assert "EINS" in text
    assert text.count("\n") == text.count("\r\n") >= page.count("\n")
    assert "\r" not in translated(tmp_path, name, page)[0]
    text, _ = translated(tmp_path, name, page.replace("\n", "\r\n").removesuffix("\r\n"))
    assert text.count("\n") == text.count("\r\n") > 0
    assert "\r" not in translated(tmp_path, "b.po", 'msgid "eins"\r\nmsgstr ""\n')[0]


def test_what_begins_another_block_of_markdown_is_escaped(tmp_path):
    page = "eins\n\n| x |\n|---|\n| y |\n"
    text, _ = translated(tmp_path, "a.md", page, by=lambda _: "1. a*b | [c]")
    cell = "| 1\\. a\\*b \\| \\[c\\] |\n"
    assert text == f"1\\. a\\*b | \\[c\\]\n\n{cell}|---|\n{cell}"
    assert translated(tmp_path, "a.md", "2. 2\n   eier\n")[0] == "2. 2 EIER\n"


def test_backslashes_that_stay_are_accepted(tmp_path):
    page = HEADER.replace("KOI8-R", "CP932") + ' # C:\\d\nmsgid "C:\\\\dir"\nmsgstr "表示"\n'
    assert "表示" in translated(tmp_path, "a.po", page.encode("cp932"))[0]


ENTITY = f'<!DOCTYPE xliff [<!ENTITY e "x">]>{XLIFF}'


DAMAGED = [
    ("a.po", b'msgid "a"\nmsgstr\n', "a.po cannot be read: Syntax error"),
    ("a.po", (HEADER + 'msgid "\\\\n\\a"').encode(), "its \\a would be changed. Correct it."),
    ("a.po", HEADER.replace("nplurals=3", "nplurals=x").encode(), "Plural-Forms is 'nplurals=x"),
    ("a.po", HEADER.replace("n%10==1", "n%0").encode(), "a.po cannot be read: "),
    ("a.xlf", b"<xliff>", "a.xlf cannot be read: "),
    ("a.xlf", b"<html/>", "it is no XLIFF, but html. Correct it."),
    ("a.xlf", ENTITY.replace("&amp; go", "&e;").encode(), "a source has the entity &e;, so write its"),
    ("a.xlf", ENTITY.replace('"2"/', '"&e;"/').encode(), "a source has the entity &e;"),
    ("a.html", b"caf\xe9", "byte 4: it is not utf-8. Convert it"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "words"), DAMAGED)
def test_a_damaged_document_is_named(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        translated(tmp_path, name, content)
    assert words in str(caught.value)


def test_a_document_for_another_language_is_a_note(tmp_path, capsys):
    translated(tmp_path, "a.po", HEADER.replace("KOI8-R", "UTF-8"), "ru-Latn")
    assert "is for" not in capsys.readouterr().err
    translated(tmp_path, "a.po", HEADER.replace("KOI8-R", "UTF-8"), "de")
    translated(tmp_path, "a.xlf", XLIFF.replace("<file", '<file target-language="pt_BR"'))
    first, _, second, _ = capsys.readouterr().err.splitlines()
    assert first.endswith("a.po is for translations to 'ru', and these are to de")
    assert "for translations to 'pt_BR'" in second


def test_only_catalogues_and_xliff_have_translations_to_replace(tmp_path):
    with pytest.raises(UserError, match=r"--retranslate has no effect on .*a\.md, all of whose"):
        translated(tmp_path, "a.md", "x", everything=True)
    assert is_document(tmp_path / "a.md")
    assert not is_document(tmp_path / "gone.md")


SMALL = [
    ("a.md", "\ufeff---\ntitle: x\n---\n\nt\n"),
    ("a.md", "::: tip\nt\n:::\n\nt\n: t\n\n$$\nx = y\n$$\n"),
    ("a.md", "> - t  \n>   t\n>\n> t\\\n> t\n"),
    ("a.html", "<li translate=no>a<li>t</ul>"),
    ("a.html", "<hr translate=no>t<svg/><p>t<svg>v</svg>"),
    ("a.html", '<p>t <i translate="no" title="a">b<img alt="c"></i></p>'),
    ("a.html", """<a data-x="<i alt='b'>" title="t">t</a>"""),
    ("a.html",
     '<h1><a name="i"></a>t <b>t</b> <i class="i"></i></h1><p>t <a href="/"><i class="i"></i> t</a> t'),
    ("a.html", "<td translate=no><p>a</p><p>b</p><br></td><td>t<p translate=no>a<h2>t</h2>"),
    ("a.html", "<li translate=no>a <ul><li>b</li><li>c</ul> d</li><li>t<dt translate=no>a<dd>t"),
    ("a.md", "+++\na = 'x'\n+++\n\nt [https://a.org](https://a.org)\n\n*t **t*** t\n\n~~t~~ t\n"),
    ("a.html",
     "<tr translate=no><td>a<td>b<tr><td>t<p translate=no>a <my-b>b</my-b> c<p>t</p></table>t"),
    ("a.html", "<ul><li translate=no><p>b<svg/>c<x-y/>d<li>t</ul>t<td translate=no>a<p>b<td>t"),
    ("a.md", '*t-**t** t* https://[::1]:80/x?y[z]=a t\n\n*t (**t**) t* *t: "**t**" t* t\n'),
    ("a.vtt", "00:01.000 --> 00:02.000\nt<00:00:01.200> t &amp; t\n"),
    ("a.srt", "1\n0:01 --> 0:02\nt\n2\n0:03 --> 0:04\nt\n\n0:05 --> 0:06\n0:07 --> 0:08\n2 t\n"),
]  # fmt: skip
"""Documents of which "t" is to be translated if it stands alone."""


@pytest.mark.parametrize(("name", "content"), SMALL)
def test_what_only_looks_like_text_stays_and_all_text_is_found(tmp_path, name, content):
    assert translated(tmp_path, name, content)[0] == re.sub(r"(?<![\w<])t(?![\w=])", "T", content)


def test_a_target_of_xliff_has_its_language_and_the_text_of_cdata(tmp_path):
    source = '<source xml:lang="en">a <![CDATA[b & c]]></source>'
    text, lines = translated(tmp_path, "a.xlf", f"<xliff version='1.2'><file><trans-unit>{source}</trans-unit></file></xliff>")  # fmt: skip # noqa: E501
    assert lines == ["a b & c"]
    assert 'xml:lang="de" state="needs-review-translation">A B &amp; C<' in text


def test_the_singular_needs_a_form_of_its_own(tmp_path):
    header = HEADER.replace("KOI8-R", "UTF-8")
    plural = 'msgid "one cat"\nmsgid_plural "%d cats"\nmsgstr[0] ""\n'
    russian = polib.pofile(translated(tmp_path, "a.po", header + plural, "ru")[0])[0]
    assert set(russian.msgstr_plural.values()) == {"%d CATS"}  # the first form is also that of 21
    unknown = 'msgid ""\nmsgstr ""\n\n#, no-c-format\nmsgid "100% of it"\nmsgstr ""\n\n' + plural
    file = polib.pofile(translated(tmp_path, "b.po", unknown, "crh")[0])
    assert file[0].msgstr == "100% OF IT"
    assert list(file[1].msgstr_plural.values()) == ["ONE CAT", "%d CATS"]
