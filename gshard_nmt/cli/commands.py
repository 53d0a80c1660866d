"""The programs by their names, and the function with which each of them starts."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gshard_nmt.cli.checkpoint_command import CHECKPOINT_VERBS
from gshard_nmt.cli.data_commands import DATA_VERBS
from gshard_nmt.cli.decode_command import DECODE, TRANSLATE
from gshard_nmt.cli.deploy_commands import EXPORT, IMPORT, SERVE
from gshard_nmt.cli.eval_command import EVAL
from gshard_nmt.cli.flags import Command, help_entry
from gshard_nmt.cli.inspect_command import INSPECT
from gshard_nmt.cli.runner import EXIT_USER_ERROR, HELP_WORDS, run
from gshard_nmt.cli.train_command import TRAIN
from gshard_nmt.errors import did_you_mean
from gshard_nmt.spmd.machine import restart_with_large_heaps

VERBS: Mapping[str, Mapping[str, Command]] = {
    "data": {**DATA_VERBS, "translate": TRANSLATE},
    "checkpoint": CHECKPOINT_VERBS,
}
"""The commands of the programs whose first word is a verb, such as `gshard-data prepare`."""
COMMANDS = {
    command.name.removeprefix("gshard-"): command
    for command in (TRAIN, DECODE, EVAL, EXPORT, IMPORT, SERVE, INSPECT)
}
"""The other programs."""
_ABOUT = {
    "data": "makes the data that gshard-train reads, and looks at it.",
    "checkpoint": "lists, verifies, compares and averages the checkpoints of a run.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program gshard-NAME, or `python -m gshard_nmt NAME`; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        program = Path(sys.argv[0]).name
        if program.startswith("gshard-"):
            words.insert(0, program.removeprefix("gshard-"))
        if words[:1] == ["train"]:
            restart_with_large_heaps()
    first = words[0] if words else ""
    if first in COMMANDS:
        return run(COMMANDS[first], words[1:])
    if first in VERBS:
        verbs, program = VERBS[first], f"gshard-{first}"
        if words[1:] and words[1] in verbs:
            return run(verbs[words[1]], words[2:])
        about = f"{program}: {_ABOUT[first]} Verbs:"
        return _no_command(program, "verb", about, verbs, words[1:])
    about = "python -m gshard_nmt COMMAND [--flag value ...] runs a command. Commands:"
    commands = dict(COMMANDS)
    for name, verbs in VERBS.items():
        commands |= {f"{name} {verb}": command for verb, command in verbs.items()}
    return _no_command("python -m gshard_nmt", "command", about, commands, words)


def _no_command(
    program: str, noun: str, about: str, commands: Mapping[str, Command], words: Sequence[str]
) -> int:
    """Answers words that name no command: with the help, the version, or a message."""
    names = list(dict.fromkeys(name.split()[0] for name in commands))
    if words and words[0] == "--version":
        return run(TRAIN, words[:1])
    if words and words[0] in (*HELP_WORDS, "help"):
        lines = [about, ""]
        for name, command in commands.items():
            lines += help_entry(name, command.about)
        lines += ["", f"Each {noun} has its own --help: {program} {names[0]} --help"]
        overview = Command(program, "", "", (), lambda _: None, lambda _: print("\n".join(lines)))
        return run(overview, [])
    problem = f"the {noun} is missing."
    if words:
        problem = f"there is no {noun} {words[0]!r}{did_you_mean(words[0], names)}"
    message = f"{problem} The {noun}s are: {', '.join(names)}. See {program} --help."
    print(f"{program}: {message}", file=sys.stderr)
    return EXIT_USER_ERROR
