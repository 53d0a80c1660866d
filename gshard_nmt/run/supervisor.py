"""A run of several processes, each watched by a parent: who does not come, who is lost.

The runtime aborts a process when a peer is lost, and says so in its own words. The parent calls the
roll before it starts the process, reads what the runtime says, and ends with one clear message and
exit code 75.
"""

import collections
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.spmd.processes import Processes

WATCHED = "GSHARD_NMT_WATCHED"
"""In the environment of a watched process: a file descriptor that is closed when its parent ends."""

_GREETING = "gshard-nmt process"
_KEPT_LINES = 400
_NOISE = re.compile(r"\[Gloo\] |[WI]\d{4} .*(preemption|coordination)")
_LAST_WORDS = re.compile(r"[EF]\d{4} .*(coordination_service|client\.h|preemption_sync)")
_UNHEALTHY = re.compile(r"unhealthy \(stopped sending heartbeats\):\n((?:\d+\n)+)")
_COORDINATOR_GONE = re.compile(
    r"Failed to send RPC to coordination service|RPC: /xla.coordination.CoordinationService/RegisterTask"
)


def is_watched() -> bool:
    """Whether a supervisor watches this process, which then ends when the supervisor does."""
    if WATCHED not in os.environ:
        return False
    pipe = int(os.environ.pop(WATCHED))

    def wait_for_parent() -> None:
        os.read(pipe, 1)
        os._exit(75)

    threading.Thread(target=wait_for_parent, daemon=True, name="parent").start()
    return True


def supervise(processes: Processes, command: Sequence[str]) -> int:
    """Calls the roll, then runs a command as a process of the run; returns its exit code.

    Raises:
      TryAgain: a process did not come, or was lost.
      UserError: two processes have one number, or they disagree on how many there are.
    """
    roll_call(processes)
    childs_end, ours = os.pipe()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, WATCHED: str(childs_end)},
        pass_fds=(childs_end,),
    ) as child:
        os.close(childs_end)
        with _forwarding_signals(child):
            said = _relay(child)
            code = child.wait()
    os.close(ours)
    if code in (0, 2, 75, 130, 141):
        return code
    lost = lost_peers(said, processes)
    if not lost:
        sys.stderr.write(said)
        return code if code > 0 else 128 - code
    raise TryAgain(
        f"{_named(lost, processes)} died or stopped answering; its own output says why. Start all "
        "processes again with the same commands: the run goes on from its last checkpoint."
    )


def roll_call(processes: Processes) -> None:
    """Returns once all processes are there, or raises saying which are not.

    Process 0 listens on the coordinator's port until all have come, or peer_timeout is over.

    Raises:
      TryAgain: some did not come.
      UserError: the port is taken, two processes have one number, or they disagree on how many.
    """
    deadline = time.monotonic() + processes.peer_timeout
    if processes.is_first:
        _call(processes, deadline)
    else:
        _answer(processes, deadline)


def lost_peers(said: str, processes: Processes) -> list[int]:
    """The processes that the runtime's last words name; empty where they name none."""
    if found := _UNHEALTHY.search(said):
        return sorted({int(line) for line in found[1].split()} - {processes.index})
    if _COORDINATOR_GONE.search(said):
        return processes.others() if processes.is_first else [0]
    return []


def _call(processes: Processes, deadline: float) -> None:
    present: dict[int, socket.socket] = {}
    host, port = processes.address
    try:
        listening = socket.create_server((host if host == "127.0.0.1" else "", port))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise UserError(
            f"--coordinator {processes.coordinator}: cannot listen there ({why}); choose a free port "
            "of this machine."
        ) from None
    with listening, contextlib.ExitStack() as open_connections:
        while len(present) < processes.count - 1 and time.monotonic() < deadline:
            listening.settimeout(max(deadline - time.monotonic(), 0.01))
            with contextlib.suppress(TimeoutError, ConnectionError):
                connection, _ = listening.accept()
                open_connections.enter_context(connection)
                connection.settimeout(5)
                index, refusal = _presented(_line(connection), processes, present)
                if refusal:
                    _tell(connection, f"no {refusal}")
                elif index is not None:
                    present[index] = connection
        missing = sorted(set(processes.others()) - set(present))
        answer = f"missing {','.join(map(str, missing))}" if missing else "go"
        for connection in present.values():
            _tell(connection, answer)
    if missing:
        raise _absent(missing, processes)


def _presented(
    greeting: str, processes: Processes, present: dict[int, socket.socket]
) -> tuple[int | None, str]:
    """The number that a process gives, or why it is refused; None for whoever is no process."""
    match = re.fullmatch(rf"{_GREETING} (\d+) of (\d+)", greeting)
    if not match:
        return None, ""
    index, count = int(match[1]), int(match[2])
    if count != processes.count:
        return None, f"--num_processes is {count} here and {processes.count} in process 0"
    if index in present or index == 0:
        return None, f"another process has --process_id {index}"
    return index, ""


def _answer(processes: Processes, deadline: float) -> None:
    while True:
        try:
            connection = socket.create_connection(processes.address, timeout=2)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise _absent([0], processes) from None
            time.sleep(0.2)
    with connection:
        _tell(connection, f"{_GREETING} {processes.index} of {processes.count}")
        connection.settimeout(processes.peer_timeout + 5)
        try:
            answer = _line(connection)
        except OSError:
            answer = ""
    if answer == "go":
        return
    word, _, rest = answer.partition(" ")
    if word == "no":
        raise UserError(f"{rest}; give each process its own number, and all the same count.")
    if word == "missing":
        raise _absent([int(index) for index in rest.split(",")], processes)
    raise TryAgain(
        f"process 0 at {processes.coordinator} did not answer; start all processes again."
    )


def _line(connection: socket.socket) -> str:
    with connection.makefile("r", encoding="ascii", errors="replace") as reader:
        return reader.readline(200).strip()


def _tell(connection: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(f"{line}\n".encode())


def _absent(missing: list[int], processes: Processes) -> TryAgain:
    return TryAgain(
        f"{_named(missing, processes)} did not come to {processes.coordinator} within "
        f"{processes.peer_timeout} s (--peer_timeout). Start all processes again, each with the same "
        "command and its own --process_id."
    )


def _named(indices: Sequence[int], processes: Processes) -> str:
    word = "process" if len(indices) == 1 else "processes"
    return f"{word} {', '.join(map(str, indices))} of {processes.count}"


def _relay(child: "subprocess.Popen[str]") -> str:
    """Passes on what the child says until the runtime's last words; returns those, or the end."""
    kept: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    ending = False
    assert child.stdout is not None
    for line in child.stdout:
        ending = ending or bool(_LAST_WORDS.match(line))
        if ending:
            kept.append(line)
        elif not _NOISE.match(line):
            sys.stderr.write(line)
            sys.stderr.flush()
    return "".join(kept)


@contextlib.contextmanager
def _forwarding_signals(child: "subprocess.Popen[str]") -> Iterator[None]:
    """SIGINT and SIGTERM are the child's to obey: it saves and ends, and then so does the parent."""

    def forward(number: int, frame: object) -> None:
        del frame
        child.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
