"""The mixture: computes which corpus and which example each draw shows.

The draws are dealt to a fixed number of streams, and each stream counts its own draws from 0 in each
phase of the schedule. Draw i of a stream gets a label, (i * STEP + shift) mod PERIOD. STEP / PERIOD is
near the golden ratio, so the labels of any consecutive draws lie evenly (Knuth, "The Art of Computer
Programming", volume 3, section 6.4: Fibonacci hashing). Component c owns an interval of labels whose
length is its rate times PERIOD. So draws show the components at their rates, without long waits, and
the number of draws of a component before draw i is a sum of floors that needs no loop over the draws.

The m-th draw of component c by stream s is number m * S + s of all draws of c (S streams). Draw number
k shows example k mod n of epoch k // n, and `shuffle` decides which example this is. So each example
occurs exactly once in the draws of an epoch, and nothing depends on the number of processes.

Example: one component with 3 examples, 2 streams. Stream 0 has the draws 0, 2, 4 of the component,
stream 1 the draws 1, 3, 5. The draws 0 to 2 show each of the examples once, and so do the draws 3 to 5.
"""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from gshard_nmt.data.batching.shuffle import key_of

PERIOD = 1 << 31
"""The labels are the whole numbers below PERIOD. A rate above 0 is a multiple of 1 / PERIOD."""

STEP = 1327217885
"""An odd number near PERIOD divided by the golden ratio."""

_SHIFTS = 1
"""A number that makes the keys of this module differ from other keys of the same seed."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """An endless, reproducible sequence of draws from several components, for each stream.

    `rates` has the rates of the components in each phase; their sum is 1.
    """

    rates: tuple[tuple[float, ...], ...]
    streams: int
    seed: int

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """int64[phases, components]: how many of the PERIOD labels each component owns in a phase."""
        return np.stack([apportion(np.asarray(rates), PERIOD) for rates in self.rates])

    def components(self, stream: int, phase: int, draws: npt.ArrayLike) -> np.ndarray:
        """Returns int64[n], the component of these draws of a stream in a phase, int64[n] from 0."""
        draws = np.asarray(draws, np.int64) % PERIOD
        labels = (draws * STEP + self._shift(phase, np.int64(stream))) % PERIOD
        return np.searchsorted(np.cumsum(self.counts[phase]), labels, side="right")

    def counts_until(self, streams: npt.ArrayLike, phase: int, draws: npt.ArrayLike) -> np.ndarray:
        """Returns int64[n, components]: how often each component occurs before a draw, in closed form.

        `draws` is int64[n], the number of draws that each of the streams int64[n] has made in this phase.
        """
        streams, draws = np.broadcast_arrays(np.atleast_1d(streams), np.atleast_1d(draws))
        counts = self.counts[phase]
        ends = np.cumsum(counts)
        periods, rest = np.divmod(draws.astype(np.int64)[:, None], PERIOD)
        shifts = self._shift(phase, streams)[:, None]
        # A label y is in [begin, end) if floor((y - begin) / P) - floor((y - end) / P) is 1.
        until_end = floor_sum(rest, PERIOD, STEP, shifts - ends + PERIOD)
        until_begin = floor_sum(rest, PERIOD, STEP, shifts - (ends - counts) + PERIOD)
        return periods * counts + until_begin - until_end

    def _shift(self, phase: int, streams: npt.ArrayLike) -> np.ndarray:
        keys = key_of(self.seed, _SHIFTS, phase, streams)
        return (keys % np.uint64(PERIOD)).astype(np.int64)


def floor_sum(
    number: npt.ArrayLike, modulus: npt.ArrayLike, step: npt.ArrayLike, start: npt.ArrayLike
) -> np.ndarray:
    """Returns the sum of floor((step * j + start) / modulus) over 0 <= j < number, as Euclid's algorithm.

    All arguments are int64 of at least 0, with step * number + start < 2**63.
    """
    n, m, a, b = map(np.array, np.broadcast_arrays(*map(np.int64, (number, modulus, step, start))))  # type: ignore[arg-type]
    total = np.zeros(n.shape, np.int64)
    while n.any():
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        last = a * n + b
        # Now count the lattice points below the line from the other axis.
        n, b = last // m, last % m
        m, a = np.where(n > 0, a, 1), np.where(n > 0, m, 0)
    return total


def apportion(rates: np.ndarray, total: int) -> np.ndarray:
    """Rounds float64[n] rates * total to int64[n] that sum to total, by the largest remainders.

    A rate above 0 gets at least 1, a rate of 0 gets 0.
    """
    positive = rates > 0
    quotas = rates * total
    counts = np.maximum(np.floor(quotas), positive).astype(np.int64)
    while (missing := total - counts.sum()) != 0:
        # Add 1 to, or take 1 from, the counts that are furthest from their quotas.
        may_change = positive & ((counts > 1) | (missing > 0))
        surplus = np.where(may_change, np.sign(missing) * (counts - quotas), np.inf)
        changed = np.argsort(surplus, kind="stable")[: min(abs(missing), may_change.sum())]
        counts[changed] += np.sign(missing)
    return counts
