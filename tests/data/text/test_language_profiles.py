"""Languages are told apart by the triples of characters in the text at hand."""

import pytest

from gshard_nmt.data.text.language_profiles import LanguageProfiles

ENGLISH = "The quick brown fox jumps over the lazy dog and runs through this forest"
GERMAN = "Der schnelle braune Fuchs springt über den faulen Hund und läuft durch diesen Wald"


@pytest.fixture(scope="module")
def profiles():
    return LanguageProfiles({"en": [ENGLISH] * 40, "de": [GERMAN] * 40, "fr": ["trop peu"]})


def test_a_language_needs_enough_text(profiles):
    assert profiles.languages == ["de", "en"]


def test_a_line_of_another_language_is_recognised(profiles):
    german = "Der Fuchs springt durch diesen Wald"
    assert profiles.other_language(german, "en", 0.5) == "de"
    assert profiles.other_language(german, "de", 0.5) is None
    assert profiles.other_language("der Wald", "en", 0.5) is None
    assert profiles.other_language(german, "fr", 0.5) is None


def test_the_likelihood_of_lines_is_highest_in_their_language(profiles):
    german, english = profiles.means([ENGLISH, " "])
    assert english > german + 1
    assert profiles.means(["", " "]).tolist() == [0, 0]
