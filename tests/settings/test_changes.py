"""The settings that decoding may change: Mesh and Decode, also on a mesh with other axes."""

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.settings.changes import read_changes
from gshard_nmt.settings.gin_reader import load_config

DEMO = load_config("demo")
RULES = {"B": ("x", "y"), "G": ("x", "y"), "E": "y"}
POD = DEMO.replace(
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
        (
            "Model.model_dim = 8",
            "Model.model_dim belongs to the trained run, so it cannot change now",
        ),
        ("Train.steps = 8", "Here --gin takes only settings of Mesh and Decode"),
        ("Mesh.shapes = (1,)", "Mesh has no setting 'shapes'; did you mean 'shape'"),
        (
            "Mesh.shape = (2, 2, 2)",
            "Mesh.shape is [2, 2, 2], and the run has the mesh axes ['x', 'y']",
        ),
        ("Mesh.shape = (0,)", "Mesh.shape is [0], and the run has"),
        ("Mesh.shape = 4", "Mesh.shape is 4; it must be a list"),
        ("Decode.beam = 0", "Decode.beam is 0; it must be"),
        ("EXPERTS = 8", "nothing uses 'EXPERTS'"),
    ],
)
def test_a_change_that_cannot_be_is_an_error(statement, message):
    with pytest.raises(UserError) as error:
        changed(statement)
    assert message in str(error.value)
