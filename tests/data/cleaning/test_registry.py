import sys

import pytest

from gshard_nmt.data.cleaning import registry
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.clean import clean
from gshard_nmt.data.cleaning.config import FILTERS, Cleaning
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError

OWN = '''
from gshard_nmt.data.cleaning import registry

@registry.filter
def no_shouting(rows, about):
    """Drops pairs in capital letters.

    Really."""
    return [not row.source.isupper() for row in rows]
'''


@pytest.fixture(autouse=True)
def _restore():
    """Forgets the filters and modules that a test adds."""
    registry.filters(Cleaning())  # imports the built-in filters
    before, modules = dict(registry._filters), set(sys.modules)
    yield
    registry._filters.clear()
    registry._filters.update(before)
    registry._filters_of.cache_clear()
    for name in set(sys.modules) - modules:
        if "gshard_cleaning_" in name or name == "own_filters":
            del sys.modules[name]


def test_the_default_filters_are_in_their_order():
    assert tuple(registry.filters(Cleaning())) == FILTERS


def test_a_file_adds_its_filters(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    settings = Cleaning(modules=(str(tmp_path / "own.py"),))
    assert tuple(registry.filters(settings)) == (*FILTERS, "no_shouting")
    rows = [SentencePair("HALLO", "HELLO"), SentencePair("Hallo", "Hello")]
    assert clean(rows, About("de", "en", settings=settings)).removed == {"no_shouting": 1}
    assert registry.first_sentence(registry.filters(settings)["no_shouting"]) == (
        "Drops pairs in capital letters."
    )
    # It may run earlier, or not at all.
    first = Cleaning(filters=("no_shouting", *FILTERS), modules=settings.modules)
    assert tuple(registry.filters(first)) == ("no_shouting", *FILTERS)
    without = Cleaning(modules=settings.modules, without=("no_shouting",))
    assert tuple(registry.filters(without)) == FILTERS
    # Another config does not get it.
    assert tuple(registry.filters(Cleaning())) == FILTERS
    with pytest.raises(UserError, match="there is no filter of this name"):
        registry.filters(Cleaning(filters=("no_shouting",)))


def test_an_installed_module_adds_its_filters(tmp_path, monkeypatch):
    (tmp_path / "own_filters.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    assert "no_shouting" in registry.filters(Cleaning(modules=("own_filters",)))


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
    path, helper = tmp_path / "own.py", tmp_path / "gshard_cleaning_helper.py"
    helper.write_text("WORD = 'cat'\n")
    path.write_text(f"import {helper.stem}\n{OWN}")
    settings = Cleaning(modules=(str(path),))
    before = registry.identity(settings)
    assert registry.identity(settings) == before
    for file in (helper, path):
        file.write_text(f"{file.read_text()}# changed\n")
        changed = registry.identity(settings)
        assert changed != before
        before = changed
    assert registry.identity(Cleaning())["identifier"] == ""
    assert registry.identity(Cleaning(filters=("language",)))["identifier"][0].isdigit()
    assert registry.identity(Cleaning(ratio=4)) != registry.identity(Cleaning())
