"""The flags of gshard-checkpoint that exclude each other."""

import pytest

from gshard_nmt.cli import commands


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diff"], "--steps is ''; it must be two steps, such as --steps 400,500."),
        (["diff", "--steps=4"], "--steps is '4'; it must be two steps"),
        (["diff", f"--steps=4,{'9' * 5000}"], "it must be whole numbers with commas between"),
        (["diff", "--steps=4,x"], "--steps is '4,x'; it must be whole numbers with commas between"),
        (["average", "--out=a"], "--last is missing and --steps is ''; give one of them"),
        (
            ["average", "--out=a", "--last=2", "--steps=1,2"],
            "--last is 2 and --steps is '1,2'; give",
        ),
        (
            ["average", "--out=a", "--steps=7"],
            "--steps is '7'; give one of them, with at least two",
        ),
        (["average", "--out=a", "--steps=8,8"], "at least two different checkpoints"),
        (["average", "--out=a", "--last=1"], "--last is '1'; it must be"),
        (["average", "--last=2"], "--out is missing."),
    ],
)
def test_mistakes_are_explained(capsys, tmp_path, arguments, message):
    assert commands.main(["checkpoint", *arguments, f"--workdir={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
