"""Dev and test text in the training text: the filter that drops it, and the search that locates it.

Copies are exact if `normal_form.sentence_form` is equal: case, spaces, punctuation, digits and
placeholders do not matter. The filter finds exact copies alone. Its held-out text is a sorted array of
hashes, 8 bytes each, so it is small even for many languages. The hash of a side contains its language, so
the arrays of several language pairs could be merged. `prepare` compares a pair with the text
of its own two languages alone.

The search also finds near copies, which have at least NEAR of their word triples in common. It holds the
held-out text in memory and reads the training text once, line by line.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning.block import About, Block, Mask
from gshard_nmt.data.cleaning.duplicates import Hashes, hashes
from gshard_nmt.data.text import normal_form

NEAR = 0.7
"""Near copies share this part of the shingles of the longer sentence. So a long training sentence that
contains a short test sentence is no copy."""
_LEAST_SHINGLES = 3
"""Shorter sentences, of four words or less, have exact copies only."""
_MOST_EXACT_PAIRS = 0.005
_MOST_PAIRS = 0.05
_MOST_SOURCES = 0.2
"""An alarm is raised above these shares of the test sentences: those with an exact copy of both sides in
one training pair, with a copy of both sides, and with an exact copy of the source."""

Side = Literal["source", "target"]
_SIDES: tuple[Side, Side] = ("source", "target")
_Line = tuple[int, int]
"""The number of a test set, and the number of a sentence in it."""
_Index = dict[tuple[str, Side], dict[int, list[_Line]]]


@dataclasses.dataclass
class Overlap:
    """The overlap of one direction.

    Attributes:
      test: the test set, with its languages `source` and `target`, its `sources` and `references`.
      matches: for each side, whether a sentence that has a copy, by its number from 0, has an exact one.
      pairs: numbers of the sentences with copies of both sides in one training pair.
      exact_pairs: those of them with exact copies of both sides.
    """

    test: Any
    matches: dict[Side, dict[int, bool]] = dataclasses.field(
        default_factory=lambda: {"source": {}, "target": {}}
    )
    pairs: set[int] = dataclasses.field(default_factory=set)
    exact_pairs: set[int] = dataclasses.field(default_factory=set)

    def lines(self) -> set[int]:
        """Returns the numbers of the sentences with at least one side in the training text."""
        return {number for matches in self.matches.values() for number in matches}

    def count(self, side: Side, is_exact: bool) -> int:
        """Returns the number of sentences with an exact copy, or with only a near copy, of a side."""
        return [*self.matches[side].values()].count(is_exact)

    @property
    def is_alarming(self) -> bool:
        """Whether the overlap is too large to be an accident."""
        size = len(self.test.sources)
        return (
            len(self.exact_pairs) > _MOST_EXACT_PAIRS * size
            or len(self.pairs) > _MOST_PAIRS * size
            or self.count("source", True) > _MOST_SOURCES * size
        )


class OverlapSearch:
    """Compares training pairs with held-out text, one pair after another.

    Attributes:
      overlaps: the overlap with each text.
    """

    def __init__(self, tests: Sequence[Any]) -> None:
        """Indexes the held-out text by normal form and by shingle."""
        self.overlaps = [Overlap(test) for test in tests]
        # Language and side -> hash of a form or a shingle -> the sentences that have it.
        self._exact: _Index = collections.defaultdict(lambda: collections.defaultdict(list))
        self._shingles: _Index = collections.defaultdict(lambda: collections.defaultdict(list))
        self._sizes: dict[tuple[Side, _Line], int] = {}
        for number, test in enumerate(tests):
            sides = zip(_SIDES, (test.source, test.target), strict=True)
            for (side, tag), lines in zip(sides, (test.sources, test.references), strict=True):
                for n, line in enumerate(lines):
                    if form := normal_form.sentence_form(line):
                        self._exact[tag, side][hash(form)].append((number, n))
                    shingles = _shingles(line)
                    if len(shingles) >= _LEAST_SHINGLES:
                        self._sizes[side, (number, n)] = len(shingles)
                        for shingle in shingles:
                            self._shingles[tag, side][shingle].append((number, n))

    def add(self, languages: tuple[str, str], rows: Iterable[tuple[str, str]]) -> None:
        """Compares the training pairs of two languages with all held-out text."""
        for row in rows:
            # For each side, the test sentences that this pair matches, and whether exactly.
            matched: dict[Side, dict[_Line, bool]] = {"source": {}, "target": {}}
            for language, text in zip(languages, row, strict=True):
                for side, line, is_exact in self._matches(language, text):
                    matched[side][line] = matched[side].get(line, False) or is_exact
                    best = self.overlaps[line[0]].matches[side]
                    best[line[1]] = best.get(line[1], False) or is_exact
            for line in matched["source"].keys() & matched["target"].keys():
                overlap = self.overlaps[line[0]]
                if {overlap.test.source, overlap.test.target} == set(languages):
                    overlap.pairs.add(line[1])
                    if matched["source"][line] and matched["target"][line]:
                        overlap.exact_pairs.add(line[1])

    def _matches(self, language: str, text: str) -> Iterator[tuple[Side, _Line, bool]]:
        """Yields the held-out sentences that a training sentence copies, and whether exactly."""
        sides = [side for side in _SIDES if (language, side) in self._exact]
        form = normal_form.sentence_form(text) if sides else ""
        shingles = _shingles(text) if sides else set()
        for side in sides:
            for line in self._exact[language, side].get(hash(form), ()):
                yield side, line, True
            near = self._shingles[language, side]
            hits: collections.Counter[_Line] = collections.Counter()
            for shingle in shingles & near.keys():
                hits.update(near[shingle])
            for line, count in hits.items():
                if count >= NEAR * max(self._sizes[side, line], len(shingles)):
                    yield side, line, False


def _shingles(text: str) -> set[int]:
    words = normal_form.words(text)
    return {hash(triple) for triple in zip(words, words[1:], words[2:], strict=False)}


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
    sides, alone = [], []
    # A side without letters, such as a number, is no leak.
    has_letters = np.ones(len(rows), bool)
    for column, language in enumerate((source, target)):
        lines = [str(row[column]) for row in rows]
        forms = [normal_form.sentence_form(line) for line in lines]
        has_letters &= np.array(list(map(bool, forms)), bool)
        is_long = np.array([len(normal_form.words(line)) >= words for line in lines], bool)
        sides.append(hashes(forms, language))
        alone.append(sides[-1][is_long])
    return merge([_pairs(*sides)[has_letters], *alone])


def merge(parts: Iterable[Hashes]) -> Hashes:
    """Returns the union of several arrays of hashes, sorted."""
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *parts]))


def _pairs(first: Hashes, second: Hashes) -> Hashes:
    """Returns the hash of each pair. The order of the two sides does not matter."""
    return (first + second) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(0xD1B54A32D192ED03)


def _contains(ordered: Hashes, values: Hashes) -> NDArray[np.bool_]:
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[places] == values
