"""Reads one split of a corpus once, and tells which of its lines look wrong.

The filters of cleaning see every line. The comparison of languages sees a sample: the lines with the
smallest hashes. The same text always gives the same sample, wherever its lines are. Memory grows by 8
bytes for each line, for the lengths of its sides.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np

from gshard_nmt.data.cleaning import text_filters
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.duplicates import hashes, of_pairs
from gshard_nmt.data.reading.layout import is_text
from gshard_nmt.data.sets.corpus import CorpusPair, SentencePair
from gshard_nmt.errors import UserError

EXAMPLES = 3
"""Examples that a finding has at most."""
SAMPLE = 3000
"""Lines of each split in the sample."""
_BLOCK = 4096

ADVICE = {
    "unreadable": "Mend the file. The lines before that place were checked.",
    "missing": "Add the files, or leave the language out with Data.languages.",
    "swapped": "Exchange the names of the two files.",
    "wrong_language": "Look at the file and rename its folder, or replace the file.",
    "wrong_script": "Look at the file and rename its folder, or replace the file.",
    "shifted": "Insert or delete a line near the first of these lines, so that line N translates line N.",
    "unrelated": "Align the two files again. One of them is shuffled, or it belongs to another file.",
    "empty": "Remove these lines from both files; the filters of gshard-data prepare can do it.",
    "copies": "Remove these lines, or the model learns to copy its source.",
    "mojibake": "Decode the original file again with its true encoding.",
    "long": "Split these lines into sentences, because rows are shorter than they are.",
    "odd_ratio": "Look for lines that are cut, joined or wrongly aligned, and remove them.",
    "leak": "Remove these lines from the training text, or scores will be too high.",
}
"""The kinds of findings, and what a user can do about each."""

_FAULTS = {
    "empty": (0.0, text_filters.empty, "have an empty side"),
    "mojibake": (0.001, text_filters.encoding,
        "look as if they were decoded with a wrong encoding, or have U+FFFD"),
    "long": (0.001, text_filters.length,
        "have more than 250 words or 2,000 characters on a side, or a very long word"),
    "odd_ratio": (0.02, text_filters.ratio, "have a side that is three times as long as the other"),
    "copies": (0.05, text_filters.identical, "have two equal sides"),
}  # fmt: skip
"""Faults of lines, each with the share of the lines above which it is reported, and its filter."""
_CERTAINTY = 3.0
"""In standard deviations."""


@dataclasses.dataclass(frozen=True, order=True)
class Example:
    """A line of a corpus: its number from 1, and its sides in the order of the folder's name."""

    line: int
    first: str
    second: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that looks wrong: a key of ADVICE, its place, and what is wrong, in a sentence or two."""

    kind: str
    pair: str
    split: str
    files: tuple[str, ...]
    what: str
    examples: tuple[Example, ...] = ()

    @property
    def place(self) -> str:
        """The pair and the split, such as "fr-en train"."""
        return f"{self.pair} {self.split}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"advice": ADVICE[self.kind]}


def surely_above(number: int, possible: int, limit: float) -> bool:
    """Returns whether a share is above a limit, by the lower end of its Wilson interval."""
    n, z2 = max(possible, 1), _CERTAINTY**2
    share = number / n
    spread = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n)
    return (share + z2 / (2 * n) - spread) / (1 + z2 / n) > limit


@dataclasses.dataclass
class Scan:
    """What is known about one split. It is collected while the lines pass by.

    Attributes:
      files: the names of its files.
      lines: number of lines that were read.
      counts, examples: number of lines with each fault of _FAULTS, and the first of them.
      sample: lines with the smallest hashes, in the order of the file.
      drifts: lines whose sides do not belong together.
      problem: why reading ended early; "" if it did not.
    """

    pair: CorpusPair
    split: str
    files: tuple[str, ...]
    lines: int = 0
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    examples: dict[str, list[Example]] = dataclasses.field(default_factory=dict)
    sample: list[Example] = dataclasses.field(default_factory=list)
    drifts: list["Drift"] = dataclasses.field(default_factory=list)
    problem: str = ""

    def __post_init__(self) -> None:
        self._lengths = [np.zeros((2, 0), np.uint16)]
        self._sample: dict[int, Example] = {}
        self._largest = (1 << 64) - 1

    @property
    def tags(self) -> tuple[str, str]:
        return self.pair.source, self.pair.target

    def texts(self, column: int) -> list[str]:
        """Returns the lines of one side of the sample."""
        return [(line.first, line.second)[column] for line in self.sample]

    def finding(
        self, kind: str, what: str, examples: Iterable[Example] = (), column: int | None = None
    ) -> Finding:
        """Returns a finding about the split, or about one of its sides."""
        few = tuple(itertools.islice(examples, EXAMPLES))
        is_one_side = column is not None and len(self.files) == 2 and not is_text(self.files[0])
        files = (self.files[column or 0],) if is_one_side else self.files
        return Finding(kind, self.pair.name, self.split, files, what, few)

    def rows(self, rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yields the rows as they are, and collects them. A UserError of the reader ends the rows."""
        block: list[tuple[str, str]] = []
        try:
            for row in rows:
                block.append(row)
                if len(block) == _BLOCK:
                    self._add(block)
                    block = []
                yield row
        except UserError as error:
            self.problem = str(error)
        if block:
            self._add(block)

    def finish(self) -> Self:
        """Completes what needs all lines."""
        self.drifts = find_drifts(*np.concatenate(self._lengths, axis=1))
        self.sample = sorted(self._sample[key] for key in sorted(self._sample)[:SAMPLE])
        self._lengths, self._sample = [], {}  # the scans of all pairs are kept
        return self

    def _add(self, rows: list[tuple[str, str]]) -> None:
        block = Block([SentencePair(*row) for row in rows], *self.tags)
        lengths = np.array([side.characters for side in block.sides])
        self._lengths.append(np.minimum(lengths, 65535).astype(np.uint16))
        has_text = text_filters.empty(block, About(*self.tags))
        for kind, (_, is_sound, _) in _FAULTS.items():
            is_faulty = ~is_sound(block, About(*self.tags)) & (has_text | (kind == "empty"))
            self.counts[kind] += int(is_faulty.sum())
            examples = self.examples.setdefault(kind, [])
            few = np.flatnonzero(is_faulty)[: EXAMPLES - len(examples)].tolist()
            examples += [Example(self.lines + n + 1, *rows[n]) for n in few]
        keys = of_pairs(*(hashes(side.lines) for side in block.sides))
        for n in np.flatnonzero(has_text & (keys <= self._largest)).tolist():
            self._sample.setdefault(int(keys[n]), Example(self.lines + n + 1, *rows[n]))
        if len(self._sample) > 2 * SAMPLE:
            self._sample = {key: self._sample[key] for key in sorted(self._sample)[:SAMPLE]}
            self._largest = max(self._sample)
        self.lines += len(rows)


def findings(scan: Scan) -> Iterator[Finding]:
    """Yields what is wrong with single lines of a split, and with its alignment."""
    if scan.problem:
        yield scan.finding("unreadable", scan.problem)
    first, second = scan.tags
    for drift in scan.drifts[:EXAMPLES]:
        within = (line for line in scan.sample if drift.first <= line.line <= drift.last)
        place = f"About lines {drift.first:,} to {drift.last:,} look"
        what = (
            f"{place} shifted: line N of {first} belongs to line N "
            f"{'+' if drift.shift > 0 else '-'} {abs(drift.shift)} of {second}."
            if drift.shift
            else f"{place} unrelated: the lengths of the two sides do not agree."
        )
        yield scan.finding("shifted" if drift.shift else "unrelated", what, within)
    for kind, (limit, _, predicate) in _FAULTS.items():
        number = scan.counts[kind]
        # Lines that are shifted have odd ratios too.
        is_explained = kind == "odd_ratio" and scan.drifts
        if number and surely_above(number, scan.lines, limit) and not is_explained:
            part = 100 * number / scan.lines
            percent = f"{part:.2f}" if part < 1 else f"{part:.0f}"
            what = f"{number:,} of {scan.lines:,} lines ({percent} %) {predicate}."
            yield scan.finding(kind, what, scan.examples[kind])


LINES = 100
"""Lines whose lengths are compared together."""
_SHIFTS = tuple(shift for shift in range(-10, 11) if shift)
_CLEAR, _GAIN = 0.55, 0.35
"""The lengths agree at a shift if their correlation there is high, and higher than without the shift."""
_UNRELATED = 0.2
"""The sides of a text do not belong together if their correlation is usually below this."""
_LEAST_LINES, _LEAST_SPREAD = 50, 0.05
"""Fewer lines say nothing, and neither do lines that almost all have the same length."""


@dataclasses.dataclass(frozen=True)
class Drift:
    """Neighboring lines, numbered from 1, whose two sides do not belong together.

    Line N of the first side belongs to line N + `shift` of the second; 0 if to no near line.
    """

    first: int
    last: int
    shift: int


def find_drifts(first: np.ndarray, second: np.ndarray) -> list[Drift]:
    """Returns the drifts between two sides, given the number of characters of each line, in order.

    Long sentences have long translations. So the logarithms of the two lengths are correlated, in most
    text by 0.6 to 0.95. If a line is missing on one side, the lengths agree at a shift of one line
    instead. If one side is shuffled, they agree nowhere.
    """
    # A rest of less than a block belongs to the last block.
    bounds = [LINES * n for n in range(max(1, len(first) // LINES))] + [len(first)]
    plain, shifts = [], []
    for block in itertools.pairwise(bounds):
        values = {shift: _correlation(first, second, shift, *block) for shift in (0, *_SHIFTS)}
        best = max(_SHIFTS, key=lambda shift: np.nan_to_num(values[shift], nan=-1.0))
        is_shifted = values[best] >= _CLEAR and values[best] - values[0] >= _GAIN
        shifts.append(best if is_shifted else 0)
        if np.isfinite(values[0]):
            plain.append(values[0])
    if not any(shifts) and len(plain) > 1 and np.quantile(plain, 0.75) < _UNRELATED:
        return [Drift(1, len(first), 0)]
    drifts = []
    for shift, run in itertools.groupby(range(len(shifts)), shifts.__getitem__):
        blocks = list(run)
        if shift:
            drifts.append(Drift(bounds[blocks[0]] + 1, bounds[blocks[-1] + 1], shift))
    return drifts


def _correlation(first: np.ndarray, second: np.ndarray, shift: int, begin: int, end: int) -> float:
    """Returns the correlation of line N of the first side with line N + shift of the second.

    NaN if there are few lines, or if almost all of them have the same length.
    """
    low, high = max(begin, -shift), min(end, len(second) - shift)
    sides = first[low:high], second[low + shift : high + shift]
    a, b = (np.log1p(side, dtype=np.float64) for side in sides)
    if len(a) < _LEAST_LINES or min(a.std(), b.std()) < _LEAST_SPREAD:
        return np.nan
    return float(np.corrcoef(a, b)[0, 1])
