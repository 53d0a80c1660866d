"""Finds the lines after which the two sides of a corpus no longer belong together.

Long sentences have long translations. So the logarithms of the two lengths are correlated, in most text
by 0.6 to 0.95. If a line is missing on one side, the lengths agree at a shift of one line instead. If one
side is shuffled, they agree nowhere.

Text is read once. Only the lengths of the present lines and a few numbers for each block stay in memory.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

BLOCK = 100
"""Lines that are looked at together."""
_MOST_SHIFT = 10
_SHIFTS = np.array([s for s in range(-_MOST_SHIFT, _MOST_SHIFT + 1) if s])
_CHUNK = 200 * BLOCK
_LEAST_LINES = 50
_CLEAR = 0.55
"""The lengths agree at a shift if their correlation is at least this, and ..."""
_GAIN = 0.35
"""... higher by this than without the shift."""
_UNRELATED = 0.2
"""The sides of a whole split do not belong together if their correlation is usually below this."""
_USUAL = 0.5
_DROP = 3
_WINDOW = 5
"""Lines do not belong together if the mean correlation of _WINDOW blocks is a _DROP-th of the usual one,
in text that usually has at least _USUAL."""
_LEAST_SPREAD = 0.05
"""If almost all lines of a block have the same length, they say nothing."""


@dataclasses.dataclass(frozen=True)
class Drift:
    """Neighboring lines whose two sides do not belong together.

    Attributes:
      first, last: the numbers of the first and the last line, from 1.
      shift: line N of the first side belongs to line N + shift of the second; 0 if to no near line.
    """

    first: int
    last: int
    shift: int


@dataclasses.dataclass(frozen=True)
class _Segment:
    """Neighboring blocks with the same shift: lines `first` to `end` - 1, counted from 0."""

    first: int
    end: int
    shift: int


class DriftFinder:
    """Takes the lengths of the lines of one split, and tells where its sides do not fit."""

    def __init__(self) -> None:
        self._lines = 0
        self._first: list[np.ndarray] = []
        self._second: list[np.ndarray] = []
        self._held = 0
        self._segments: list[_Segment] = []
        self._plain: list[np.ndarray] = []

    def add(self, first: Sequence[int], second: Sequence[int]) -> None:
        """Adds the next lines: the number of characters of their two sides."""
        self._first.append(np.log1p(np.asarray(first, np.float64)))
        self._second.append(np.log1p(np.asarray(second, np.float64)))
        self._held += len(first)
        if self._held >= 2 * _CHUNK:
            self._look(_CHUNK)

    def drifts(self) -> list[Drift]:
        """Returns the drifts, in the order of the lines. No lines can be added afterwards."""
        while self._held:
            self._look(min(self._held, _CHUNK))
        shifted = [
            Drift(segment.first + 1, segment.end, segment.shift)
            for segment in self._segments
            if segment.shift and (segment.end - segment.first >= BLOCK or self._lines < 4 * BLOCK)
        ]
        return sorted(shifted + self._unrelated(), key=lambda drift: drift.first)

    def _unrelated(self) -> list[Drift]:
        """Returns the long runs of blocks without correlation."""
        plain = np.concatenate(self._plain) if self._plain else np.zeros(0)
        # Blocks that are shifted are reported already, and blocks of equal lengths say nothing.
        for segment in self._segments:
            if segment.shift:
                plain[segment.first // BLOCK : -(-segment.end // BLOCK)] = np.nan
        known = plain[np.isfinite(plain)]
        if len(known) < 2:
            return []
        usual = float(np.quantile(known, 0.75))
        if usual < _UNRELATED:
            return [Drift(1, self._lines, 0)]
        if usual < _USUAL or len(plain) < _WINDOW:
            return []
        means = np.convolve(np.nan_to_num(plain, nan=usual), np.full(_WINDOW, 1 / _WINDOW), "valid")
        is_low = np.zeros(len(plain), bool)
        for window in np.flatnonzero(means < usual / _DROP).tolist():
            is_low[window : window + _WINDOW] = True
        edges = np.flatnonzero(np.diff(np.concatenate([[0], is_low.view(np.int8), [0]])))
        return [
            Drift(int(begin) * BLOCK + 1, min(int(end) * BLOCK, self._lines), 0)
            for begin, end in zip(edges[::2], edges[1::2], strict=True)
        ]

    def _look(self, count: int) -> None:
        """Looks at the next `count` lines, and forgets them."""
        first, second = np.concatenate(self._first), np.concatenate(self._second)
        begin = self._lines
        blocks = max(1, count // BLOCK) if count < _CHUNK else count // BLOCK
        bounds = [BLOCK * n for n in range(blocks)] + [count]
        plain = np.full(blocks, np.nan)
        shifts = np.zeros(blocks, np.int64)
        for n in range(blocks):
            block = slice(bounds[n], bounds[n + 1])
            plain[n], shifts[n] = _best_shift(first, second, block)
        self._plain.append(plain)
        for segment in _segments(first, second, shifts, bounds):
            moved = _Segment(segment.first + begin, segment.end + begin, segment.shift)
            last = self._segments[-1] if self._segments else None
            if last and last.shift == moved.shift and last.end == moved.first:
                self._segments[-1] = dataclasses.replace(last, end=moved.end)
            else:
                self._segments.append(moved)
        self._lines += count
        self._held -= count
        self._first, self._second = [first[count:]], [second[count:]]


def _best_shift(first: np.ndarray, second: np.ndarray, block: slice) -> tuple[float, int]:
    """Returns the correlation of a block without a shift, and the shift that is clearly better or 0.

    Args:
      first, second: float64[n], the logarithms of the lengths.
      block: the lines of the block.
    """
    a = first[block]
    if len(a) < _LEAST_LINES or min(a.std(), second[block].std()) < _LEAST_SPREAD:
        return np.nan, 0
    correlations = np.array([_correlation(first, second, block, s) for s in (0, *_SHIFTS)])
    best = int(correlations[1:].argmax())
    plain, value = correlations[0], correlations[1 + best]
    is_clear = value >= _CLEAR and value >= plain + _GAIN
    return float(plain), int(_SHIFTS[best]) if is_clear else 0


def _correlation(first: np.ndarray, second: np.ndarray, block: slice, shift: int) -> float:
    low = max(block.start, -shift)
    high = min(block.stop, len(second) - shift)
    a, b = first[low:high], second[low + shift : high + shift]
    if len(a) < _LEAST_LINES or min(a.std(), b.std()) < _LEAST_SPREAD:
        return -1.0
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def _segments(
    first: np.ndarray, second: np.ndarray, shifts: np.ndarray, bounds: Sequence[int]
) -> list[_Segment]:
    """Joins blocks of the same shift. The line of each change is where the lengths agree best."""
    segments: list[_Segment] = []
    begin = 0
    for n in range(1, len(shifts) + 1):
        if n < len(shifts) and shifts[n] == shifts[n - 1]:
            continue
        end = bounds[n]
        if n < len(shifts):
            end = _change(
                first, second, (int(shifts[n - 1]), int(shifts[n])), bounds[n - 1], bounds[n + 1]
            )
        segments.append(_Segment(begin, end, int(shifts[n - 1])))
        begin = end
    return segments


def _change(
    first: np.ndarray, second: np.ndarray, shifts: tuple[int, int], low: int, high: int
) -> int:
    """Returns the line between `low` and `high` from which on the second shift fits better."""
    usual = np.median(second) - np.median(first)
    lines = np.arange(low, high)
    before, after = (
        np.abs(second[np.clip(lines + s, 0, len(second) - 1)] - first[lines] - usual)
        for s in shifts
    )
    # Element n is the cost if the first n lines have the first shift and the others the second.
    costs = np.concatenate([[0], np.cumsum(before)]) + np.concatenate(
        [np.cumsum(after[::-1])[::-1], [0]]
    )
    return low + int(costs.argmin())
