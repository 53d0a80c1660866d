"""Which direction is meant; tests/run/test_folder.py has the unknown languages."""

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.run.folder import choose_direction

PAIRS = [
    {"source": "fr", "target": "de"},
    {"source": "de", "target": "fr"},
    {"source": "fr", "target": "en"},
]


def test_a_language_that_follows_from_the_other_need_not_be_given():
    assert choose_direction(PAIRS, "de", "") == ("de", "fr")
    assert choose_direction(PAIRS, "fr", "en") == ("fr", "en")
    assert choose_direction(PAIRS[:1], "", "") == ("fr", "de")


def test_a_language_may_be_written_in_any_code():
    assert choose_direction(PAIRS, "fra_Latn", "eng") == ("fr", "en")
    assert choose_direction(PAIRS, "de_DE", "") == ("de", "fr")
    with pytest.raises(UserError, match="--lang de-AT: this model translates from de, fr"):
        choose_direction(PAIRS, "de-AT", "")


def test_the_name_of_a_pair_in_a_report_is_no_language():
    with pytest.raises(UserError) as raised:
        choose_direction(PAIRS, "fr-de", "")
    assert str(raised.value) == (
        "--lang fr-de names two languages. Give one to each flag: --lang fr --target de."
    )


def test_a_target_that_does_not_follow_must_be_given():
    with pytest.raises(
        UserError, match="--target is missing: from fr this model translates to de, en"
    ):
        choose_direction(PAIRS, "fr", "")
