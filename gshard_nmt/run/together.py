"""Joins the processes of one run, and lets all of them end when one ends.

jax's coordination service connects the processes and watches them by heartbeats. Over its store of keys
and values, the processes compare what they must have in common, and a process that fails tells the
others why before it leaves. A process that dies cannot tell. The others notice that a collective fails,
and end with 75. Or jax misses heartbeats, or gloo gets a message out of turn, and they abort (SIGABRT,
134). After all of these, the same commands go on from the last checkpoint.

The signals that end a program are here too. SIGHUP means that the terminal or the SSH connection is gone.
"""

import atexit
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Collection, Mapping
from types import FrameType

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.processes import Processes, coordination_client

_FAILURE = "gshard-nmt failure"
"""The key under which the first process that fails tells why."""
_INTERRUPTED = "gshard-nmt interrupted"
"""The key that says that a user has interrupted the training, and no cluster."""
_LOOK_SECONDS = 0.5
"""Seconds between two looks at the failure of another process."""
_GRACE_SECONDS = 1.0
"""Seconds in which a process may end by itself after another has failed."""
_ANSWER_SECONDS = 4.0
"""Seconds in which process 0 still answers the others after it has failed: they get its reason there."""
_NOTICE_SECONDS = 10.0
"""Seconds after which a process that waits for the others says so."""


@dataclasses.dataclass
class _Joined:
    """The processes that this process has joined."""

    processes: Processes
    leaves: bool = False  # whether this process ends by itself, so the news of others come too late


_joined: _Joined | None = None


def join(processes: Processes) -> None:
    """Connects to the other processes. Call it before anything else uses jax.

    A training that gets SIGINT or SIGHUP then stops in all processes at the same step, as it does after
    SIGTERM, which jax handles.
    """
    global _joined
    if processes.count == 1 or _joined:
        return
    from gshard_nmt.spmd import machine

    machine.choose_platform()
    waits = (
        f"process {processes.index} of {processes.count} waits for the others at "
        f"{processes.coordinator}, for {processes.start_seconds} s at most"
    )
    notice = threading.Timer(_NOTICE_SECONDS, _say, (processes, waits))
    notice.daemon = True
    notice.start()
    import jax

    try:
        processes.join()
    except jax.errors.JaxRuntimeError as error:
        if "Failed to start RPC server" not in str(error):
            raise
        raise UserError(
            f"--coordinator {processes.coordinator}: process 0 cannot listen there. Choose a free port "
            "of this machine."
        ) from None
    finally:
        notice.cancel()
    _joined = _Joined(processes)
    if processes.job.trains:
        for number in stop_signals():
            if number != signal.SIGTERM:
                signal.signal(number, _interrupt)
    listener = threading.Thread(target=_listen, args=(_joined,), daemon=True, name="failures")
    listener.start()
    atexit.register(_stop, _joined, listener)


def compare(processes: Processes, facts: Mapping[str, str]) -> None:
    """Raises the same UserError in all processes if two have other facts, such as settings."""
    facts = {"--num_processes": str(processes.count), **facts}
    text = json.dumps(facts, sort_keys=True)
    if len({*processes.gather(hashlib.sha256(text.encode()).hexdigest())}) == 1:
        return
    first, *others = processes.gather(facts)
    index, other = next((i, theirs) for i, theirs in enumerate(others, 1) if theirs != first)
    differences = [
        f"{name} is {other.get(name, 'missing')} in process {index} and "
        f"{first.get(name, 'missing')} in process 0"
        for name in sorted({*first, *other})
        if first.get(name) != other.get(name)
    ]
    raise UserError(
        f"{'; '.join(differences)}. Start all processes with the same command and package; only "
        "--process_id differs, from 0 on."
    )


def is_joined() -> bool:
    return _joined is not None


def leave(code: int, message: str) -> None:
    """Tells the others why this process fails, and ends it. Returns if it has joined no others.

    It does not wait for the others, which may wait for it in a collective.
    """
    if _joined is None:
        return
    _joined.leaves = True
    with contextlib.suppress(Exception):  # another process has failed first, or process 0 is gone
        news = [_joined.processes.index, code, message]
        coordination_client().key_value_set(_FAILURE, json.dumps(news))
    if _joined.processes.is_first:
        time.sleep(_ANSWER_SECONDS)
    _exit(code)


def after_interruption(
    interruption: KeyboardInterrupt, signals: Collection[int]
) -> tuple[int, str, bool]:
    """Returns the exit code of an interruption, its message, and whether all end together.

    The code is 130, and 75 if a cluster has taken away the machine of one of several processes.
    `signals` are those that this process got.
    """
    message = str(interruption) or "interrupted"
    if _joined is None:
        return 130, message, True
    job = _joined.processes.job
    if job.trains and str(interruption):  # all have saved
        if _get(_INTERRUPTED):
            return 130, message, True
        taken = "A machine is being taken away (SIGTERM)"
        return 75, f"{message.rstrip('.')}. {taken}. {job.start_again}", True
    if signal.SIGTERM in signals:
        return 75, f"SIGTERM, as if the machine were taken away. {job.start_again}", False
    return 130, message, False


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    if number == signal.SIGHUP:
        leave_terminal()
    with contextlib.suppress(Exception):
        coordination_client().key_value_set(_INTERRUPTED, "1")
    os.kill(os.getpid(), signal.SIGTERM)


def _listen(joined: _Joined) -> None:
    """Ends this process if another one has failed."""
    news = ""
    while not news:
        time.sleep(_LOOK_SECONDS)
        if joined.leaves:
            return
        news = _get(_FAILURE)
    index, code, message = json.loads(news)
    time.sleep(_GRACE_SECONDS)
    if joined.leaves or index == joined.processes.index:
        return
    end = "was interrupted" if code == 130 else f"ended with exit code {code}: {message}"
    _say(joined.processes, f"process {index} of {joined.processes.count} {end}")
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # a progress bar hides the cursor
    _exit(code if code in (75, 130) else 130 if code == 141 else 2)


def _stop(joined: _Joined, listener: threading.Thread) -> None:
    """Ends the listener before Python does: a thread that is cut off in jax's client aborts it (134)."""
    joined.leaves = True
    listener.join(_LOOK_SECONDS + _GRACE_SECONDS + 1.0)


def _get(key: str) -> str:
    """Returns the value of a key; "" if there is none, or if the store cannot be reached."""
    with contextlib.suppress(Exception):
        return str(coordination_client().key_value_try_get(key))
    return ""


def _say(processes: Processes, line: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{processes.job.program}: {line}\n")
        sys.stderr.flush()


def _exit(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


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
            try:
                termios.tcgetattr(number)
            except termios.error as error:
                if error.args[0] == errno.EIO:
                    devnull = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(devnull, number)
                    os.close(devnull)
