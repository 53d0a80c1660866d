"""Reads one split of a corpus once, and tells which of its lines look wrong.

The filters of cleaning see every line. Expensive checks see a sample: the lines with the smallest hashes.
The same text always gives the same sample, wherever its lines are. Memory grows by 4 bytes for each line,
for the lengths of its sides.
"""

import collections
import dataclasses
import math
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np

from gshard_nmt.data.cleaning import text_filters
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.duplicates import hashes, of_pairs
from gshard_nmt.data.cleaning.registry import Mask
from gshard_nmt.data.cleaning.shifts import Drift, find_drifts
from gshard_nmt.data.sets.corpus import CorpusPair, SentencePair
from gshard_nmt.errors import UserError

EXAMPLES = 3
"""Examples that a finding has at most."""

ADVICE = {
    "unreadable": "Mend the file. The lines before that place were checked.",
    "missing": "Add the files, or leave the language out with Data.languages.",
    "unused_files": "Rename these files if they are text of the pair. Otherwise move them away.",
    "twice": "Remove one if it is a copy of the other. gshard-data prepare uses the text of both.",
    "swapped": "Exchange the names of the two files.",
    "wrong_language": "Look at the file and rename its folder, or replace the file.",
    "wrong_script": "Look at the file and rename its folder, or replace the file.",
    "same_text": "Find out which of the two languages the text is in, and remove the other copy.",
    "mixed_languages": "Remove these lines; the filters of gshard-data prepare can do it.",
    "shifted": "Insert or delete lines at the first of these lines, so that line N translates line N.",
    "unrelated": "Align the two files again. One of them is shuffled, or it belongs to another file.",
    "empty": "Remove these lines from both files; the filters of gshard-data prepare can do it.",
    "copies": "Remove these lines, or the model learns to copy its source.",
    "mojibake": "Decode the original file again with its true encoding.",
    "decomposed": "Compose them, for instance with uconv -x any-nfc. A model learns target text as it "
    "is, so it would write the same word in two ways.",
    "long": "Split these lines into sentences, because rows are shorter than they are.",
    "no_letters": "Remove these lines from both files; the filters of gshard-data prepare can do it.",
    "odd_ratio": "Look for lines that are cut, joined or wrongly aligned, and remove them.",
    "duplicates": "Remove the duplicates, or let gshard-data prepare do it.",
    "leak": "Remove these lines from the training text, or scores will be too high.",
}
"""The kinds of findings, and what a user can do about each."""

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
    """Something that looks wrong: a key of ADVICE, its place, and what is wrong, in a sentence or two.

    `pair` is the name of the pair, and the split is "" for the whole pair.
    """

    kind: str
    pair: str
    split: str
    files: tuple[str, ...]
    what: str
    examples: tuple[Example, ...] = ()

    @property
    def place(self) -> str:
        """The pair and the split, such as "fr-en train"."""
        return f"{self.pair} {self.split}".strip()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"advice": ADVICE[self.kind]}


def surely_above(number: int, possible: int, limit: float) -> bool:
    """Returns whether a share is above a limit, by the lower end of its Wilson interval."""
    n, z2 = max(possible, 1), _CERTAINTY**2
    share = number / n
    spread = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n)
    return (share + z2 / (2 * n) - spread) / (1 + z2 / n) > limit


SAMPLE = 3000
"""Lines of each split in the sample."""
_COUNTED = 50_000
"""Distinct lines whose copies are counted exactly. A longer text is counted in a part of its lines."""
_BLOCK = 4096

# fmt: off
_LIMITS = {
    "empty": (0.0, 0, "have an empty side"),
    "mojibake": (0.001, 3, "look as if they were decoded with a wrong encoding, or have U+FFFD"),
    "decomposed": (0.001, 3, "have accents that are characters of their own (Unicode's NFD)"),
    "long": (0.001, 3, "have more than 250 words or 2,000 characters on a side, or a very long word"),
    "odd_ratio": (0.02, 3, "have a side that is three times as long as the other"),
    "copies": (0.05, 10, "have two equal sides"),
    "no_letters": (0.05, 10, "have a side without letters"),
}
# fmt: on
"""A kind is reported above this share of the lines and above this number of lines."""
_FILTERS = {
    "mojibake": text_filters.encoding,
    "long": text_filters.length,
    "odd_ratio": text_filters.ratio,
    "copies": text_filters.identical,
}
_MOST_DUPLICATES = 0.1
_LEAST_LINES = 100
"""Duplicates are looked for in this number of lines or more."""
_MOST_DRIFTS = 3


@dataclasses.dataclass
class Scan:
    """What is known about one split. It is collected while the lines pass by.

    Attributes:
      files: the names of its files.
      lines: number of lines that were read.
      counts: number of lines of each kind of _LIMITS.
      examples: the first lines of each of these kinds.
      sample: lines with the smallest hashes, in the order of the file.
      copies: how often each line was seen, by hash; of long texts, the lines with small hashes.
      copied: the line of the sample that occurs most often, and how often.
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
    copies: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    copied: tuple[Example, int] | None = None
    drifts: list[Drift] = dataclasses.field(default_factory=list)
    problem: str = ""

    def __post_init__(self) -> None:
        self._lengths = [np.zeros((2, 0), np.uint16)]
        self._sample: dict[int, Example] = {}
        self._sample_most = self._copies_most = (1 << 64) - 1

    @property
    def tags(self) -> tuple[str, str]:
        return self.pair.source, self.pair.target

    def finding(self, kind: str, what: str, examples: Iterable[Example] = ()) -> Finding:
        few = tuple(examples)[:EXAMPLES]
        return Finding(kind, self.pair.name, self.split, self.files, what, few)

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
        self._lengths = []  # the scans of all pairs are kept
        keys = sorted(self._sample)[:SAMPLE]
        self.sample = sorted(self._sample[key] for key in keys)
        if keys:
            key = max(keys, key=self.copies.__getitem__)
            self.copied = (self._sample[key], self.copies[key])
        self._sample = {}
        return self

    def _add(self, rows: list[tuple[str, str]]) -> None:
        block = Block([SentencePair(*row) for row in rows], *self.tags)
        lengths = np.array([side.characters for side in block.sides])
        self._lengths.append(np.minimum(lengths, 65535).astype(np.uint16))
        has_text = text_filters.empty(block, About(*self.tags))
        for kind, is_faulty in _faults(block, has_text):
            self.counts[kind] += int(is_faulty.sum())
            examples = self.examples.setdefault(kind, [])
            few = np.flatnonzero(is_faulty)[: EXAMPLES - len(examples)].tolist()
            examples += [Example(self.lines + n + 1, *rows[n]) for n in few]
        keys = of_pairs(*(hashes(side.lines) for side in block.sides))
        for n in np.flatnonzero(has_text & (keys <= self._sample_most)).tolist():
            self._sample.setdefault(int(keys[n]), Example(self.lines + n + 1, *rows[n]))
        if len(self._sample) > 2 * SAMPLE:
            self._sample = {key: self._sample[key] for key in sorted(self._sample)[:SAMPLE]}
            self._sample_most = max(self._sample)
        self.copies.update(keys[has_text & (keys <= self._copies_most)].tolist())
        while len(self.copies) > _COUNTED:
            self._copies_most //= 2
            few = {key: n for key, n in self.copies.items() if key <= self._copies_most}
            self.copies = collections.Counter(few)
        self.lines += len(rows)


def _faults(block: Block, has_text: Mask) -> Iterator[tuple[str, Mask]]:
    """Yields the kinds of findings that a single line shows, with bool[row], true for these lines."""
    about = About(block.source.language, block.target.language)
    yield "empty", ~has_text
    for kind, function in _FILTERS.items():
        yield kind, has_text & ~function(block, about)
    # NFC writes some letters of Bengali and Hindi in two parts, so a longer text means nothing.
    is_decomposed = np.zeros(len(block), bool)
    for side in block.sides:
        shorter = [len(unicodedata.normalize("NFC", line)) < len(line) for line in side.lines]
        is_decomposed |= shorter
    yield "decomposed", has_text & is_decomposed
    yield "no_letters", has_text & ((block.source.letters == 0) | (block.target.letters == 0))


def findings(scan: Scan) -> Iterator[Finding]:
    """Yields what is wrong with single lines of a split, with its duplicates, and its alignment."""
    if scan.problem:
        yield scan.finding("unreadable", scan.problem)
    yield from _drifts(scan)
    for kind, (share, least, predicate) in _LIMITS.items():
        number = scan.counts[kind]
        # Lines that are shifted have odd ratios too.
        is_usual = number <= share * scan.lines or number < max(least, 1)
        if not is_usual and not (kind == "odd_ratio" and scan.drifts):
            of_lines = f"of {scan.lines:,} lines ({_percent(number, scan.lines)})"
            yield scan.finding(kind, f"{number:,} {of_lines} {predicate}.", scan.examples[kind])
    counted = scan.copies.total()
    copies = counted - len(scan.copies)
    if scan.copied and scan.lines >= _LEAST_LINES and copies > _MOST_DUPLICATES * counted:
        part = "" if counted + scan.counts["empty"] >= scan.lines else "About "
        example, number = scan.copied
        what = (
            f"{part}{_percent(copies, counted)} of the lines are copies of other lines. The example "
            f"occurs {number:,} times."
        )
        yield scan.finding("duplicates", what, [example])


def _drifts(scan: Scan) -> Iterator[Finding]:
    first, second = scan.tags
    for number, drift in enumerate(scan.drifts[:_MOST_DRIFTS], 1):
        what = (
            f"Lines {drift.first:,} to {drift.last:,} look shifted: line N of {first} belongs to "
            f"line N {'+' if drift.shift > 0 else '-'} {abs(drift.shift)} of {second}."
            if drift.shift
            else f"The two sides do not belong together in lines {drift.first:,} to {drift.last:,}, or "
            "near them: the lengths of their lines do not agree."
        )
        if number == _MOST_DRIFTS < len(scan.drifts):
            what += f" {len(scan.drifts) - number:,} more places look like this."
        within = (line for line in scan.sample if drift.first <= line.line <= drift.last)
        yield scan.finding("shifted" if drift.shift else "unrelated", what, within)


def _percent(number: int, total: int) -> str:
    share = 100 * number / max(total, 1)
    return f"{share:.2f} %" if share < 1 else f"{share:.0f} %"
