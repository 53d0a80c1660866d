"""The HTTP interface of LibreTranslate, as an ASGI application.

POST /translate, GET /languages, GET /health and GET /frontend/settings. POST /detect is refused. Every
answer is JSON, and an error is {"error": "..."}.
"""

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from gshard_nmt.serving.batching import Batcher
from gshard_nmt.serving.languages import AUTO, Languages
from gshard_nmt.serving.refusal import Refusal
from gshard_nmt.serving.translate_request import Limits, TranslateRequest, read_request

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_METHODS = {
    "/translate": ("POST",),
    "/detect": ("POST",),
    "/languages": ("GET", "HEAD"),
    "/health": ("GET", "HEAD"),
    "/frontend/settings": ("GET", "HEAD"),
}

_CLIENT_GONE = 499
"""The status in the log, as nginx has it, of a request whose client went away."""


@dataclasses.dataclass
class _Answer:
    """An answer, and what the log says of its request.

    Attributes:
      status: the HTTP status.
      content: the body, as JSON can hold it.
      headers: further headers.
      note: what the log says of the request. It has no text of users.
    """

    status: int
    content: object
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    note: str = ""


class _ClientGone(Exception):
    """The client has closed its connection before the answer."""


class Application:
    """Answers requests with the translations of a batcher."""

    def __init__(
        self,
        languages: Languages,
        batcher: Batcher,
        limits: Limits,
        log: Callable[[str], None],
    ) -> None:
        """Takes what the answers come from.

        Args:
          languages: the languages that a request may name.
          batcher: translates the lines of requests.
          limits: the limits on requests.
          log: gets one line for each request.
        """
        self._languages = languages
        self._batcher = batcher
        self._limits = limits
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. This is the interface of ASGI."""
        if scope["type"] != "http":
            return
        start = time.monotonic()
        path = scope["path"] if scope["path"] in _METHODS else "(unknown)"
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "(other)"
        answer = _Answer(500, {"error": "the server has failed. Its log says why."})
        try:
            answer = await self._answer(scope, receive)
        except _ClientGone:
            answer = _Answer(_CLIENT_GONE, None)
        except Refusal as refusal:
            headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
            answer = _Answer(refusal.status, {"error": refusal.message}, headers)
        finally:
            # An error that is left is a defect. The client hears of it before uvicorn logs it.
            if answer.status != _CLIENT_GONE:
                await _send(send, answer)
            client = (scope.get("client") or ("-",))[0]
            milliseconds = round(1000 * (time.monotonic() - start))
            note = f" {answer.note}" if answer.note else ""
            self._log(f"{client} {method} {path} {answer.status} {milliseconds} ms{note}")

    async def _answer(self, scope: Scope, receive: Receive) -> _Answer:
        path = scope["path"]
        if path not in _METHODS:
            raise Refusal(404, f"there is no such address. There are: {', '.join(_METHODS)}.")
        if scope["method"] not in _METHODS[path]:
            allowed = ", ".join(_METHODS[path])
            return _Answer(
                405, {"error": f"this address takes {allowed}. Use it."}, {"Allow": allowed}
            )
        if path == "/translate":
            return await self._translate(scope, receive)
        if path == "/detect":
            raise Refusal(
                501, "this server does not detect languages. Name the source in /translate."
            )
        if path == "/languages":
            return _Answer(200, self._languages.listed())
        if path == "/health":
            return _Answer(200, {"status": "ok"})
        return _Answer(200, self._settings())

    async def _translate(self, scope: Scope, receive: Receive) -> _Answer:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        body = await self._body(headers.get(b"content-length", ""), receive)
        request = read_request(headers.get(b"content-type", ""), body, self._limits)
        source, target = self._languages.direction(request.source, request.target)
        content = await self._translations(request, source, target, receive)
        if request.source.lower() == AUTO:
            detected = {"confidence": 100, "language": source}
            is_list = request.is_list
            content["detectedLanguage"] = [detected] * len(request.texts) if is_list else detected
        characters = sum(map(len, request.texts))
        note = f"{source}-{target} {len(request.texts)} texts {characters} characters"
        return _Answer(200, content, note=note)

    async def _body(self, content_length: str, receive: Receive) -> bytes:
        """Returns the body of a request.

        Raises:
          Refusal: the body is too large, or takes too long.
          _ClientGone: the client closed the connection.
        """
        limit = self._limits.body_bytes
        too_large = Refusal(413, f"the body has more than {limit} bytes. Send less text.")
        if content_length.isdecimal() and int(content_length[:20]) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGone
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            seconds = self._limits.body_seconds
            raise Refusal(408, f"the body took more than {seconds:g} s. Send it faster.") from None

    async def _translations(
        self, request: TranslateRequest, source: str, target: str, receive: Receive
    ) -> dict[str, object]:
        """Returns the answer to a request that is right.

        If the client goes away or the time is over, the lines that wait are taken back.

        Raises:
          Refusal: the queue is full, the time is over, or the translator failed.
          _ClientGone: the client closed the connection.
        """
        future = asyncio.wrap_future(self._batcher.submit(source, target, request.lines()))
        gone = asyncio.ensure_future(_disconnection(receive))
        try:
            seconds = self._limits.seconds
            await asyncio.wait((future, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return request.translated(future.result())
            if gone.done():
                raise _ClientGone
            raise Refusal(
                504, f"the translation took more than {seconds:g} s. Send less text, or try later."
            )
        finally:
            future.cancel()
            gone.cancel()

    def _settings(self) -> dict[str, object]:
        """Returns the answer to /frontend/settings, which clients read to learn the limits."""
        source, *_ = (entry["code"] for entry in self._languages.listed() if entry["targets"])
        return {
            "apiKeys": False,
            "charLimit": self._limits.characters,
            "batchLimit": self._limits.texts,
            "frontendTimeout": 500,
            "keyRequired": False,
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": {"source": {"code": source}, "target": {"code": ""}},
        }


async def _disconnection(receive: Receive) -> None:
    """Returns when the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, answer: _Answer) -> None:
    content = json.dumps(answer.content, ensure_ascii=False).encode()
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(content)),
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
        **answer.headers,
    }
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
    await send({"type": "http.response.body", "body": content})
