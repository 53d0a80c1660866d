import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import hypothesis
import pytest
from hypothesis import strategies as st

from gshard_nmt.errors import UserError
from gshard_nmt.settings import values
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.settings.values import Setting


@dataclasses.dataclass(frozen=True)
class Model:
    layers: int = 2
    rate: float = 0.1
    name: str = "plain"
    tied: bool = True
    depth: int | None = None
    kind: Literal["gather", "einsum"] = "gather"


@dataclasses.dataclass(frozen=True)
class Mesh:
    axes: Sequence[str] = ("x",)
    rules: Mapping[str, str | Sequence[str]] = dataclasses.field(default_factory=dict)
    pair: tuple[int, str] = (1, "a")


@dataclasses.dataclass(frozen=True)
class Data:
    languages: Sequence[str]


Optimizer, Train, Decode, Cleaning = (
    dataclasses.make_dataclass(name, [field], frozen=True)
    for name, field in {
        "Optimizer": ("rate", float, 1e-30),
        "Train": ("steps", int, 10),
        "Decode": ("beam", int, 4),
        "Cleaning": ("ratio", float, 3.0),
    }.items()
)
CLASSES = {cls.__name__: cls for cls in (Model, Mesh, Data, Optimizer, Train, Decode, Cleaning)}


def build(**bound: object):
    """A config of settings named as Class_field."""
    bindings = {
        tuple(name.split("_", 1)): Setting(v, "demo.gin, line 3") for name, v in bound.items()
    }
    bindings.setdefault(("Data", "languages"), Setting(["fr"], "demo.gin, line 1"))
    return values.build(bindings, CLASSES)


def test_values_are_converted_to_the_types_of_their_fields():
    config = build(Model_rate=1, Mesh_axes=["x", "y"], Mesh_rules={"E": ["x", "y"], "G": "x"})
    assert config.model.rate == 1.0
    assert isinstance(config.model.rate, float)
    assert config.mesh.axes == ("x", "y")
    assert config.mesh.rules == {"E": ("x", "y"), "G": "x"}
    assert config.data.languages == ("fr",)
    assert config.train == Train()


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("Model_layers", "4", "a whole number without quotes"),
        ("Model_layers", 4.0, "a whole number"),
        ("Model_layers", True, "a whole number"),
        ("Model_rate", "fast", "a number without quotes"),
        ("Model_rate", float("inf"), "a number"),
        ("Model_name", 3, "a string in quotes"),
        ("Model_tied", 1, "True or False"),
        ("Model_depth", "deep", "a whole number or None"),
        ("Model_kind", "sort", "one of 'gather', 'einsum'"),
        ("Mesh_axes", "x", "a list [...], each entry a string in quotes"),
        ("Mesh_axes", ["x", 1], "a list [...], each entry a string in quotes"),
        ("Mesh_pair", (1,), "a list [...] of a whole number, a string in quotes"),
        (
            "Mesh_rules",
            {"E": 3},
            "a dict {...} from a string in quotes to a string in quotes or a list [...], each "
            "entry a string in quotes",
        ),
    ],
)
def test_an_error_about_a_type_says_the_line_the_value_and_the_rule(name, value, rule):
    with pytest.raises(UserError) as error:
        build(**{name: value})
    setting = name.replace("_", ".")
    assert str(error.value) == f"demo.gin, line 3: {setting} is {value!r}; it must be {rule}."


def test_a_field_without_default_must_be_set():
    with pytest.raises(UserError) as error:
        values.build({}, CLASSES)
    assert str(error.value) == (
        "Data.languages has no value and no default; set it in the config or with "
        "--gin 'Data.languages = ...'."
    )


def test_the_text_names_every_setting_in_order():
    assert build(Train_steps=7, Mesh_rules={"G": "x", "E": ["x"]}).text == (
        "# The resolved configuration of this run: every setting with its value.\n\n"
        "Model.layers = 2\nModel.rate = 0.1\nModel.name = 'plain'\nModel.tied = True\n"
        "Model.depth = None\nModel.kind = 'gather'\n\n"
        "Mesh.axes = ('x',)\nMesh.rules = {'G': 'x', 'E': ('x',)}\nMesh.pair = (1, 'a')\n\n"
        "Data.languages = ('fr',)\n\nOptimizer.rate = 1e-30\n\nTrain.steps = 7\n\n"
        "Decode.beam = 4\n\nCleaning.ratio = 3.0\n\n# End of the configuration.\n"
    )


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(
    layers=st.integers(),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    name=st.text(st.characters(exclude_categories=["Cs"])),
    axes=st.lists(st.text("xyz", min_size=1), max_size=60),
    rules=st.dictionaries(st.text("EGM"), st.lists(st.text("xyz")) | st.text("xyz")),
)
def test_the_text_reads_back_as_the_same_config(tmp_path_factory, layers, rate, name, axes, rules):
    config = build(
        Model_layers=layers, Model_rate=rate, Model_name=name, Mesh_axes=axes, Mesh_rules=rules
    )
    path = tmp_path_factory.mktemp("run") / "config.gin"
    path.write_text(config.text, encoding="utf-8")
    again = values.read_run_config(path, CLASSES)
    assert again == config
    assert list(again.mesh.rules) == list(config.mesh.rules)


def test_a_run_of_an_older_version_opens(tmp_path):
    path = tmp_path / "config.gin"
    path.write_text("Mesh.shape = (2,)\nMesh.partitioner = 'gspmd'\n")
    assert tuple(values.read_run_config(path).mesh.shape) == (2,)
    assert tuple(load_config(str(path)).mesh.shape) == (2,)
    with pytest.raises(UserError, match="Mesh has no setting 'partitioner'"):
        load_config(str(path), ["Mesh.partitioner = 'gspmd'"])


def test_a_folder_without_a_config_is_not_a_run_folder(tmp_path):
    with pytest.raises(UserError, match="is not a run folder; give the --workdir of a run that"):
        values.read_run_config(tmp_path / "config.gin", CLASSES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("include 'demo.gin'", "is damaged: invalid syntax"),
        ("Model.layers = M", "line 1: cannot read this line; the config.gin of a run folder has"),
        ("\nlayers = 3", "line 2: cannot read this line; the config.gin of a run folder has"),
        ("Model.layrs = 3", "Model has no setting 'layrs'; did you mean 'layers'?"),
    ],
)
def test_the_config_of_a_run_folder_has_only_literals(tmp_path, text, message):
    path = tmp_path / "config.gin"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        values.read_run_config(path, CLASSES)
    assert message in str(error.value)
