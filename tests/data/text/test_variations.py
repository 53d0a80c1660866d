"""Variations change both sides of a sentence pair alike, and never what must not change."""

import collections
import difflib
import random
import re

import pytest

from gshard_nmt.data.config import AUGMENTATIONS
from gshard_nmt.data.text.protection import spans, take_out
from gshard_nmt.data.text.variations import VARIATIONS, Pair

PAIRS = [
    Pair("Datei %s in /tmp/x 2 nicht gefunden.", "File %s not found in /tmp/x 2.", ("de", "en")),
    Pair("ouvrir <b>Firefox 17</b> : %1$s", "<b>Firefox 17</b> opens: %1$s", ("fr", "en")),
    Pair("打开文件 {name} 吗?", "Open the file {name}?", ("zh", "en")),
    Pair("Dosya açık", "File is open", ("tr", "en")),
    Pair("(", "(", ("de", "en")),
]


def varied(name: str, pair: Pair, seed: int = 0) -> Pair:
    return VARIATIONS[name](pair, random.Random(seed))


def protected(text: str) -> list[str]:
    return take_out(text, spans(text))[1]


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "numbers"])
def test_what_must_not_change_stays_and_equal_draws_give_equal_pairs(name):
    for pair in PAIRS:
        for seed in range(60):
            after = varied(name, pair, seed)
            assert after == varied(name, pair, seed)
            for text, new in zip(pair.texts, after.texts, strict=True):
                # Values and emoji may also take the place of the text.
                if name not in ("values", "emoji") or text in new:
                    assert not collections.Counter(protected(text)) - collections.Counter(
                        protected(new)
                    )


@pytest.mark.parametrize(
    ("name", "languages", "source", "target", "new_source", "new_target"),
    [
        ("capitals", "de", "Straße %s: <b>x</b>", "Road %s", "STRASSE %s: <b>X</b>", "ROAD %s"),
        ("capitals", "tr", "Dosya ışık il", "File in", "DOSYA IŞIK İL", "FILE IN"),
        ("capitals", "el", "Αρχείο", "File", "ΑΡΧΕΙΟ", "FILE"),
        ("capitals", "zh", "打开", "Open", "打开", "Open"),
        ("capitals", "ka", "გახსნა", "Open", "გახსნა", "Open"),
        ("title", "fr", "ouvrir l'été %s", "open the %s", "Ouvrir L'été %s", "Open The %s"),
        ("first_letter", "fr", "Ouvrir été", "Open PDF", "ouvrir été", "open PDF"),
        ("first_letter", "tr", "il", "in", "İl", "In"),
        ("first_letter", "fr", "un <b>x</b> y", "a <b>x</b> y", "Un <b>x</b> y", "A <b>x</b> y"),
        ("first_letter", "ka", "ფაილი აქ", "file here", "ფაილი აქ", "file here"),
        ("first_letter", "fr", "PDF ouvert", "PDF open", "PDF ouvert", "PDF open"),
    ],
)
def test_case(name, languages, source, target, new_source, new_target):
    assert varied(name, Pair(source, target, (languages, "en"))).texts == (new_source, new_target)


def test_numbers_change_alike_on_both_sides():
    pair = Pair("Port 8080, 1 von 25 (%2$s)", "1 of 25, port 8080 (%2$s) 77")
    new = set()
    for seed in range(20):
        source, target = varied("numbers", pair, seed).texts
        port, count, place = re.fullmatch(
            r"Port (\d{4}), 1 von (\d\d) \(%(\d)\$s\)", source
        ).groups()
        assert target == f"1 of {count}, port {port} (%{place}$s) 77"
        new.add((port, count))
    assert len(new) > 10


@pytest.mark.parametrize("name", ["emoji", "values"])
def test_the_same_is_added_on_both_sides(name):
    added = set()
    for seed in range(200):
        pair = PAIRS[seed % 3]
        source, target = varied(name, pair, seed).texts
        rest = source.replace(pair.source, "\0")
        assert target.replace(pair.target, "\0") == rest
        added.add(rest)
    assert len(added) > 150
    assert {"\0" in rest for rest in added} == {True, False}


def test_typing_errors_are_few_and_only_in_the_source():
    pair = PAIRS[0]
    changed = [varied("typos", pair, seed) for seed in range(100)]
    assert all(after.target == pair.target for after in changed)
    sources = {after.source for after in changed}
    assert len(sources) > 40
    assert min(difflib.SequenceMatcher(None, pair.source, s).ratio() for s in sources) > 0.85


def test_symbols_stand_for_equal_values_and_for_common_words():
    pair = varied("placeholders", PAIRS[1])
    values = [take_out(text, s)[1] for text, s in zip(pair.texts, pair.spans, strict=True)]
    assert values == [["<b>", "</b>", "%1$s"]] * 2
    unequal = Pair("%s von %d", "of %d")
    assert varied("placeholders", unequal) == unequal
    pair = varied("copies", pair)
    values = [take_out(text, s)[1] for text, s in zip(pair.texts, pair.spans, strict=True)]
    assert values == [["<b>", "Firefox", "</b>", "%1$s"]] * 2
