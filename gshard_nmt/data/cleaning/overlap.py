"""Dev and test text in the training text: the filter that drops it, and the search that locates it.

Copies are exact if `normal_form.sentence_form` is equal: case, spaces, punctuation, digits and
placeholders do not matter. The filter finds exact copies alone. Its held-out text is a sorted array of
hashes, 8 bytes each, so it is small even for many languages. The hash of a side contains its language, so
the arrays of several language pairs can be merged. Then a pair of one language is also compared with the
English test text of others.

The search also finds near copies, which have at least NEAR of their word triples in common. It holds the
held-out text in memory and reads the training text once, line by line.
"""

import collections
import dataclasses
import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning import registry
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.duplicates import Hashes, hashes
from gshard_nmt.data.cleaning.registry import Mask
from gshard_nmt.data.text import normal_form

NEAR = 0.7
"""Near copies share this part of the shingles of the longer sentence. So a long training sentence that
contains a short test sentence is no copy."""
_LEAST_SHINGLES = 3
"""Shorter sentences, of four words or less, have exact copies only."""
PART = 16
"""Near copies are looked for in the first lines, and then in one line in PART, because they cost more."""
_MOST_EXACT_PAIRS = 0.005
_MOST_PAIRS = 0.05
_MOST_SOURCES = 0.2
"""An alarm is raised above these shares of the test sentences: those with an exact copy of both sides in
one training pair, with a copy of both sides, and with an exact copy of the source."""

Side = Literal["source", "target"]
_SIDES: tuple[Side, Side] = ("source", "target")
_Line = tuple[int, int]
"""The number of a test set, and the number of a sentence in it."""
_Matched = dict[Side, dict[_Line, bool]]
"""For each side, the test sentences that one training pair matches, and whether exactly."""


class HeldOutText(Protocol):
    """Sentences that must not be in the training text, such as a test set, and their translations."""

    @property
    def source(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def sources(self) -> Sequence[str]: ...

    @property
    def references(self) -> Sequence[str]: ...


Text = TypeVar("Text", bound=HeldOutText)


@dataclasses.dataclass(frozen=True)
class Match:
    """The first training sentence that matches a side of a test sentence best.

    `share` is the shared part of the shingles of the longer sentence; 1 for an exact copy.
    """

    training: str
    share: float
    is_exact: bool


@dataclasses.dataclass
class Overlap(Generic[Text]):
    """The overlap of one direction.

    Attributes:
      test: the test set.
      matches: for each side, the match of each sentence that has one, by its number from 0.
      pairs: numbers of the sentences with copies of both sides in one training pair.
      exact_pairs: those of them with exact copies of both sides.
    """

    test: Text
    matches: dict[Side, dict[int, Match]] = dataclasses.field(
        default_factory=lambda: {"source": {}, "target": {}}
    )
    pairs: set[int] = dataclasses.field(default_factory=set)
    exact_pairs: set[int] = dataclasses.field(default_factory=set)

    def lines(self) -> set[int]:
        """Returns the numbers of the sentences with at least one side in the training text."""
        return {number for matches in self.matches.values() for number in matches}

    def count(self, side: Side, is_exact: bool) -> int:
        """Returns the number of sentences with an exact copy, or with only a near copy, of a side."""
        return sum(match.is_exact == is_exact for match in self.matches[side].values())

    @property
    def is_alarming(self) -> bool:
        """Whether the overlap is too large to be an accident."""
        size = len(self.test.sources)
        return (
            len(self.exact_pairs) > _MOST_EXACT_PAIRS * size
            or len(self.pairs) > _MOST_PAIRS * size
            or self.count("source", True) > _MOST_SOURCES * size
        )


class OverlapSearch(Generic[Text]):
    """Compares training pairs with held-out text, one pair after another.

    Attributes:
      overlaps: the overlap with each text.
      compared: the number of pairs that were compared with near copies in mind.
    """

    def __init__(self, tests: Sequence[Text]) -> None:
        """Indexes the held-out text by normal form and by shingle."""
        self.compared = 0
        self.overlaps = [Overlap(test) for test in tests]
        self._exact: dict[tuple[str, Side], dict[int, list[_Line]]] = {}
        self._shingles: dict[tuple[str, Side], dict[int, list[_Line]]] = {}
        self._sizes: dict[tuple[Side, _Line], int] = {}
        for number, test in enumerate(tests):
            tags, texts = (test.source, test.target), (test.sources, test.references)
            for side, tag, lines in zip(_SIDES, tags, texts, strict=True):
                exact = self._exact.setdefault((tag, side), collections.defaultdict(list))
                near = self._shingles.setdefault((tag, side), collections.defaultdict(list))
                for n, line in enumerate(lines):
                    if form := normal_form.sentence_form(line):
                        exact[hash(form)].append((number, n))
                    shingles = _shingles(line)
                    if len(shingles) >= _LEAST_SHINGLES:
                        self._sizes[side, (number, n)] = len(shingles)
                        for shingle in shingles:
                            near[shingle].append((number, n))
            # Near copies are looked for of the first reference alone.
            for lines in getattr(test, "other_references", ()):
                for n, line in enumerate(lines):
                    if form := normal_form.sentence_form(line):
                        self._exact[test.target, "target"][hash(form)].append((number, n))

    def add(
        self,
        languages: tuple[str, str],
        rows: Iterable[tuple[str, str]],
        all_compared: int = sys.maxsize,
    ) -> None:
        """Compares the training pairs of two languages with all held-out text.

        After `all_compared` rows, near copies are looked for in one row in PART.
        """
        for number, row in enumerate(rows):
            is_near = number < all_compared or zlib.crc32(row[0].encode()) % PART == 0
            self.compared += is_near
            matched: _Matched = {"source": {}, "target": {}}
            for language, text in zip(languages, row, strict=True):
                self._compare(language, text, is_near, matched)
            for line in matched["source"].keys() & matched["target"].keys():
                overlap = self.overlaps[line[0]]
                if {overlap.test.source, overlap.test.target} == set(languages):
                    overlap.pairs.add(line[1])
                    if matched["source"][line] and matched["target"][line]:
                        overlap.exact_pairs.add(line[1])

    def _compare(self, language: str, text: str, is_near: bool, matched: _Matched) -> None:
        """Compares one training sentence with the held-out sides in its language."""
        sides = [side for side in _SIDES if (language, side) in self._exact]
        if not sides:
            return
        form, shingles = normal_form.sentence_form(text), None
        for side in sides:
            for line in self._exact[language, side].get(hash(form), ()):
                self._record(side, line, Match(text, 1.0, True), matched)
            near = self._shingles[language, side]
            if not near or not is_near:
                continue
            shingles = _shingles(text) if shingles is None else shingles
            hits: collections.Counter[_Line] = collections.Counter()
            for shingle in shingles & near.keys():
                hits.update(near[shingle])
            for line, count in hits.items():
                share = count / max(self._sizes[side, line], len(shingles))
                if share >= NEAR:
                    self._record(side, line, Match(text, share, False), matched)

    def _record(self, side: Side, line: _Line, match: Match, matched: _Matched) -> None:
        matched[side][line] = matched[side].get(line, False) or match.is_exact
        matches = self.overlaps[line[0]].matches[side]
        earlier = matches.get(line[1])
        if earlier is None or (match.is_exact, match.share) > (earlier.is_exact, earlier.share):
            matches[line[1]] = match


def _shingles(text: str) -> set[int]:
    words = normal_form.words(text)
    return {hash(triple) for triple in zip(words, words[1:], words[2:], strict=False)}


@registry.filter
def overlap(rows: Block, about: About) -> Mask:
    """Drops a pair if its sides, or one long side, are in the dev or test text."""
    if not len(about.held_out):
        return np.ones(len(rows), bool)
    sides = [hashes(side.forms, side.language) for side in rows.sides]
    is_held_out = _contains(about.held_out, _pairs(*sides))
    for side in sides:
        is_held_out |= _contains(about.held_out, side)
    return ~is_held_out


def held_out(
    rows: Sequence[Sequence[str | float | None]], source: str, target: str, words: int
) -> Hashes:
    """Returns uint64[hashes], sorted, each once: the hashes of dev or test text for `About.held_out`.

    `source` and `target` are the languages of the two sides. A side with at least `words` words counts
    alone; see `Cleaning.overlap_words`.
    """
    # A side without letters, such as a number, is no leak.
    sides, long = [], []
    letters = np.ones(len(rows), bool)
    for column, language in enumerate((source, target)):
        lines = [str(row[column]) for row in rows]
        forms = [normal_form.sentence_form(line) for line in lines]
        letters &= np.fromiter(map(bool, forms), bool, len(rows))
        sides.append(hashes(forms, language))
        long.append(
            np.fromiter((len(normal_form.words(x)) >= words for x in lines), bool, len(rows))
        )
    alone = [side[mask] for side, mask in zip(sides, long, strict=True)]
    return merge([_pairs(*sides)[letters], *alone])


def merge(parts: Iterable[Hashes]) -> Hashes:
    """Returns the union of several arrays of hashes, sorted."""
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *parts]))


def _pairs(first: Hashes, second: Hashes) -> Hashes:
    """Returns the hash of each pair. The order of the two sides does not matter."""
    return (first + second) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(0xD1B54A32D192ED03)


def _contains(ordered: Hashes, values: Hashes) -> NDArray[np.bool_]:
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[places] == values
