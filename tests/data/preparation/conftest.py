"""What the tests of preparation share: a cache of their own, and no waiting for the disk."""

import os

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # No power cut happens here, and waiting for the disk takes most of the time.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
