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


KEPT = {
    "empty": [("a", "b"), ("...", "!")],
    "control": [("a\tb", "ok"), ("می\u200cخواهم \u200eabc", "ok")],
    "encoding": [(text, "ok") for text in GOOD],
    "identical": [
        ("Press any key", "Press any keys"), ("Port Said", "Port Said"), ("1 2 3 4", "1 2 3 4"),
    ],
    # Numbers may be spelled out on one side, or have one digit.
    "numbers": [
        ("im Jahr 2019", "in 2019"), ("1.000 Euro", "1,000 euros"), ("1 000 Euro", "1000 euros"),
        ("2,5 Millionen", "2,500,000"), ("31.12.2020", "12/31/2020"), ("um 15:30", "at 3:30 pm"),
        ("١٢٣٤ ملف", "1234 files"), ("45 Jahre", "forty-five years"), ("4 Jahre", "5 years"),
        ("%1$s hat 12 Dateien", "%2$s has 12 files"), ("1998-99", "1998–1999"),
    ],
    "addresses": [
        ("siehe https://de.example.org/a", "see https://example.org/b"), ("@user sagt", "user says"),
        ("siehe www.example.org", "see http://example.org"),
    ],
    "placeholders": [
        ("%s kopieren nach %s", "copy %s to %s"), ("%2$s nach %1$-5s", "%s to %s"), ("5 $", "5 dollars"),
        ("%u Dateien", "%d files"), ("{ name } kopieren", "copy {name}"),
        ("$USER fehlt", "$USER is missing"), ("<Datei> kopieren", "copy <file>"),
        ("100 % sicher", "100 % sure"),
    ],
}  # fmt: skip
DROPPED = {
    "empty": [("", "b"), ("a", " \t\u3000\u00a0\u200b\ufeff"), ("", "")],
    "control": [(text, "ok") for text in ("a\x07", "a\x7f", "a\x85", "a\x00", "\uffff")],
    "encoding": [pair for text in BAD for pair in ((text, "ok"), (f"x {text} y", "ok"))],
    "identical": [("Press any key", "press  any KEY")],
    "numbers": [("im Jahr 2019", "in 2018"), ("१२३४ फ़ाइल", "1235 files"), ("88 km", "55 miles")],
    "addresses": [
        ("siehe https://example.org/a", "see below"), ("an a@b.org", "at the @ desk"),
        ("Schreiben Sie an a@example.org", "Write to us"),
    ],
    "placeholders": [("Datei kopieren", "copy %s"), ("{name} kopieren", "copy {names}")],
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_a_filter_keeps_good_pairs_and_drops_bad_ones_in_any_order_of_the_sides(name):
    function = getattr(text_filters, name)
    for pairs, expected in ((KEPT[name], True), (DROPPED[name], False)):
        for first, second in pairs:
            assert keeps(function, first, second) == expected, (first, second)
            assert keeps(function, second, first) == expected, (second, first)


def test_two_variants_of_a_language_may_have_equal_sides():
    block = Block([SentencePair("uma frase de teste", "uma frase de teste")], "pt-BR", "pt")
    assert text_filters.identical(block, About("pt-BR", "pt")).all()


def test_length():
    length = text_filters.length
    assert keeps(length, "wort " * 10, "word", maximum_words=10)
    assert not keeps(length, "wort " * 11, "word", maximum_words=10)
    assert not keeps(length, "x", "a b " * 11, maximum_characters=40)
    assert keeps(length, "Haus " + "x" * 30, "house", longest_word=30)
    assert not keeps(length, "Haus " + "x" * 31, "house", longest_word=30)
    assert keeps(length, "ကို" * 50, "word", "my-en", longest_word=30)
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


def test_score():
    block = Block([SentencePair("a", "b", score) for score in (0.4, 0.5, None, -1.0)], "de", "en")
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
