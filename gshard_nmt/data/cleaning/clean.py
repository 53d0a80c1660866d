"""Runs the filters over a block of rows."""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning import registry, samples
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError


@dataclasses.dataclass(frozen=True)
class Cleaned:
    """What cleaning leaves of a block of rows.

    Attributes:
      rows: the remaining rows.
      indices: int64[row], their places in the block.
      removed: the number of rows that each filter dropped, without zeros.
      edited: the number of rows that each filter changed, without zeros.
      samples: samples of the dropped rows of each filter.
    """

    rows: Sequence[SentencePair]
    indices: NDArray[np.int64]
    removed: collections.Counter[str]
    edited: collections.Counter[str]
    samples: samples.Samples


def clean(rows: Sequence[SentencePair], about: About) -> Cleaned:
    """Returns the rows that pass all filters. The result depends on the arguments alone.

    Each row is judged by itself, so any split of the text into blocks leaves the same rows.

    Raises:
      UserError: a filter is unknown, or a filter of a user fails.
    """
    indices = np.arange(len(rows))
    removed: collections.Counter[str] = collections.Counter()
    edited: collections.Counter[str] = collections.Counter()
    dropped: samples.Samples = {}
    functions = registry.filters(about.settings)
    remaining: Sequence[SentencePair] = rows
    if len(rows):
        block = remaining = Block(rows, about.source, about.target)
        for name, function in functions.items():
            if not len(block):
                break
            mask, new_rows = _apply(name, function, block, about)
            if not mask.all():
                removed[name] = int((~mask).sum())
                lost = [block[row] for row in np.flatnonzero(~mask).tolist()]
                dropped[name] = samples.choose(name, lost)
                indices = indices[mask]
                block = block.keep(mask)
            if new_rows is not None:
                changes = sum(a != b for a, b in zip(block, new_rows, strict=True))
                if changes:
                    edited[name] = changes
                    block = Block(new_rows, about.source, about.target)
        remaining = block
    return Cleaned(remaining, indices, removed, edited, dropped)


def _apply(
    name: str, function: registry.Filter, block: Block, about: About
) -> tuple[registry.Mask, list[SentencePair] | None]:
    """Runs one filter. Returns bool[row], true for kept rows, and the kept rows if it edits them."""
    try:
        result = function(block, about)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the filter {name!r} of {function.__module__} failed on {about.source}-{about.target}: "
            f"{type(error).__name__}: {error}. Mend it, or leave it out: "
            f"--gin 'Cleaning.without = [\"{name}\"]'.",
            ["Cleaning.modules"],
        ) from error
    if (
        isinstance(result, np.ndarray)
        and result.dtype == np.bool_
        and result.shape == (len(block),)
    ):
        return result, None
    entries = list(result)
    if len(entries) == len(block):
        if all(isinstance(entry, bool | np.bool_) for entry in entries):
            return np.array(entries, bool), None
        if all(_is_row(entry) for entry in entries):
            mask = np.array([entry is not None for entry in entries])
            rows = [SentencePair(*entry) for entry in entries if isinstance(entry, tuple)]
            return mask, rows
    raise UserError(
        f"the filter {name!r} of {function.__module__} returned {len(entries)} entries for "
        f"{len(block)} rows, such as {entries[:1]}. It must return True or False for each row, or each "
        "row edited, with None for a row that it drops.",
        ["Cleaning.modules"],
    )


def _is_row(entry: object) -> bool:
    if entry is None:
        return True
    return (
        isinstance(entry, tuple)
        and len(entry) in (2, 3)
        and isinstance(entry[0], str)
        and isinstance(entry[1], str)
    )
