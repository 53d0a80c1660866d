import hypothesis
import numpy as np
from hypothesis import strategies as st

from gshard_nmt.data.cleaning.block import (
    CONTROL,
    DIGIT,
    MARK,
    PLACEHOLDER,
    SUSPECT,
    VISIBLE,
    Block,
    Side,
)
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.data.text import normal_form
from gshard_nmt.data.text.scripts import script_of

_MEASURES = ("flags", "characters", "words", "letters", "own_letters", "weight")


def test_the_flags_of_a_line():
    lines = ["a", "", " \u200b\u00ad", "5", "٥", "a\x07", "%", "Ã", "\ufffd", "कि", "\ufffe"]
    side = Side(lines, "en")
    for flag, expected in {
        VISIBLE: {0, 3, 4, 5, 6, 7, 8, 9},
        DIGIT: {3, 4},
        CONTROL: {5, 10},
        PLACEHOLDER: {6},
        SUSPECT: {7, 8},
        MARK: {9},
    }.items():
        assert set(np.flatnonzero(side.has(flag)).tolist()) == expected, flag


def test_words_and_weights():
    side = Side(["two words", "", "  three  more words ", "你好 吗", "สวัสดี", "안녕 하세요"], "zh")
    # Thai vowel signs are no letters.
    assert side.words.tolist() == [2, 0, 3, 3, 4, 2]
    assert side.weight.tolist() == [9, 0, 20, 10, 6, 11]


TEXT = st.text(
    st.sampled_from(
        "aB zé1٣%{Ã\ufffd\x07\n\u2028你あ한ไиॐिß\U0001d4d0Ä²½_s}<b>का!\u0308\u0344\u0390\u1100\u1161＜ﬁ"
    ),
    max_size=12,
)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(st.lists(TEXT, min_size=1, max_size=6))
def test_the_measures_of_a_line_do_not_depend_on_the_other_lines(lines):
    together = Side(lines, "ja")
    for row, line in enumerate(lines):
        alone = Side([line], "ja")
        for name in _MEASURES:
            assert getattr(together, name)[row] == getattr(alone, name)[0], (name, line)
        assert together.characters[row] == len(line)
        assert together.letters[row] == sum(bool(script_of(c)) for c in line)
        assert together.own_letters[row] == sum(script_of(c) == "CJK" for c in line)
        assert together.forms[row] == normal_form.sentence_form(line)
        assert together.near_forms[row] == normal_form.near_form(line)


def test_the_rows_that_stay_keep_their_measures():
    rows = [SentencePair("eins", "one 1"), SentencePair("zwei", "two"), SentencePair("3", "Three!")]
    block = Block(rows, "de", "en")
    assert block.target.forms == ["one", "two", "three"]
    smaller = block.keep(np.array([True, False, True]))
    again = Block([rows[0], rows[2]], "de", "en")
    assert list(smaller) == list(again)
    for side, expected in zip(smaller.sides, again.sides, strict=True):
        assert side.lines == expected.lines
        assert side.forms == expected.forms
        assert side.near_forms == expected.near_forms
        for name in _MEASURES:
            np.testing.assert_array_equal(getattr(side, name), getattr(expected, name))
    assert block.keep(np.ones(3, bool)) is block
