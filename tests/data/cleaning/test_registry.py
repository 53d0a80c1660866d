import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from gshard_nmt.data.cleaning import registry, report
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.config import FILTERS, Cleaning
from gshard_nmt.data.cleaning.registry import clean
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError

OWN = '''
from gshard_nmt.data.cleaning import registry

@registry.filter
def no_shouting(rows, about):
    """Drops pairs in capital letters."""
    return [not row.source.isupper() for row in rows]
'''


@pytest.fixture(autouse=True)
def _restore():
    """Forgets the filters and modules that a test adds."""
    filters = registry.filters  # a test may replace it
    filters(Cleaning())  # imports the built-in filters
    before, modules = dict(registry._filters), set(sys.modules)
    yield
    registry._filters.clear()
    registry._filters.update(before)
    filters.cache_clear()
    for name in set(sys.modules) - modules:
        if "gshard_cleaning_" in name or name == "own_filters":
            del sys.modules[name]


def test_a_file_adds_its_filters(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    settings = Cleaning(modules=(str(tmp_path / "own.py"),))
    assert tuple(registry.filters(settings)) == (*FILTERS, "no_shouting")
    rows = [SentencePair("HALLO", "HELLO"), SentencePair("Hallo", "Hello")]
    assert clean(rows, About("de", "en", settings=settings)).removed == {"no_shouting": 1}
    # It may run earlier, or not at all.
    first = Cleaning(filters=("no_shouting", *FILTERS), modules=settings.modules)
    assert tuple(registry.filters(first)) == ("no_shouting", *FILTERS)
    without = Cleaning(modules=settings.modules, without=("no_shouting",))
    assert tuple(registry.filters(without)) == FILTERS
    # Another config does not get it.
    assert tuple(registry.filters(Cleaning())) == FILTERS
    with pytest.raises(UserError, match="there is no filter of this name"):
        registry.filters(Cleaning(filters=("no_shouting",)))


def test_an_unknown_name_lists_the_known_ones():
    known = ", ".join([*FILTERS, "language"])
    with pytest.raises(UserError) as error:
        registry.filters(Cleaning(filters=("ration",)))
    assert str(error.value) == (
        "Cleaning.filters has 'ration', but there is no filter of this name; did you mean 'ratio'? "
        f"Known: {known}."
    )
    with pytest.raises(UserError, match=r"Cleaning.without has 'xyz', but there is no filter"):
        registry.filters(Cleaning(without=("xyz",)))


@pytest.mark.parametrize(
    ("text", "problem"), [(None, "FileNotFoundError"), ("1 / 0", "ZeroDivisionError")]
)
def test_a_module_that_cannot_be_imported_is_named(tmp_path, text, problem):
    path = tmp_path / "own.py"
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=f"which cannot be imported: {problem}"):
        registry.filters(Cleaning(modules=(str(path),)))
    with pytest.raises(UserError, match="'no_such_module', which cannot be imported"):
        registry.filters(Cleaning(modules=("no_such_module",)))


def test_two_filters_of_one_name_are_refused(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN.replace("no_shouting", "ratio"))
    with pytest.raises(UserError, match="has a filter called 'ratio', and so has gshard_nmt"):
        registry.filters(Cleaning(modules=(str(path),)))


def test_the_identity_knows_the_code_of_own_filters(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "own.py"
    path.write_text(OWN)
    settings = Cleaning(modules=(str(path),))
    before = registry.identity(settings)
    assert registry.identity(settings) == before
    path.write_text(f"{OWN}# changed\n")
    assert registry.identity(settings) != before
    assert registry.identity(Cleaning())["identifier"] == ""
    assert registry.identity(Cleaning(filters=("language",)))["identifier"][0].isdigit()
    assert registry.identity(Cleaning(ratio=4)) != registry.identity(Cleaning())


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


def use(monkeypatch, function):
    """Runs a function as the only filter."""
    monkeypatch.setattr(registry, "filters", lambda settings: {function.__name__: function})
    return clean([GOOD, BAD["numbers"], GOOD], ABOUT)


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

    def edits(rows, about):
        rows[0] = None

    with pytest.raises(UserError, match=r"the filter 'edits' of .* failed on de-en: TypeError"):
        use(monkeypatch, edits)

    def short(rows, about):
        return [True]

    with pytest.raises(UserError, match=r"the filter 'short' of .* returned 1 entries for 3 rows"):
        use(monkeypatch, short)

    def words(rows, about):
        return np.array(["yes", "no", "yes"])

    with pytest.raises(UserError, match="It must return True or False for each row"):
        use(monkeypatch, words)
