"""What all programs share: flags, `--help`, messages and exit codes."""

import _thread
import contextlib
import dataclasses
import errno
import math
import os
import re
import select
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags

import gshard_nmt
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.suggest import did_you_mean

EXIT_USER_ERROR = 2
EXIT_TRY_AGAIN = 75
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


@dataclasses.dataclass(frozen=True)
class Program:
    """One program, or one verb of a program.

    Attributes:
      name: what the user types.
      about: what it does, in a sentence or two.
      example: a command line that works.
      required: flags without which it does nothing.
      define: defines the flags.
      run: does the work.
    """

    name: str
    about: str
    example: str
    required: Sequence[str]
    define: Callable[[flags.FlagValues], None]
    run: Callable[[flags.FlagValues], None]


def parse_flags(program: Program, arguments: Sequence[str]) -> flags.FlagValues:
    """The flags' values.

    Raises:
      UserError: an unknown flag, a value of the wrong kind, a missing flag, a stray word.
    """
    values = flags.FlagValues()
    program.define(values)
    values.set_gnu_getopt()
    see = f"See {program.name} --help."
    try:
        words = values([program.name, *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        hint = did_you_mean(error.flagname, values, prefix="--")
        raise UserError(f"there is no flag --{error.flagname}{hint} {see}") from None
    except flags.IllegalFlagValueError as error:
        bad = re.match(r"flag --(\w+)=(.*?): ", str(error), re.DOTALL)
        if bad is None:
            raise UserError(f"{error} {see}") from None
        kind = _kind(values[bad[1]].parser)
        raise UserError(f"--{bad[1]} is {bad[2]!r}; it takes {kind}. {see}") from None
    except flags.Error as error:
        raise UserError(f"{error}. {see}") from None
    for name in values:
        value = values[name].value
        if isinstance(value, float) and not math.isfinite(value):
            kind = _kind(values[name].parser)
            raise UserError(f"--{name} is '{value}'; it takes {kind}. {see}")
    if words:
        raise UserError(f"{words[0]!r} is not a flag; a flag is written --name value. {see}")
    missing = [f"--{name}" for name in program.required if not values[name].value]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        listed = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
        raise UserError(f"{listed} {verb} missing. For example:\n  {program.example}\n{see}")
    return values


def _kind(parser: flags.ArgumentParser[Any]) -> str:
    """The values that a flag takes, in words."""
    if isinstance(parser, flags.EnumParser):
        return "one of " + ", ".join(parser.enum_values)
    return parser.syntactic_help or "true or false"


def flag_help(flag: flags.Flag[Any]) -> str:
    """A flag's help as its definition has it, without what absl writes around it."""
    return re.sub(r"^<[^>]*>: |;\s+repeat this option.*$", "", flag.help or "", flags=re.DOTALL)


def help_text(program: Program) -> str:
    """What `--help` prints: what the program does, an example, and every flag."""
    values = flags.FlagValues()
    program.define(values)
    lines = [*textwrap.wrap(f"{program.name}: {program.about}", 96), "", "Example:"]
    lines += [f"  {program.example}", "", "Flags:"]
    for name in values:
        flag = values[name]
        about = flag_help(flag)
        if name in program.required:
            about += " (required)"
        elif flag.default:
            about += f" (default: {flag.default})"
        lines += _help_entry(f"--{name} {_PLACEHOLDERS.get(name, '')}", about)
    lines += _help_entry("--help", "print this")
    lines += _help_entry("--version", "print the version")
    return "\n".join(lines) + "\n"


def _help_entry(head: str, about: str) -> list[str]:
    indent = " " * 26
    lines = textwrap.wrap(about, 96, initial_indent=indent, subsequent_indent=indent)
    if len(head) < 23:
        return [f"  {head:<24}{lines[0].lstrip()}", *lines[1:]]
    return [f"  {head}", *lines]


_PLACEHOLDERS = {
    "alpha": "X",
    "baselines": "DIR|JSON",
    "baselines_of": "RUN",
    "beam": "K",
    "config": "NAME|FILE",
    "coordinator": "HOST:PORT",
    "corpus": "DIR",
    "data": "DIR",
    "devices": "N",
    "gin": "'NAME = VALUE'",
    "html": "FILE",
    "input": "FILE",
    "json": "FILE",
    "lang": "TAG",
    "length_norm": "NAME",
    "nbest": "N",
    "out": "DIR",
    "num_processes": "N",
    "output": "FILE",
    "peer_timeout": "SECONDS",
    "process_id": "I",
    "report": "DIR",
    "root": "DIR",
    "split": "NAME",
    "target": "TAG",
    "tokens": "N",
    "topology": "NAME",
    "workdir": "DIR",
}
"""What stands for a flag's value in the help."""


def run(program: Program, arguments: Sequence[str]) -> int:
    """Runs a program and turns the way it ends into an exit code.

    0 done; 2 the user's mistake, with one message and no traceback; 75 try again; 130 interrupted;
    141 the reader of stdout went away, as after `| head`.
    """
    _open_closed_streams()
    if any(word in ("--help", "-help", "-h", "--helpfull") for word in arguments):
        print(help_text(program), end="")
        return 0
    if "--version" in arguments:
        print(f"gshard-nmt {gshard_nmt.__version__}")
        return 0
    try:
        with _interrupted_by_sigterm(), _no_interruption_is_lost():
            program.run(parse_flags(program, arguments))
            sys.stdout.flush()
        return 0
    except UserError as error:
        return _end(program, str(error), EXIT_USER_ERROR)
    except TryAgain as error:
        return _end(program, str(error), EXIT_TRY_AGAIN)
    except KeyboardInterrupt as interruption:
        code = _end(program, str(interruption) or "interrupted", EXIT_INTERRUPTED)
        if _was_compiling(interruption):
            # XLA's threads outlive the compilation, and crash as the interpreter is taken down.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code
    except UnicodeDecodeError as error:
        message = f"the input is not UTF-8 ({error.reason}); convert it, for instance with iconv."
        return _end(program, message, EXIT_USER_ERROR)
    except BrokenPipeError:
        if not _stdout_is_broken():
            raise
        # Python flushes stdout once more as it exits; there is nobody to tell about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in _USERS_OWN_ERRORS:
            raise
        # Writing to an open file, stdout among them, names no file.
        where = error.filename or "stdout, or a file that was being written"
        return _end(program, f"{where}: {error.strerror}.", EXIT_USER_ERROR)


_USERS_OWN_ERRORS = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG)
"""What no program can help: a full or protected disk."""


def _end(program: Program, message: str, code: int) -> int:
    print(f"{program.name}: {message}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a program as Ctrl-C does: by KeyboardInterrupt, with time to save."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _no_interruption_is_lost() -> Iterator[None]:
    """Ctrl-C while a callback runs whose exceptions Python ignores, as jax's at a collection, counts."""
    before = sys.unraisablehook

    def hook(ignored: "sys.UnraisableHookArgs") -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            # At once it would be raised, and ignored, in here.
            threading.Timer(0.1, _thread.interrupt_main).start()
        else:
            before(ignored)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _open_closed_streams() -> None:
    """Where a stream was closed, as by `>&-`, what is written to it goes nowhere.

    Its number must not be given to the next file that is opened: libraries print on 1 and 2.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _was_compiling(interruption: KeyboardInterrupt) -> bool:
    """Whether jax was at work; an interruption with a message comes from who has saved already."""
    frames = (frame for frame, _ in traceback.walk_tb(interruption.__traceback__))
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    return not str(interruption) and bool(modules & {"jax", "jaxlib"})


def _stdout_is_broken() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
