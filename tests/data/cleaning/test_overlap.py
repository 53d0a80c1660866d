"""The filter, `gshard-data check` and the report find the same test sentences in the training text."""

import dataclasses
import unicodedata

import numpy as np
import pytest

from gshard_nmt.data.cleaning import overlap
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.filters import clean
from gshard_nmt.data.cleaning.overlap import OverlapSearch
from gshard_nmt.data.sets.corpus import SentencePair

TEST = [
    ("Das ist ein sehr schöner Tag.", "What a beautiful day it is."),
    ("Danke.", "Thank you."),
    ("12", "13"),
]


def is_kept(pair, held_out, languages=("de", "en")):
    about = About(*languages, held_out=held_out)
    return bool(overlap.overlap(Block([SentencePair(*pair)], *languages), about)[0])


def test_both_sides_or_one_long_side_in_its_language():
    held_out = overlap.held_out(TEST, "de", "en", words=6)
    assert not is_kept(TEST[0], held_out)
    assert not is_kept(("das ist ein sehr schöner tag", "Something else"), held_out)
    assert not is_kept(("Etwas anderes", "What a beautiful day it is!"), held_out)
    # One short side is no leak, both sides are.
    assert is_kept(("Vielen Dank.", "Thank you."), held_out)
    assert not is_kept(("Danke!", "thank you"), held_out)
    # Texts without letters are no leak.
    assert is_kept(("12", "13"), held_out)
    assert is_kept(("Guten Tag", "Hello"), held_out)
    # The language of a side counts, and the order of the sides does not.
    assert not is_kept(("Danke", "Thank you"), held_out)
    assert not is_kept(("Thank you", "Danke"), held_out, ("en", "de"))
    assert is_kept(("Danke", "Thank you"), held_out, ("nl", "en"))
    # Given to another pair, they find its English text too; `prepare` does not do so.
    assert not is_kept(("Quelle journée", TEST[0][1]), held_out, ("fr", "en"))


def test_parts_are_merged_into_one_sorted_array():
    merged = overlap.merge([overlap.held_out([row], "de", "en", 6) for row in [*TEST, TEST[0]]])
    np.testing.assert_array_equal(merged, overlap.held_out(TEST, "de", "en", 6))
    assert np.all(merged[1:] > merged[:-1])
    assert merged.dtype == np.uint64
    assert len(overlap.merge([])) == 0


@dataclasses.dataclass(frozen=True)
class HeldOut:
    source: str
    target: str
    sources: tuple[str, ...]
    references: tuple[str, ...]


SENTENCE = ("L’élève a été reçu à l’école où l’œuvre naît", "The pupil naïvely passed at our café")


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKD"])
@pytest.mark.parametrize(
    "change",
    [
        str,
        str.upper,
        lambda text: text.replace(" ", "\u00a0 "),
        lambda text: f"\u00ad« {text} » 12",
    ],
)
def test_a_test_sentence_is_found_however_it_is_spelled(form, change):
    row = tuple(unicodedata.normalize(form, change(text)) for text in SENTENCE)
    hashes = overlap.held_out([SENTENCE], "fr", "en", words=6)
    assert clean([SentencePair(*row)], About("fr", "en", held_out=hashes)).removed == {"overlap": 1}
    search = OverlapSearch([HeldOut("fr", "en", *((text,) for text in SENTENCE))])
    search.add(("fr", "en"), [row])
    assert search.overlaps[0].exact_pairs == {0}
    other = tuple(text.replace("é", "e").replace("ï", "i") for text in SENTENCE)
    search = OverlapSearch([HeldOut("fr", "en", *((text,) for text in SENTENCE))])
    search.add(("fr", "en"), [other])
    assert not search.overlaps[0].exact_pairs
