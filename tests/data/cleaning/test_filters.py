import sys

import hypothesis
import pytest
from hypothesis import strategies as st

from gshard_nmt.data.cleaning import filters, report
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.config import FILTERS, Cleaning
from gshard_nmt.data.cleaning.filters import clean
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError


def test_an_unknown_name_lists_the_known_ones():
    known = ", ".join([*FILTERS, "language"])
    with pytest.raises(UserError) as error:
        filters.filters(Cleaning(filters=("ration",)))
    assert str(error.value) == (
        "Cleaning.filters has 'ration', but there is no filter of this name; did you mean 'ratio'? "
        f"Known: {known}."
    )
    with pytest.raises(UserError, match=r"Cleaning.without has 'xyz', but there is no filter"):
        filters.filters(Cleaning(without=("xyz",)))


def test_the_identity_knows_the_settings_and_the_package():
    assert filters.identity(Cleaning())["identifier"] == ""
    assert filters.identity(Cleaning(filters=("language",)))["identifier"][0].isdigit()
    assert filters.identity(Cleaning(ratio=4)) != filters.identity(Cleaning())


def test_a_missing_package_is_named_before_anything_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    filters.text_filters.identifier.cache_clear()
    with pytest.raises(
        UserError, match=r"needs the package py3langid.*pip install 'gshard-nmt\[langid\]'\.$"
    ):
        filters.identity(Cleaning(filters=("language",)))


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
    cleaned = clean([row for bad in BAD.values() for row in (GOOD, bad)], ABOUT)
    assert list(cleaned.rows) == [GOOD] * len(BAD)
    assert cleaned.indices.tolist() == list(range(0, 2 * len(BAD), 2))
    assert dict(cleaned.removed) == dict.fromkeys(BAD, 1)
    assert {name: (s.source, s.target) for name, (s,) in cleaned.samples.items()} == {
        name: tuple(text if len(text) <= 400 else f"{text[:400]}…" for text in row[:2])
        for name, row in BAD.items()
    }


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
    assert report.merge(part.samples for part in parts) == whole.samples
