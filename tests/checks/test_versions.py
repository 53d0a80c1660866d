import importlib.metadata
import importlib.util

import pytest

from gshard_nmt.checks import versions
from gshard_nmt.spmd.topology import Topology


def test_a_tpu_topology_needs_the_tested_compiler(monkeypatch):
    machines = [Topology.parse("v3:2x2")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(versions.tpu_compiler(machines)) == [
        "libtpu is not installed; --topology v3:2x2 needs it. Install it: pip install "
        "'libtpu==0.0.42.*'."
    ]
    assert list(versions.tpu_compiler([Topology.parse("cpu:2")])) == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "there")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.421")
    assert list(versions.tpu_compiler(machines)) == [
        "libtpu 0.0.421 is installed; --topology v3:2x2 needs 0.0.42. Install it: pip install "
        "'libtpu==0.0.42.*'."
    ]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.42.1")
    assert list(versions.tpu_compiler(machines)) == []


def test_missing_untested_and_different_releases_are_problems(monkeypatch):
    installed = {"jax": "0.10.2", "jaxlib": "0.9.0", "tensorflow": "2.20.0"}
    required = ["jax>=0.10.2,<0.11", "jaxlib>=0.10.2,<0.11", "rich>=13", "libtpu; extra == 'tpu'"]

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: required)
    assert list(versions.packages()) == [
        "jaxlib 0.9.0 is installed; gshard-nmt needs >=0.10.2,<0.11. Install it: "
        "pip install 'jaxlib>=0.10.2,<0.11'.",
        "rich is not installed; install it: pip install 'rich>=13'.",
        "jax 0.10.2 and jaxlib 0.9.0 are of different releases. Install the same release: pip "
        "install jaxlib==0.10.2.",
    ]


@pytest.mark.parametrize(
    ("version", "bound", "satisfied"),
    [
        ("2.21.0", ">=2.21", True),
        ("2.20.9", ">=2.21", False),
        ("0.11", "<0.11", False),
        ("1.2.3", "~=1.0", True),  # bounds with ~= are not checked
    ],
)
def test_a_version_is_compared_number_by_number(version, bound, satisfied):
    assert versions._satisfies(version, bound) is satisfied
