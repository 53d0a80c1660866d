"""Named values become a config, and the settings that decoding may change replace those of a run."""

import hypothesis
import pytest
from hypothesis import strategies as st

from gshard_nmt.errors import UserError
from gshard_nmt.settings import values
from gshard_nmt.settings.config import Train
from gshard_nmt.settings.gin_reader import load_config, read_changes
from gshard_nmt.settings.values import Setting


def build(**bound: object):
    """A config of settings named as Class_field."""
    return values.build(
        {tuple(name.split("_", 1)): Setting(v, "my.gin, line 3") for name, v in bound.items()}
    )


def test_values_are_converted_to_the_types_of_their_fields():
    config = build(
        Train_ema=0, Mesh_axes=["x", "y"], Mesh_shape=[2, 1], Mesh_rules={"E": ["x", "y"], "G": "x"}
    )
    assert isinstance(config.train.ema, float)
    assert config.mesh.axes == ("x", "y")
    assert config.mesh.rules == {"E": ("x", "y"), "G": "x"}
    assert config.train == Train()


STRINGS = "a list [...], each entry a string in quotes"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("Model_heads", "4", "a whole number without quotes"),
        ("Model_heads", 4.0, "a whole number"),
        ("Model_heads", True, "a whole number"),
        ("Train_ema", "fast", "a number without quotes"),
        ("Train_ema", float("inf"), "a number"),
        ("Train_ema", 10**400, "a number"),
        ("Decode_method", 3, "a string in quotes"),
        ("Model_biases", 1, "True or False"),
        ("Mesh_axes", "x", STRINGS),
        ("Mesh_axes", ["x", 1], STRINGS),
        (*("Mesh_rules", {"E": 3}),
         f"a dict {{...}} from a string in quotes to a string in quotes or {STRINGS} or None"),
    ],
)  # fmt: skip
def test_an_error_about_a_type_says_the_line_the_value_and_the_rule(name, value, rule):
    with pytest.raises(UserError) as error:
        build(**{name: value})
    setting = name.replace("_", ".", 1)
    assert str(error.value) == f"my.gin, line 3: {setting} is {value!r}; it must be {rule}."


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    factor=st.floats(1e-30, 1e6),
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=60),
    rules=st.dictionaries(st.sampled_from("EGM"), st.sampled_from(["x", ["x"], None])),
)
def test_the_text_reads_back_as_the_same_config(tmp_path_factory, seed, factor, names, rules):
    config = build(
        Train_seed=seed, Optimizer_learning_rate=factor, Train_freeze=names, Mesh_rules=rules
    )
    path = tmp_path_factory.mktemp("run") / "config.gin"
    path.write_text(config.text, encoding="utf-8")
    again = values.read_run_config(path)
    assert again == config
    assert list(again.mesh.rules) == list(config.mesh.rules)


def test_a_folder_without_a_config_is_not_a_run_folder(tmp_path):
    with pytest.raises(UserError, match="is not a run folder; give the --workdir of a run that"):
        values.read_run_config(tmp_path / "config.gin")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("include 'demo.gin'", "is damaged: invalid syntax"),
        ("Model.heads = M", "line 1: cannot read this line; the config.gin of a run folder has"),
        ("\nlayers = 3", "line 2: cannot read this line; the config.gin of a run folder has"),
        ("Model.haeds = 3", "Model has no setting 'haeds'; did you mean 'heads'?"),
        ("Data.augmentation = {'old': 1}", "/config.gin: Data.augmentation has 'old'."),
    ],
)
def test_the_config_of_a_run_folder_has_only_literals(tmp_path, text, message):
    path = tmp_path / "config.gin"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        values.read_run_config(path)
    assert message in str(error.value)


RULES = {"B": ("x", "y"), "G": ("x", "y"), "E": "y"}
POD = load_config("demo").replace(
    mesh={
        "axes": ("x", "y"),
        "shape": (8, 8),
        "rules": RULES,
        "device_order": tuple(range(63, -1, -1)),
    }
)


def changed(*statements: str, config=POD):
    return read_changes(statements).apply(config)


def test_decode_changes_alone():
    config = changed("Decode.beam = 7", "Decode.alpha = 1")
    assert config == POD.replace(decode={"beam": 7, "alpha": 1.0})
    assert not read_changes(["Decode.beam = 7"]).name_a_mesh


@pytest.mark.parametrize(
    ("shape", "expected"),
    [("(1,)", (1, 1)), ("(2,)", (1, 2)), ("[8]", (1, 8)), ("(16,)", (2, 8)), ("(2, 4)", (2, 4))],
)
def test_one_size_is_the_number_of_devices_of_a_mesh_of_several_axes(shape, expected):
    changes = read_changes([f"Mesh.shape = {shape}"])
    mesh = changes.apply(POD).mesh
    assert changes.name_a_mesh
    assert (tuple(mesh.shape), mesh.axes, mesh.rules) == (expected, ("x", "y"), RULES)
    assert mesh.device_order == ()  # the order of 64 devices fits no other shape


def test_axes_and_rules_may_be_new():
    config = changed("Mesh.axes = ('a',)", "Mesh.shape = (4,)", "Mesh.rules = {'E': 'a'}")
    assert config.mesh.rules == {"E": "a"}
    assert config.model is not None
    with pytest.raises(
        UserError, match=r"^Mesh.rules\['B'\] names the mesh axis 'x'; Mesh.axes is"
    ):
        changed("Mesh.axes = ('a',)", "Mesh.shape = (4,)")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("Model.model_dim = 8",
         "Model.model_dim cannot change now, because it belongs to the trained run"),
        ("Train.steps = 8", "Give only settings of Mesh and Decode"),
        ("Mesh.shapes = (1,)", "Mesh has no setting 'shapes'; did you mean 'shape'"),
        ("Mesh.shape = (2, 2, 2)", "Mesh.shape is [2, 2, 2], and the run has the mesh axes ['x', 'y']"),
        ("Mesh.shape = (0,)", "Mesh.shape is [0], and the run has"),
        ("Mesh.shape = 4", "Mesh.shape is 4; it must be a list"),
        ("Decode.beam = 0", "Decode.beam is 0; it must be"),
        ("EXPERTS = 8", "nothing uses 'EXPERTS'"),
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_is_an_error(statement, message):
    with pytest.raises(UserError) as error:
        changed(statement)
    assert message in str(error.value)
