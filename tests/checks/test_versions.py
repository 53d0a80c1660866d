import importlib.metadata

import pytest

from gshard_nmt.checks import versions
from gshard_nmt.spmd.topology import Topology


@pytest.mark.parametrize(
    ("machine", "package", "tested", "untested", "needed", "install"),
    [
        ("v3:2x2", "libtpu", "0.0.42.1", "0.0.421", "0.0.42", "pip install 'libtpu==0.0.42.*'"),
        (
            *("h100:8", "jax-cuda13-plugin", "0.10.2", "0.10.21", "0.10.2"),
            "pip install 'jax-cuda13-plugin[with-cuda]==0.10.2'",
        ),
    ],
)
def test_a_topology_needs_the_tested_compiler(
    monkeypatch, machine, package, tested, untested, needed, install
):
    installed = {}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    machines = [Topology.parse(machine), Topology.parse("cpu:2")]
    assert list(versions.compilers(machines)) == [
        f"{package} is not installed; --topology {machine} needs it. Install it: {install}."
    ]
    assert list(versions.compilers(machines[1:])) == []
    installed[package] = untested
    assert list(versions.compilers(machines)) == [
        f"{package} {untested} is installed; --topology {machine} needs {needed}. Install it: {install}."
    ]
    installed[package] = tested
    assert list(versions.compilers(machines)) == []


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
