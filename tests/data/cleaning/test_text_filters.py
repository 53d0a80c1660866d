import builtins

import pytest

from gshard_nmt.data.cleaning import text_filters
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError


def keeps(function, source, target, languages="de-en", **settings):
    """Returns whether a filter keeps a pair. A good pair beside it is always kept."""
    about = About(*languages.split("-"), settings=Cleaning(**settings))
    rows = [SentencePair(source, target), SentencePair("5 Haus.", "5 a.")]
    first, second = function(Block(rows, about.source, about.target), about).tolist()
    assert second
    return first


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("a", "b", True),
        ("...", "!", True),
        ("", "b", False),
        ("a", " \t\u3000\u00a0\u200b\ufeff", False),
        ("", "", False),
    ],
)
def test_empty(source, target, expected):
    assert keeps(text_filters.empty, source, target) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb", True),
        ("می\u200cخواهم \u200eabc", True),
        ("a\x07", False),
        ("a\x7f", False),
        ("a\x85", False),
        ("a\x00", False),
        ("\uffff", False),
    ],
)
def test_control(text, expected):
    assert keeps(text_filters.control, text, "ok") == expected
    assert keeps(text_filters.control, "ok", text) == expected


def in_encoding(text, encoding="cp1252"):
    return text.encode().decode(encoding)


GOOD = (
    "Ça, c'est l'été à Évian: «MENÜ» ‹NOËL› „Iné…“ “É”–Â Î° NÃO SÃO MAÇÃ café… ß§ 5 Ðº",
    "Đà Nẵng, Ấn Độ, TÔI ĐÃ ĂN",
    "ÁÉÍÓÚ ÄÖÜ ÅÆØ åæø þÞðÐ",
    "Größe: 5 × 3 § 7 ± 2 °C ½ ¿Qué? ¡Sí! 10 €",
)
BAD = (
    "caf\ufffd",
    in_encoding("Größe"),
    in_encoding("déjà vu"),
    in_encoding("it’s"),
    in_encoding("Привет"[:3], "latin-1"),
    in_encoding("文件夹", "latin-1"),
    in_encoding("हिन्दी", "latin-1"),
    in_encoding("\ufeffText"),
)


def test_encoding():
    for text in GOOD:
        assert keeps(text_filters.encoding, text, "ok"), text
    for text in BAD:
        assert not keeps(text_filters.encoding, text, "ok"), text
        assert not keeps(text_filters.encoding, "ok", f"x {text} y"), text


def test_length():
    length = text_filters.length
    assert keeps(length, "wort " * 10, "word", maximum_words=10)
    assert not keeps(length, "wort " * 11, "word", maximum_words=10)
    assert not keeps(length, "x", "a b " * 11, maximum_characters=40)
    assert keeps(length, "Haus " + "x" * 30, "house", longest_word=30)
    assert not keeps(length, "Haus " + "x" * 31, "house", longest_word=30)
    # Chinese has no spaces; each character is a word.
    assert keeps(length, "文" * 100, "word", "zh-en", longest_word=30)
    assert not keeps(length, "文" * 100, "word", "zh-en", maximum_words=99)


def test_ratio():
    ratio = text_filters.ratio
    assert keeps(ratio, "a" * 75, "b" * 15)
    assert not keeps(ratio, "a" * 76, "b" * 15)
    assert not keeps(ratio, "b" * 15, "a" * 76)
    assert keeps(ratio, "ja", "yes, of course I do")
    assert keeps(ratio, "我" * 10, "a" * 90, "zh-en")
    assert not keeps(ratio, "a" * 10, "b" * 90)
    assert keeps(ratio, "a" * 10, "b" * 90, ratio=10)


@pytest.mark.parametrize(
    ("source", "target", "languages", "expected"),
    [
        ("Press any key", "press  any KEY", "de-en", False),
        ("Press any key", "Press any keys", "de-en", True),
        ("Port Said", "Port Said", "de-en", True),
        ("1 2 3 4", "1 2 3 4", "de-en", True),
        ("uma frase de teste", "uma frase de teste", "pt-BR-pt", True),
    ],
)
def test_identical(source, target, languages, expected):
    if languages == "pt-BR-pt":
        about = About("pt-BR", "pt")
        assert text_filters.identical(
            Block([SentencePair(source, target)], "pt-BR", "pt"), about
        ).all()
        return
    assert keeps(text_filters.identical, source, target, languages) == expected


@pytest.mark.parametrize(
    ("source", "target", "languages", "expected"),
    [
        ("Откройте файл", "Open the file", "ru-en", True),
        ("Open the file", "Open a folder", "ru-en", False),
        ("Открыть", "Открыть файл", "ru-en", False),
        ("Ελληνικά", "Greek", "io-en", False),
        # Words that both sides have do not count.
        ("Файл PostScript (*.ppd)", "PostScript file (*.ppd)", "ru-en", True),
        ("%(max_length)s ಪದ", "%(max_length)s word", "kn-en", True),
        # Too short, or a language whose script is not known.
        ("OK", "Да", "ru-en", True),
        ("Open the file", "Open a folder", "tlh2-en", True),
        ("Otvori datoteku", "Open the file", "sr-en", True),
        ("Otvori datoteku", "Open the file", "sr-Cyrl-en", False),
        ("ファイルを開く", "Open the file", "ja-en", True),
        ("파일 열기 中", "Open the file", "ko-en", True),
    ],
)
def test_script(source, target, languages, expected):
    language = languages.removesuffix("-en")
    block = Block([SentencePair(source, target)], language, "en")
    assert text_filters.script(block, About(language, "en")).tolist() == [expected]
    swapped = Block([SentencePair(target, source)], "en", language)
    assert text_filters.script(swapped, About("en", language)).tolist() == [expected]


def keeps_both_ways(function, source, target):
    first, second = keeps(function, source, target), keeps(function, target, source)
    assert first == second, "the order of the sides does not matter"
    return first


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("im Jahr 2019", "in 2019", True),
        ("im Jahr 2019", "in 2018", False),
        ("1.000 Euro", "1,000 euros", True),
        ("1 000 Euro", "1000 euros", True),
        ("2,5 Millionen", "2,500,000", True),
        ("31.12.2020", "12/31/2020", True),
        ("um 15:30", "at 3:30 pm", True),
        ("١٢٣٤ ملف", "1234 files", True),
        ("१२३४ फ़ाइल", "1235 files", False),
        # Spelled out on one side; one digit; a calendar or a unit is a contradiction.
        ("45 Jahre", "forty-five years", True),
        ("4 Jahre", "5 years", True),
        ("88 km", "55 miles", False),
        ("%1$s hat 12 Dateien", "%2$s has 12 files", True),
        ("1998-99", "1998–1999", True),
    ],
)
def test_numbers(source, target, expected):
    assert keeps_both_ways(text_filters.numbers, source, target) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("siehe https://de.example.org/a", "see https://example.org/b", True),
        ("siehe https://example.org/a", "see below", False),
        ("Schreiben Sie an a@example.org", "Write to us", False),
        ("siehe www.example.org", "see http://example.org", True),
        ("@user sagt", "user says", True),
    ],
)
def test_addresses(source, target, expected):
    assert keeps_both_ways(text_filters.addresses, source, target) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("%s kopieren nach %s", "copy %s to %s", True),
        ("%2$s nach %1$-5s", "%s to %s", True),
        ("%u Dateien", "%d files", True),
        ("Datei kopieren", "copy %s", False),
        ("{name} kopieren", "copy {names}", False),
        ("{ name } kopieren", "copy {name}", True),
        ("$USER fehlt", "$USER is missing", True),
        ("<Datei> kopieren", "copy <file>", True),
        ("100 % sicher", "100 % sure", True),
        ("5 $", "5 dollars", True),
    ],
)
def test_placeholders(source, target, expected):
    assert keeps_both_ways(text_filters.placeholders, source, target) == expected


def test_score():
    rows = [SentencePair("a", "b", score) for score in (0.4, 0.5, None, -1.0)]
    block = Block(rows, "de", "en")
    with_limit = About("de", "en", settings=Cleaning(minimum_score=0.5))
    assert text_filters.score(block, with_limit).tolist() == [False, True, True, False]
    assert text_filters.score(block, About("de", "en")).all()


GERMAN = "Die Datei konnte leider nicht geöffnet werden, weil sie gelöscht wurde."
ENGLISH = "The file could not be opened, because somebody had deleted it."


def masks(source, *pairs):
    block = Block([SentencePair(*pair) for pair in pairs], source, "en")
    return text_filters.language(block, About(source, "en")).tolist()


def test_a_side_in_another_language_is_dropped():
    pairs = [(GERMAN, ENGLISH), (ENGLISH, ENGLISH), (GERMAN, GERMAN), ("Home", "The home")]
    assert masks("de", *pairs) == [True, False, False, True]


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch):
    real_import = builtins.__import__

    def without_package(name, *args, **kwargs):
        if name.startswith("py3langid"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_package)
    text_filters.identifier.cache_clear()
    with pytest.raises(UserError) as error:
        masks("de", (GERMAN, ENGLISH))
    assert str(error.value) == (
        "Cleaning.filters has 'language', which needs the package py3langid. Install it: "
        "pip install 'gshard-nmt[langid]'."
    )
