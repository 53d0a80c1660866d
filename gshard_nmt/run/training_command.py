"""The commands that have trained a run: `command.txt` of the run folder.

Each begins on a line of its own, as a shell reads it. A value in quotes may have several lines.
"""

import shlex

from gshard_nmt.run.folder import RunFolder

NAME = "command.txt"


def record(run: RunFolder, command: str) -> None:
    """Adds a command, unless the last start had the same one. An empty command is not recorded."""
    commands = read(run)
    if command and commands[-1:] != [command]:
        run.write_text(NAME, "".join(f"{line}\n" for line in [*commands, command]))


def read(run: RunFolder) -> list[str]:
    """Returns the commands in the order of their starts; [] if none is recorded or can be read."""
    try:
        lines = (run.path / NAME).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return []
    commands, command = [], ""
    for line in lines:
        command += line
        try:
            shlex.split(command)
        except ValueError:  # a quote is open
            command += "\n"
        else:
            commands += [command] if command else []
            command = ""
    return commands
