"""The corpus of manuals, from tiny packages that are made here in place of Debian's."""

import itertools
import re
from pathlib import Path

import pytest

from gshard_nmt.data.sets.corpus import SPLITS, find_pairs, read_pairs
from gshard_nmt.data.text.normal_form import message_form
from gshard_nmt.errors import UserError
from scripts import manuals

HELP = """<html><body><header><p>LibreOffice Help</p></header><div>
<h1 id="hd_id1"><a name="x"></a>{}</h1>
<p id="par_id2" class="paragraph">{} <span class="emph">one</span>&amp;
 two<br>three <span><span class="MAC">Command<br></span><span>Ctrl</span></span> end.</p>
<p id="par_id3" class="code">{}</p> <p id="par_id4">{}</p> <p id="par_id4">{}</p></div>{}</body></html>"""
REFERENCE = """<html><body><li><p>Navigation</p></li><section id="top">
<h1><span class="section-number">5. </span>{}<a class="headerlink" href="#top">¶</a></h1><p>{}
<section id="sub"><p>{}</p><ul><li><p>{}</p></li></ul></section></section></body></html>"""
WORDS = "apple bear cloud door earth fire grass house ink juice king lamp moon nose oak pen"


def test_paragraphs_of_a_page_and_their_places():
    page = manuals.Page("p.html", HELP.format("Head", "Text", "x = 1", "First", "Second", ""))
    assert page.texts == {
        ("p.html", "hd_id1", "1"): "Head",
        ("p.html", "par_id2", "1"): "Text one& two three Ctrl end.",
        ("p.html", "par_id4", "1"): "First",
        ("p.html", "par_id4", "2"): "Second",
    }


def test_paragraphs_of_a_section_are_pairs_only_if_the_section_has_as_many():
    english = manuals.Page("p", REFERENCE.format("Head", "Text", "One", "Two")).texts
    assert english == {
        ("p", "top", "0 of 2"): "Head",
        ("p", "top", "1 of 2"): "Text",
        ("p", "sub", "0 of 2"): "One",
        ("p", "sub", "1 of 2"): "Two",
    }
    shorter = manuals.Page("p", REFERENCE.format("Kopf", "Worte", "Zwei", "")).texts
    rows = {row for some in manuals.split_rows(english, shorter).values() for row in some}
    assert rows == {("Kopf", "Head"), ("Worte", "Text")}


@pytest.fixture
def packages(monkeypatch):
    """Two manuals of 240 pages; the second language has every other page."""

    def fetch(package: str, folder: Path) -> None:
        code = re.sub("libreoffice-help-|developers-reference-?", "", package)
        for number, words in enumerate(itertools.permutations(WORDS.split(), 2)):
            # "Doors" is a variant of "door", so both are in the same split.
            english = f"{words[0]} {words[1]}{'s' * (number % 2)} is not here"
            line = english if code in ("", "en-us", "sk") else f"{code}{number % 50} {english}"
            if code != "pt-br" or number % 2:
                page = folder / "usr" / "help" / (code or "en") / "text" / f"{number}.html"
                page.parent.mkdir(parents=True, exist_ok=True)
                html = HELP if "office" in package else REFERENCE
                page.write_text(html.format(line, f"{line} twice", "a", "", "English words", ""))

    def apt(*command: str) -> str:
        codes = (
            ("common", "de", "en-gb", "en-us", "pt-br", "sk")
            if "office" in command[-1]
            else ("de",)
        )
        return "\n".join(command[-1] + code for code in codes)

    monkeypatch.setattr(manuals, "fetch", fetch)
    monkeypatch.setattr(manuals, "run_apt", apt)


def test_no_english_text_of_dev_and_test_is_in_training_text(packages, tmp_path, capsys):
    out = tmp_path / "deep" / "corpus"
    assert manuals.main(["--out", str(out)]) == 0
    forms: dict[str, set[str]] = {split: set() for split in SPLITS}
    pairs = find_pairs(out / "help")
    assert [pair.folder.name for pair in pairs] == ["de-en", "pt-BR-en"], (
        "nothing of sk is translated"
    )
    for pair, split in itertools.product(pairs, SPLITS):
        rows = list(read_pairs(pair, split, pair.language, "en"))
        assert rows
        assert "English words" not in dict(rows), "not translated"
        forms[split] |= {message_form(english) for _, english in rows}
    assert not forms["train"] & (forms["dev"] | forms["test"])
    assert not forms["dev"] & forms["test"]
    (reference,) = find_pairs(out / "reference")
    assert {text.split for text in reference.texts} == {"test"}
    assert "pt-BR" in capsys.readouterr().out
    assert [path.name for path in out.parent.iterdir()] == ["corpus"], "nothing else is left"


def test_an_interruption_leaves_nothing(packages, tmp_path, monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(manuals, "split_rows", interrupted)
    assert manuals.main(["--out", str(tmp_path / "corpus")]) == 130
    assert not list(tmp_path.iterdir())
    assert "interrupted" in capsys.readouterr().err


def test_wrong_arguments_and_a_machine_without_apt(tmp_path, monkeypatch, capsys):
    def message(out: Path) -> str:
        with pytest.raises(SystemExit) as end:
            manuals.main(["--out", str(out)])
        assert end.value.code == 2
        return capsys.readouterr().err

    assert "exists; remove it" in message(tmp_path)
    monkeypatch.setattr(manuals, "run_apt", lambda *_, **__: "")
    assert "sudo apt-get update" in message(tmp_path / "new")
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Debian or Ubuntu" in message(tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_an_error_of_apt_is_told_with_what_to_do():
    with pytest.raises(UserError, match=r"(?s)ls .*nowhere.* failed: .*apt-get update"):
        manuals.run_apt("ls", "/nowhere")
