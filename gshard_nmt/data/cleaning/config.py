"""The settings of cleaning, `Cleaning`."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from gshard_nmt.ranges import MOST, Rule, at_least, between, check, one_of

DUPLICATES = ("pair", "near", "source", "target")
"""The kinds of duplicates; data/cleaning/duplicates.py explains them."""

FILTERS = (
    *("empty", "control", "encoding", "length", "ratio", "identical", "script"),
    *("numbers", "addresses", "placeholders", "score", "overlap"),
)
"""The filters that run if the config says nothing else, in their order."""


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """What `gshard-data prepare` leaves out of the training text. Dev and test text is not cleaned."""

    # Filters
    filters: tuple[str, ...] = FILTERS
    """The filters to run, in this order. A pair counts for the first filter that drops it. The filter
    "language" is not in the default list, because it needs `pip install gshard-nmt[langid]`."""

    without: tuple[str, ...] = ()
    """Filters that do not run, although `filters` has them, such as ["numbers"]."""

    # Limits
    maximum_words: int = 250
    """The filter "length" drops a pair if a side has more words. In languages without spaces between
    words, each character is a word."""

    maximum_characters: int = 2000
    """The filter "length" drops a pair if a side has more characters."""

    longest_word: int = 150
    """The filter "length" drops a pair if a side has a word of more characters. Web addresses are words
    too. Languages without spaces between words are not checked."""

    ratio: float = 3.0
    """The filter "ratio" drops a pair if one side is longer than the other by more than this factor.
    15 characters are added to both lengths before, so short lines may differ more. A Chinese or
    Japanese character counts as 3, a Korean one as 2."""

    identical_words: int = 3
    """The filter "identical" drops a pair of equal sides with at least this number of words. Shorter
    lines are often names."""

    script_share: float = 0.3
    """The filter "script" drops a pair if less than this fraction of the letters of a side is in the
    scripts of its language."""

    language_confidence: float = 0.8
    """The filter "language" drops a pair if a side is in another language with at least this
    probability."""

    minimum_score: float | None = None
    """The filter "score" drops a pair whose score in the corpus is lower. None keeps all. Pairs without
    a score are always kept."""

    overlap_words: int = 6
    """The filter "overlap" drops a pair if its two sides are in the dev or test text, or if one side is
    and has at least this number of words. Case, punctuation, digits and placeholders do not matter."""

    # Duplicates
    duplicates: tuple[str, ...] = ("pair", "near")
    """The kinds of duplicates to drop. "pair": both sides are equal. "near": both sides are equal except
    for case, spaces and punctuation. "source" or "target": that side is equal. English is the target,
    also with Data.direction "en-xx". The first pair stays."""

    RULES: ClassVar[Sequence[Rule]] = (
        at_least(1, "maximum_words", "maximum_characters", "longest_word"),
        at_least(1, "identical_words", "overlap_words"),
        between(1, 1000, "ratio"),
        between(0, 1, "script_share"),
        between(0.5, 1, "language_confidence"),
        one_of(DUPLICATES, "duplicates"),
        Rule(
            ("minimum_score",),
            lambda value: value is None or abs(value) <= MOST,
            f"None, or a number from {-MOST} to {MOST}",
            "None or a number",
        ),
    )

    def __post_init__(self) -> None:
        check(self, self.RULES)
