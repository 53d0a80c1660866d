"""Rows of text: one line each, and scores that are numbers."""

import pytest

from gshard_nmt.data.reading.rows import one_line, score_of
from gshard_nmt.errors import UserError


def test_a_text_becomes_one_line():
    assert one_line("a\r\n\tb\n") == "a b"
    assert one_line(" a \u2028b") == " a \u2028b"


def test_a_score_is_a_finite_number_or_none():
    assert score_of(" 1.5 ", "x") == 1.5
    assert score_of(None, "x") is None
    for value in ("high", "nan", "inf", [1], {}):
        with pytest.raises(UserError, match=r"train.tsv, line 3 has the score '.*not a number"):
            score_of(value, "train.tsv, line 3")
