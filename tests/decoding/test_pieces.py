"""Lines that are too long: split so that nothing is lost, and their translations joined."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.decoding.pieces import Translation, join, pieces_note, separator, split


def letters(texts):
    """Measures a text by its characters, and an end of sentence."""
    return [len(text) + 1 for text in texts]


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("Go home. Now! Why? So…", ["Go home.", "Now!", "Why?", "So…"]),
        ('He said: "No." (Really?) Then he left.', ['He said: "No."', "(Really?)", "Then he left."]),
        ("Oui... «Non!» Si.", ["Oui...", "«Non!»", "Si."]),
        ("It was 1990. Then came more", ["It was 1990.", "Then came more"]),
        ("我来了。他说：“你好！”然后走了", ["我来了。", "他说：“你好！”", "然后走了"]),
        ("本当？！はい｡いいえ", ["本当？！", "はい｡", "いいえ"]),
        ("मैं घर गया। तुम कहाँ हो॥ हाँ", ["मैं घर गया।", "तुम कहाँ हो॥", "हाँ"]),
        ("یہ ایک ہے۔ کیا؟ ہاں", ["یہ ایک ہے۔", "کیا؟", "ہاں"]),
        ("Սա մեկն է։ Այո", ["Սա մեկն է։", "Այո"]),
        ("ይህ ነው። አዎ", ["ይህ ነው።", "አዎ"]),
        ("ဒါ။ဟုတ်", ["ဒါ။", "ဟုတ်"]),
        ("នេះ។ បាទ", ["នេះ។", "បាទ"]),
        ("འདི།ཡིན", ["འདི།", "ཡིན"]),
    ],
)  # fmt: skip
def test_a_line_is_split_at_the_ends_of_its_sentences(line, sentences):
    """The line does not fit, but its sentences do."""
    assert split(line, letters, len(line)) == sentences


@pytest.mark.parametrize(
    "line",
    [
        "Dr. Smith paid No. 5 and 3.14 to J. S. Bach, Inc. Limited",
        "See example.org/a.b?c=d or e.g. Paris",
        "Am 3. Oktober, z. B. Berlin",
        "He asked: why? and left, approx. five of them",
        "Проф. Иванов, см. Рис. 5",
        "値は３．１４です",
    ],
)
def test_abbreviations_numbers_and_addresses_end_no_sentence(line):
    assert split(line + "! Next", letters, len(line) + 2) == [line + "!", "Next"]


def test_a_long_sentence_is_split_at_commas_then_at_spaces_then_anywhere():
    assert split("one two, three four, five six.", letters, 22) == [
        "one two, three four,",
        "five six.",
    ]
    assert split("我们去北京，他们去上海、广州。", letters, 8) == [
        "我们去北京，",
        "他们去上海、",
        "广州。",
    ]
    assert split("one two three four", letters, 9) == ["one two", "three", "four"]
    assert split("abcdefghij", letters, 6) == ["abcde", "fghij"]


def test_a_character_cluster_stays_together_if_it_can():
    assert split("e\u0301" * 3, letters, 5) == ["e\u0301" * 2, "e\u0301"]
    assert split("\u0301" * 4, letters, 3) == ["\u0301" * 2] * 2


def test_a_text_with_more_tokens_than_its_parts_still_fits():
    def costly(texts):
        return [len(text) + 1 + 5 * text.count("b a") for text in texts]

    pieces = split("ab ab ab ab", costly, 7)
    assert "".join(pieces).replace(" ", "") == "abababab"
    assert all(length <= 7 for length in costly(pieces))


TEXTS = st.text(st.sampled_from("aB1 .!?,。、।۔ \u0301\u200d\t\u2028\"')中…"), max_size=60)


@settings(deadline=None)
@given(TEXTS, st.integers(2, 12))
def test_nothing_is_lost_and_every_piece_fits(line, limit):
    pieces = split(line, letters, limit)
    assert "".join("".join(pieces).split()) == "".join(line.split())
    assert all(len(piece) < limit for piece in pieces)
    assert len(line) >= limit or pieces == [line]


@pytest.mark.parametrize("unit", [".", ",)", "。", ". ", "a. ", " ", "\u0301", '."', "x"])
def test_a_line_of_a_hundred_thousand_characters_takes_no_quadratic_time(unit):
    line = unit * (100_000 // len(unit)) + "a"
    began = time.process_time()
    assert max(map(len, split(line, letters, 64))) < 64
    # It takes some tenths of a second, and in quadratic time minutes.
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("language", "space"),
    [
        ("en", " "), ("th", " "), ("km", " "), ("ko", " "), ("zha", " "), ("zh-Latn-pinyin", " "),
        ("zh", ""), ("zh-Hant-TW", ""), ("zh_CN", ""), ("ja", ""), ("yue", ""),
    ],
)  # fmt: skip
def test_only_chinese_and_japanese_have_no_space_between_sentences(language, space):
    assert separator(language) == space


def test_the_score_of_a_joined_line_is_renormalized_by_its_whole_length():
    pieces = [
        [Translation("A.", -3 / 2, 2), Translation("AA.", -8 / 3, 3)],
        [Translation("", -1.0, 1), Translation("B.", -4 / 2, 2), Translation("C.", -9.0, 2)],
    ]
    joined = join(pieces, " ", lambda longest: np.arange(longest + 1))
    # Log-probabilities -3 and -1 of 2 + 1 tokens; -8 and -4 of 3 + 2 tokens.
    assert joined == [("A.", pytest.approx(-4 / 3), 3), ("AA. B.", pytest.approx(-12 / 5), 5)]


def test_the_note_has_the_first_numbers_alone():
    start = "more than 64 tokens, so translated in pieces: "
    assert pieces_note([1234], 64) == f"{start}line 1,234."
    assert pieces_note([*range(3, 9)], 64) == f"{start}lines 3, 4, 5, 6, 7 and 1 more."
