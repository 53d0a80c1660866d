"""The filters by name, and modules with filters of users.

A filter is a function of a block of rows, whose name is that of the function. It returns a bool for each
row, true if the row is kept. Or it returns the rows themselves, edited, with None instead of a row that
it drops. docs/data/cleaning.md has an example.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import operator
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning import report
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.config import FILTERS, Cleaning
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError, did_you_mean

Mask = NDArray[np.bool_]
Filter = Callable[[Block, About], Mask | Sequence[bool] | Sequence[SentencePair | None]]
"""Takes rows and what is known about them; returns what is kept, or the edited rows."""

AnyFilter = TypeVar("AnyFilter", bound=Filter)
_filters: dict[str, Filter] = {}


def filter(function: AnyFilter) -> AnyFilter:
    """Registers a function as a filter under its own name, which no other module may use."""
    name = function.__name__
    earlier = _filters.get(name)
    if earlier is not None and earlier.__module__ != function.__module__:
        raise UserError(
            f"{function.__module__} has a filter called {name!r}, and so has {earlier.__module__}. Give "
            "your function another name.",
            ["Cleaning.modules"],
        )
    _filters[name] = function
    return function


@functools.lru_cache(maxsize=8)
def filters(settings: Cleaning) -> Mapping[str, Filter]:
    """Returns the filters that these settings name, in their order, by name."""
    for name in ("text_filters", "overlap"):  # these import this module
        importlib.import_module(f"{__package__}.{name}")
    loaded = [_load(name).__name__ for name in settings.modules]
    own = [name for module in loaded for name, f in _filters.items() if f.__module__ == module]
    known = list(dict.fromkeys([*FILTERS, "language", *own]))
    for field, given in (("filters", settings.filters), ("without", settings.without)):
        for name in given:
            if name not in known:
                raise UserError(
                    f"Cleaning.{field} has {name!r}, but there is no filter of this name"
                    f"{did_you_mean(name, known)} Known: {', '.join(known)}.",
                    [f"Cleaning.{field}"],
                )
    names = dict.fromkeys([*settings.filters, *own])
    return {name: _filters[name] for name in names if name not in settings.without}


def _load(name: str) -> types.ModuleType:
    """Imports a module by name, or a .py file by its path."""
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = Path(name).resolve()
        module_name = "gshard_cleaning_" + re.sub(r"\W", "_", str(path.with_suffix("")))
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[module_name] = module
        return module
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"Cleaning.modules has {name!r}, which cannot be imported: {type(error).__name__}: {error}. "
            "Give the name of an installed module, or the path of a .py file.",
            ["Cleaning.modules"],
        ) from error


def identity(settings: Cleaning) -> dict[str, Any]:
    """Returns everything that the result of cleaning depends on, besides the text, as values for JSON.

    This is the settings, a version of the built-in filters, a hash of each module of a user, and the
    version of the package that tells languages.
    """
    modules = []
    for name in settings.modules:
        file = _load(name).__file__
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""
        # The same module may be named by a relative or an absolute path.
        modules.append([Path(name).name, digest])
    identifier = ""
    if "language" in filters(settings):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            identifier = importlib.metadata.version("py3langid")
    fields = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(settings).items()}
    del fields["modules"]
    return fields | {"version": VERSION, "modules": modules, "identifier": identifier}


VERSION = 3
"""Raised if a filter that exists, or a hash, gives other results. A new filter needs no raise."""


@dataclasses.dataclass(frozen=True)
class Cleaned:
    """What cleaning leaves of a block of rows.

    Attributes:
      rows: the remaining rows.
      indices: int64[row], their places in the block.
      removed, edited: the number of rows that each filter dropped and changed, without zeros.
      samples: samples of the dropped rows of each filter.
    """

    rows: Sequence[SentencePair]
    indices: NDArray[np.int64]
    removed: collections.Counter[str]
    edited: collections.Counter[str]
    samples: report.Samples


def clean(rows: Sequence[SentencePair], about: About) -> Cleaned:
    """Returns the rows that pass all filters. The result depends on the arguments alone.

    Each row is judged by itself, so any split of the text into blocks leaves the same rows.
    """
    functions = filters(about.settings)
    indices = np.arange(len(rows))
    result = Cleaned(rows, indices, collections.Counter(), collections.Counter(), {})
    if not rows:
        return result
    block = Block(rows, about.source, about.target)
    for name, function in functions.items():
        mask, new_rows = _apply(name, function, block, about)
        if not mask.all():
            result.removed[name] = int((~mask).sum())
            result.samples[name] = report.choose(name, itertools.compress(block, ~mask))
            indices, block = indices[mask], block.keep(mask)
            if not block:
                break
        if new_rows and (changes := sum(map(operator.ne, block, new_rows))):
            result.edited[name] = changes
            block = Block(new_rows, about.source, about.target)
    return dataclasses.replace(result, rows=block, indices=indices)


def _apply(
    name: str, function: Filter, block: Block, about: About
) -> tuple[Mask, list[SentencePair] | None]:
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
    if isinstance(result, np.ndarray) and result.dtype == np.bool_ and len(result) == len(block):
        return result, None
    entries = list(result)
    if len(entries) == len(block):
        if all(isinstance(entry, bool | np.bool_) for entry in entries):
            return np.array(entries, bool), None
        if all(entry is None or isinstance(entry, SentencePair) for entry in entries):
            mask = np.array([entry is not None for entry in entries])
            return mask, [entry for entry in entries if isinstance(entry, SentencePair)]
    raise UserError(
        f"the filter {name!r} of {function.__module__} returned {len(entries)} entries for "
        f"{len(block)} rows, such as {entries[:1]}. It must return True or False for each row, or each "
        "row edited, with None for a row that it drops.",
        ["Cleaning.modules"],
    )
