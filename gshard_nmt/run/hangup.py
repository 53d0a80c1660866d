"""The signals that end a program. SIGHUP means that the terminal or the SSH connection is gone."""

import contextlib
import errno
import os
import signal
import sys
import termios


class Stopped(KeyboardInterrupt):
    """A signal stopped work before it was done, such as a validation. Threads may still work."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals after which a program saves and ends: SIGINT, SIGTERM and SIGHUP.

    A program that was started with `nohup` ignores SIGHUP, and this function does not list it.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return signal.SIGINT, signal.SIGTERM
    return signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def leave_terminal() -> None:
    """Sends stdout and stderr to /dev/null if their terminal is gone. Writing to it would fail."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            number = stream.fileno()
            if _is_gone(number):
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, number)
                os.close(devnull)


def _is_gone(number: int) -> bool:
    """Returns whether a file descriptor is a terminal that has been closed."""
    try:
        termios.tcgetattr(number)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False
