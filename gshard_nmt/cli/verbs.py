"""Programs whose first word is a verb, such as `gshard-data prepare`."""

import sys
from collections.abc import Mapping, Sequence

from gshard_nmt.cli.flags import Command, help_entry
from gshard_nmt.cli.runner import EXIT_USER_ERROR, HELP_WORDS, print_overview, run
from gshard_nmt.suggest import did_you_mean


def run_verb(program: str, about: str, verbs: Mapping[str, Command], words: Sequence[str]) -> int:
    """Runs the command that the first word names; returns the exit code.

    Args:
      program: the name of the program.
      about: what the program does, for `--help`.
      verbs: the commands by their verbs.
      words: the arguments of the program.
    """
    if words and words[0] in verbs:
        return run(verbs[words[0]], words[1:])
    first, *_ = verbs
    if words and words[0] == "--version":
        return run(verbs[first], words[:1])
    if words and words[0] in (*HELP_WORDS, "help"):
        entries = [line for verb in verbs.values() for line in help_entry(verb.name, verb.about)]
        hint = f"Each verb has its own --help: {program} {first} --help"
        return print_overview(
            program, "\n".join([f"{program}: {about} Verbs:\n", *entries, "", hint])
        )
    listed = f"The verbs are: {', '.join(verbs)}."
    if words:
        hint = did_you_mean(words[0], verbs)
        problem = f"there is no verb {words[0]!r}{hint} {listed} The verb comes first."
    else:
        problem = f"the verb is missing. {listed}"
    print(f"{program}: {problem} See {program} --help.", file=sys.stderr)
    return EXIT_USER_ERROR
