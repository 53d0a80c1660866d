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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    """A folder with the wheel installed in site/, made from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("gshard_nmt", "configs"):
        shutil.copytree(CHECKOUT / name, folder / "source" / name, ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "LICENSE", "MANIFEST.in", "CHANGELOG.md"):
        shutil.copy(CHECKOUT / name, folder / "source" / name)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
            *("--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")),
        ],
        check=True,
        timeout=300,
    )
    return folder


@pytest.mark.slow
def test_the_programs_and_the_configs_are_in_the_wheel(wheel):
    assert sorted(path.name for path in (wheel / "site/bin").iterdir()) == [
        "gshard-checkpoint",
        "gshard-data",
        "gshard-decode",
        "gshard-eval",
        "gshard-export",
        "gshard-import",
        "gshard-inspect",
        "gshard-serve",
        "gshard-train",
    ]
    for config in CHECKOUT.glob("configs/*/*.gin"):
        shipped = wheel / "site/gshard_nmt" / config.relative_to(CHECKOUT)
        assert shipped.read_text() == config.read_text()


@pytest.mark.slow
def test_an_installed_config_is_found_by_name_and_includes_its_parts(wheel):
    code = (
        "import gshard_nmt; from gshard_nmt.settings.gin_reader import load_config; "
        "print(gshard_nmt.__file__); print(load_config('demo').model.experts)"
    )
    done = installed(wheel, "-c", code)
    assert done.returncode == 0, done.stderr
    file, experts = done.stdout.split()
    assert file == str(wheel / "site/gshard_nmt/__init__.py")
    assert int(experts) > 1


@pytest.mark.slow
def test_an_installed_program_answers(wheel):
    done = installed(wheel, "site/bin/gshard-train", "--config", "dmeo", "--data=d", "--workdir=w")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no config called 'dmeo'; did you mean 'demo'?" in done.stderr
