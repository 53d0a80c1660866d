"""gshard-serve: translates for HTTP clients with a trained model."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gshard_nmt.errors import UserError
from gshard_nmt.serving.application import Application
from gshard_nmt.serving.batching import Batcher, LineTranslator
from gshard_nmt.serving.requests import Limits

GRACE_SECONDS = 10.0
"""How long a server that is stopped goes on with the requests that it has accepted."""
_CLOSING_SECONDS = 2.0
"""How long the last answers may take after that."""
_MOST_CONNECTIONS = 512
"""If so many connections are open, uvicorn answers each request with the status 503."""


def listen(host: str, port: int) -> socket.socket:
    """Opens a socket; port 0 takes any. Raises UserError if no server can listen at this address."""
    try:
        family, *_, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(place[:2], family=family)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host {host} --port {port}: no server can listen there ({error}). Give an address of this "
            "machine, such as 127.0.0.1, and a port from 1024 that no other program uses; 0 takes any."
        ) from None


class _Http(H11Protocol):
    """Closes a connection whose next request does not come: few connections may be open."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._silence = self.loop.call_later(self.timeout_keep_alive, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._silence.cancel()  # it would keep this object in memory
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.timeout_keep_alive_handler()


class Server:
    """A server that is at work, in threads of its own."""

    def __init__(
        self,
        translator: LineTranslator,
        directions: Collection[tuple[str, str]],
        rows: int,
        address: tuple[str, int],
        limits: Limits,
        log: Callable[[str], None] | None = None,
        origins: Collection[str] = (),
    ) -> None:
        """Starts the server, which alone calls the translator from now on.

        It translates in `directions`, pairs of BCP 47 tags, at most `rows` lines at a time. `log` gets a
        line for each request; None writes to stderr. Pages of `origins` may use it; "*" stands for all.
        Raises UserError if nothing can listen at the address.
        """
        listener = listen(*address)
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.port = int(listener.getsockname()[1])
        self.url = f"http://{host}:{self.port}"
        self._batcher = Batcher(translator, rows, limits.queue)
        log = log or _write_to_stderr
        config = uvicorn.Config(
            Application(directions, self._batcher, limits, log, origins),
            http=_Http,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=30,
        )
        self._server = uvicorn.Server(config)
        self._loop = asyncio.new_event_loop()
        # A signal that interrupts `Thread.join` marks the thread as ended, so we wait for an event.
        self._ended = threading.Event()
        # uvicorn handles signals only in the main thread. Here the command handles them.
        threading.Thread(target=self._run, args=(listener,), name="http", daemon=True).start()

    def wait(self) -> None:
        """Waits until the server ends, which it does only if it fails or is stopped."""
        # The system may deliver a signal to another thread. Python handles it when this one wakes up.
        while not self._ended.wait(0.5):
            pass

    def stop(self, grace: float = GRACE_SECONDS, closing: float = _CLOSING_SECONDS) -> bool:
        """Stops accepting requests, and answers those that have come.

        A request that has no translation after `grace` seconds is refused with status 503. The last
        answers, and the last batch, may take `closing` seconds each. Returns whether the translator is at
        rest. If not, its last batch goes on in its thread.
        """
        self._server.should_exit = True
        if not self._ended.wait(grace):
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._batcher.close)
        self._ended.wait(closing)
        self._server.force_exit = True
        self._ended.wait(closing)
        return self._batcher.is_idle(closing)

    def _run(self, listener: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._server.serve([listener]))
        finally:
            self._ended.set()


def serve(server: Server, about: str) -> None:
    """Serves until a signal stops the program, and then raises KeyboardInterrupt.

    `about` is what it serves, for the line that says that it is ready.
    """
    sys.stdout.write(f"gshard-serve: ready at {server.url} ({about})\n")
    sys.stdout.flush()
    try:
        server.wait()
    except KeyboardInterrupt:
        sys.stderr.write("gshard-serve: stopping; requests that have come are answered\n")
        is_at_rest = False
        with contextlib.suppress(KeyboardInterrupt):  # who presses Ctrl-C again does not wait
            is_at_rest = server.stop()
        if not is_at_rest:
            # The translator is inside XLA, whose threads crash when the interpreter shuts down.
            sys.stderr.write("gshard-serve: stopped in the middle of a batch\n")
            sys.stderr.flush()
            os._exit(130)
        raise KeyboardInterrupt("stopped") from None
    raise RuntimeError("the HTTP server has ended by itself")


def _write_to_stderr(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(time.strftime("%Y-%m-%d %H:%M:%S ") + line + "\n")
