"""Runs a command: `--help`, signals, messages and exit codes. All programs use it."""

import _thread
import contextlib
import io
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import gshard_nmt
from gshard_nmt.cli.failures import AWAY, user_message
from gshard_nmt.cli.flags import Command, help_text, parse_flags
from gshard_nmt.errors import TryAgain
from gshard_nmt.run.hangup import Stopped, leave_terminal, stop_signals
from gshard_nmt.spmd.waiting import work_goes_on

EXIT_USER_ERROR = 2
EXIT_TRY_AGAIN = 75
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
HELP_WORDS = ("--help", "-help", "-h", "--helpfull")


def run(command: Command, arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit code.

    Returns:
      0: success.
      2: the user made a mistake. There is one message and no traceback.
      75: a temporary failure; the same command may be tried again.
      130: the user interrupted the command.
      141: the reader of stdout closed it, as in `| head`.
    """
    _open_closed_streams()
    _show_any_text()
    _outlive_stderr()
    try:
        with _interrupted_by_signals(), _no_interruption_is_lost():
            if any(word in HELP_WORDS for word in arguments):
                print(help_text(command), end="")
            elif "--version" in arguments:
                print(f"gshard-nmt {gshard_nmt.__version__}")
            else:
                command.run(parse_flags(command, arguments))
            sys.stdout.flush()
        return 0
    except TryAgain as error:
        return _print_error(command, str(error), EXIT_TRY_AGAIN, error)
    except KeyboardInterrupt as interruption:
        message = str(interruption) or "interrupted"
        if "codec failed" in message:
            message = "interrupted"  # Python's codecs put a text of theirs into it
        code = _print_error(command, message, EXIT_INTERRUPTED, interruption)
        if isinstance(interruption, Stopped) or _was_in_jax(interruption) or work_goes_on():
            # Threads run on after the interruption. XLA's crash when the interpreter shuts down, and it
            # waits for those that write a checkpoint.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code
    except BrokenPipeError:
        if not _stdout_is_broken():
            raise
        # Python flushes stdout again when it exits. Nobody reads it, so that must not be an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except SystemExit as end:
        # rich ends the program itself if nobody reads stdout any more, and opens /dev/null there.
        if isinstance(end.__context__, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        raise
    except Exception as error:
        advice = user_message(error)
        if advice is None:
            raise
        is_away = isinstance(error, OSError) and error.errno in AWAY
        return _print_error(command, advice, EXIT_TRY_AGAIN if is_away else EXIT_USER_ERROR, error)


def print_overview(program: str, text: str) -> int:
    """Prints the help of a program that has several commands, and returns the exit code of `run`."""
    return run(Command(program, "", "", (), lambda _: None, lambda _: print(text)), [])


def _print_error(command: Command, message: str, code: int, error: BaseException) -> int:
    """Prints a message and the notes of the error to stderr, and returns the exit code."""
    notes = getattr(error, "__notes__", [])
    text = " ".join([f"{message.rstrip('.')}.", *notes]) if notes else message
    print(f"{command.name}: {text}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that the command can save."""

    def interrupt(number: int, frame: object) -> None:
        del frame
        if number == signal.SIGHUP:
            leave_terminal()
        raise KeyboardInterrupt

    numbers = [number for number in stop_signals() if number != signal.SIGINT]
    previous_handlers = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _no_interruption_is_lost() -> Iterator[None]:
    """Repeats a Ctrl-C that arrives in a callback, because Python ignores exceptions there.

    jax runs such a callback at each garbage collection.
    """
    previous_hook = sys.unraisablehook

    def hook(ignored: "sys.UnraisableHookArgs") -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            # Python ignores exceptions in this hook too, so we interrupt a little later. A worker that
            # decodes ignores SIGINT, and its supervisor sends it SIGTERM.
            ignores = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            number = signal.SIGTERM if ignores else signal.SIGINT
            threading.Timer(0.1, _thread.interrupt_main, [number]).start()
        else:
            previous_hook(ignored)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook


def _open_closed_streams() -> None:
    """Opens /dev/null as stdin, stdout or stderr if the caller has closed it, as the shell's `>&-` does.

    The next file that is opened would otherwise get the number 0, 1 or 2, and libraries print there.
    `sys.stdin` stays None, and `sys.stdout` gets an attribute, so that a command that needs one of them
    can tell the user.
    """
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            devnull = os.open(os.devnull, os.O_RDWR)
            if devnull != number:
                os.dup2(devnull, number)
                os.close(devnull)
            if number:
                stream = os.fdopen(number, "w", encoding="utf-8", closefd=False)
                stream.was_closed = True  # type: ignore[attr-defined]
                setattr(sys, name, stream)


def _show_any_text() -> None:
    """Makes stdout print escapes for text that it cannot encode, such as an odd file name."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _Stderr(io.FileIO):
    """stderr, whose messages are lost if nobody reads them any more, or if their disk is full."""

    def write(self, data: Any) -> int:
        """Writes bytes, or loses them."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _outlive_stderr() -> None:
    """Lets the program go on if a message cannot be written: a long training must not end for it."""
    # Tests, and programs that call `run`, may have an object of their own as stderr.
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_Stderr(sys.stderr.fileno(), "w", closefd=False)),
            sys.stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )


def _was_in_jax(interruption: KeyboardInterrupt) -> bool:
    """Returns whether the interruption came while jax was at work, for example compiling.

    An interruption with a message does not count: the code that raised it has saved its work.
    """
    frames = (frame for frame, _ in traceback.walk_tb(interruption.__traceback__))
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    return not str(interruption) and bool(modules & {"jax", "jaxlib"})


def _stdout_is_broken() -> bool:
    """Returns whether the reader of stdout has closed it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
