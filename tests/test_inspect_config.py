import json
import subprocess
import sys

import pytest

from gshard_nmt import inspect_config as inspect
from gshard_nmt.cli import commands
from gshard_nmt.errors import UserError
from gshard_nmt.inspection import memory
from gshard_nmt.inspection.compute import UNKNOWN, Work
from gshard_nmt.inspection.program_cost import Compilation, Counts, Inspection
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.topology import Topology


def request(*settings: str, scale: bool = False) -> inspect.Request:
    return inspect.Request(load_config("demo", ["Data.rows = 32", *settings]), "demo", [], scale)


def adapted(topology: str, *settings: str, scale: bool = False):
    target = inspect.adapt(request(*settings, scale=scale), Topology.parse(topology))
    return target.config, target.notes


def test_a_mesh_of_one_axis_takes_the_topologys_size_and_says_so():
    config, notes = adapted("cpu:8")
    assert list(config.mesh.shape) == [8]
    assert notes == ["Mesh.shape [2] was changed to [8] to fit cpu:8"]
    assert "Mesh.shape = (8,)" in config.text
    config, notes = adapted("cpu:2")
    assert notes == []


def test_the_first_axis_of_a_mesh_takes_the_devices_that_the_others_leave():
    config, _ = adapted("cpu:8", "Mesh.axes = ('x', 'y')", "Mesh.shape = (1, 2)")
    assert list(config.mesh.shape) == [4, 2]
    with pytest.raises(UserError, match=r"Mesh.shape \[1, 3\] is 3 devices and cpu:8 has 8"):
        adapted("cpu:8", "Mesh.axes = ('x', 'y')", "Mesh.shape = (1, 3)")


def test_experts_groups_and_rows_are_scaled_with_the_devices():
    config, notes = adapted("cpu:8", scale=True)
    assert (config.model.experts, config.model.num_groups, config.data.rows) == (32, 32, 128)
    assert notes[1:] == [
        "Model.experts 8 was changed to 32",
        "Model.num_groups 8 was changed to 32",
        "Data.rows 32 was changed to 128",
    ]
    with pytest.raises(UserError, match=r"Model.experts = 8 for 16 devices cannot be scaled to 1"):
        adapted("cpu:1", "Mesh.shape = (16,)", scale=True)


def test_a_size_that_does_not_divide_is_an_error_in_the_users_letters_before_compiling():
    with pytest.raises(UserError, match=r"Data.rows: dimension B has size 33"):
        inspect.inspect(
            inspect.Request(load_config("demo", ["Data.rows = 33"]), "demo", ["cpu:2", "cpu:4"])
        )
    settings = [
        "Data.source_vocabulary = 8001",
        "Mesh.rules = {'B': 'x', 'G': 'x', 'E': 'x', 'V': 'x'}",
    ]
    message = r"Data.source_vocabulary \(parameters/source_embedding\): dimension V has size 8001"
    with pytest.raises(UserError, match=message):
        inspect.inspect(inspect.Request(load_config("demo", settings), "demo", ["cpu:2"]))


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
code = commands.main(["inspect", '--config', 'demo', '--parameters', *flags])
assert 'tensorflow' not in sys.modules and 'jax' not in sys.modules
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("parameters: 1,031,")
    assert last.endswith("on each of 2,048 devices")
    assert "parameters/decoder/block/moe_0/wi" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=v9:2x2"], "gshard-inspect: --topology v9:2x2: there is no such topology"),
        (["--json=/nowhere/a.json"],
         "gshard-inspect: --json /nowhere/a.json: the folder /nowhere does not exist. Make it"),
        (["--gin=Mesh.shape = (2048,)"],
         "the config's mesh has 2048 devices, and a program for more than 512 CPU"),
        (["--topology=cpu:3"], "which does not divide over the 3 devices of mesh axes ['x']"),
    ],
)  # fmt: skip
def test_mistakes_end_with_one_message(capsys, arguments, message):
    assert commands.main(["inspect", "--config=demo", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_advice_compiles_the_best_meshes_and_the_configs_own_until_enough_fit(
    monkeypatch, capsys, tmp_path
):
    inspected = []

    def inspect_one(request, target):
        inspected.append((target.notes[0].partition(" ")[0], tuple(target.config.mesh.shape)))
        fits = len(inspected) != 1
        total = memory.Memory(*[None] * 5, 2**30, 2**30 if fits else 2**20, {}, is_estimate=True)
        return Inspection(
            config="demo",
            topology=target.topology,
            mesh={"x": 8},
            counts=Counts(1, 1, 1),
            compilation=Compilation(1.0, 1.0, 1.0, 5),
            memory=total,
            tokens_per_step=1,
            work={UNKNOWN: Work(1.0, 1.0, float(len(inspected)), 1.0)},
        )

    monkeypatch.setattr(inspect, "inspect_one", inspect_one)
    monkeypatch.setattr(inspect.ahead_of_time, "check_available", lambda topologies: None)
    config = load_config("demo", ["Data.rows = 32", "Mesh.shape = (8,)"])
    file = tmp_path / "advice.json"
    inspect.advise(inspect.Request(config, "demo", ["v3:2x2"]), 2, file)
    # The first does not fit, so two more are compiled; the last is the mesh of the config.
    assert len(inspected) == 4
    assert inspected[-1] == ("the", (8,))
    captured = capsys.readouterr()
    assert captured.out.startswith("ADVICE for demo on v3:2x2, 8 devices: of 7 meshes ")
    assert "Mesh.device_order = '[8]'" in captured.out
    assert "zero x=8" in captured.err
    written = json.loads(file.read_text())
    assert len(written["compiled"]) == 4
    assert [record["fits"] for record in written["compiled"]] == [True, True, True, False]
    assert len(written["ranking"]) == 8
