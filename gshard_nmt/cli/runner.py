"""Runs a command: `--help`, signals, messages and exit codes. All programs use it.

Failures that only the user can mend, such as a full disk, are told in a message. All other exceptions
are defects of the program, and keep their traceback.
"""

import _thread
import contextlib
import errno
import io
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import gshard_nmt
from gshard_nmt.cli.flags import Command, help_text, parse_flags
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.reading import AWAY
from gshard_nmt.run import together
from gshard_nmt.run.together import Stopped, leave_terminal, stop_signals
from gshard_nmt.spmd.waiting import work_goes_on

EXIT_USER_ERROR = 2
EXIT_TRY_AGAIN = 75
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
    _prepare_streams()
    signals: list[int] = []
    try:
        with _interrupted_by_signals(signals), _no_interruption_is_lost():
            if any(word in HELP_WORDS for word in arguments):
                print(help_text(command), end="")
            elif "--version" in arguments:
                print(f"gshard-nmt {gshard_nmt.__version__}")
            else:
                command.run(parse_flags(command, arguments))
            sys.stdout.flush()
        return 0
    except TryAgain as error:
        return _end(command, str(error), EXIT_TRY_AGAIN, error)
    except KeyboardInterrupt as interruption:
        return _end_interrupted(command, interruption, signals)
    except BrokenPipeError as error:
        if not _stdout_is_broken():
            _leave_the_others(error)
            raise
        _flush_stdout()
        together.leave(EXIT_BROKEN_PIPE, "nobody reads its output any more")
        return EXIT_BROKEN_PIPE
    except SystemExit as end:
        # rich ends the program itself if nobody reads stdout any more, and opens /dev/null there.
        if isinstance(end.__context__, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        raise
    except Exception as error:
        advice = user_message(error)
        if advice is None:
            _leave_the_others(error)
            raise
        is_away = isinstance(error, OSError) and error.errno in AWAY
        is_away |= _store_failed(error) and not isinstance(error, PermissionError)
        return _end(command, advice, EXIT_TRY_AGAIN if is_away else EXIT_USER_ERROR, error)


def _end_interrupted(
    command: Command, interruption: KeyboardInterrupt, signals: Sequence[int]
) -> int:
    if "codec failed" in str(interruption):
        interruption.args = ()  # Python's codecs put a text of theirs into it
    code, message, ends_with_others = together.after_interruption(interruption, signals)
    if not ends_with_others:
        return _end(command, message, code, interruption)
    _print_error(command, message, interruption)
    if isinstance(interruption, Stopped) or _was_in_jax(interruption) or work_goes_on():
        # Threads run on after the interruption. XLA's crash when the interpreter shuts down, and it
        # waits for those that write a checkpoint.
        sys.stderr.flush()
        os._exit(code)
    return code


def _end(command: Command, message: str, code: int, error: BaseException) -> int:
    """Prints the message of an error. One of several processes then ends, any other returns the code."""
    together.leave(code, _print_error(command, message, error))
    return code


def _leave_the_others(error: BaseException) -> None:
    """Ends one of several processes because of a defect of the program, with its traceback."""
    _flush_stdout()
    if together.is_joined():
        traceback.print_exception(error)
        together.leave(1, f"{type(error).__name__}: {error}")


def _print_error(command: Command, message: str, error: BaseException) -> str:
    """Prints a message and the notes of the error to stderr after all of stdout; returns this text."""
    _flush_stdout()
    notes = getattr(error, "__notes__", [])
    text = " ".join([f"{message.rstrip('.')}.", *notes]) if notes else message
    # A name in a file of somebody else could move the cursor, or hide what follows.
    safe = re.sub(r"[\0-\x08\x0b-\x1f\x7f-\x9f]", lambda sign: repr(sign[0])[1:-1], text)
    print(f"{command.name}: {safe}", file=sys.stderr)
    return safe


@contextlib.contextmanager
def _interrupted_by_signals(signals: list[int]) -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that the command can save.

    The signals are added to a list.
    """

    def interrupt(number: int, frame: object) -> None:
        del frame
        signals.append(number)
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
            # Python ignores exceptions in this hook too, so we interrupt a little later.
            threading.Timer(0.1, _thread.interrupt_main).start()
        else:
            previous_hook(ignored)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook


def _prepare_streams() -> None:
    """Makes streams that are closed or cannot take a text no reason to end a program."""
    # If the caller has closed a stream, as the shell's `>&-` does, the next file that is opened would
    # get its number, and libraries print there.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)  # dup2 does nothing if the number is the same
            stream = os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
        with contextlib.suppress(OSError):
            os.set_blocking(number, True)  # another program that shares it may have changed that
    if isinstance(sys.stdout, io.TextIOWrapper):
        # That of `python -u` loses what a short write leaves over.
        if sys.stdout is sys.__stdout__ and isinstance(sys.stdout.buffer, io.RawIOBase):
            sys.stdout = os.fdopen(1, "w", 1, sys.stdout.encoding, closefd=False)
        sys.stdout.reconfigure(errors="backslashreplace")
    # Tests, and programs that call `run`, may have an object of their own as stderr.
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_Stderr(sys.stderr.fileno(), "w", closefd=False)),
            sys.stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )


class _Stderr(io.FileIO):
    """stderr, whose messages are lost if nobody reads them any more, or if their disk is full.

    A long training must not end because a message cannot be written.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _flush_stdout() -> None:
    """Writes what stdout still holds. What nobody reads, or has no room on a disk, is lost.

    Python tries once more when it exits, and that must not be another error.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _was_in_jax(interruption: KeyboardInterrupt) -> bool:
    """Returns whether the interruption came while jax was at work, for example compiling.

    An interruption with a message does not count: the code that raised it has saved its work.
    """
    return not str(interruption) and _was_in(interruption, ("jax.", "jaxlib."))


def _store_failed(error: Exception) -> bool:
    """Returns whether a library of an object store failed, and not because of a name or a defect."""
    lasting = (UserError, FileNotFoundError, TypeError, LookupError, AttributeError, MemoryError)
    packages = ("gcsfs.", "s3fs.", "fsspec.", "google.cloud.", "google.auth.")
    return not isinstance(error, lasting) and _was_in(error, packages)


def _was_in(error: BaseException, packages: tuple[str, ...]) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(f"{frame.f_globals.get('__name__')}.".startswith(packages) for frame in frames)


def _stdout_is_broken() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


_NO_SPACE = "Free some space, or give a place on another disk."
_PERMISSION = "Give another file or folder, or change its permissions."
_OPEN_FILES = "Raise the limit of open files, for instance with ulimit -n 65536."
_TOO_LARGE = "Raise the limit of file sizes (ulimit -f), or give a place on another disk."
_OF_MACHINE = {
    **dict.fromkeys((errno.EACCES, errno.EROFS), _PERMISSION),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _NO_SPACE),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _OPEN_FILES),
    errno.EFBIG: _TOO_LARGE,
    errno.ENAMETOOLONG: "Give a shorter name.",
}
_ADVICE = {
    **_OF_MACHINE,
    errno.EPERM: _PERMISSION,
    errno.ENOENT: "Give a file or folder that exists.",
    errno.ENOTDIR: "A part of this path is a file; give a folder.",
    errno.EISDIR: "It is a folder; give a file.",
}
"""What the user can do about an error of the operating system."""

_ALWAYS = (*_OF_MACHINE, *AWAY)
"""Errors that get a message even if the exception names no file."""

_MEMORY = (
    "out of memory: {what}. Lower Data.rows to train, or Decode.rows and --beam to decode; make the "
    "model smaller, or give the mesh more devices. gshard-inspect shows the memory of a step."
)
_OF_LIBRARIES = {
    ("No space left on device", "Disk quota exceeded"): f"the disk is full: {{what}}. {_NO_SPACE}",
    ("File too large",): f"a file is too large: {{what}}. {_TOO_LARGE}",
    ("Too many open files",): f"too many files are open: {{what}}. {_OPEN_FILES}",
    ("RESOURCE_EXHAUSTED", "Out of memory"): _MEMORY,
}
"""Failures that libraries such as XLA report in words only, with exceptions of several types."""


def user_message(error: Exception) -> str | None:
    """Returns the message for a failure that the user can mend; None for a defect of the program."""
    lines = str(error).strip().splitlines()
    what = lines[0][:300].rstrip(".") if lines else ""
    if isinstance(error, UserError):
        return str(error)
    if _store_failed(error):
        return (
            f"the object store failed: {what}. Start the same command again when it answers. If it never "
            "does, check the account and its permissions."
        )
    if isinstance(error, UnicodeDecodeError):
        return f"the input is not UTF-8 ({error.reason}). Convert it, for instance with iconv."
    if isinstance(error, MemoryError):
        return _MEMORY.format(what=what or "this machine has no more")
    if isinstance(error, OSError):
        return _system_message(error)
    messages = (
        message.format(what=what)
        for words, message in _OF_LIBRARIES.items()
        if any(word in str(error) for word in words)
    )
    return next(messages, None)


def _system_message(error: OSError) -> str | None:
    # An error while reading or writing an open file, such as stdout, does not name the file.
    if error.errno is None or (error.filename is None and error.errno not in _ALWAYS):
        return None
    file = error.filename if error.filename is not None else "stdout, or a file that was being used"
    if isinstance(file, bytes):
        file = file.decode(errors="backslashreplace")
    if error.filename2 is not None:
        file = f"{file} -> {error.filename2}"
    advice = "Give another file or folder."
    if error.errno in AWAY:
        advice = "The disk or the file server has failed; try again when it works."
    return f"{file}: {error.strerror}. {_ADVICE.get(error.errno, advice)}"
