import subprocess
import sys

import pytest

from gshard_nmt import inspect
from gshard_nmt.cli import commands
from gshard_nmt.errors import UserError
from gshard_nmt.inspection import memory
from gshard_nmt.run.arrays import step_functions, training_arrays
from gshard_nmt.settings.divides import check_divides
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.topology import Topology


def request(*settings: str, scale: bool = False) -> inspect.Request:
    config = load_config("demo", ["Data.rows = 32", *settings])
    return inspect.Request(config, "demo", [], scale)


def adapted(topology: str, *settings: str, scale: bool = False):
    _, config, notes = inspect.adapt(request(*settings, scale=scale), Topology.parse(topology))
    return config, notes


def test_a_mesh_of_one_axis_takes_the_topologys_size_and_says_so():
    config, notes = adapted("cpu:8")
    assert list(config.mesh.shape) == [8]
    assert notes == ["Mesh.shape [2] was made [8] to fit cpu:8"]
    assert "Mesh.shape = (8,)" in config.text
    config, notes = adapted("cpu:2")
    assert notes == []


def test_of_several_axes_the_first_takes_what_the_others_leave():
    mesh = ("Mesh.axes = ('x', 'y')", "Mesh.shape = (1, 2)")
    config, _ = adapted("cpu:8", *mesh)
    assert list(config.mesh.shape) == [4, 2]
    with pytest.raises(UserError, match=r"Mesh.shape \[1, 3\] is 3 devices and cpu:8 has 8"):
        adapted("cpu:8", "Mesh.axes = ('x', 'y')", "Mesh.shape = (1, 3)")


def test_experts_groups_and_rows_follow_the_devices_where_asked():
    config, notes = adapted("cpu:8", scale=True)
    assert (config.model.experts, config.model.num_groups, config.data.rows) == (32, 32, 128)
    assert notes[1:] == [
        "Model.experts 8 was made 32",
        "Model.num_groups 8 was made 32",
        "Data.rows 32 was made 128",
    ]
    with pytest.raises(UserError, match=r"Model.experts = 8 for 16 devices cannot be scaled to 1"):
        adapted("cpu:1", "Mesh.shape = (16,)", scale=True)


def test_what_does_not_divide_is_told_in_the_users_letters_before_anything_is_compiled():
    with pytest.raises(UserError, match=r"Data.rows: dimension B has size 33"):
        inspect.inspect(
            inspect.Request(load_config("demo", ["Data.rows = 33"]), "demo", ["cpu:2", "cpu:4"])
        )
    config, _ = adapted(
        "cpu:2",
        "Data.source_vocabulary = 8001",
        "Mesh.rules = {'B': 'x', 'G': 'x', 'E': 'x', 'V': 'x'}",
    )
    with pytest.raises(UserError, match=r"source_embedding: dimension V has size 8001"):
        check_divides(config, training_arrays(config, step_functions(config)))


def test_active_weights_are_all_but_the_experts_a_token_does_not_visit():
    config, _ = adapted("cpu:2")
    found = inspect.count(config, config.mesh)
    experts = 2 * 8 * 2 * 128 * 512  # two layers of 8 experts of two matrices
    assert found.total - found.active_per_token == experts * 6 // 8
    assert found.total - found.per_device in (experts // 2, experts // 2 + 128 * 8)  # the gates


def test_the_parameter_table_of_a_trillion_weights_needs_no_tensorflow_and_no_memory():
    """In a process of its own, with less memory than the weights of one layer would take."""
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
from gshard_nmt.cli import commands
settings = ['Model.experts = 2048', 'Model.model_dim = 1024', 'Model.hidden_dim = 8192',
    'Model.expert_hidden_dim = 8192', 'Model.encoder_layers = 30', 'Model.decoder_layers = 30',
    'Model.num_groups = 2048', 'Mesh.shape = (2048,)']
flags = [word for setting in settings for word in ('--gin', setting)]
code = commands.inspect_program(['--config', 'demo', '--parameters', *flags])
assert 'tensorflow' not in sys.modules and 'jax' not in sys.modules
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("parameters: 1,031,")
    assert last.endswith("on each of 2,048 devices")
    assert "parameters/decoder/block/moe_0/wi" in done.stdout


def test_settings_that_would_make_it_fit_are_named():
    config, _ = adapted("cpu:2")
    categories = dict.fromkeys(memory.CATEGORIES, 2**31) | {"activations": 2**33}
    needs = memory.Memory(None, None, None, None, None, 2**34, 3 * 2**32, categories, True)
    found = inspect.knobs(config, needs)
    # Of 12 GiB 8 are taken by what is no activation; half of the activations' 8 fit.
    assert any("Data.rows = 16 instead of 32: " in knob for knob in found)
    assert any("4.00 GiB are left for them" in knob for knob in found)
    assert any("splits the replicated weights (2.00 GiB)" in knob for knob in found)


def test_where_the_weights_alone_are_too_much_no_number_of_rows_is_advised():
    config, _ = adapted("cpu:2")
    categories = dict.fromkeys(memory.CATEGORIES, 2**31)
    needs = memory.Memory(None, None, None, None, None, 5 * 2**31, 2**32, categories, True)
    found = inspect.knobs(config, needs)
    assert any("without activations 4.00 GiB are too much" in knob for knob in found)
    assert not any("Data.rows =" in knob for knob in found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=v9:2x2"], "gshard-inspect: --topology v9:2x2: there is no such topology"),
        (["--json=/nowhere/a.json"], "gshard-inspect: --json /nowhere/a.json: there is no folder"),
        (["--gin=Mesh.shape = (2048,)"], "the config's mesh has 2048 devices; name a machine with"),
        (["--topology=cpu:3"], "which does not divide over the 3 devices of mesh axes ['x']"),
    ],
)
def test_mistakes_end_with_one_message(capsys, arguments, message):
    assert commands.inspect_program(["--config=demo", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
