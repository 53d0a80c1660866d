"""The HTTP interface of LibreTranslate, as an ASGI application.

POST /translate and /detect, GET /languages, /health and /frontend/settings. Every answer is JSON, and an
error is {"error": "..."}.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gshard_nmt.serving.batching import Batcher, Refusal
from gshard_nmt.serving.languages import AUTO, Languages, can_detect, detect
from gshard_nmt.serving.requests import (
    Limits,
    TranslateRequest,
    read_fields,
    read_request,
    read_texts,
)

_CLIENT_GONE = 499
"""The status in the log, as nginx has it, of a request whose client went away."""

_METHODS = ("GET", "HEAD", "OPTIONS", "POST")
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class Application:
    """Answers requests with the translations of a batcher."""

    def __init__(
        self,
        languages: Languages,
        batcher: Batcher,
        limits: Limits,
        log: Callable[[str], None],
        origins: Collection[str] = (),
    ) -> None:
        """Takes what answers come from, a log of requests, and the origins of pages, "*" for all."""
        self._languages, self._batcher, self._limits = languages, batcher, limits
        self._log, self._origins, self._can_detect = log, frozenset(origins), can_detect()
        routes = [
            Route("/translate", self._translate, methods=["POST"]),
            Route("/detect", self._detect, methods=["POST"]),
            Route("/languages", lambda _: _json(self._languages.listed())),
            Route("/health", lambda _: _json({"status": "ok"})),
            Route("/frontend/settings", self._settings),
        ]
        self._paths = [route.path for route in routes]
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,
        )
        handlers: dict[Any, Any] = {
            Refusal: _refused,
            HTTPException: self._not_routed,
            ClientDisconnect: lambda *_: Response(status_code=_CLIENT_GONE),
            Exception: lambda *_: _json({"error": "the server has failed. Its log says why."}, 500),
        }
        self._routed = Starlette(
            routes=routes, middleware=[cors] if origins else [], exception_handlers=handlers
        )
        self._routed.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, and writes a line to the log. This is the interface of ASGI."""
        if scope["type"] != "http":
            return
        start = time.monotonic()
        status = _CLIENT_GONE
        scope["state"] = state = {"note": ""}

        async def send_and_note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            # A page of another origin must not use the server, even if it cannot read the answer.
            origin = Headers(scope=scope).get("origin")
            if origin is None or not self._origins.isdisjoint((origin, "*")):
                await self._routed(scope, receive, send_and_note)
            else:
                problem = "the server is not for pages of this origin. Start it with --cors ORIGIN."
                await _json({"error": problem}, 403)(scope, receive, send_and_note)
        finally:
            client = (scope.get("client") or ("-",))[0]
            path = scope["path"] if scope["path"] in self._paths else "(unknown)"
            method = scope["method"] if scope["method"] in _METHODS else "(other)"
            milliseconds = round(1000 * (time.monotonic() - start))
            self._log(f"{client} {method} {path} {status} {milliseconds} ms{state['note']}")

    async def _translate(self, request: Request) -> Response:
        body = await self._body(request)
        # No text is read in the thread of the event loop, so a large one makes no other request wait.
        asked, lines, direction, confidence = await asyncio.to_thread(self._read, request, body)
        source, target = direction
        nbest: Sequence[Sequence[str]] = [[line] for line in lines]
        if source != target:
            nbest = await self._translations(source, target, lines, request.receive)
        content = await asyncio.to_thread(asked.translated, nbest)
        if confidence is not None:
            detected = {"confidence": confidence, "language": source}
            is_list = asked.is_list
            content["detectedLanguage"] = [detected] * len(asked.texts) if is_list else detected
        characters = sum(map(len, asked.texts))
        request.state.note = f" {source}-{target} {len(asked.texts)} texts {characters} characters"
        return _json(content)

    async def _detect(self, request: Request) -> Response:
        if not self._can_detect:
            problem = "this server does not detect languages: it lacks py3langid. Name the source."
            raise Refusal(501, problem)
        body = await self._body(request)
        return _json(await asyncio.to_thread(self._detected, request, body))

    async def _settings(self, _: Request) -> Response:
        """Answers /frontend/settings, which clients read to learn the limits."""
        source = next(entry["code"] for entry in self._languages.listed() if entry["targets"])
        absent = ("apiKeys", "keyRequired", "suggestions", "filesTranslation")
        return _json(
            {
                **dict.fromkeys(absent, False),
                "charLimit": self._limits.characters,
                "batchLimit": self._limits.texts,
                "frontendTimeout": 500,
                "supportedFilesFormat": [],
                "language": {"source": {"code": source}, "target": {"code": ""}},
            }
        )

    def _read(
        self, request: Request, body: bytes
    ) -> tuple[TranslateRequest, list[str], tuple[str, str], float | None]:
        """Returns a request, its lines, its direction, and how sure a detected source is, in percent.

        The direction is from the target to itself if the text seems to be in the target language.
        """
        asked = read_request(_fields(request, body), self._limits)
        lines = asked.lines()
        if asked.source.lower() != AUTO:
            return asked, lines, self._languages.direction(asked.source, asked.target), None
        sources = self._languages.sources(asked.target)
        if len(sources) > 1 and self._can_detect:
            target = self._languages.direction(sources[0], asked.target)[1]
            if found := detect("\n".join(lines), [*sources, target]):
                source, confidence = found[0]
                return asked, lines, (source, target), confidence
        return asked, lines, self._languages.direction(AUTO, asked.target), 100.0

    def _detected(self, request: Request, body: bytes) -> list[dict[str, object]]:
        text = "\n".join(read_texts(_fields(request, body), self._limits))
        languages = [str(entry["code"]) for entry in self._languages.listed()]
        return [
            {"confidence": confidence, "language": language}
            for language, confidence in detect(text, languages)
        ]

    async def _body(self, request: Request) -> bytes:
        """Returns the body of a request; raises Refusal if it is too large, or takes too long."""
        limit, seconds = self._limits.body_bytes, self._limits.body_seconds
        too_large = Refusal(413, f"the body has more than {limit} bytes. Send less text.")
        if int(request.headers.get("content-length", "0")[:20]) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            raise Refusal(408, f"the body took more than {seconds:g} s. Send it faster.") from None
        return bytes(body)

    async def _translations(
        self, source: str, target: str, lines: Sequence[str], receive: Receive
    ) -> Sequence[Sequence[str]]:
        """Returns the translations of each line.

        If the client goes away or the time is over, the lines that wait are taken back.

        Raises:
          Refusal: the queue is full, the time is over, or the translator failed.
          ClientDisconnect: the client closed the connection.
        """
        future = asyncio.wrap_future(self._batcher.submit(source, target, lines))
        gone = asyncio.ensure_future(_disconnection(receive))
        try:
            seconds = self._limits.seconds
            await asyncio.wait((future, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if gone.done():
                raise ClientDisconnect
            raise Refusal(
                504, f"the translation took more than {seconds:g} s. Send less text, or try later."
            )
        finally:
            future.cancel()
            gone.cancel()

    async def _not_routed(self, _: Request, error: HTTPException) -> Response:
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        if allowed:
            problem = f"this address takes {allowed}. Use it."
            return _json({"error": problem}, error.status_code, {"Allow": allowed})
        problem = f"there is no such address. There are: {', '.join(self._paths)}."
        return _json({"error": problem}, error.status_code)


def _fields(request: Request, body: bytes) -> dict[str, object]:
    content_type = request.headers.get("content-type", "")
    return read_fields(request.scope["query_string"], content_type, body)


async def _disconnection(receive: Receive) -> None:
    """Returns when the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refused(_: Request, refusal: Refusal) -> Response:
    headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
    return _json({"error": refusal.message}, refusal.status, headers)


def _json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(content, status, {**_HEADERS, **(headers or {})})
