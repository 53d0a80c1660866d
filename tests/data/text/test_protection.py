"""Protected text: all that must not change is found, and comes back exactly where it was."""

import random
import time

import pytest

from gshard_nmt.data.text.normal_form import placeholders
from gshard_nmt.data.text.protection import MOST, decode, encode, put_back, spans, symbol, take_out
from gshard_nmt.data.text.vocabulary import (
    Vocabulary,
    VocabularySpec,
    reserved_symbols,
    train_vocabulary,
)

VALUES = {
    "printf": [
        "%s",
        "%1$s",
        "%(name)s",
        "%5.2f",
        "%%",
        "%ld",
        "%1",
        "%@",
        "%Y",
        "%{count}",
        "%<n>s",
    ],
    "braces": ["{}", "{name}", "{0:>8}", "{{ name | upper }}", "{% if x %}", "${HOME}", "$HOME"],
    "ICU": ["{n, number}", "{n, plural, one {# file} other {# {kind} files}}"],
    "markup": [
        "<b>",
        "</b>",
        '<a href="/x?y=1">',
        "<br/>",
        "<name>",
        "<!-- x y -->",
        "&amp;",
        "&#39;",
    ],
    "addresses": [
        "https://a.b/c?d=e",
        "www.x.org",
        "a.b@c.de",
        "HTTPS://A.B/C",
        "192.168.0.1",
        "10.0.0.0/8",
        "fe80::1",
    ],
    "versions": ["1.2.3", "v2.0", "2.10.0-rc1", "0x1F", "#ff00aa", "00:1b:44:11:3a:b7"],
    "files": ["/etc/hosts", "~/.bashrc", "./run.sh", r"C:\Users\x", "notes.tar.gz", "src/main.c"],
    "code": [
        "--output-x",
        "--help",
        "file_name",
        "MAX_SIZE",
        "strlen()",
        "`ls -la`",
        "%APP_DATA%",
        "<%= x %>",
    ],
    "signs": ["€", "≥", "→", "°"],
    "emoji": ["👍", "👋🏽", "🇫🇷", "👨\u200d👩\u200d👧", "☎\ufe0f", "1\ufe0f\u20e3"],
}


@pytest.fixture(
    scope="module", params=[("bpe", "nmt_nfkc"), ("bpe", "latin"), ("unigram", "identity")]
)
def vocabulary(request, tmp_path_factory) -> Vocabulary:
    model, normalization = request.param
    texts = [
        "copy the files to a folder 1 2 3",
        "“open” (all), and: close!",
        "東京 に 行く",
        "1. 2: 3)",
    ]
    spec = VocabularySpec(330, model, 0.9995, reserved_symbols(), normalization)
    return train_vocabulary(texts * 3, spec, tmp_path_factory.mktemp("vocabulary") / "x.model")


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_found_whole_in_any_place(kind):
    for value in VALUES[kind]:
        for before, after in (
            ("", ""),
            ("copy ", " now"),
            ("(", ")"),
            ('"', '".'),
            ("in ", ": no"),
        ):
            text = before + value + after
            assert [text[a:b] for a, b in spans(text)] == [value]


def test_plain_text_and_plain_numbers_are_not_protected():
    for text in (
        "Oui/Non, 24/7 or 50 % of $5: 1,000.5 or 1.000.000 on 12.05.2024 at 12:30:45!",
        "Save _As and Fi_le -- 50%discount; C'est à dire … l'été. (a) x < y > z & so #1",
        "© 2024",
        "<unknown function code>",
        "%50'si, %20 ve 20%-a; d.h. so tired.so; Fahrer /in oder /Stück, C`est l`école",
    ):
        assert [text[a:b] for a, b in spans(text)] == []
    text = "1,000.5 of %d on 12.05.2024, 12,5 % or 5 GB, 3 months"
    numbers = ["1,000.5", "%d", "12.05.2024", "12,5 %", "5 GB", "3"]
    assert [text[a:b] for a, b in spans(text, numbers=True)] == numbers


def test_all_placeholders_that_the_filters_compare_are_protected():
    for value in (v for values in VALUES.values() for v in values):
        text = f"open {value}, please"
        _, values = take_out(text, spans(text))
        assert all(any(p in v for v in values) for p in placeholders(text))


def lines(count: int):
    numbers = random.Random(1)
    values = [value for kind in VALUES.values() for value in kind]
    words = ["copy", "files", "to", "東京", "1", "2.5", "open", "3"]
    marks = [" ", ": ", "(", ") ", '"', ", ", " - "]
    for _ in range(count):
        parts = [numbers.choice(words) for _ in range(numbers.randrange(4))]
        parts += [numbers.choice(values) for _ in range(numbers.randrange(MOST + 1))]
        numbers.shuffle(parts)
        yield "".join(part + numbers.choice(marks) for part in parts)


def test_taken_out_encoded_decoded_and_put_back_gives_the_text(vocabulary):
    several = 0
    for text in lines(400):
        # A vocabulary makes one space of several.
        text = " ".join(text.split())
        around, values = take_out(text, spans(text))
        assert put_back(around, values) == text
        order = list(range(1, len(values) + 1))
        ids = encode(vocabulary, around, order, len(values))
        assert ids.count(symbol(vocabulary)) == len(values)
        texts, numbers = decode(vocabulary, ids, len(values))
        assert numbers == order
        assert put_back(texts, [values[number - 1] for number in numbers]) == text
        several += len(values) > 1
    assert several > 200


def test_digits_follow_the_symbols_only_if_there_are_several_values(vocabulary):
    ph = symbol(vocabulary)
    assert vocabulary.pieces(encode(vocabulary, ["(", ")1"], [1], 1))[-3:] == ["<ph>", ")", "1"]
    two = encode(vocabulary, ["", "1", ""], [2, 1], 2)
    assert vocabulary.pieces(two) == ["▁", "<ph>", "<0x32>", "1", "<ph>", "<0x31>"]
    # The second value of two, in a line with one symbol.
    assert vocabulary.pieces(encode(vocabulary, ["", ""], [2], 2)) == ["▁", "<ph>", "<0x32>"]
    assert decode(vocabulary, [ph], 2) == (["", ""], [0])
    assert decode(vocabulary, [ph, *vocabulary.encode(["x"])[0]], 1) == (["", " x"], [1])


def test_only_the_first_nine_values_are_taken_out():
    text = "".join(f"%{n}$s " for n in range(1, 12))
    around, values = take_out(text, spans(text))
    assert (len(around), len(values)) == (MOST + 1, MOST)
    assert around[-1] == " %10$s %11$s "


def test_a_vocabulary_without_the_symbol_protects_nothing(tmp_path):
    spec = VocabularySpec(300)
    assert symbol(train_vocabulary(["a b c d e"], spec, tmp_path / "x.model")) is None


def test_a_value_may_touch_letters_of_a_script_without_spaces():
    for text, value in {
        "https://example.com。谢谢": "https://example.com",
        "请联系info@example.com获取": "info@example.com",
        "请打开readme.txt": "readme.txt",
        "$HOME目录": "$HOME",
        "config_file文件": "config_file",
    }.items():
        assert [text[a:b] for a, b in spans(text)] == [value]
    assert [text[a:b] for text in ["in `%s' of `%s'"] for a, b in spans(text)] == ["%s", "%s"]


PARTS = (
    "%0",
    "<a =",
    "\\",
    "{ ",
    "${{",
    "/@",
    "请",
    "a_",
    "A_",
    "1.",
    ":",
    "ab:",
    "<!-- ",
    "a@",
    "www.",
    "-",
    "`a",
)


@pytest.mark.parametrize("part", PARTS)
def test_the_time_grows_with_the_length_alone(part):
    def seconds(length: int) -> float:
        text, best = part[0] + part[1:] * length if len(part) > 1 else part * length, 9.0
        for _ in range(3):
            began = time.process_time()
            spans(f"{text[:length]}é", numbers=True)
            best = min(best, time.process_time() - began)
        return best

    # Quadratic time would be 64 times as long.
    assert seconds(16_000) < 24 * max(seconds(2_000), 1e-3)
