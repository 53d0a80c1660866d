"""Supervises one process of a multi-process run, and names the processes that are missing or lost.

If a process of the run is lost, jax's runtime aborts all others and prints many messages. So each
process runs as the child of a supervisor. Before it starts the child, the supervisor waits until all
processes of the run have connected (the rendezvous). Afterwards it reads the output of the child. If the
runtime aborts the child, the supervisor ends with one clear message and exit code 75.
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
from collections.abc import Collection, Iterator, Sequence

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.spmd.processes import Processes

WATCHED = "GSHARD_NMT_WATCHED"
"""Environment variable of a child: the file descriptor of a pipe that closes when the supervisor ends."""

_GREETING = "gshard-nmt process"
_KEPT_LINES = 400
"""Lines of the runtime's last messages that are kept, in case they have to be shown."""

_NOISE = re.compile(r"\[Gloo\] |[WI]\d{4} .*(preemption|coordination)")
"""Messages of the runtime that do not help a user."""

_FATAL = re.compile(r"[EF]\d{4} .*(coordination_service|client\.h|preemption_sync)")
"""The first message of the runtime when a process is lost."""

_UNHEALTHY = re.compile(r"unhealthy \(stopped sending heartbeats\):\n((?:\d+\n)+)")
_COORDINATOR_GONE = re.compile(
    r"Failed to send RPC to coordination service|RPC: /xla.coordination.CoordinationService/RegisterTask"
)


def is_watched() -> bool:
    """Returns whether this process is the child of a supervisor.

    If so, this process ends when the supervisor ends.
    """
    if WATCHED not in os.environ:
        return False
    pipe = int(os.environ.pop(WATCHED))

    def wait_for_parent() -> None:
        os.read(pipe, 1)
        os._exit(75)

    threading.Thread(target=wait_for_parent, daemon=True, name="parent").start()
    return True


def supervise(processes: Processes, command: Sequence[str]) -> int:
    """Waits for all processes of the run, runs a command as a child, and returns its exit code.

    Raises:
      TryAgain: a process did not connect, or was lost.
      UserError: two processes have the same number, or they disagree on the number of processes.
    """
    rendezvous(processes)
    child_end, parent_end = os.pipe()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, WATCHED: str(child_end)},
        pass_fds=(child_end,),
    ) as child:
        os.close(child_end)
        with _forwarding_signals(child):
            last_messages = _relay(child)
            code = child.wait()
    os.close(parent_end)
    if code in (0, 2, 75, 130, 141):
        return code
    lost = lost_peers(last_messages, processes)
    if not lost:
        sys.stderr.write(last_messages)
        return code if code > 0 else 128 - code
    raise TryAgain(
        f"{_in_words(lost, processes)} died or stopped answering; {'its' if len(lost) == 1 else 'their'} "
        "own output gives the reason. Start all processes again with the same commands; the run resumes "
        "from its last checkpoint."
    )


def rendezvous(processes: Processes) -> None:
    """Waits until all processes of the run have connected to process 0.

    Process 0 listens on the coordinator's port until then, for at most `peer_timeout` seconds. It then
    tells every process whether all of them are there.

    Raises:
      TryAgain: some processes did not connect.
      UserError: the port is in use, two processes have the same number, or they disagree on the number
        of processes.
    """
    deadline = time.monotonic() + processes.peer_timeout
    if processes.is_first:
        _wait_for_peers(processes, deadline)
    else:
        _join(processes, deadline)


def lost_peers(messages: str, processes: Processes) -> list[int]:
    """Returns the numbers of the lost processes that the runtime's last messages name, if any."""
    if match := _UNHEALTHY.search(messages):
        return sorted({int(line) for line in match[1].split()} - {processes.index})
    if _COORDINATOR_GONE.search(messages):
        return processes.others() if processes.is_first else [0]
    return []


def _wait_for_peers(processes: Processes, deadline: float) -> None:
    """Does the part of process 0 in the rendezvous."""
    connections: dict[int, socket.socket] = {}
    with _listen(processes) as listening, contextlib.ExitStack() as open_connections:
        while len(connections) < processes.count - 1 and time.monotonic() < deadline:
            listening.settimeout(max(deadline - time.monotonic(), 0.01))
            with contextlib.suppress(TimeoutError, ConnectionError):
                connection, _ = listening.accept()
                open_connections.enter_context(connection)
                connection.settimeout(5)
                index, refusal = _check_greeting(_read_line(connection), processes, connections)
                if refusal:
                    _send_line(connection, f"no {refusal}")
                elif index is not None:
                    connections[index] = connection
        missing = sorted(set(processes.others()) - set(connections))
        answer = f"missing {','.join(map(str, missing))}" if missing else "go"
        for connection in connections.values():
            _send_line(connection, answer)
    if missing:
        raise _not_connected(missing, processes)


def _listen(processes: Processes) -> socket.socket:
    """Opens the coordinator's port. If its host is 127.0.0.1, only this machine can connect."""
    host, port = processes.address
    try:
        return socket.create_server((host if host == "127.0.0.1" else "", port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(
            f"--coordinator {processes.coordinator}: cannot listen there ({reason}); choose a free port "
            "of this machine."
        ) from None


def _check_greeting(
    greeting: str, processes: Processes, connected: Collection[int]
) -> tuple[int | None, str]:
    """Checks the first line that a process sends to process 0.

    Returns:
      The number of the process, or None if the process is refused or the line is not a greeting.
      Then the reason for the refusal, or "" if there is none.
    """
    match = re.fullmatch(rf"{_GREETING} (\d+) of (\d+)", greeting)
    if not match:
        return None, ""
    index, count = int(match[1]), int(match[2])
    if count != processes.count:
        return None, f"--num_processes is {count} here and {processes.count} in process 0"
    if index in connected or index == 0:
        return None, f"another process has --process_id {index}"
    return index, ""


def _join(processes: Processes, deadline: float) -> None:
    """Does the part of every other process in the rendezvous."""
    while True:
        try:
            connection = socket.create_connection(processes.address, timeout=2)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise _not_connected([0], processes) from None
            time.sleep(0.2)
    with connection:
        _send_line(connection, f"{_GREETING} {processes.index} of {processes.count}")
        connection.settimeout(processes.peer_timeout + 5)
        try:
            answer = _read_line(connection)
        except OSError:
            answer = ""
    if answer == "go":
        return
    word, _, rest = answer.partition(" ")
    if word == "no":
        raise UserError(
            f"{rest}. Give each process its own --process_id, and all of them the same --num_processes."
        )
    if word == "missing":
        raise _not_connected([int(index) for index in rest.split(",")], processes)
    raise TryAgain(
        f"process 0 at {processes.coordinator} did not answer; start all processes again."
    )


def _read_line(connection: socket.socket) -> str:
    with connection.makefile("r", encoding="ascii", errors="replace") as reader:
        return reader.readline(200).strip()


def _send_line(connection: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(f"{line}\n".encode())


def _not_connected(missing: list[int], processes: Processes) -> TryAgain:
    return TryAgain(
        f"{_in_words(missing, processes)} did not connect to {processes.coordinator} within "
        f"{processes.peer_timeout} s (--peer_timeout). Start all processes again, each with the same "
        "command and its own --process_id."
    )


def _in_words(indices: Sequence[int], processes: Processes) -> str:
    """Returns numbers of processes for a message: "process 3 of 4", "processes 1, 3 of 4"."""
    noun = "process" if len(indices) == 1 else "processes"
    return f"{noun} {', '.join(map(str, indices))} of {processes.count}"


def _relay(child: "subprocess.Popen[str]") -> str:
    """Copies the output of the child to stderr, until the runtime reports a lost process.

    Returns:
      The messages of the runtime from that report on; "" if there is none.
    """
    kept: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    is_fatal = False
    assert child.stdout is not None
    for line in child.stdout:
        is_fatal = is_fatal or bool(_FATAL.match(line))
        if is_fatal:
            kept.append(line)
        elif not _NOISE.match(line):
            sys.stderr.write(line)
            sys.stderr.flush()
    return "".join(kept)


@contextlib.contextmanager
def _forwarding_signals(child: "subprocess.Popen[str]") -> Iterator[None]:
    """Passes SIGINT and SIGTERM on to the child, which saves and ends. Then the supervisor ends too."""

    def forward(number: int, frame: object) -> None:
        del frame
        child.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous_handlers = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
