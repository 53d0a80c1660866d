import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.settings import config as config_module
from gshard_nmt.settings import gin_reader

# fmt: off
FIELDS = {
    "Model": [("layers", int, 2), ("width", int, 8)],
    "Mesh": [("shape", Sequence[int], (1,)),
             ("rules", Mapping[str, str], dataclasses.field(default_factory=dict))],
    "Data": [("languages", Sequence[str], ())],
    "Optimizer": [("learning_rate", float, 1.0)],
    "Train": [("steps", int, 10)],
    "Decode": [("norm", str, "gnmt")],
    "Cleaning": [("ratio", float, 3.0)],
}
# fmt: on
CLASSES = {
    name: dataclasses.make_dataclass(name, fields, frozen=True) for name, fields in FIELDS.items()
}
Model, Mesh, _, _, Train, Decode, _ = CLASSES.values()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for module in (config_module, gin_reader):
        monkeypatch.setattr(module, "configs_folder", lambda: tmp_path / "configs")
    for name in ("models", "experiments"):
        (tmp_path / "configs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *overrides: str, name: str = "my.gin"):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    return gin_reader.load_config(name, overrides, CLASSES)


def message(text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        load(text, *overrides)
    return str(error.value)


def test_bindings_blocks_macros_and_overrides(folder):
    config = load(
        "# A comment.\n"
        "WIDTH = 16\n"
        "Model.width = %WIDTH\n"
        "Mesh:\n"
        "  shape = [%WIDTH, 2]\n"
        "  rules = {'E': 'x'}\n"
        "Decode.norm = 'lingvo'\n"
        "Train.steps = 5\n",
        "Train.steps = 7",
        "WIDTH = 32",
    )
    assert config.model == Model(width=32)
    assert config.mesh == Mesh(shape=(32, 2), rules={"E": "x"})
    assert config.decode == Decode("lingvo")
    assert config.train == Train(steps=7)


def test_the_text_of_a_config_is_a_config(folder):
    config = load("Mesh.rules = {'E': 'x', 'G': 'y'}\nData.languages = ['fr', 'pt-BR']\n")
    assert load(config.text, name="again.gin") == config


def test_an_include_is_found_beside_the_file_or_in_the_configs_folder(folder):
    (folder / "configs/models/big.gin").write_text("Model.layers = 99\n")
    assert load("include 'models/big.gin'").model.layers == 99
    (folder / "models").mkdir()
    (folder / "models/big.gin").write_text("Model.layers = 5\n")
    assert load("include 'models/big.gin'").model.layers == 5


def test_a_file_that_a_config_names_may_be_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    for file in ("conf/own.py", "conf/both.py", "both.py"):
        (tmp_path / file).touch()
    (tmp_path / "conf/my.gin").write_text(
        "include 'experiments/demo.gin'\n"
        "Cleaning.modules = ['own.py', 'both.py', 'installed.module']\n"
    )
    config = gin_reader.load_config("conf/my.gin")
    assert config.cleaning.modules == ("conf/own.py", "both.py", "installed.module")


def test_a_later_line_wins_over_an_include(folder):
    (folder / "part.gin").write_text("Model.layers = 3\nModel.width = 3\n")
    config = load("Model.width = 1\ninclude 'part.gin'\nModel.layers = 4\n")
    assert config.model == Model(layers=4, width=3)


# fmt: off
CASES = [
    ("\nModel.layrs = 4",
     "my.gin, line 2: Model has no setting 'layrs'; did you mean 'layers'? Model has: "
     "layers, width."),
    ("Modle.layers = 4",
     "my.gin, line 1: there is no class of settings called 'Modle'; did you mean 'Model'? "
     "Known: Model, Mesh, Data, Optimizer, Train, Decode, Cleaning."),
    ("Zebra:\n  layers = 4",
     "my.gin, line 1: there is no class of settings called 'Zebra'. Known: Model, Mesh, "
     "Data, Optimizer, Train, Decode, Cleaning."),
    ("Model.layers = 'four'",
     "my.gin, line 1: Model.layers is 'four'; it must be a whole number without quotes."),
    ("Decode.norm = gnmt",
     "my.gin, line 1: cannot read gnmt; a string needs quotes, and a macro needs % before its "
     "name."),
    ("Model.layers 4",
     "my.gin, line 1: cannot read 'Model.layers 4'; a setting is written "
     "Class.name = value (Couldn't parse statement, expected ':' or '='.)"),
    ("Mesh.shape = [1,\n", "my.gin: a bracket or a quote is not closed."),
    ("Model.layers = %LAYRES\nLAYERS = 4",
     "my.gin, line 1: the macro %LAYRES has no value; did you mean 'LAYERS'? Set it in the "
     "config or with --gin 'LAYRES = ...'."),
    ("layers = 4",
     "my.gin, line 1: nothing uses 'layers'; did you mean 'Model.layers'? A setting is "
     "written Class.name, with one of the classes Model, Mesh, Data, Optimizer, Train, "
     "Decode, Cleaning."),
    ("LAYERS = %gin.REQUIRED\nModel.layers = %LAYERS",
     "my.gin, line 1: LAYERS is required; set it in the config or with "
     "--gin 'LAYERS = ...'."),
    ("Model.layers = %gin.REQUIRED",
     "my.gin, line 1: Model.layers is required; set it in the config or with "
     "--gin 'Model.layers = ...'."),
    ("A = %B\nB = %A\nModel.layers = %A",
     "some of the macros A, B refer to one another in a circle; give one macro of the circle a "
     "value."),
    ("big/Model.layers = 4", "my.gin, line 1: configs have no scopes; write Model, not big/Model."),
    ("import os", "my.gin, line 1: configs import no modules; remove this line."),
    ("Model.layers = @Train()",
     "my.gin, line 1: @Train is a reference, but configs hold only values; write the value "
     "itself."),
    ("include 'my.gin'", "my.gin includes itself; remove one of the includes."),
]
# fmt: on


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_an_error_says_the_line_the_mistake_and_the_remedy(folder, text, expected):
    assert message(text) == expected


def test_an_unknown_include_names_the_nearest_file(folder):
    (folder / "configs/models/small.gin").write_text("")
    assert message("include 'models/smal.gin'") == (
        "my.gin, line 1: there is no file 'models/smal.gin' to include, neither in . nor in "
        f"{folder}/configs; did you mean 'models/small.gin'? Give a path relative to one of these "
        "folders."
    )


def test_an_error_in_an_included_file_names_that_file_and_its_line(folder):
    (folder / "configs/models/bad.gin").write_text("\n\nModel.depth = 4\n")
    assert "configs/models/bad.gin, line 3: Model has no setting 'depth'" in message(
        "include 'models/bad.gin'"
    )


def test_an_error_in_an_override_names_the_flag(folder):
    assert message("", "Model.layrs = 4").startswith(
        "--gin 'Model.layrs = 4': Model has no setting 'layrs'; did you mean 'layers'?"
    )
    assert message("", "Train.steps = '9'") == (
        """--gin "Train.steps = '9'": Train.steps is '9'; it must be a whole number without """
        "quotes."
    )


def test_a_binary_file_is_not_a_config(folder):
    (folder / "bad.gin").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"bad\.gin is not a text file"):
        gin_reader.load_config("bad.gin", (), CLASSES)
