"""The connections between the supervisors of a run: they tell each other how their workers end.

Every supervisor has a TCP connection to that of process 0, which passes news on to all others. A
connection that closes without news also tells something: the supervisor, or its machine, has died.
"""

import contextlib
import dataclasses
import json
import selectors
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from gshard_nmt import json_shape
from gshard_nmt.spmd.processes import Processes

_LINE_BYTES = 1 << 20
"""The longest line that is read. A supervisor never sends a longer line."""
_MOST_KEEPALIVE = 32767
"""The most seconds of TCP's keepalive; Linux refuses more."""
_OBJECT = json_shape.mapping_of(json_shape.anything())


@dataclasses.dataclass(frozen=True)
class News:
    """A message of a supervisor to the others."""

    process: int
    """Number of the process that the news is about."""
    kind: Literal["ended", "taken"]
    """"ended": its worker has ended. "taken": its machine is about to be taken away (SIGTERM)."""
    code: int = 0
    """The exit code of its supervisor, if it has ended."""
    message: str = ""
    """The text that the others print if they end because of the news."""


class Connection:
    """A TCP connection over which JSON objects are sent, one a line."""

    def __init__(self, connected: socket.socket, peer_timeout: int) -> None:
        """Takes a connected socket. TCP itself then notices a dead host within `peer_timeout` seconds."""
        self._socket = connected
        self._received = b""
        connected.settimeout(5)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        idle, between = (min(max(peer_timeout // n, 1), _MOST_KEEPALIVE) for n in (2, 6))
        times = (idle, between, 3)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        for option, value in zip(options, times, strict=True):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)

    def fileno(self) -> int:
        """Returns the file descriptor, for selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def send(self, value: Mapping[str, Any]) -> None:
        """Sends an object. If the other side is gone, the error is ignored: the next read reports it."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(value).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Returns the objects that have arrived. It blocks if nothing can be read from the socket.

        Raises:
          OSError: the connection is closed, or a line is not a JSON object.
        """
        data = self._socket.recv(65536)
        *lines, self._received = (self._received + data).split(b"\n")
        if not data or len(self._received) > _LINE_BYTES:
            raise ConnectionError("the connection is closed, or the line has no end")
        try:
            return [json_shape.parse(line, _OBJECT) for line in lines]
        except ValueError as error:
            raise ConnectionError(str(error)) from None


class Peers:
    """The other supervisors of a run. Use it in a `with` block, which closes the connections."""

    def __init__(
        self, processes: Processes, connections: Mapping[int, Connection], attempt: str
    ) -> None:
        """Keeps the connections of a rendezvous.

        Args:
          processes: the processes of the run.
          connections: the connections by the number of the process. Only process 0 has several.
          attempt: a random name, the same in all processes, of this start of the run.
        """
        self.attempt = attempt
        self._processes = processes
        self._connections = dict(connections)
        self._ended: set[int] = set()
        self._lock = threading.Lock()
        self._end_of_block = contextlib.ExitStack()

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *_: object) -> None:
        self._end_of_block.close()
        for connection in self._connections.values():
            connection.close()

    def listen(self, receive: Callable[[News], object]) -> None:
        """Calls a function for each message of the others, in a background thread."""
        stop_reading, stop = socket.socketpair()
        reader = threading.Thread(target=self._read, args=[receive, stop_reading], name="peers")
        reader.start()
        self._end_of_block.callback(reader.join)
        self._end_of_block.callback(stop.close)

    def tell(self, news: News) -> None:
        """Sends news to the other supervisors."""
        with self._lock:
            for index, connection in self._connections.items():
                if index != news.process:
                    connection.send(dataclasses.asdict(news))

    def _read(self, receive: Callable[[News], object], stop_reading: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, stop_reading:
            selector.register(stop_reading, selectors.EVENT_READ)
            for index, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, index)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is stop_reading:
                        return
                    for news in self._news_from(key.data):
                        receive(news)
                        if self._processes.is_first:
                            self.tell(news)
                    if key.data in self._ended:
                        selector.unregister(key.fileobj)

    def _news_from(self, index: int) -> Sequence[News]:
        """Reads from a connection. If it is closed, the news says that its process is lost."""
        try:
            news = [News(**value) for value in self._connections[index].receive()]
        except (OSError, TypeError):
            news = [News(index, "ended", 75, lost([index], self._processes))]
        self._ended.update(index for item in news if (item.kind, item.process) == ("ended", index))
        return news


def lost(indices: Sequence[int], processes: Processes) -> str:
    """Returns the message that says that processes are lost."""
    return (
        f"{in_words(indices, processes)} died or stopped answering; "
        f"{'its' if len(indices) == 1 else 'their'} own output gives the reason. "
        f"{processes.job.start_again}"
    )


def in_words(indices: Sequence[int], processes: Processes) -> str:
    """Returns numbers of processes for a message: "process 3 of 4", "processes 1, 3 of 4"."""
    noun = "process" if len(indices) == 1 else "processes"
    return f"{noun} {', '.join(map(str, indices))} of {processes.count}"
