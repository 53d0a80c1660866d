"""Programs whose first word is a verb."""

import pytest

from gshard_nmt import __version__
from gshard_nmt.cli import commands
from gshard_nmt.cli.checkpoint_command import CHECKPOINT_VERBS
from gshard_nmt.cli.verbs import run_verb


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the verb is missing. The verbs are: list, verify, diff, average. See"),
        (["lsit"], "there is no verb 'lsit'; did you mean 'list'? The verbs are: list, verify"),
        (["--workdir=a"], "there is no verb '--workdir=a'. The verbs are"),
    ],
)
def test_a_wrong_verb_is_explained(capsys, words, message):
    assert run_verb("gshard-checkpoint", "does things.", CHECKPOINT_VERBS, words) == 2
    assert message in capsys.readouterr().err


def test_help_and_version(capsys):
    assert run_verb("gshard-checkpoint", "does things.", CHECKPOINT_VERBS, ["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("gshard-checkpoint: does things. Verbs:\n")
    assert "gshard-checkpoint average" in out
    assert run_verb("gshard-checkpoint", "does things.", CHECKPOINT_VERBS, ["--version"]) == 0
    assert capsys.readouterr().out == f"gshard-nmt {__version__}\n"


def test_the_package_runs_it_too(capsys):
    assert commands.main(["checkpoint", "list", "--help"]) == 0
    assert "gshard-checkpoint list" in capsys.readouterr().out
    assert commands.main(["--help"]) == 0
    assert "checkpoint verify" in capsys.readouterr().out
