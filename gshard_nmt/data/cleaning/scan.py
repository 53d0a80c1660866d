"""Reads one split of a corpus once, line by line, and collects what the checks of a corpus need.

Cheap checks see every line. Expensive checks see a sample: the lines with the smallest hashes. The same
text always gives the same sample, wherever its lines are. Memory does not grow with the text.
"""

import collections
import dataclasses
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gshard_nmt.data.cleaning.findings import EXAMPLES, Example
from gshard_nmt.data.cleaning.shifts import Drift, DriftFinder
from gshard_nmt.data.sets.corpus import CorpusPair, read_pairs
from gshard_nmt.errors import UserError

SAMPLE = 3000
"""Lines of each split in the sample."""
_SIGNATURES = 1000
_COUNTED = 50_000
"""Distinct lines whose copies are counted exactly. A longer text is counted in a part of its lines."""
_BLOCK = 4096
LONG = 1000
"""Characters of a line that is surely not one sentence."""
LENGTH_SLACK = 15
"""Characters that are added before lengths are compared, so short lines may differ more."""
_RATIO_BINS = np.linspace(-6, 6, 241)

# UTF-8 that was read as Latin-1 or Windows-1252: a first byte of UTF-8, and all bytes that follow it.
_NEXT = "[\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]"
_MOJIBAKE = re.compile(
    rf"[ÃÂ]{_NEXT}|[Ä-ß]{_NEXT}[Ä-ß]{_NEXT}|[à-ï]{_NEXT}{{2}}|[ð-ô]{_NEXT}{{3}}"
    # Cyrillic in UTF-8 that was read as Windows-1251, such as "РџСЂРё".
    r"|(?:[РС][^\sА-Яа-яA-Za-z]|[РС][А-Яа-я]){5,}"
    "|\ufffd"
)


class Line(NamedTuple):
    """A line of the sample: its number from 1, and its two sides."""

    number: int
    first: str
    second: str


@dataclasses.dataclass
class Scan:
    """What is known about one split.

    Attributes:
      pair: the language pair.
      split: "train", "dev" or "test".
      files: the names of its files.
      lines: number of lines that were read.
      sample: lines with the smallest hashes, in the order of the file.
      counts: number of lines of each kind of finding that a single line shows.
      examples: the first lines of each of these kinds.
      ratios: int64[bins], the number of lines by the logarithm of the ratio of their lengths.
      counted, distinct: lines that were compared with each other, and the distinct ones of them.
      copied: a few lines that occur more than once, as (line, text, number of copies).
      drifts: lines whose sides do not belong together.
      signatures: for each side, the smallest hashes of its distinct lines of 20 characters or more.
      problem: why reading ended early; "" if it did not.
    """

    pair: CorpusPair
    split: str
    files: tuple[str, ...]
    lines: int = 0
    sample: list[Line] = dataclasses.field(default_factory=list)
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    examples: dict[str, list[Example]] = dataclasses.field(default_factory=dict)
    ratios: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(len(_RATIO_BINS) - 1, np.int64)
    )
    counted: int = 0
    distinct: int = 0
    copied: list[tuple[Example, int]] = dataclasses.field(default_factory=list)
    drifts: list[Drift] = dataclasses.field(default_factory=list)
    signatures: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0))
    problem: str = ""

    @property
    def tags(self) -> tuple[str, str]:
        """The languages of the two sides."""
        return self.pair.source, self.pair.target

    def usual_ratio(self) -> float:
        """Returns the median of the logarithms of the ratios of the lengths."""
        total = int(self.ratios.sum())
        middle = int(np.searchsorted(np.cumsum(self.ratios), (total + 1) // 2))
        return float(_RATIO_BINS[min(middle, len(self.ratios) - 1)])

    def odd_ratios(self, factor: float) -> float:
        """Returns the share of lines whose ratio of lengths is `factor` times the usual one, or more."""
        centres = (_RATIO_BINS[1:] + _RATIO_BINS[:-1]) / 2
        is_odd = np.abs(centres - self.usual_ratio()) > np.log(factor)
        return float(self.ratios[is_odd].sum() / max(self.ratios.sum(), 1))


class Scanner:
    """Collects a `Scan` while the lines pass by."""

    def __init__(self, pair: CorpusPair, split: str, files: tuple[str, ...]) -> None:
        self.scan = Scan(pair, split, files)
        self._drifts = DriftFinder()
        self._sample: dict[int, Line] = {}
        self._sample_below = 1 << 64
        self._copies: dict[int, list[int]] = {}
        self._copies_below = 1 << 64
        self._texts: dict[int, Line] = {}
        self._signatures: tuple[set[int], set[int]] = (set(), set())
        self._signatures_below = [1 << 64, 1 << 64]

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
            self.scan.problem = str(error)
        self._add(block)

    def finish(self) -> Scan:
        """Returns the scan, after the last row."""
        scan = self.scan
        scan.drifts = self._drifts.drifts()
        scan.sample = sorted(self._sample[key] for key in sorted(self._sample)[:SAMPLE])
        scan.signatures = tuple(  # type: ignore[assignment]
            np.sort(np.fromiter(hashes, np.uint64))[:_SIGNATURES] for hashes in self._signatures
        )
        scan.counted = sum(count for count, _ in self._copies.values())
        scan.distinct = len(self._copies)
        most = sorted(self._copies.items(), key=lambda item: (-item[1][0], item[1][1]))
        scan.copied = [
            (Example(*self._texts[key]), count)
            for key, (count, _) in most[:EXAMPLES]
            if count > 1 and key in self._texts
        ]
        return scan

    def _add(self, block: list[tuple[str, str]]) -> None:
        first, second = ([len(row[side].strip()) for row in block] for side in (0, 1))
        self._drifts.add(first, second)
        lengths = np.array([first, second], np.float64)
        has_text = lengths.min(0, initial=np.inf) > 0
        logs = np.log((lengths[0] + LENGTH_SLACK) / (lengths[1] + LENGTH_SLACK))
        self.scan.ratios += np.histogram(np.clip(logs[has_text], -5.99, 5.99), _RATIO_BINS)[0]
        for number, row in enumerate(block, self.scan.lines + 1):
            self._add_line(Line(number, *row))
        self.scan.lines += len(block)

    def _add_line(self, line: Line) -> None:
        _, first, second = line
        for kind in _kinds_of(first, second):
            self.scan.counts[kind] += 1
            examples = self.scan.examples.setdefault(kind, [])
            if len(examples) < EXAMPLES:
                examples.append(Example(*line))
        if not first.strip() or not second.strip():
            return
        hashes = _hash(first), _hash(second)
        for side, text in enumerate((first, second)):
            if len(text) >= 20 and hashes[side] < self._signatures_below[side]:
                self._signatures[side].add(hashes[side])
                if len(self._signatures[side]) > 2 * _SIGNATURES:
                    smallest = sorted(self._signatures[side])[:_SIGNATURES]
                    self._signatures[side].clear()
                    self._signatures[side].update(smallest)
                    self._signatures_below[side] = smallest[-1]
        self._count(_mix(*hashes), line)

    def _count(self, key: int, line: Line) -> None:
        """Adds a line to the sample and to the counts of copies, if its hash is small enough."""
        if key < self._sample_below:
            self._sample.setdefault(key, line)
            if len(self._sample) > 2 * SAMPLE:
                smallest = sorted(self._sample)[:SAMPLE]
                self._sample = {key: self._sample[key] for key in smallest}
                self._sample_below = smallest[-1]
        if key < self._copies_below:
            entry = self._copies.setdefault(key, [0, line.number])
            entry[0] += 1
            if entry[0] > 1 and len(self._texts) < SAMPLE:
                self._texts.setdefault(key, line._replace(number=entry[1]))
            if len(self._copies) > _COUNTED:
                self._copies_below //= 2
                below = self._copies_below
                self._copies = {k: v for k, v in self._copies.items() if k < below}
                self._texts = {k: v for k, v in self._texts.items() if k < below}


def _kinds_of(first: str, second: str) -> Iterator[str]:
    """Yields the kinds of findings that a single line shows."""
    if not first.strip() or not second.strip():
        yield "empty"
        return
    if first == second and any(c.isalpha() for c in first):
        yield "copies"
    if len(first) > LONG or len(second) > LONG:
        yield "long"
    if not (first.isascii() and second.isascii()):
        if _MOJIBAKE.search(first) or _MOJIBAKE.search(second):
            yield "mojibake"
        # NFC writes some letters of Bengali and Hindi in two parts, so a longer text means nothing.
        if any(len(unicodedata.normalize("NFC", text)) < len(text) for text in (first, second)):
            yield "decomposed"
    if not any(map(str.isalpha, first)) or not any(map(str.isalpha, second)):
        yield "no_letters"


def _hash(text: str) -> int:
    """Returns 64 bits that depend on the text alone."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _mix(first: int, second: int) -> int:
    """Returns 64 bits that depend on both hashes and on their order."""
    mixed = (first * 0x9E3779B97F4A7C15 + second * 0xC2B2AE3D27D4EB4F) & (1 << 64) - 1
    mixed ^= mixed >> 31
    return mixed * 0xBF58476D1CE4E5B9 & (1 << 64) - 1


def read_rows(pair: CorpusPair, split: str) -> Iterator[tuple[str, str]]:
    """Yields the two sides of each line of a split, in the order of the folder's name."""
    return read_pairs(pair, split, pair.source, pair.target)


def files_of(pair: CorpusPair, split: str) -> tuple[str, ...]:
    """Returns the names of the files of a split; none if the split does not exist.

    Raises:
      UserError: a side of the split is missing.
    """
    return tuple(path.name for text in pair.inputs(split) for path in text.files)
