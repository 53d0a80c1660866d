"""Finds the lines after which the two sides of a text no longer belong together.

Long sentences have long translations. So the logarithms of the two lengths are correlated, in most text
by 0.6 to 0.95. If a line is missing on one side, the lengths agree at a shift of one line instead. If one
side is shuffled, they agree nowhere.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK = 100
"""Lines that are looked at together."""
_SHIFTS = tuple(shift for shift in range(-10, 11) if shift)
_CLEAR = 0.55
"""The lengths agree at a shift if their correlation is at least this, and ..."""
_GAIN = 0.35
"""... higher by this than without the shift."""
_UNRELATED = 0.2
"""The sides of a whole text do not belong together if their correlation is usually below this."""
_USUAL, _DROP, _WINDOW = 0.5, 3, 5
"""Lines do not belong together if the mean correlation of _WINDOW blocks is a _DROP-th of the usual one,
in text that usually has at least _USUAL."""
_LEAST_LINES, _LEAST_SPREAD = 50, 0.05
"""Fewer lines say nothing, and neither do lines that almost all have the same length."""

Logs = NDArray[np.float64]
"""float64[line]: the logarithm of the length of each line."""


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


def find_drifts(first: ArrayLike, second: ArrayLike) -> list[Drift]:
    """Returns the drifts between two sides, given the number of characters of each line, in order."""
    a, b = (np.log1p(np.asarray(side, np.float64)) for side in (first, second))
    lines = len(a)
    # A rest of less than a block belongs to the last block.
    bounds = [BLOCK * n for n in range(max(1, lines // BLOCK))] + [lines]
    blocks = len(bounds) - 1
    plain, shifts = np.zeros(blocks), [0] * blocks
    for n in range(blocks):
        block = slice(bounds[n], bounds[n + 1])
        values = {shift: _correlation(a, b, shift, block) for shift in (0, *_SHIFTS)}
        best = max(_SHIFTS, key=lambda shift: np.nan_to_num(values[shift], nan=-1.0))
        plain[n] = values[0]
        if values[best] >= _CLEAR and values[best] - values[0] >= _GAIN:
            shifts[n] = best
    drifts = []
    begin = 0
    for n, shift in enumerate(shifts):
        is_last = n + 1 == blocks
        if not is_last and shifts[n + 1] == shift:
            continue
        end = lines if is_last else _change(a, b, (shift, shifts[n + 1]), bounds[n], bounds[n + 2])
        if shift:
            # Lines that are shifted are reported once.
            plain[begin // BLOCK : -(-end // BLOCK)] = np.nan
            if end - begin >= BLOCK or lines < 4 * BLOCK:
                drifts.append(Drift(begin + 1, end, shift))
        begin = end
    return sorted([*drifts, *_unrelated(plain, lines)], key=lambda drift: drift.first)


def _correlation(first: Logs, second: Logs, shift: int, lines: slice) -> float:
    """Returns the correlation of line N of the first side with line N + shift of the second.

    NaN if there are few lines, or if almost all of them have the same length.
    """
    begin, end, _ = lines.indices(len(first))
    low, high = max(begin, -shift), min(end, len(second) - shift)
    a, b = first[low:high], second[low + shift : high + shift]
    if len(a) < _LEAST_LINES or min(a.std(), b.std()) < _LEAST_SPREAD:
        return np.nan
    return float(np.corrcoef(a, b)[0, 1])


def _unrelated(plain: NDArray[np.float64], lines: int) -> list[Drift]:
    """Returns the long runs of blocks without correlation; `plain` has that of each block, or NaN."""
    known = plain[np.isfinite(plain)]
    if len(known) < 2:
        return []
    usual = float(np.quantile(known, 0.75))
    if usual < _UNRELATED:
        return [Drift(1, lines, 0)]
    if usual < _USUAL or len(plain) < _WINDOW:
        return []
    means = np.convolve(np.nan_to_num(plain, nan=usual), np.full(_WINDOW, 1 / _WINDOW), "valid")
    is_low = np.zeros(len(plain), bool)
    for window in np.flatnonzero(means < usual / _DROP).tolist():
        is_low[window : window + _WINDOW] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_low.view(np.int8), [0]])))
    return [
        Drift(int(begin) * BLOCK + 1, min(int(end) * BLOCK, lines), 0)
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
    ]


def _change(first: Logs, second: Logs, shifts: Sequence[int], low: int, high: int) -> int:
    """Returns the line between `low` and `high` from which on the second of two shifts fits better."""
    usual = np.median(second) - np.median(first)
    lines = np.arange(low, high)
    before, after = (
        np.abs(second[np.clip(lines + s, 0, len(second) - 1)] - first[lines] - usual)
        for s in shifts
    )
    # Element n is the cost if the first n lines have the first shift and the others the second.
    costs = np.append(0, np.cumsum(before)) + np.append(np.cumsum(after[::-1])[::-1], 0)
    return low + int(costs.argmin())
