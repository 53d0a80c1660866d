import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from gshard_nmt.data.cleaning import registry, samples
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.clean import clean
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError

GOOD = SentencePair("Das ist ein Haus.", "That is a house.")
BAD = {
    "empty": SentencePair("", "That is a house."),
    "control": SentencePair("Das ist\x07 ein Haus.", "That is a house."),
    "encoding": SentencePair("GrÃ¶ÃŸe", "Size"),
    "length": SentencePair("wort " * 300, "word " * 300),
    "ratio": SentencePair("x" * 100, "y"),
    "identical": SentencePair("Click the button", "Click the button"),
    "script": SentencePair("Откройте этот файл", "Open this file"),
    "numbers": SentencePair("im Jahr 2018", "in the year 2019"),
    "addresses": SentencePair("siehe http://example.org", "see below"),
    "placeholders": SentencePair("%s kopieren", "Copying"),
}
ABOUT = About("de", "en")


def test_each_filter_counts_what_it_drops():
    rows = [row for bad in BAD.values() for row in (GOOD, bad)]
    cleaned = clean(rows, ABOUT)
    assert list(cleaned.rows) == [GOOD] * len(BAD)
    assert cleaned.indices.tolist() == list(range(0, 2 * len(BAD), 2))
    assert dict(cleaned.removed) == dict.fromkeys(BAD, 1)
    assert {name: (s.source, s.target) for name, (s,) in cleaned.samples.items()} == {
        name: tuple(text if len(text) <= 400 else f"{text[:400]}…" for text in row[:2])
        for name, row in BAD.items()
    }


def test_filters_can_be_left_out():
    rows = [GOOD, BAD["numbers"], BAD["script"]]
    settings = Cleaning(without=("numbers",))
    cleaned = clean(rows, About("de", "en", settings=settings))
    assert dict(cleaned.removed) == {"script": 1}
    cleaned = clean(rows, About("de", "en", settings=Cleaning(filters=())))
    assert list(cleaned.rows) == rows
    assert cleaned.samples == {}


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(st.lists(st.sampled_from([GOOD, *BAD.values()]), max_size=20), st.integers(1, 6))
def test_any_split_into_blocks_leaves_the_same_rows(rows, size):
    whole = clean(rows, ABOUT)
    parts = [clean(rows[i : i + size], ABOUT) for i in range(0, len(rows), size)]
    assert [row for part in parts for row in part.rows] == list(whole.rows)
    assert [
        index + number * size
        for number, part in enumerate(parts)
        for index in part.indices.tolist()
    ] == whole.indices.tolist()
    assert sum((part.removed for part in parts), start=whole.removed.__class__()) == whole.removed
    assert samples.merge(part.samples for part in parts) == whole.samples


def test_no_rows():
    cleaned = clean([], ABOUT)
    assert list(cleaned.rows) == []
    assert cleaned.indices.tolist() == []


def use(monkeypatch, function):
    """Runs a function as the only filter."""
    monkeypatch.setattr(registry, "filters", lambda settings: {function.__name__: function})
    return clean([GOOD, BAD["numbers"], GOOD], ABOUT)


def test_a_filter_may_return_a_list_of_bools(monkeypatch):
    def no_years(rows, about):
        return ["20" not in row.source for row in rows]

    cleaned = use(monkeypatch, no_years)
    assert list(cleaned.rows) == [GOOD, GOOD]
    assert dict(cleaned.removed) == {"no_years": 1}


def test_a_filter_may_edit_rows(monkeypatch):
    def upper(rows, about):
        return [None if "2018" in r.source else r._replace(source=r.source.upper()) for r in rows]

    cleaned = use(monkeypatch, upper)
    assert list(cleaned.rows) == [GOOD._replace(source="DAS IST EIN HAUS.")] * 2
    assert cleaned.indices.tolist() == [0, 2]
    assert dict(cleaned.removed) == {"upper": 1}
    assert dict(cleaned.edited) == {"upper": 2}


def test_a_filter_that_fails_or_returns_something_else_is_named(monkeypatch):
    def broken(rows, about):
        return [1 / 0 for _ in rows]

    with pytest.raises(
        UserError, match=r"the filter 'broken' of .* failed on de-en: ZeroDivisionError"
    ):
        use(monkeypatch, broken)

    def short(rows, about):
        return [True]

    with pytest.raises(UserError, match=r"the filter 'short' of .* returned 1 entries for 3 rows"):
        use(monkeypatch, short)

    def words(rows, about):
        return np.array(["yes", "no", "yes"])

    with pytest.raises(UserError, match="It must return True or False for each row"):
        use(monkeypatch, words)


def test_the_limits_of_the_settings_are_used():
    row = SentencePair("a" * 30, "b")
    assert clean([row], ABOUT).removed == {}
    strict = About("de", "en", settings=Cleaning(ratio=2))
    assert clean([row], strict).removed == {"ratio": 1}
