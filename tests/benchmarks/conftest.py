"""Imports the modules of benchmarks/, which are no package."""

import importlib
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Imports a module as the programs do, and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        # A folder without __init__.py has no file, but it remembers its modules.
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
        if any(str(FOLDER) in str(place) for place in places):
            del sys.modules[name]
