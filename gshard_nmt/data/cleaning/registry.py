"""The filters by name, and modules with filters of users.

A filter is a function of a block of rows. Its name is the name of the function:

    from gshard_nmt.data.cleaning import registry

    @registry.filter
    def no_shouting(rows, about):
        \"\"\"Drops pairs in capital letters.\"\"\"
        return [not row.source.isupper() for row in rows]

It returns a bool for each row, true if the row is kept. Or it returns the rows themselves, edited, with
None instead of a row that it drops.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.config import FILTERS, Cleaning
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError, did_you_mean

Mask = NDArray[np.bool_]
Filter = Callable[[Block, About], Mask | Sequence[bool] | Sequence[SentencePair | None]]
"""Takes rows and what is known about them; returns what is kept, or the edited rows."""

_filters: dict[str, Filter] = {}


def filter(function: Filter) -> Filter:
    """Registers a function as a filter under its own name.

    Raises:
      UserError: another module has a filter of this name.
    """
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


def filters(settings: Cleaning) -> Mapping[str, Filter]:
    """Returns the filters that these settings name, in their order, by name.

    Raises:
      UserError: there is no filter of a name, or a module cannot be imported.
    """
    return dict(_filters_of(settings))


@functools.lru_cache(maxsize=8)
def _filters_of(settings: Cleaning) -> tuple[tuple[str, Filter], ...]:
    for name in _OWN_MODULES:
        importlib.import_module(name)
    loaded = [_load(name).__name__ for name in settings.modules]
    own = [name for module in loaded for name, f in _filters.items() if f.__module__ == module]
    built_in = [name for name, f in _filters.items() if f.__module__ in _OWN_MODULES]
    known = list(dict.fromkeys([*FILTERS, *built_in, *own]))
    names = list(dict.fromkeys([*settings.filters, *own]))
    for field, chosen in (("filters", settings.filters), ("without", settings.without)):
        for name in chosen:
            if name not in known:
                raise UserError(
                    f"Cleaning.{field} has {name!r}, but there is no filter of this name"
                    f"{did_you_mean(name, known)} Known: {', '.join(known)}.",
                    [f"Cleaning.{field}"],
                )
    return tuple((name, _filters[name]) for name in names if name not in settings.without)


_OWN_MODULES = tuple(
    f"gshard_nmt.data.cleaning.{name}"
    for name in ("text_filters", "match_filters", "overlap", "language")
)


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

    This is the settings, a version of the built-in filters, a hash of each module of a user with the
    imported modules beside it, and the version of the package that tells languages.
    """
    used = filters(settings)
    # The same module may be named by a relative or an absolute path.
    fields = {key: _plain(value) for key, value in vars(settings).items() if key != "modules"}
    modules = []
    for name in settings.modules:
        file = _load(name).__file__
        content = b"".join(map(Path.read_bytes, _with_helpers(Path(file)))) if file else b""
        digest = hashlib.sha256(content).hexdigest()[:16] if file else ""
        modules.append([Path(name).name, digest])
    identifier = _version_of("py3langid") if "language" in used else ""
    return fields | {"version": VERSION, "modules": modules, "identifier": identifier}


def _with_helpers(file: Path) -> list[Path]:
    """Returns the file of a module, and those of imported modules in the same folder."""
    folder = os.path.realpath(file.parent)
    if os.path.basename(folder) in ("site-packages", "dist-packages"):
        return [file]
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    helpers = {f for f in files if f and os.path.realpath(os.path.dirname(f)) == folder}
    return [file, *map(Path, sorted(helpers - {str(file)}))]


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""  # the filter says how to install it


VERSION = 3
"""Raised if a built-in filter or a hash changes its results."""


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def first_sentence(function: Filter) -> str:
    """Returns what a filter does, in words: the first paragraph of its docstring."""
    text = (function.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(text.split())
