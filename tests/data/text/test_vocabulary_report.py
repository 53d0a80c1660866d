"""The report of the vocabularies: its numbers on texts that can be counted by hand, and warnings."""

import json

import pytest
from rich.console import Console

from gshard_nmt.data.text.vocabulary import VocabularySpec, train_vocabulary
from gshard_nmt.data.text.vocabulary_report import VocabularyReport, fit_of


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "source.model"
    spec = VocabularySpec(300, normalization="identity")
    return train_vocabulary(["red tree", "the red tree", "水木"] * 50, spec, path)


@pytest.fixture(scope="module")
def facts(vocabulary):
    samples = {
        ("source", "en"): ["red tree", "the tree"],
        ("source", "zh"): ["水木水木"],
        ("target", "el"): ["red λ", "λμ"],
    }
    fits = [fit_of(*what, lines, vocabulary) for what, lines in samples.items()]
    return VocabularyReport((vocabulary.size, vocabulary.size), tuple(fits))


def test_tokens_are_counted_by_words_or_characters(facts, vocabulary):
    english, chinese, greek = facts.fits
    assert (english.side, english.language, english.lines) == ("source", "en", 2)
    assert english.unit == greek.unit == "word"
    assert english.tokens_per_unit == 1
    assert english.byte_fallback == 0
    assert english.coverage == 1
    assert english.rare == ""
    assert chinese.unit == "character"
    (ids,) = vocabulary.encode(["水木水木"])
    assert chinese.tokens_per_unit == len(ids) / 4
    # "red", "▁", two bytes; "▁", four bytes. Six characters, three of them without pieces.
    assert greek.tokens_per_unit == 9 / 3
    assert greek.byte_fallback == 6 / 9
    assert greek.coverage == 0.5
    assert greek.rare == "λμ"


def test_a_language_with_much_fallback_has_a_warning(facts):
    assert facts.warnings == [
        "el: 66.7% of the target tokens are single bytes, because 50.00% of the characters have no "
        "piece (such as λμ). A new vocabulary fits better with a larger Data.target_vocabulary, "
        "Data.character_coverage or Data.vocabulary_temperature."
    ]


def test_the_file_and_the_table_have_the_same_facts(facts, tmp_path, capsys):
    facts.write(tmp_path / "vocabulary.json")
    written = json.loads((tmp_path / "vocabulary.json").read_text(encoding="utf-8"))
    assert written["languages"][2] == {
        "side": "target",
        "language": "el",
        "lines": 2,
        "unit": "word",
        "tokens_per_unit": 3.0,
        "byte_fallback": 0.666667,
        "coverage": 0.5,
        "rare": "λμ",
    }
    assert written["warnings"] == facts.warnings
    assert written["sizes"] == dict(zip(("source", "target"), facts.sizes, strict=True))
    facts.show(Console(stderr=True, width=100))
    shown = capsys.readouterr().err
    assert "3.00 a word" in shown
    assert "66.67%" in shown
    assert f"warning: {facts.warnings[0]}" in " ".join(shown.split())
