"""Says which sentences of dev and test are in the training text of the same two languages."""

import dataclasses
from collections.abc import Iterator

from gshard_nmt.data.cleaning.findings import EXAMPLES, Example, Finding
from gshard_nmt.data.cleaning.leaks import Overlap, OverlapSearch
from gshard_nmt.data.cleaning.scan import Scan
from gshard_nmt.data.sets.corpus import CorpusPair

_LEAST = 3


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Lines that must not be in the training text.

    Attributes:
      pair: the language pair; it may be of another corpus than the training text.
      split: "dev" or "test".
      sources, references: its sides, in the order of the folder's name.
    """

    pair: CorpusPair
    split: str
    sources: tuple[str, ...]
    references: tuple[str, ...]

    @property
    def source(self) -> str:
        """The language of `sources`."""
        return self.pair.source

    @property
    def target(self) -> str:
        """The language of `references`."""
        return self.pair.target


def findings(search: OverlapSearch[HeldOut], train: Scan) -> Iterator[Finding]:
    """Yields a finding for each split that overlaps with the training text too much."""
    for overlap in search.overlaps:
        part = overlap.test
        if not _is_alarming(overlap):
            continue
        numbers = sorted(overlap.pairs) or sorted(overlap.lines())
        rows = [(n + 1, part.sources[n], part.references[n]) for n in numbers[:EXAMPLES]]
        place = "" if part.pair == train.pair else f" of {train.pair.name}"
        note = (
            f" Near copies were looked for in {search.compared:,} of {train.lines:,} training lines."
            if search.compared < train.lines
            else ""
        )
        exact = len(overlap.exact_pairs)
        yield Finding(
            "leak",
            part.pair.name,
            part.split,
            train.files,
            f"{len(overlap.pairs):,} of {len(part.sources):,} lines of {part.split} are in the training "
            f"text{place} on both sides, {exact:,} of them exactly and {len(overlap.pairs) - exact:,} "
            f"almost. On one side alone, {overlap.count('source', True):,} lines of {part.source} and "
            f"{overlap.count('target', True):,} lines of {part.target} are exact copies.{note}",
            tuple(Example(*row) for row in rows),
        )


def _is_alarming(overlap: Overlap[HeldOut]) -> bool:
    """Returns whether an overlap is too large for an accident.

    A few near copies in a small set may be an accident.
    """
    lines = max(len(overlap.exact_pairs), len(overlap.pairs) // 4, len(overlap.lines()) // 8)
    return overlap.is_alarming and lines >= _LEAST
