"""The filter, `gshard-data check` and the report find the same test sentences in the training text."""

import dataclasses
import unicodedata

import pytest

from gshard_nmt.data.cleaning import overlap
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.clean import clean
from gshard_nmt.data.cleaning.leaks import OverlapSearch
from gshard_nmt.data.sets.corpus import SentencePair


@dataclasses.dataclass(frozen=True)
class HeldOut:
    source: str
    target: str
    sources: tuple[str, ...]
    references: tuple[str, ...]


TEST = ("L’élève a été reçu à l’école où l’œuvre naît", "The pupil naïvely passed at our café")


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
    row = tuple(unicodedata.normalize(form, change(text)) for text in TEST)
    hashes = overlap.held_out([TEST], "fr", "en", words=6)
    assert clean([SentencePair(*row)], About("fr", "en", held_out=hashes)).removed == {"overlap": 1}
    search = OverlapSearch([HeldOut("fr", "en", *((text,) for text in TEST))])
    search.add(("fr", "en"), [row])
    assert search.overlaps[0].exact_pairs == {0}
    other = tuple(text.replace("é", "e").replace("ï", "i") for text in TEST)
    search = OverlapSearch([HeldOut("fr", "en", *((text,) for text in TEST))])
    search.add(("fr", "en"), [other])
    assert not search.overlaps[0].exact_pairs
