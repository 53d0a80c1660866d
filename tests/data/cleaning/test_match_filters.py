import pytest

from gshard_nmt.data.cleaning import match_filters
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.sets.corpus import SentencePair


def keeps(function, source, target):
    rows = [SentencePair(source, target), SentencePair(target, source)]
    first, second = function(Block(rows, "de", "en"), About("de", "en")).tolist()
    assert first == second, "the order of the sides does not matter"
    return first


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("im Jahr 2019", "in 2019", True),
        ("im Jahr 2019", "in 2018", False),
        ("1.000 Euro", "1,000 euros", True),
        ("1 000 Euro", "1000 euros", True),
        ("2,5 Millionen", "2,500,000", True),
        ("31.12.2020", "12/31/2020", True),
        ("um 15:30", "at 3:30 pm", True),
        ("١٢٣٤ ملف", "1234 files", True),
        ("१२३४ फ़ाइल", "1235 files", False),
        # Spelled out on one side; one digit; a calendar or a unit is a contradiction.
        ("45 Jahre", "forty-five years", True),
        ("4 Jahre", "5 years", True),
        ("88 km", "55 miles", False),
        ("%1$s hat 12 Dateien", "%2$s has 12 files", True),
        ("1998-99", "1998–1999", True),
    ],
)
def test_numbers(source, target, expected):
    assert keeps(match_filters.numbers, source, target) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("siehe https://de.example.org/a", "see https://example.org/b", True),
        ("siehe https://example.org/a", "see below", False),
        ("Schreiben Sie an a@example.org", "Write to us", False),
        ("siehe www.example.org", "see http://example.org", True),
        ("@user sagt", "user says", True),
    ],
)
def test_addresses(source, target, expected):
    assert keeps(match_filters.addresses, source, target) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("%s kopieren nach %s", "copy %s to %s", True),
        ("%2$s nach %1$-5s", "%s to %s", True),
        ("%u Dateien", "%d files", True),
        ("Datei kopieren", "copy %s", False),
        ("{name} kopieren", "copy {names}", False),
        ("{ name } kopieren", "copy {name}", True),
        ("$USER fehlt", "$USER is missing", True),
        ("<Datei> kopieren", "copy <file>", True),
        ("100 % sicher", "100 % sure", True),
        ("5 $", "5 dollars", True),
    ],
)
def test_placeholders(source, target, expected):
    assert keeps(match_filters.placeholders, source, target) == expected


def test_score():
    rows = [SentencePair("a", "b", score) for score in (0.4, 0.5, None, -1.0)]
    block = Block(rows, "de", "en")
    with_limit = About("de", "en", settings=Cleaning(minimum_score=0.5))
    assert match_filters.score(block, with_limit).tolist() == [False, True, True, False]
    assert match_filters.score(block, About("de", "en")).all()
