"""Printed text cannot move the cursor, hide, or turn around what stands beside it."""

from gshard_nmt.data.cleaning.terminal import shown


def test_control_and_format_characters_become_escapes():
    assert shown("a\x1b[31mb\tc\u202ed\U000e0041") == "a\\x1b[31mb\\tc\\u202ed\\U000e0041"


def test_right_to_left_text_is_isolated():
    assert shown("שלום!") == "\u2068שלום!\u2069"
    assert shown("hello") == "hello"


def test_joiners_inside_words_stay():
    assert shown("می\u200cخواهم") == "\u2068می\u200cخواهم\u2069"


def test_a_long_text_is_cut():
    assert shown("x" * 100, 10) == "x" * 9 + "…"
    assert shown("x" * 100, 0) == "x" * 100
