"""gshard-serve: what its flags change, and that mistakes are named before the model is loaded."""

import json
import socket
import types

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.serving.requests import Limits
from tests.run.facts import data_facts


@pytest.fixture
def run_folder(tmp_path):
    """A folder with the config of a run from French and German."""
    from gshard_nmt.settings.gin_reader import load_config

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.gin").write_text(load_config("demo").text)
    (folder / "data.json").write_text(json.dumps(data_facts(["fr", "de"])))
    return folder


@pytest.fixture
def started(monkeypatch):
    """What happens, in order: the model is loaded, compiled and served."""
    events = []

    def load_translator(config, run, nbest, checkpoint, fits):
        events.append(("load", config, run.path, nbest, checkpoint, fits))
        return types.SimpleNamespace(
            origin="step 7 (Train.ema)",
            warm_up=lambda: events.append(("warm up",)),
            of_ids=types.SimpleNamespace(rows=2 * config.decode.rows),
        )

    def server(translator, directions, rows, address, limits, origins):
        assert translator.origin == "step 7 (Train.ema)"
        events.append(("server", directions, rows, address[0], origins, limits))
        return "server"

    monkeypatch.setattr("gshard_nmt.decoding.text_translator.load_translator", load_translator)
    monkeypatch.setattr("gshard_nmt.serve.Server", server)
    monkeypatch.setattr("gshard_nmt.serve.serve", lambda *words: events.append(words))
    return events


def test_the_server_has_the_limits_and_the_search_of_the_flags(run_folder, started):
    flags = [
        *("--port=0", "--host=::1", "--beam=2", "--nbest=2", "--rows=8", "--queue=5"),
        *("--max_texts=6", "--max_characters=7", "--timeout=8", "--checkpoint=average:2"),
        *("--cors=https://a.example", "--cors=http://localhost:8000"),
        *("--gin=Decode.alpha = 0.9", "--gin=Mesh.shape = (2,)"),
    ]
    assert commands.main(["serve", f"--workdir={run_folder}", *flags]) == 0
    (_, config, path, nbest, checkpoint, fits), *rest = started
    decode = config.decode
    assert (decode.beam, decode.rows, decode.alpha, decode.method) == (2, 8, 0.9, "beam")
    assert (config.mesh.num_devices, fits) == (2, False)
    assert (path, nbest, checkpoint) == (run_folder, 2, "average:2")
    assert rest == [
        ("warm up",),
        # The translator fills more rows than the flag says, as on a CPU.
        (
            *("server", [("fr", "en"), ("de", "en")], 16, "::1"),
            *(["https://a.example", "http://localhost:8000"], Limits(7, 6, 5, 8.0)),
        ),
        ("server", "step 7 (Train.ema), 2 directions"),
    ]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--port=65536", "--port is 65536; it must be from 0 to 65535. Choose one of these."),
        ("--nbest=5", "--nbest is 5; it must be from 1 to the beam size, 4."),
        ("--cors=example.org", "--cors is 'example.org'; it must be * or a scheme and a host"),
        ("--cors=https://example.org/", "--cors is 'https://example.org/'; it must be"),
        ("--queue=0", "--queue is '0'; it must be a positive integer."),
        ("--checkpoint=worst", "--checkpoint"),
        (
            "--gin=Model.heads = 2",
            "--gin 'Model.heads = 2': Model.heads belongs to the trained run",
        ),
        ("--host=192.0.2.1", "--host 192.0.2.1: no server can listen there"),
    ],
)
def test_a_mistake_is_named_before_the_model_is_loaded(capsys, run_folder, started, flag, message):
    assert commands.main(["serve", f"--workdir={run_folder}", flag]) == 2
    assert capsys.readouterr().err.startswith(f"gshard-serve: {message}")
    assert started == []


def test_a_port_in_use_is_named_before_the_model_is_loaded(capsys, run_folder, started):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert commands.main(["serve", f"--workdir={run_folder}", f"--port={port}"]) == 2
    assert capsys.readouterr().err == (
        f"gshard-serve: --port {port}: another program uses this port of 127.0.0.1. Stop it, or give "
        "another --port; 0 takes any that is free.\n"
    )
    assert started == []


def test_other_machines_are_a_warning(capsys, run_folder, started):
    flags = [f"--workdir={run_folder}", "--port=0", "--host=0.0.0.0"]
    assert commands.main(["serve", *flags]) == 0
    assert "gshard-serve: --host 0.0.0.0: every machine" in capsys.readouterr().err
