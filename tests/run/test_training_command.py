"""A run folder records the commands that have trained it."""

import shlex

from gshard_nmt.run import training_command
from gshard_nmt.run.folder import RunFolder


def test_each_new_command_is_recorded_once(tmp_path):
    run = RunFolder(tmp_path)
    assert training_command.read(run) == []
    for command in ("gshard-train --config=a", "gshard-train --config=a", "gshard-train b", ""):
        training_command.record(run, command)
    assert training_command.read(run) == ["gshard-train --config=a", "gshard-train b"]
    assert (tmp_path / "command.txt").read_text().count("\n") == 2


def test_a_command_may_have_several_lines(tmp_path):
    """`--gin $'STEPS = 14\\nTrain.log_every = 2'` sets two settings with one flag."""
    run = RunFolder(tmp_path)
    commands = [
        shlex.join(["gshard-train", "--gin=STEPS = 14\n\nTrain.log_every = 2", f"--data={data}"])
        for data in ("a", "it's \u2028 'b'\n")
    ]
    for command in [*commands, commands[1]]:
        training_command.record(run, command)
    assert training_command.read(run) == commands
    with (tmp_path / "command.txt").open("a") as file:
        file.write("gshard-train --data='cut")
    assert training_command.read(run) == commands


def test_a_damaged_file_is_no_command(tmp_path):
    (tmp_path / "command.txt").write_bytes(b"\xff\n")
    assert training_command.read(RunFolder(tmp_path)) == []
