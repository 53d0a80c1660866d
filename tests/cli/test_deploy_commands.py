"""gshard-export, gshard-import and gshard-serve: what their flags change, and mistakes in them."""

import re
import socket
import types

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.serving.requests import Limits


@pytest.fixture
def exported(monkeypatch):
    """The arguments of each export."""
    calls = []
    monkeypatch.setattr("gshard_nmt.export.export", lambda *arguments: calls.append(arguments))
    return calls


def test_the_flags_name_the_run_the_folder_and_the_search(exported, tmp_path):
    flags = [f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}", "--format=savedmodel"]
    assert commands.main(["export", *flags]) == 0
    gin = ["--gin=Decode.rows = 8", "--gin=Decode.beam = 3"]
    assert commands.main(["export", *flags, *gin, "--checkpoint=500"]) == 0
    assert [
        {name: setting.value for (_, name), setting in changes.settings.items()}
        for _, _, changes, *_ in exported
    ] == [{}, {"rows": 8, "beam": 3}]
    assert [(out, checkpoint, form) for _, out, _, checkpoint, form in exported] == [
        (tmp_path / "out", checkpoint, "savedmodel") for checkpoint in ("best", "500")
    ]


MISTAKES = [
    ("--format=onnx",
     "--format is 'onnx'; it must be one of savedmodel, huggingface, ctranslate2, native. See "
     "gshard-export --help."),
    ("",
     "--format is missing. For example:\n  gshard-export --workdir runs/demo --out exported --format "
     "savedmodel\nSee gshard-export --help."),
    ("--format=ctranslate2 --languages=de",
     "--languages and --corpus make a smaller run folder, and --format is ctranslate2. "
     "Give --format native"),
    ("--format=huggingface --gin=Decode.beam=2",
     "--gin has no effect with --format huggingface, which has no search."),
    ("--format=native --languages=de,fr",
     "--format native makes a smaller model and needs --languages and --corpus."),
    ("--format=savedmodel --out=gs://bucket/out", "--out gs://bucket/out"),
    ("--format=savedmodel --gin=Decode.method='sample'", "--gin: Decode.method has no effect, for"),
    ("--format=savedmodel --gin=Mesh.shape=(2,)",
     "--gin 'Mesh.shape=(2,)': Mesh.shape cannot change now, because it belongs to the trained run "
     "or has no effect here. Give only settings of Decode."),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), MISTAKES)
def test_a_mistake_writes_nothing(exported, tmp_path, capsys, flags, message):
    assert commands.main(["export", f"--workdir={tmp_path}", "--out=out", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gshard-export: {message}")
    assert exported == []


def test_a_smaller_model_has_its_languages_and_corpus(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(
        "gshard_nmt.export.export_smaller", lambda *arguments: calls.append(arguments)
    )
    flags = [f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}", "--format=native"]
    flags.append(f"--corpus={tmp_path}")
    assert commands.main(["export", *flags, "--languages", "de", "fr"]) == 0
    assert commands.main(["export", *flags, "--languages=de,fr", "--checkpoint=last"]) == 0
    assert calls == [
        (tmp_path, tmp_path / "out", ["de", "fr"], tmp_path, checkpoint)
        for checkpoint in ("best", "last")
    ]


def test_the_flags_name_the_folders_and_the_languages(monkeypatch, tmp_path):
    imports = []
    monkeypatch.setattr("gshard_nmt.import_model.import_model", lambda *a: imports.append(a))
    flags = [f"--from={tmp_path}", f"--workdir={tmp_path / 'run'}"]
    assert commands.main(["import", *flags]) == 0
    assert commands.main(["import", *flags, "--marian_positions", "--languages", "en", "fr"]) == 0
    assert commands.main(["import", *flags, "--marian_positions", "--languages", "en,fr"]) == 0
    places = (tmp_path, tmp_path / "run")
    assert imports == [(*places, [], False), *[(*places, ["en", "fr"], True)] * 2]


@pytest.fixture
def started(monkeypatch):
    """What happens, in order: the model is loaded, compiled and served."""
    events = []

    def load_translator(config, run, nbest, checkpoint, fits, protection):
        events.append(("load", config, run.path, nbest, checkpoint, fits))
        return types.SimpleNamespace(
            origin="step 7 (Train.ema)",
            rate=lambda run, decode: None,
            of_ids=types.SimpleNamespace(
                rows=2 * config.decode.rows, warm_up=lambda: events.append(("warm up",))
            ),
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
        *("--port=0", "--host=::1", "--beam=2", "--nbest=2", "--gin=Decode.rows = 8"),
        *("--max_characters=7", "--timeout=8", "--checkpoint=average:2"),
        *("--cors=https://a.example", "--cors=http://localhost:8080"),
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
            *(["https://a.example", "http://localhost:8080"], Limits(7, seconds=8.0)),
        ),
        ("server", "step 7 (Train.ema), 2 directions"),
    ]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--port=65536", "--port is '65536'; it must be an integer in the range [0, 65535]."),
        ("--nbest=5", "--nbest is 5; it must be from 1 to the beam size, 4."),
        ("--cors=example.org", "--cors is 'example.org'; it must be * or a scheme and a host"),
        ("--cors=https://example.org/", "--cors is 'https://example.org/'; it must be"),
        ("--cors=https://Example.org", "--cors is 'https://Example.org'; it must be"),
        ("--cors=https://example.org:443", "--cors is 'https://example.org:443'; it must be"),
        ("--checkpoint=worst", "--checkpoint"),
        ("--gin=Model.heads = 2", "--gin 'Model.heads = 2': Model.heads cannot change now"),
        ("--gin=Decode.top_k = 2", "--gin: Decode.top_k has no effect, for this is beam search."),
        *(
            (f"--host={host}", f"--host {host} --port 5000: no server can listen there")
            for host in ("192.0.2.1", "no host", "x" * 100)
        ),
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
    assert re.search(f"--port {port}: no server .* in use", capsys.readouterr().err)
    assert started == []


def test_other_machines_are_a_warning(capsys, run_folder, started):
    assert commands.main(["serve", f"--workdir={run_folder}", "--port=0", "--host=0.0.0.0"]) == 0
    assert "gshard-serve: --host 0.0.0.0: every machine" in capsys.readouterr().err
