"""The lowered functions of a run folder work on a host without TensorFlow."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import finished, gin, lines_of, succeed

WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None  # importing it fails, as if it were not installed
from gshard_nmt.cli import commands
sys.exit(commands.main(["train", *sys.argv[1:]]))
"""


def flags(prepared: Path, workdir: Path, **changes: object) -> list[str]:
    settings = {"Train.dev_every": 0} | changes
    words = ["--config", "demo", "--data", prepared / "data", "--workdir", workdir]
    return [*map(str, words), *gin(**settings)]


def train_without_tensorflow(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return finished([sys.executable, "-c", WITHOUT_TENSORFLOW, *arguments])


@pytest.fixture
def run(prepared, trained, tmp_path) -> Path:
    """A run that was lowered and trained for six steps, with programs of its own."""
    return shutil.copytree(prepared / "untouched" / "run", tmp_path / "run")


def test_a_host_without_tensorflow_resumes_a_run(prepared, run):
    programs = sorted(run.glob("programs/*.jaxexport"))
    succeed(train_without_tensorflow(flags(prepared, run, **{"Train.steps": 8})))
    assert len([line for line in lines_of(run) if "loss" in line]) == 8
    assert sorted(run.glob("programs/*.jaxexport")) == programs


@pytest.mark.slow
def test_a_host_without_tensorflow_says_so_if_nothing_was_lowered(prepared, run):
    others = {"Train.steps": 8, "Mesh.axes": ("x",), "Mesh.shape": (4,)}
    done = train_without_tensorflow(flags(prepared, run, **others))
    assert done.returncode == 2
    assert "without TensorFlow it cannot be made" in done.stderr
    assert "Traceback" not in done.stderr
