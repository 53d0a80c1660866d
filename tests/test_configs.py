"""Every config that ships parses, names only what there is, and says what it is for."""

import collections
import pathlib
import re
import shlex

import pytest

from gshard_nmt.cli import flags
from gshard_nmt.cli.commands import COMMANDS, VERBS
from gshard_nmt.settings.config import configs_folder
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.settings.values import read_run_config

CONFIGS = configs_folder()
FRAGMENTS = [
    *CONFIGS.glob("models/*.gin"),
    *CONFIGS.glob("meshes/*.gin"),
    *CONFIGS.glob("runs/*.gin"),
]
EXPERIMENTS = sorted(CONFIGS.glob("experiments/*.gin"))
PROGRAMS = {
    **{f"gshard-{name}": command for name, command in COMMANDS.items()},
    **{
        f"gshard-{name} {verb}": command
        for name, verbs in VERBS.items()
        for verb, command in verbs.items()
    },
}


def ids(path: pathlib.Path) -> str:
    return path.relative_to(CONFIGS).as_posix()


def header(path: pathlib.Path) -> str:
    """The comment that a config opens with, without its marks."""
    lines = path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in lines), f"{path} does not open with a comment"
    return "\n".join(line[1:].removeprefix(" ") for line in lines)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=ids)
def test_an_experiment_makes_a_config_that_reads_back(path, tmp_path):
    config = load_config(path.stem)
    written = tmp_path / "config.gin"
    written.write_text(config.text, encoding="utf-8")
    assert read_run_config(written) == config
    assert load_config(str(written)) == config


@pytest.mark.parametrize("path", sorted(FRAGMENTS), ids=ids)
def test_a_part_makes_a_config_once_its_required_macros_are_given(path):
    required = re.findall(r"^(\w+) = %gin.REQUIRED$", path.read_text(encoding="utf-8"), re.M)
    load_config(str(path), [f"{macro} = 8" for macro in required])
    listed = re.search(r"^Required: (.*)", header(path), re.M)
    assert all(macro in (listed[1] if listed else "") for macro in required)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("meshes/*.gin")), ids=ids)
def test_a_mesh_that_is_included_later_replaces_all_of_the_first(path):
    macros = re.findall(r"(?m)^(\w+) = %gin.REQUIRED", path.read_text(encoding="utf-8"))
    values = [f"{name} = 2" for name in macros]
    other = str(CONFIGS / "meshes" / "hybrid.gin")
    later = load_config(other, ["X = 2", "Y = 2", f"include '{path}'", *values])
    assert later.mesh == load_config(str(path), values).mesh


@pytest.mark.parametrize("path", EXPERIMENTS, ids=ids)
def test_an_experiment_opens_with_paper_command_and_hardware(path):
    text = header(path)
    papers = r"GShard section|GSPMD section|GShard \(|Switch Transformer \(|NLLB Team"
    assert re.search(papers, " ".join(text.split())), "no paper"
    assert "Hardware: " in text
    commands = re.findall(r"^  (gshard-.*)$", text.replace("\\\n", ""), re.M)
    assert commands, "no command"
    for command in commands:
        name = next(name for name in PROGRAMS if command.startswith(name))
        flags.parse_flags(PROGRAMS[name], shlex.split(command.removeprefix(name)))


def test_experiments_that_share_prepared_data_prepare_it_alike():
    experiments = collections.defaultdict(list)
    for path in EXPERIMENTS:
        for data in set(re.findall(r"gshard-train .*--data (\S+)", header(path))):
            experiments[data].append(path.stem)
    assert set().union(*experiments.values()) == {path.stem for path in EXPERIMENTS}
    for data, names in experiments.items():
        first = load_config(names[0]).data.shaping()
        for name in names[1:]:
            assert load_config(name).data.shaping() == first, f"{name}, {names[0]} and {data}"


@pytest.mark.parametrize("path", [*EXPERIMENTS, *sorted(FRAGMENTS)], ids=ids)
def test_no_line_is_too_long(path):
    longest = max(map(len, path.read_text(encoding="utf-8").splitlines()))
    assert longest <= 106  # prose, as in pyproject.toml


def test_there_are_experiments_models_meshes_and_runs():
    folders = {path.parent.name for path in CONFIGS.glob("*/*.gin")}
    assert folders == {"experiments", "meshes", "models", "runs"}
    assert {path.stem for path in EXPERIMENTS} >= {"demo", "baseline"}
