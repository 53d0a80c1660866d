import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.settings import config as config_module
from gshard_nmt.settings import gin_reader


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
    return gin_reader.load_config(name, overrides)


def message(text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        load(text, *overrides)
    return str(error.value)


def test_bindings_blocks_macros_and_overrides(folder):
    config = load(
        "# A comment.\n"
        "WIDTH = 16\n"
        "Model.model_dim = %WIDTH\n"
        "Mesh:\n"
        "  axes = ['x', 'y']\n"
        "  shape = [%WIDTH, 2]\n"
        "  rules = {'E': 'x'}\n"
        "Decode.length_norm = 'lingvo'\n"
        "Train.steps = 5\n",
        "Train.steps = 7",
        "WIDTH = 32",
    )
    assert config.model.model_dim == 32
    assert (config.mesh.shape, config.mesh.rules) == ((32, 2), {"E": "x"})
    assert (config.decode.length_norm, config.train.steps) == ("lingvo", 7)


def test_an_include_is_found_beside_the_file_or_in_the_configs_folder(folder):
    (folder / "configs/models/big.gin").write_text("Model.heads = 99\n")
    assert load("include 'models/big.gin'").model.heads == 99
    (folder / "models").mkdir()
    (folder / "models/big.gin").write_text("Model.heads = 5\n")
    assert load("include 'models/big.gin'").model.heads == 5


def test_a_later_line_wins_over_an_include(folder):
    (folder / "part.gin").write_text("Model.heads = 3\nModel.hidden_dim = 3\n")
    config = load("Model.hidden_dim = 1\ninclude 'part.gin'\nModel.heads = 4\n")
    assert (config.model.heads, config.model.hidden_dim) == (4, 3)


KNOWN = "Model, Mesh, Data, Optimizer, Train, Decode, Cleaning"
CASES = [
    ("\nModel.haeds = 4",
     "my.gin, line 2: Model has no setting 'haeds'; did you mean 'heads'? Model has: "),
    ("Modle.heads = 4",
     "my.gin, line 1: there is no class of settings called 'Modle'; did you mean 'Model'? "
     f"Known: {KNOWN}."),
    ("Zebra:\n  heads = 4", "my.gin, line 2: there is no class of settings called 'Zebra'. Known: "),
    ("big/Model.heads = 4", "my.gin, line 1: there is no class of settings called 'big/Model'; did"),
    ("Model.heads = 'four'",
     "my.gin, line 1: Model.heads is 'four'; it must be a whole number without quotes."),
    ("Decode.length_norm = gnmt",
     "my.gin, line 1: cannot read gnmt; a string needs quotes, and a macro needs % before its "
     "name. The rest of this file was not read."),
    ("Model.heads 4",
     "my.gin, line 1: cannot read 'Model.heads 4'; a setting is written "
     "Class.name = value (Couldn't parse statement, expected ':' or '='.)"),
    ("Mesh.shape = [1,\n", "my.gin: a bracket or a quote is not closed."),
    ("Model.heads = %HAEDS\nHEADS = 4",
     "my.gin, line 1: the macro %HAEDS has no value; did you mean 'HEADS'? Set it in the "
     "config or with --gin 'HAEDS = ...'."),
    ("heads = 4",
     "my.gin, line 1: nothing uses 'heads'; did you mean 'Model.heads'? A setting is "
     f"written Class.name, with one of the classes {KNOWN}."),
    ("HEADS = %gin.REQUIRED\nModel.heads = %HEADS",
     "my.gin, line 1: HEADS is required; set it in the config or with --gin 'HEADS = ...'."),
    ("Model.heads = %gin.REQUIRED",
     "my.gin, line 1: Model.heads is required; set it in the config or with "
     "--gin 'Model.heads = ...'."),
    ("A = %B\nB = %A\nModel.heads = %A",
     "my.gin, line 2: the macro %A refers to itself in a circle; give it a value."),
    ("import os", "my.gin, line 1: configs import no modules; remove this line."),
    ("Model.heads = @Train()",
     "my.gin, line 1: @Train is a reference, but configs hold only values; write the value itself."),
    ("Mesh.rules = {[1]: 'x'}",
     "my.gin: a list or mapping cannot be a key; give a text. The rest of this file was not read."),
    ("X = [1]\nMesh.rules = {%X: 'x'}",
     "my.gin, line 2: Mesh.rules: a list or mapping cannot be a key; give a text."),
    ("include 'my.gin'", "my.gin includes itself; remove one of the includes."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_an_error_says_the_line_the_mistake_and_the_remedy(folder, text, expected):
    assert message(text).startswith(expected)


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
    assert message("", "Model.haeds = 4").startswith(
        "--gin 'Model.haeds = 4': Model has no setting 'haeds'; did you mean 'heads'?"
    )
    for value in ("0x", "'\udce9'"):  # on each Python
        assert "bracket" not in message("", f"Model.heads = {value}")
    assert message("", "Train.steps = '9'") == (
        """--gin "Train.steps = '9'": Train.steps is '9'; it must be a whole number without """
        "quotes."
    )


def test_a_binary_file_is_not_a_config(folder):
    (folder / "bad.gin").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"bad\.gin is not a text file"):
        gin_reader.load_config("bad.gin")
