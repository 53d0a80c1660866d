import builtins

import pytest

from gshard_nmt.data.cleaning import language
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError

GERMAN = "Die Datei konnte leider nicht geöffnet werden, weil sie gelöscht wurde."
ENGLISH = "The file could not be opened, because somebody had deleted it."


def masks(source, *pairs):
    block = Block([SentencePair(*pair) for pair in pairs], source, "en")
    return language.language(block, About(source, "en")).tolist()


def test_a_side_in_another_language_is_dropped():
    pairs = [(GERMAN, ENGLISH), (ENGLISH, ENGLISH), (GERMAN, GERMAN), ("Home", "The home")]
    assert masks("de", *pairs) == [True, False, False, True]


def test_languages_that_are_not_known_are_not_checked():
    assert masks("tlh", (GERMAN, ENGLISH)) == [True]


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch):
    real_import = builtins.__import__

    def without_package(name, *args, **kwargs):
        if name.startswith("py3langid"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_package)
    language.identifier.cache_clear()
    with pytest.raises(UserError) as error:
        masks("de", (GERMAN, ENGLISH))
    assert str(error.value) == (
        "Cleaning.filters has 'language', which needs the package py3langid. Install it: "
        "pip install 'gshard-nmt[langid]'."
    )
