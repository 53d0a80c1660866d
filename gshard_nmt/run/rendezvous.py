"""The rendezvous: all processes of a run connect to process 0 before any of them starts its worker.

Process 0 listens on the coordinator's port, and names the processes that are missing. It refuses a
process that comes twice, and one that was started with other settings, data or packages.
"""

import contextlib
import ipaddress
import os
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run.peers import Connection, Peers, in_words
from gshard_nmt.spmd.processes import Processes

_PROGRAM = "gshard-nmt"
_REPORT_SECONDS = 10
"""Seconds between two lines that say which processes are missing."""
_GREETING_SECONDS = 5
"""Seconds after which a connection that has sent no greeting is closed."""

Identity = Mapping[str, str]
"""What all processes of a run must have in common: names for a message, and values to compare."""


def rendezvous(processes: Processes, identity: Identity) -> Peers:
    """Waits until all processes of the run have connected to process 0, and returns the connections.

    Process 0 listens for at most `peer_timeout` seconds. It then tells every process whether all of
    them are there. The port is free again afterwards.

    Raises:
      TryAgain: some processes did not connect.
      UserError: the port is in use, two processes have the same number, or their number or identity
        differs from that of process 0.
    """
    if processes.is_first:
        with (
            _listen(processes) as listening,
            _Reception(processes, identity, listening) as reception,
        ):
            return reception.wait()
    return _join(processes, identity)


class _Reception:
    """Receives the other processes in process 0. A slow connection does not delay the others."""

    def __init__(self, processes: Processes, identity: Identity, listening: socket.socket) -> None:
        self._processes = processes
        self._identity = identity
        self._listening = listening
        self._silent: dict[Connection, float] = {}
        """Connections without a greeting, and when each is closed."""
        self._connected: dict[int, Connection] = {}
        self._refusals: dict[int, str] = {}

    def __enter__(self) -> "_Reception":
        self._selector = selectors.DefaultSelector()
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ)
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self._selector.close()
        for connection in (*self._silent, *(self._connected.values() if failure else ())):
            connection.close()

    def wait(self) -> Peers:
        """Waits for all processes.

        Raises:
          TryAgain: some processes did not connect.
          UserError: all missing processes have been refused.
        """
        deadline = time.monotonic() + self._processes.peer_timeout
        progress = _Waiting(self._processes, deadline)
        while self._missing() and time.monotonic() < deadline:
            self._serve(min(deadline - time.monotonic(), 1))
            progress.report(self._missing())
        missing = self._missing()
        attempt = secrets.token_hex(8)
        for connection in self._connected.values():
            connection.send(
                {"missing": missing, "refused": self._why()} if missing else {"go": attempt}
            )
        if missing:
            raise _not_connected(missing, self._processes, self._why())
        return Peers(self._processes, self._connected, attempt)

    def _missing(self) -> list[int]:
        return sorted(set(self._processes.others()) - set(self._connected))

    def _why(self) -> str:
        """Returns why the missing processes were refused; "" if one of them has not connected."""
        missing = self._missing()
        if not set(missing) <= set(self._refusals):
            return ""
        return "; ".join(self._refusals[index] for index in missing)

    def _serve(self, seconds: float) -> None:
        """Waits for data from any connection, for `seconds` at most, and handles it."""
        for key, _ in self._selector.select(max(seconds, 0.01)):
            if key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.fileobj, Connection):
                self._read(key.fileobj)
        for connection in [c for c, end in self._silent.items() if time.monotonic() > end]:
            self._drop(connection)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection = Connection(self._listening.accept()[0], self._processes.peer_timeout)
            self._selector.register(connection, selectors.EVENT_READ)
            self._silent[connection] = time.monotonic() + _GREETING_SECONDS

    def _read(self, connection: Connection) -> None:
        """Reads a greeting. A process that has greeted and then disconnects counts as missing again."""
        try:
            greetings = connection.receive()
        except OSError:
            self._drop(connection)
            return
        for greeting in greetings:
            index, refusal = check_greeting(
                greeting, self._processes, self._identity, self._connected
            )
            if refusal:
                self._refusals[index] = refusal
                connection.send({"refused": refusal})
                name = in_words([index], self._processes)
                _print(f"{name} was refused: {refusal}", self._processes)
            if refusal or index < 0:
                self._drop(connection)
                return
            del self._silent[connection]
            self._connected[index] = connection

    def _drop(self, connection: Connection) -> None:
        self._selector.unregister(connection)
        connection.close()
        self._silent.pop(connection, None)
        self._connected = {i: c for i, c in self._connected.items() if c is not connection}


def check_greeting(
    greeting: Mapping[str, Any],
    processes: Processes,
    identity: Identity,
    connected: Collection[int] = (),
) -> tuple[int, str]:
    """Checks the greeting of a process, as process 0 does.

    Args:
      greeting: the JSON object that arrived.
      processes: the processes as process 0 knows them.
      identity: the identity of process 0.
      connected: numbers of the processes that are connected already.

    Returns:
      The number of the process, or -1 if this is not a greeting. Then the reason for a refusal, or ""
      if there is none.
    """
    index, other_identity = greeting.get("process"), greeting.get("identity")
    if greeting.get("program") != _PROGRAM or not isinstance(other_identity, dict):
        return -1, ""
    if not isinstance(index, int) or index < 0:
        return -1, ""
    if (count := greeting.get("count")) != processes.count:
        return (
            index,
            f"--num_processes is {count} in process {index} and {processes.count} in process 0",
        )
    if index == 0 or index in connected:
        return index, f"another process has --process_id {index}"
    return index, "; ".join(
        f"{name} is {other_identity.get(name, 'missing')} in process {index} and "
        f"{identity.get(name, 'missing')} in process 0"
        for name in sorted({*identity, *other_identity})
        if other_identity.get(name) != identity.get(name)
    )


def _join(processes: Processes, identity: Identity) -> Peers:
    """Connects to process 0 from another process. It tries again until the time is over."""
    deadline = time.monotonic() + processes.peer_timeout
    greeting = {
        "program": _PROGRAM,
        "process": processes.index,
        "count": processes.count,
        "identity": dict(identity),
    }
    progress = _Waiting(processes, deadline)
    is_answered = False
    while True:
        try:
            connected = socket.create_connection(processes.address, timeout=2)
        except OSError:
            pause = 0.2
        else:
            connection = Connection(connected, processes.peer_timeout)
            connection.send(greeting)
            answer = _answer(connection, deadline + _GREETING_SECONDS)
            if "go" in answer:
                return Peers(processes, {0: connection}, str(answer["go"]))
            connection.close()
            if missing := answer.get("missing"):
                raise _not_connected(missing, processes, answer.get("refused", ""))
            if refusal := answer.get("refused"):
                raise UserError(f"{refusal}. {_SAME_COMMAND}")
            # Perhaps the other processes still train without this one, and end soon.
            is_answered, pause = True, 1.0
        if time.monotonic() > deadline:
            raise _no_rendezvous(processes) if is_answered else _not_connected([0], processes)
        progress.report([0])
        time.sleep(pause)


def _answer(connection: Connection, deadline: float) -> dict[str, Any]:
    """Returns the first object that process 0 sends; {} if it sends none, or something else."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while selector.select(max(deadline - time.monotonic(), 0)):
            try:
                for answer in connection.receive():
                    return answer
            except OSError:
                break
    return {}


def _listen(processes: Processes) -> socket.socket:
    """Opens the coordinator's port."""
    host, port = processes.address
    family, listening_host = listening_address(host)
    try:
        is_dual_stack = (
            family == socket.AF_INET6 and not listening_host and socket.has_dualstack_ipv6()
        )
        return socket.create_server(
            (listening_host, port), family=family, dualstack_ipv6=is_dual_stack
        )
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(
            f"--coordinator {processes.coordinator}: cannot listen there ({reason}); choose a free port "
            "of this machine."
        ) from None


def listening_address(host: str) -> tuple[socket.AddressFamily, str]:
    """Returns the family and the host that process 0 listens on.

    Only this machine can connect if the host is its loopback. Otherwise process 0 listens on all
    addresses, because its own address may be known under several names. A name is looked up by the
    others, so we listen for IPv6 and IPv4.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if host == "localhost":
            return socket.AF_INET, "127.0.0.1"
        return (socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET), ""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    return family, host if address.is_loopback else ""


class _Waiting:
    """Prints every few seconds which processes are missing."""

    def __init__(self, processes: Processes, deadline: float) -> None:
        self._processes, self._deadline = processes, deadline
        self._next = time.monotonic() + _REPORT_SECONDS

    def report(self, missing: list[int]) -> None:
        now = time.monotonic()
        if missing and self._next <= now < self._deadline:
            self._next = now + _REPORT_SECONDS
            _print(
                f"waiting for {in_words(missing, self._processes)} at {self._processes.coordinator}; "
                f"{self._deadline - now:.0f} s left (--peer_timeout)",
                self._processes,
            )


def _print(line: str, processes: Processes) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{processes.job.program}: {line}\n")
        sys.stderr.flush()


_SAME_COMMAND = (
    "Start all processes with the same command and package; only --process_id differs, from 0 on."
)


def _not_connected(missing: list[int], processes: Processes, refusal: str = "") -> Exception:
    if refusal:
        return UserError(f"{in_words(missing, processes)} was refused: {refusal}. {_SAME_COMMAND}")
    return TryAgain(
        f"{in_words(missing, processes)} did not connect to {processes.coordinator} within "
        f"{processes.peer_timeout} s (--peer_timeout). Start all processes again, each with the same "
        "command and its own --process_id."
    )


def _no_rendezvous(processes: Processes) -> TryAgain:
    return TryAgain(
        f"process 0 at {processes.coordinator} does not wait for this process: it has all its "
        "processes, or another program uses the port. If this process was started twice, end one of the "
        "two; otherwise start all processes again."
    )
