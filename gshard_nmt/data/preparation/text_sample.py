"""A sample of lines for training a vocabulary: bounded, at random, the same for any split into blocks.

Each line has a hash that depends on the line and the seed alone. The sample of n lines is the n distinct
lines with the smallest hashes. So it needs one pass, and memory for n lines. The order of the lines, the
number of blocks and the number of workers do not matter: the smallest of the smallest lines of all blocks
are the smallest lines of all.
"""

import bisect
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from gshard_nmt.data.batching.mixture import sampling_rates


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The lines with the smallest hashes of a text, in the order of their hashes.

    Attributes:
      lines: the distinct lines.
      hashes: the hash of each line.
      limit: the largest number of lines. With fewer lines, these are all distinct lines of the text.
    """

    lines: tuple[str, ...]
    hashes: tuple[int, ...]
    limit: int


def smallest(lines: Iterable[str], limit: int, seed: int | str) -> Candidates:
    """Returns the distinct lines with the `limit` smallest hashes of (seed, line).

    Args:
      lines: lines of text. Blank lines are left out. They are read once.
      limit: the largest number of lines to return.
      seed: decides the sample. Different texts need different seeds, see `text_seed`.
    """
    sampler = Sampler(limit, seed)
    sampler.add(lines)
    return sampler.candidates()


def merge(candidates: Iterable[Candidates], limit: int) -> Candidates:
    """Returns the smallest lines of several blocks that were sampled with the same seed.

    Blocks can be merged in any order, and in groups.

    Args:
      candidates: the smallest lines of each block.
      limit: the largest number of lines to return.

    Raises:
      ValueError: a block was sampled with a smaller limit, so it may lack lines.
    """
    smallest_lines = _Smallest(limit)
    for block in candidates:
        if block.limit < limit:
            raise ValueError(f"a block has up to {block.limit} lines, so {limit} cannot be chosen.")
        smallest_lines.add(block.hashes, block.lines)
    return smallest_lines.candidates()


class Sampler:
    """Takes a sample of a text that arrives block by block; see `smallest`."""

    def __init__(self, limit: int, seed: int | str) -> None:
        """Starts with no line. `limit` and `seed` are those of `smallest`."""
        self._smallest = _Smallest(limit)
        self._key = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()

    def add(self, lines: Iterable[str]) -> None:
        """Adds a block of lines."""
        block = [line for line in lines if line and not line.isspace()]
        blake, key = hashlib.blake2b, self._key
        digests = b"".join(
            [blake(line.encode(), digest_size=8, key=key).digest() for line in block]
        )
        hashes = np.frombuffer(digests, "<u8")
        # After the first blocks, this comparison rejects almost every line.
        places = np.flatnonzero(hashes <= np.uint64(self._smallest.threshold)).tolist()
        self._smallest.add(hashes[places].tolist(), [block[place] for place in places])

    def candidates(self) -> Candidates:
        """Returns the sample of the lines that were added so far."""
        return self._smallest.candidates()


class _Smallest:
    """The lines with the smallest hashes among those that were added."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: dict[str, int] = {}
        self.threshold = (1 << 64) - 1

    def add(self, hashes: Iterable[int], lines: Iterable[str]) -> None:
        """Adds lines with their hashes; a line with a hash above `threshold` makes no difference."""
        self._lines.update(zip(lines, hashes, strict=True))
        if len(self._lines) > 2 * self._limit:
            self._shrink()

    def candidates(self) -> Candidates:
        """Returns the smallest lines."""
        self._shrink()
        return Candidates(tuple(self._lines), tuple(self._lines.values()), self._limit)

    def _shrink(self) -> None:
        # Two lines may have the same hash, so the line decides.
        ranked = sorted((number, line) for line, number in self._lines.items())[: self._limit]
        self._lines = {line: number for number, line in ranked}
        if len(ranked) == self._limit and ranked:
            self.threshold = ranked[-1][0]


def text_seed(seed: int, side: str, source: str, target: str) -> str:
    """Returns the seed for the text of one side of a direction of translation.

    Two languages may have the same English lines. With the same seed, both samples would have the same
    lines of these, and their union would be small.

    Args:
      seed: `Data.seed`.
      side: "source" or "target".
      source, target: BCP 47 tags of the languages.
    """
    return f"{seed} {side} {source}-{target}"


def quotas(sizes: Mapping[str, int], limit: int, temperature: float) -> dict[str, int]:
    """Returns the number of lines that each text may give to a sample of `limit` lines.

    A text with n lines has a share in proportion to n ** (1 / temperature), see
    `mixture.sampling_rates`. Lines are not repeated. So if a text has fewer lines than its share, the
    sample is smaller: other languages do not take the share of a small language.

    Args:
      sizes: the number of lines of each text, by name.
      limit: the largest number of lines of the sample, in all texts together.
      temperature: 1 keeps the proportions of the texts, a large temperature makes all shares equal.

    Returns:
      The numbers by name, at least 1 each. Their sum is at most `limit`, unless there are more texts.
    """
    if not sizes:
        return {}
    rates = sampling_rates([max(size, 1) for size in sizes.values()], temperature)

    def counts(lines: int) -> dict[str, int]:
        pairs = zip(sizes, rates.tolist(), strict=True)
        return {name: max(1, int(rate * lines)) for name, rate in pairs}

    # A text with a share below 1 gives a line all the same, so the other texts give a little less.
    largest = bisect.bisect_right(
        range(limit + 1), limit, key=lambda lines: sum(counts(lines).values())
    )
    return counts(max(largest - 1, 0))
