"""The filters by name, and the cleaning of rows with them."""

import collections
import dataclasses
import importlib.metadata
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning import overlap, report, text_filters
from gshard_nmt.data.cleaning.block import About, Block, Mask
from gshard_nmt.data.cleaning.config import FILTERS, Cleaning
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError, did_you_mean

Filter = Callable[[Block, About], Mask]
"""Takes rows and what is known about them. Returns bool[row], true for rows that stay."""

_FUNCTIONS: Mapping[str, Filter] = {
    name: overlap.overlap if name == "overlap" else getattr(text_filters, name)
    for name in (*FILTERS, "language")
}

VERSION = 5
"""Raised if a filter that exists, or a hash, gives other results. A new filter needs no raise."""


def filters(settings: Cleaning) -> dict[str, Filter]:
    """Returns the filters that these settings name, in their order, by name."""
    for field, given in (("filters", settings.filters), ("without", settings.without)):
        for name in given:
            if name not in _FUNCTIONS:
                raise UserError(
                    f"Cleaning.{field} has {name!r}, but there is no filter of this name"
                    f"{did_you_mean(name, _FUNCTIONS)} Known: {', '.join(_FUNCTIONS)}.",
                    [f"Cleaning.{field}"],
                )
    return {name: _FUNCTIONS[name] for name in settings.filters if name not in settings.without}


def identity(settings: Cleaning) -> dict[str, Any]:
    """Returns everything that the result of cleaning depends on, besides the text, as values for JSON.

    This is the settings, a version of the filters, and that of the package that tells languages.
    """
    identifier = ""
    if "language" in filters(settings):
        text_filters.identifier()
        identifier = importlib.metadata.version("py3langid")
    fields = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(settings).items()}
    return fields | {"version": VERSION, "identifier": identifier}


@dataclasses.dataclass(frozen=True)
class Cleaned:
    """What cleaning leaves of a block of rows."""

    rows: Sequence[SentencePair]  # the remaining rows
    indices: NDArray[np.int64]  # int64[row], their places in the block
    removed: collections.Counter[str]  # the number of rows that each filter dropped, without zeros
    samples: report.Samples  # samples of the dropped rows of each filter


def clean(rows: Sequence[SentencePair], about: About) -> Cleaned:
    """Returns the rows that pass all filters. The result depends on the arguments alone.

    Each row is judged by itself, so any split of the text into blocks leaves the same rows.
    """
    functions = filters(about.settings)
    indices = np.arange(len(rows))
    result = Cleaned(rows, indices, collections.Counter(), {})
    if not rows:
        return result
    block = Block(rows, about.source, about.target)
    for name, function in functions.items():
        mask = function(block, about)
        if not mask.all():
            result.removed[name] = int((~mask).sum())
            result.samples[name] = report.choose(name, itertools.compress(block, ~mask))
            indices, block = indices[mask], block.keep(mask)
            if not block:
                break
    return dataclasses.replace(result, rows=block, indices=indices)
