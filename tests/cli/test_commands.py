"""Programs whose first word is a verb."""

import pathlib
import subprocess
import sys

import pytest

from gshard_nmt import __version__
from gshard_nmt.cli import commands

ROOT = pathlib.Path(commands.__file__).parents[2]


@pytest.mark.parametrize("name", [*commands.COMMANDS, *commands.VERBS])
def test_every_program_tells_its_version(capsys, monkeypatch, name):
    """A program is known by its name, and `python -m gshard_nmt` by its first word."""
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/gshard-{name}", "--version"])
    monkeypatch.setattr(commands, "restart_with_large_heaps", lambda: None)
    assert commands.main() == commands.main([name, "--version"]) == 0
    assert capsys.readouterr() == (f"gshard-nmt {__version__}\n" * 2, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "the verb is missing. The verbs are: harvest, prepare, show, plan, check, translate. "
            "See gshard-data --help.",
        ),
        (
            ["harvets"],
            "there is no verb 'harvets'; did you mean 'harvest'? The verbs are: harvest, "
            "prepare, show, plan, check, translate. See gshard-data --help.",
        ),
    ],
)
def test_gshard_data_needs_a_verb(capsys, arguments, message):
    assert commands.main(["data", *arguments]) == 2
    assert capsys.readouterr() == ("", f"gshard-data: {message}\n")


def test_an_unknown_setting_is_an_error_even_if_the_command_does_not_use_it(capsys, tmp_path):
    arguments = ["prepare", "--config=demo", f"--corpus={tmp_path}", f"--out={tmp_path / 'data'}"]
    assert commands.main(["data", *arguments, "--gin=Decode.bem = 3"]) == 2
    _, err = capsys.readouterr()
    assert err.startswith(
        "gshard-data prepare: --gin 'Decode.bem = 3': Decode has no setting 'bem'; did you mean "
        "'beam'? Decode has: method, beam, "
    )


@pytest.mark.parametrize(
    ("action", "libraries"),
    [
        ("from gshard_nmt.cli import commands; commands.main(['data', 'harvest', '--help'])",
         "tensorflow jax numpy matplotlib gin rich sacrebleu sentencepiece"),
        ("from gshard_nmt.settings.gin_reader import load_config; load_config('demo')",
         "tensorflow jax matplotlib"),
    ],
)  # fmt: skip
def test_help_and_configs_wait_for_no_library(action, libraries):
    code = f"{action}; import sys; print(set('{libraries}'.split()) & set(sys.modules), file=sys.stderr)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (process.returncode, process.stderr) == (0, "set()\n")


def test_python_m_ends_with_the_exit_code_of_the_command():
    process = subprocess.run(
        [sys.executable, "-m", "gshard_nmt", "train"], capture_output=True, text=True, cwd=ROOT
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("gshard-train: --config, --data and --workdir are missing.")


def test_the_help_of_the_package_fits_a_terminal(capsys):
    assert commands.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    verbs = [f"{name} {verb}" for name, verbs in commands.VERBS.items() for verb in verbs]
    for name in (*commands.COMMANDS, *verbs):
        assert any(line.startswith(f"  {name} ") for line in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "the command is missing."),
        (["trian"], "there is no command 'trian'; did you mean 'train'?"),
        (["--config=demo"], "there is no command '--config=demo'."),
    ],
)
def test_a_word_that_names_no_command_is_an_error(capsys, arguments, problem):
    assert commands.main(arguments) == 2
    assert capsys.readouterr() == (
        "",
        f"python -m gshard_nmt: {problem} The commands are: train, decode, eval, export, import, serve, "
        "inspect, data, checkpoint. See python -m gshard_nmt --help.\n",
    )


def test_only_a_program_that_trains_starts_again_and_a_call_does_not(monkeypatch):
    calls = []
    monkeypatch.setattr(commands, "restart_with_large_heaps", lambda: calls.append(None))
    assert commands.main(["train", "--version"]) == 0
    for name in ("train", "decode"):
        monkeypatch.setattr(sys, "argv", ["__main__.py", name, "--version"])
        assert commands.main() == 0
    assert len(calls) == 1
