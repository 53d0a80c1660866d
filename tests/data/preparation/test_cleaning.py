"""The keys of clean text, and what is known of text that was cleaned before."""

import dataclasses
from collections import Counter

import pytest
from gshard_nmt.data.preparation.cleaning import Cleaner, old_reports
from gshard_nmt.data.preparation.texts import LanguageText

from gshard_nmt.data.cleaning import page
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.cleaning.samples import Sample
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.inputs import Text, name_of
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs
from gshard_nmt.errors import UserError


def languages(tmp_path, **digests):
    """Returns the text of a main corpus and a subset "back"; `digests` are those of the inputs."""
    pairs = []
    for subset in ("", "back"):
        for split in ("train", "dev"):
            write_pairs(tmp_path / (subset or "main") / "fr-en", split, "fr", "en", [("a", "b")])
        pairs += find_pairs(tmp_path / (subset or "main"), subset=subset)
    texts = {
        name_of(i): Text(digests.get(f"{i.subset or 'main'}_{i.split}", "same"), (10,))
        for pair in pairs
        for i in pair.texts
    }
    return LanguageText.of(pairs, texts)


def keys(text, config=Data(), cleaning=Cleaning()):  # noqa: B008
    cleaner = Cleaner(config, cleaning, lambda *_: [])
    return cleaner.key(text, "fr-en"), cleaner.key(text, "fr-en.back")


@pytest.mark.parametrize(
    ("digests", "changed"),
    [
        ({"main_train": "x"}, (True, True)),  # its duplicates are dropped from the subset
        ({"back_train": "x"}, (False, True)),
        ({"main_dev": "x"}, (True, True)),
        ({"back_dev": "x"}, (True, True)),  # no training text may be in any dev text
    ],
)
def test_the_key_of_clean_text_changes_with_the_text_it_depends_on(tmp_path, digests, changed):
    before, after = keys(languages(tmp_path)), keys(languages(tmp_path, **digests))
    assert tuple(a != b for a, b in zip(before, after, strict=True)) == changed


def test_the_key_of_clean_text_changes_with_the_settings_that_matter(tmp_path):
    text = languages(tmp_path)
    before = keys(text)
    assert keys(text, Data(seed=7, source_length=99)) == before
    assert keys(text, cleaning=Cleaning(ratio=9.0)) != before
    some = keys(text, Data(maximum_pairs=5))
    assert some != before
    assert some != keys(text, Data(maximum_pairs=5, seed=7))
    # Without duplicates to drop, the main corpus does not matter to the subset.
    cleaning = Cleaning(duplicates=())
    other = languages(tmp_path, main_train="x")
    assert keys(text, cleaning=cleaning)[1] == keys(other, cleaning=cleaning)[1]


def test_an_unknown_filter_is_refused_before_any_work(tmp_path):
    with pytest.raises(UserError, match="emty"):
        Cleaner(Data(), Cleaning(filters=("emty",)), pytest.fail)


def test_what_is_known_of_old_text_is_read_from_the_page(tmp_path):
    samples = {"empty": [Sample(5, "", "x")]}
    entry = page.Direction("fr", "en", "back", 9, {"empty": 1}, samples, Counter(control=2))
    page.write_report([entry], Cleaning(), tmp_path)
    (old,) = old_reports(tmp_path)
    kept = {"empty": [Sample(0, "", "x")]}
    assert old == dataclasses.replace(entry, samples=kept, edited={"control": 2})
    (tmp_path / page.JSON).write_text('{"directions": [{}]}')
    assert old_reports(tmp_path) == []
    assert old_reports(tmp_path / "nowhere") == []
