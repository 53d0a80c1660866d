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
    "train": TRAIN,
    "decode": DECODE,
    "eval": EVAL,
    "export": EXPORT,
    "import": IMPORT,
    "serve": SERVE,
    "inspect": INSPECT,
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
    if words and words[0] in COMMANDS:
        return run(COMMANDS[words[0]], words[1:])
    if words and words[0] in VERBS:
        name, verbs = words[0], VERBS[words[0]]
        if words[1:] and words[1] in verbs:
            return run(verbs[words[1]], words[2:])
        entries = [line for verb in verbs.values() for line in help_entry(verb.name, verb.about)]
        program = f"gshard-{name}"
        text = [f"{program}: {_ABOUT[name]} Verbs:", "", *entries, ""]
        text.append(f"Each verb has its own --help: {program} {next(iter(verbs))} --help")
        see = f"{'The verb comes first. ' if words[1:] else ''}See {program} --help."
        return _no_command(program, "verb", list(verbs), words[1:], text, see)
    text = ["python -m gshard_nmt COMMAND [--flag value ...] runs a command. Commands:", ""]
    for name, command in COMMANDS.items():
        text += help_entry(name, command.about)
    for name, verbs in VERBS.items():
        for verb, command in verbs.items():
            text += help_entry(f"{name} {verb}", command.about)
    text += ["", "Each command has its own --help: python -m gshard_nmt train --help"]
    names = [*COMMANDS, *VERBS]
    return _no_command(
        "gshard_nmt", "command", names, words, text, "See python -m gshard_nmt --help."
    )


def _no_command(
    program: str,
    noun: str,
    names: Sequence[str],
    words: Sequence[str],
    text: Sequence[str],
    see: str,
) -> int:
    """Answers words that name no command: with the help, the version, or a message."""
    if words and words[0] == "--version":
        return run(TRAIN, words[:1])
    if words and words[0] in (*HELP_WORDS, "help"):
        overview = Command(program, "", "", (), lambda _: None, lambda _: print("\n".join(text)))
        return run(overview, [])
    if words:
        problem = f"there is no {noun} {words[0]!r}{did_you_mean(words[0], names)}"
    else:
        problem = f"the {noun} is missing."
    print(f"{program}: {problem} The {noun}s are: {', '.join(names)}. {see}", file=sys.stderr)
    return EXIT_USER_ERROR
