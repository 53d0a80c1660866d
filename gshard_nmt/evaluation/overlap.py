"""Finds sentences of the test sets in the training text: exact copies, and near copies.

Copies are exact if only case, spaces, punctuation, digits and placeholders differ. Near copies have at
least NEAR of their word triples in common. Only the test sets are held in memory; the training text is
read once, line by line.
"""

import collections
import dataclasses
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from gshard_nmt import web_page
from gshard_nmt.data import normal_form
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import Section
from gshard_nmt.evaluation.translations import TestSet

NEAR = 0.7
"""Near copies share this part of the shingles of the longer sentence. So a long training sentence that
contains a short test sentence is no copy."""
_LEAST_SHINGLES = 3
"""Shorter sentences, of four words or less, have exact copies only."""
EXAMPLES = 3
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


@dataclasses.dataclass(frozen=True)
class Match:
    """A side of a test sentence in the training text.

    Attributes:
      training: the first training sentence that matches best.
      share: the shared part of the shingles of the longer sentence; 1 for an exact copy.
      is_exact: whether it is an exact copy.
    """

    training: str
    share: float
    is_exact: bool


@dataclasses.dataclass
class Overlap:
    """The overlap of one direction.

    Attributes:
      test: the test set.
      matches: for each side, the match of each sentence that has one, by its number from 0.
      pairs: numbers of the sentences with copies of both sides in one training pair.
      exact_pairs: those of them with exact copies of both sides.
    """

    test: TestSet
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


def _alarms(overlaps: Sequence[Overlap]) -> Iterator[str]:
    """Yields one sentence if the overlap of any direction is too large."""
    alarming = [overlap for overlap in overlaps if overlap.is_alarming]
    if not alarming:
        return
    names = [f"{overlap.test.source}-{overlap.test.target}" for overlap in alarming]
    rest = f" and {len(names) - 6} more" if len(names) > 6 else ""
    yield (
        f"{', '.join(names[:6])}{rest}: "
        f"{sum(len(overlap.matches['source']) for overlap in alarming):,} of "
        f"{sum(len(overlap.test.sources) for overlap in alarming):,} test sources are in the training "
        f"text, {sum(len(overlap.pairs) for overlap in alarming):,} of them with their reference. "
        "gshard-eval --leave_out_overlap scores without them."
    )


class OverlapSearch:
    """Compares training pairs with test sets, one pair after another."""

    def __init__(self, tests: Sequence[TestSet]) -> None:
        """Indexes the test sets by normal form and by shingle.

        Args:
          tests: the test sets.
        """
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

    def add(self, languages: tuple[str, str], rows: Iterable[tuple[str, str]]) -> None:
        """Compares the training pairs of two languages with all test sets.

        Args:
          languages: the languages of the two columns.
          rows: the sentence pairs.
        """
        for row in rows:
            matched: _Matched = {"source": {}, "target": {}}
            for language, text in zip(languages, row, strict=True):
                self._compare(language, text, matched)
            for line in matched["source"].keys() & matched["target"].keys():
                overlap = self.overlaps[line[0]]
                if {overlap.test.source, overlap.test.target} == set(languages):
                    overlap.pairs.add(line[1])
                    if matched["source"][line] and matched["target"][line]:
                        overlap.exact_pairs.add(line[1])

    def _compare(self, language: str, text: str, matched: _Matched) -> None:
        """Compares one training sentence with the sides of test sets in its language."""
        sides = [side for side in _SIDES if (language, side) in self._exact]
        if not sides:
            return
        form, shingles = normal_form.sentence_form(text), None
        for side in sides:
            for line in self._exact[language, side].get(hash(form), ()):
                self._record(side, line, Match(text, 1.0, True), matched)
            near = self._shingles[language, side]
            if not near:
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
    """Returns the hashes of the triples of neighboring words of a text."""
    words = normal_form.words(text)
    return {hash(triple) for triple in zip(words, words[1:], words[2:], strict=False)}


def section(overlaps: Sequence[Overlap], training_lines: int, is_left_out: bool) -> Section:
    """Returns the section of the report.

    Args:
      overlaps: the overlap of each direction.
      training_lines: number of training pairs that were compared; 0 if the corpus has no training text.
      is_left_out: whether the scores are without the sentences that overlap.
    """
    data = {
        "training_pairs": training_lines,
        "left_out": is_left_out,
        "directions": [_as_json(overlap, is_left_out) for overlap in overlaps],
    }
    title = "Overlap of test and training text"
    return Section("overlap", title, _html(overlaps, data), data, tuple(_alarms(overlaps)))


def leave_out(
    overlaps: Sequence[Overlap], systems: Sequence[dict[tuple[str, str], Sequence[str]]]
) -> list[TestSet]:
    """Removes the sentences that overlap with the training text from test sets and translations.

    Args:
      overlaps: the overlap of each test set.
      systems: the translations of each system by direction; changed here.

    Returns:
      The test sets that have sentences left.

    Raises:
      UserError: no sentence is left.
    """
    tests = []
    for overlap in overlaps:
        left_out, test = overlap.lines(), overlap.test

        def remaining(lines: Sequence[str], left_out: set[int] = left_out) -> list[str]:
            return [line for number, line in enumerate(lines) if number not in left_out]

        sources, references = remaining(test.sources), map(remaining, test.all_references)
        first, *others = references
        for lines in systems:
            if (test.source, test.target) in lines:
                lines[test.source, test.target] = remaining(lines[test.source, test.target])
        if sources:
            tests.append(
                dataclasses.replace(
                    test, sources=sources, references=first, other_references=tuple(others)
                )
            )
    if not tests:
        raise UserError(
            "--leave_out_overlap leaves out all test sentences, because all are in the training text. "
            "Give a corpus with another test set."
        )
    return tests


def _as_json(overlap: Overlap, is_left_out: bool) -> dict[str, Any]:
    examples = sorted(overlap.lines())[:EXAMPLES]
    return {
        "source": overlap.test.source,
        "target": overlap.test.target,
        "sentences": len(overlap.test.sources),
        **{
            f"{side}_{name}": overlap.count(side, name == "exact")
            for side in _SIDES
            for name in ("exact", "near")
        },
        "both_sides_exact": len(overlap.exact_pairs),
        "both_sides": len(overlap.pairs),
        "left_out": len(overlap.lines()) if is_left_out else 0,
        "examples": [
            {"line": n + 1, **{side: _example(overlap, side, n) for side in _SIDES}}
            for n in examples
        ],
    }


def _example(overlap: Overlap, side: Side, number: int) -> Mapping[str, str] | None:
    match = overlap.matches[side].get(number)
    lines = overlap.test.sources if side == "source" else overlap.test.references
    return {"test": lines[number], "training": match.training} if match else None


_COLUMNS = (
    *("direction", "sentences", "source exact", "source near", "reference exact", "reference near"),
    *("both sides", "left out of the scores"),
)


def _html(overlaps: Sequence[Overlap], data: Mapping[str, Any]) -> str:
    if not data["training_pairs"]:
        return "<p>The corpus has no training text, so overlap is unknown.</p>"
    rows, examples = [], []
    for overlap, row in zip(overlaps, data["directions"], strict=True):
        direction = f"{row['source']}-{row['target']}"
        names = ("sentences", "source_exact", "source_near", "target_exact", "target_near")
        cells = (f"{row[name]:,}" for name in (*names, "both_sides", "left_out"))
        rows.append((direction, *cells))
        tables = "".join(
            f"<table class='sample'><tr><th>test</th><td dir='auto'>{html.escape(part['test'])}</td></tr>"
            f"<tr><th>training</th><td dir='auto'>{html.escape(part['training'])}</td></tr></table>"
            for example in row["examples"]
            for part in (example["source"], example["target"])
            if part
        )
        if overlap.lines():
            summary = f"<summary>{html.escape(direction)}</summary>"
            examples.append(f"<details>{summary}{tables}</details>")
    return (
        f"<p>Compared with {data['training_pairs']:,} training pairs. Exact: only case, spaces, "
        "punctuation, digits and placeholders differ. Near: both sentences share at "
        f"least {100 * NEAR:.0f} % of the word triples of the longer one.</p>\n"
        f"{web_page.table(_COLUMNS, rows)}\n{''.join(examples)}"
    )
