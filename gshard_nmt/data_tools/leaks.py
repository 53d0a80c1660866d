"""Finds sentences of dev and test in the training text of the same pair.

Exact copies are looked for in all lines. Near copies are looked for in the first lines, and then in a
part of the lines, because they cost more.
"""

import dataclasses
import zlib
from collections.abc import Iterable, Iterator, Sequence

from gshard_nmt.data import normal_form
from gshard_nmt.data.corpus import CorpusPair
from gshard_nmt.data_tools.findings import EXAMPLES, Example, Finding
from gshard_nmt.data_tools.scan import Scan
from gshard_nmt.evaluation.overlap import Match, Overlap, OverlapSearch
from gshard_nmt.evaluation.translations import TestSet

ALL_COMPARED = 100_000
"""Training lines that are all compared with near copies in mind."""
_LEAST = 3
PART = 16
"""Of the lines after them, one in PART is compared so."""
MOST_HELD_OUT = 20_000
"""Lines of dev and of test that are looked for."""


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Lines that must not be in the training text.

    Attributes:
      pair: the language pair; it may be of another corpus than the training text.
      split: "dev" or "test".
      rows: its first lines, at most MOST_HELD_OUT, in the order of the folder's name.
    """

    pair: CorpusPair
    split: str
    rows: Sequence[tuple[str, str]]


class LeakSearch:
    """Compares the training lines of a pair with dev and test lines of the same languages.

    Attributes:
      compared: number of lines that were compared with near copies in mind.
    """

    def __init__(self, pair: CorpusPair, held_out: Sequence[HeldOut]) -> None:
        """Indexes the lines that must not be in the training text.

        Args:
          pair: the language pair of the training text.
          held_out: the lines of dev and test, of all corpora.
        """
        self._languages = (pair.source, pair.target)
        self._held_out = [part for part in held_out if part.rows]
        tests = []
        self._forms: set[tuple[int, int]] = set()
        for part in self._held_out:
            is_reversed = part.pair.source != pair.source
            rows = [row[::-1] for row in part.rows] if is_reversed else part.rows
            sources, references = [row[0] for row in rows], [row[1] for row in rows]
            tests.append(TestSet(pair.language, pair.source, pair.target, 0, sources, references))
            for row in rows:
                self._forms.update((side, hash(form)) for side, form in _forms(row))
        self._search = OverlapSearch(tests)
        self.compared = 0

    def add(self, rows: Iterable[tuple[str, str]]) -> None:
        """Compares training lines."""
        if not self._held_out:
            for _ in rows:
                pass
            return
        self._search.add(self._languages, self._chosen(rows))

    def _chosen(self, rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yields the rows that may be copies: all at first, later a part and the exact copies."""
        for number, row in enumerate(rows):
            if number < ALL_COMPARED or zlib.crc32(row[0].encode()) % PART == 0:
                self.compared += 1
                yield row
            elif any((side, hash(form)) in self._forms for side, form in _forms(row)):
                yield row

    def findings(self, train: Scan) -> Iterator[Finding]:
        """Yields a finding for each split that overlaps with the training text too much."""
        for part, overlap in zip(self._held_out, self._search.overlaps, strict=True):
            if not _is_alarming(overlap):
                continue
            numbers = sorted(overlap.pairs) or sorted(overlap.lines())
            examples = tuple(Example(n + 1, *part.rows[n]) for n in numbers[:EXAMPLES])
            place = "" if part.pair == train.pair else f" of {train.pair.name}"
            note = (
                f" Near copies were looked for in {self.compared:,} of {train.lines:,} training lines."
                if self.compared < train.lines
                else ""
            )
            near = len(overlap.pairs) - len(overlap.exact_pairs)
            sources = {side: _exact(overlap.matches[side]) for side in ("source", "target")}
            yield Finding(
                "leak",
                part.pair.name,
                part.split,
                train.files,
                f"{len(overlap.pairs):,} of {len(part.rows):,} lines of {part.split} are in the training "
                f"text{place} on both sides, {len(overlap.exact_pairs):,} of them exactly and {near:,} "
                f"almost. On one side alone, {sources['source']:,} lines of {train.pair.source} and "
                f"{sources['target']:,} lines of {train.pair.target} are exact copies.{note}",
                examples,
            )


def _is_alarming(overlap: Overlap) -> bool:
    """Returns whether an overlap is too large for an accident.

    A few near copies in a small set may be an accident.
    """
    lines = max(len(overlap.exact_pairs), len(overlap.pairs) // 4, len(overlap.lines()) // 8)
    return overlap.is_alarming and lines >= _LEAST


def _exact(matches: dict[int, Match]) -> int:
    return sum(match.is_exact for match in matches.values())


def _forms(row: tuple[str, str]) -> Iterator[tuple[int, str]]:
    for side, text in enumerate(row):
        if form := normal_form.sentence_form(text):
            yield side, form
