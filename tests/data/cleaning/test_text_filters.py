import pytest

from gshard_nmt.data.cleaning import text_filters
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.sets.corpus import SentencePair


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
