"""`python -m gshard_nmt` runs every command by a short name."""

import pathlib
import subprocess
import sys

import pytest

import gshard_nmt
from gshard_nmt.cli import commands

ROOT = pathlib.Path(gshard_nmt.__file__).parents[1]


def test_python_m_ends_with_the_exit_code_of_the_command():
    process = subprocess.run(
        [sys.executable, "-m", "gshard_nmt", "train"], capture_output=True, text=True, cwd=ROOT
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("gshard-train: --config, --data and --workdir are missing.")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["harvest"], "gshard-data harvest"),
        (["data", "prepare"], "gshard-data prepare"),
        (["prepare"], "gshard-data prepare"),
        (["train"], "gshard-train"),
        (["decode"], "gshard-decode"),
        (["eval"], "gshard-eval"),
        (["inspect"], "gshard-inspect"),
    ],
)
def test_the_first_word_names_the_command(capsys, arguments, name):
    assert commands.main([*arguments, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: ")


def test_the_help_lists_all_commands(capsys):
    assert commands.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in commands.COMMANDS:
        assert any(line.startswith(f"  {name} ") for line in lines)
    for verb in set(commands.DATA_VERBS) - set(commands.COMMANDS):
        assert any(line.startswith(f"  data {verb} ") for line in lines)
    assert max(map(len, lines)) <= 100


def test_the_version_is_that_of_the_package(capsys):
    assert commands.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gshard-nmt {gshard_nmt.__version__}\n"


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
        f"gshard_nmt: {problem} The commands are: harvest, prepare, train, decode, eval, "
        "export, import, serve, inspect, data, "
        "checkpoint. See python -m gshard_nmt --help.\n",
    )


@pytest.mark.parametrize(
    ("program", "words", "restarts"),
    [
        (commands.train_program, ["--version"], 1),
        (commands.main, ["train", "--version"], 1),
        (commands.main, ["decode", "--version"], 0),
        (commands.decode_program, ["--version"], 0),
    ],
)
def test_a_training_program_starts_again_but_a_call_does_not(monkeypatch, program, words, restarts):
    calls = []
    monkeypatch.setattr(commands, "restart_with_large_heaps", lambda: calls.append(None))
    assert program(words) == 0
    assert calls == []
    monkeypatch.setattr(sys, "argv", ["program", *words])
    assert program() == 0
    assert len(calls) == restarts
