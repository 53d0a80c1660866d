"""Placeholders, and the forms in which variants of a text are equal."""

import random
import unicodedata

import hypothesis
import pytest
from hypothesis import strategies as st

from gshard_nmt.data.text import normal_form


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Copy %d files to %-5.2f", ["%d", "%-5.2f"]),
        ("%(name)s and %1$s and %2", ["%(name)s", "%1$s", "%2"]),
        ("{} {name} {0:>8}", ["{}", "{name}", "{0:>8}"]),
        ("${HOME} $USER {{ user.name }}", ["${HOME}", "$USER", "{{ user.name }}"]),
        ("Open <file name> at https://a.org/b?c=1.", ["<file name>"]),
        ("Write to me@mail.org!", []),
        ("<b>100% of it</b>, 50%discount, 3 < 4 and 5 > 2", []),
    ],
)
def test_placeholders(text, expected):
    assert normal_form.placeholders(text) == expected


def test_words_are_characters_if_there_are_no_spaces():
    assert normal_form.words("Open THE %s file2!") == ["open", "the", "file"]
    assert normal_form.words("打开文件 ফাইলটি") == [*"打开文件", "ফইলট"]


@pytest.mark.parametrize(
    "variants",
    [
        ("%d files", "{count} file", "1 File", "One file", "a file!"),
        ("%d entries are left", "One entry is left"),
        ("2 cookies", "<n> cookie"),
        ("Delete these processes?", "Delete this process?"),
        ("%d matches", "%d match"),
    ],
)
def test_variants_of_a_message_have_one_form(variants):
    assert len({normal_form.message_form(text) for text in variants}) == 1


def test_sentences_are_equal_without_case_digits_and_placeholders():
    assert normal_form.sentence_form("Read 3 of %d files.") == normal_form.sentence_form(
        "read {n} OF files"
    )
    assert normal_form.sentence_form("12 %") == ""
    assert normal_form.sentence_form("files") != normal_form.sentence_form("file")


def test_near_forms_keep_what_changes_the_meaning():
    assert normal_form.near_form("Das  HAUS!") == normal_form.near_form("das haus") == "dashaus"
    texts = ("Kapitel 1", "Kapitel 2", "Kapitel %s", "Kapitel", "की", "का", "1", "...", "")
    assert len({normal_form.near_form(text) for text in texts}) == len(texts)


INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
SPACES = " \u00a0\u2009\u202f\u3000"
QUOTES = "'\u2019\u2018\u201c`"
FULL_WIDTH = {chr(point): chr(point + 0xFEE0) for point in range(0x21, 0x7F)}


def spelled(text, seed):
    """Returns a text in which each character is spelled in some equivalent way."""
    r = random.Random(seed)
    characters = []
    for character in text:
        same = next((kinds for kinds in (SPACES, QUOTES) if character in kinds), character)
        spelling = r.choice([*same, FULL_WIDTH.get(character, character)])
        characters.append(unicodedata.normalize(r.choice(["NFC", "NFD", "NFKC", "NFKD"]), spelling))
        if character.isalpha() and r.random() < 0.5:
            characters.append(r.choice(INVISIBLE))
    return "".join(characters)


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(
    st.text(st.sampled_from("aZéÖñßŵΐάйЁ각힣ấỗŌがプ漢कि12 ',x‑™"), max_size=12), st.integers(0, 99)
)
def test_equivalent_spellings_have_one_form(text, seed):
    other = spelled(text, seed)
    assert normal_form.sentence_form(other) == normal_form.sentence_form(text)
    if normal_form.sentence_form(text):
        assert normal_form.near_form(other) == normal_form.near_form(text)
    assert normal_form.sentence_form(other.upper()) == normal_form.sentence_form(text)
