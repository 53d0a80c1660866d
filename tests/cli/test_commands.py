import io
import json
import os
import pathlib
import subprocess
import sys

import pytest

from gshard_nmt import __version__
from gshard_nmt.cli import commands

ROOT = pathlib.Path(commands.__file__).parents[2]
PROGRAMS = {
    "gshard-data": commands.data_program,
    "gshard-checkpoint": commands.checkpoint_program,
    "gshard-train": commands.train_program,
    "gshard-decode": commands.decode_program,
    "gshard-eval": commands.eval_program,
    "gshard-inspect": commands.inspect_program,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_tells_its_version(capsys, name):
    assert PROGRAMS[name](["--version"]) == 0
    assert capsys.readouterr() == (f"gshard-nmt {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the verb is missing. The verbs are: harvest, prepare. See gshard-data --help."),
        (
            ["harvets"],
            "there is no verb 'harvets'; did you mean 'harvest'? The verbs are: harvest, "
            "prepare. The verb comes first. See gshard-data --help.",
        ),
    ],
)
def test_gshard_data_needs_a_verb(capsys, arguments, message):
    assert commands.data_program(arguments) == 2
    assert capsys.readouterr() == ("", f"gshard-data: {message}\n")


def test_gshard_data_help_names_the_verbs(capsys):
    assert commands.data_program(["--help"]) == 0
    out, _ = capsys.readouterr()
    assert "gshard-data harvest" in out
    assert "gshard-data prepare" in out


def test_an_unknown_setting_is_an_error_even_if_the_command_does_not_use_it(capsys, tmp_path):
    arguments = ["prepare", "--config=demo", f"--corpus={tmp_path}", f"--out={tmp_path / 'data'}"]
    assert commands.data_program([*arguments, "--gin=Decode.bem = 3"]) == 2
    _, err = capsys.readouterr()
    assert err.startswith(
        "gshard-data prepare: --gin 'Decode.bem = 3': Decode has no setting 'bem'; did you mean "
        "'beam'? Decode has: beam, "
    )


@pytest.fixture
def run_folder(tmp_path):
    """A folder with the config of a run from French and German."""
    from gshard_nmt.settings.gin_reader import load_config

    (tmp_path / "config.gin").write_text(load_config("demo").text)
    pairs = [{"source": source, "target": "en"} for source in ("fr", "de")]
    (tmp_path / "data.json").write_text(json.dumps({"pairs": pairs}))
    return tmp_path


def test_decode_changes_the_runs_search_by_its_flags(monkeypatch, run_folder):
    from gshard_nmt.settings.values import read_run_config

    calls, lines = [], []

    def decode(*arguments):
        calls.append(arguments)
        lines.extend(arguments[2])

    monkeypatch.setattr("gshard_nmt.decode.decode", decode)
    source, output = run_folder / "in.txt", run_folder / "out.txt"
    source.write_text("un\rdeux\n")
    before = read_run_config(run_folder / "config.gin")
    code = commands.decode_program(
        [
            *(f"--workdir={run_folder}", "--lang=fr", "--beam=2", "--alpha=0.8"),
            *("--length_norm=lingvo", f"--input={source}", f"--output={output}", "--scores"),
        ]
    )
    assert code == 0
    config, run, _, _, language, target, nbest, scores = calls[0]
    assert (run.path, language, target, nbest, scores) == (run_folder, "fr", "en", 1, True)
    assert (config.decode.beam, config.decode.length_norm, config.decode.alpha) == (
        2,
        "lingvo",
        0.8,
    )
    assert config.model == before.model
    assert lines == ["un\rdeux\n"]
    assert output.read_text() == ""


def test_decode_reads_stdin_and_writes_stdout(monkeypatch, capsys, run_folder):
    def upper(config, run, source, output, *rest):
        output.writelines(line.upper() for line in source)

    monkeypatch.setattr("gshard_nmt.decode.decode", upper)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é\nb\n".encode())))
    assert commands.decode_program([f"--workdir={run_folder}", "--lang=fr"]) == 0
    assert capsys.readouterr() == ("É\nB\n", "")


@pytest.mark.parametrize("wrong", ["--lang=xx", "--target=fr", "--nbest=5", "--nbest=0"])
def test_a_mistake_leaves_the_output_file_as_it_was(capsys, run_folder, wrong):
    output = run_folder / "out.txt"
    output.write_text("translated before\n")
    assert (
        commands.decode_program(
            [f"--workdir={run_folder}", "--lang=fr", f"--output={output}", wrong]
        )
        == 2
    )
    assert capsys.readouterr().err.startswith("gshard-decode: --")
    assert output.read_text() == "translated before\n"


def test_decode_names_a_missing_input(capsys, run_folder):
    arguments = [f"--workdir={run_folder}", "--lang=fr", "--input=gone.txt"]
    assert commands.decode_program(arguments) == 2
    assert capsys.readouterr().err == (
        "gshard-decode: --input gone.txt: there is no such file; give a text file, or leave out --input "
        "to read stdin.\n"
    )


def test_help_waits_for_no_library(tmp_path):
    code = (
        "import sys; from gshard_nmt.cli import commands; commands.data_program(['harvest', '--help']); "
        "heavy = {'tensorflow', 'jax', 'numpy', 'matplotlib', 'gin', 'rich'} & set(sys.modules); "
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (process.returncode, process.stderr) == (0, "")


def test_reading_a_config_imports_neither_tensorflow_nor_jax():
    code = (
        "import sys; from gshard_nmt.settings.gin_reader import load_config; load_config('demo'); "
        "heavy = {'tensorflow', 'jax', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (process.returncode, process.stderr) == (0, "")
