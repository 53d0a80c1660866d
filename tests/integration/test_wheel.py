"""The wheel holds the programs and the configs, and works far from the checkout."""

import pathlib
import shutil
import subprocess
import sys

import pytest

import gshard_nmt

CHECKOUT = pathlib.Path(gshard_nmt.__file__).parents[1]


def installed(folder: pathlib.Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a folder where the wheel, not the checkout, is what is imported."""
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(folder / "site"), "PATH": ""},
        timeout=300,
    )


@pytest.mark.slow
def test_the_programs_and_the_configs_of_the_wheel_work_far_from_the_checkout(tmp_path):
    """The wheel is made from a copy of the sources."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("gshard_nmt", "configs"):
        shutil.copytree(CHECKOUT / name, tmp_path / "source" / name, ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "LICENSE", "MANIFEST.in", "CHANGELOG.md"):
        shutil.copy(CHECKOUT / name, tmp_path / "source" / name)
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    words += ["--no-build-isolation", "--target", str(tmp_path / "site"), str(tmp_path / "source")]
    subprocess.run(words, check=True, timeout=300)
    programs = sorted(path.name for path in (tmp_path / "site/bin").iterdir())
    names = "checkpoint", "data", "decode", "eval", "export", "import", "inspect", "serve", "train"
    assert programs == [f"gshard-{name}" for name in names]
    for config in CHECKOUT.glob("configs/*/*.gin"):
        shipped = tmp_path / "site/gshard_nmt" / config.relative_to(CHECKOUT)
        assert shipped.read_text() == config.read_text()

    code = (
        "import gshard_nmt; from gshard_nmt.settings.gin_reader import load_config; "
        "print(gshard_nmt.__file__); print(load_config('demo').model.experts)"
    )
    done = installed(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    file, experts = done.stdout.split()
    assert file == str(tmp_path / "site/gshard_nmt/__init__.py")
    assert int(experts) > 1

    flags = ("--config", "dmeo", "--data=d", "--workdir=w")
    done = installed(tmp_path, "site/bin/gshard-train", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no config called 'dmeo'; did you mean 'demo'?" in done.stderr
