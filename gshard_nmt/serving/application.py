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

from gshard_nmt.serving.batching import Batcher
from gshard_nmt.serving.languages import can_detect, detect, direction_of, listed
from gshard_nmt.serving.requests import Limits, read_fields, read_request, read_texts

_CLIENT_GONE = 499
"""The status in the log, as nginx has it, of a request whose client went away."""

_METHODS = ("GET", "HEAD", "OPTIONS", "POST")
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class Application:
    """Answers requests with the translations of a batcher."""

    def __init__(
        self,
        directions: Collection[tuple[str, str]],
        batcher: Batcher,
        limits: Limits,
        log: Callable[[str], None],
        origins: Collection[str] = (),
    ) -> None:
        """Takes what answers come from, a log of requests, and the origins of pages, "*" for all."""
        self._directions, self._batcher, self._limits = sorted(set(directions)), batcher, limits
        self._languages = listed(self._directions)
        self._log, self._origins, self._can_detect = log, frozenset(origins), can_detect()
        # Clients read the limits here.
        settings = {
            **dict.fromkeys(("apiKeys", "keyRequired", "suggestions", "filesTranslation"), False),
            "charLimit": limits.characters,
            "batchLimit": limits.texts,
            "frontendTimeout": 500,
            "supportedFilesFormat": [],
            "language": {"source": {"code": self._directions[0][0]}, "target": {"code": ""}},
        }
        routes = [
            Route("/translate", self._translate, methods=["POST"]),
            Route("/detect", self._detect, methods=["POST"]),
            Route("/languages", lambda _: _json(self._languages)),
            Route("/health", lambda _: _json({"status": "ok"})),
            Route("/frontend/settings", lambda _: _json(settings)),
        ]
        self._paths = [route.path for route in routes]
        names = ", ".join(self._paths)
        no_address = {"error": f"there is no such address. There are: {names}."}
        failed = {"error": "the server has failed. Its log says why."}
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,
        )
        handlers: dict[Any, Any] = {
            404: lambda *_: _json(no_address, 404),
            405: _other_method,
            HTTPException: lambda _, e: _json({"error": e.detail}, e.status_code, e.headers),
            ClientDisconnect: lambda *_: Response(status_code=_CLIENT_GONE),
            Exception: lambda *_: _json(failed, 500),
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
        asked, lines, (source, target, confidence) = await self._read(request, self._asked)
        nbest: Sequence[Sequence[str]] = [[line] for line in lines]
        if lines and source != target:
            nbest = await self._translations((source, target), lines, request.receive)
        detected = {"confidence": confidence, "language": source}
        of_each = {} if confidence is None else {"detectedLanguage": detected}
        number, characters = len(asked.texts), sum(map(len, lines))
        request.state.note = f" {source}-{target} {number} texts {characters} characters"
        return _json(await asyncio.to_thread(asked.answer, nbest, **of_each))

    def _asked(self, fields: Mapping[str, object]) -> Any:
        """Returns a request, its lines and its direction; see `direction_of`."""
        asked = read_request(fields, self._limits)
        lines = [line for part, _ in asked.texts for line in part]
        languages = (asked.source, asked.target)
        text = "\n".join(lines)
        return asked, lines, direction_of(self._directions, *languages, text, self._can_detect)

    async def _detect(self, request: Request) -> Response:
        if not self._can_detect:
            problem = "this server does not detect languages: it lacks py3langid. Name the source."
            raise HTTPException(501, problem)
        languages = [str(language["code"]) for language in self._languages]

        def detected(fields: Mapping[str, object]) -> list[tuple[str, float]]:
            return detect("\n".join(read_texts(fields, self._limits)), languages)

        ranked = await self._read(request, detected)
        return _json([{"confidence": share, "language": language} for language, share in ranked])

    async def _read(self, request: Request, reader: Callable[[Mapping[str, object]], Any]) -> Any:
        """Returns what a reader makes of the fields of a request. Its body has limits.

        No text is read in the thread of the event loop, so a large one makes no other request wait.
        """
        limit, seconds = self._limits.body_bytes, self._limits.body_seconds
        too_large = HTTPException(413, f"the body has more than {limit} bytes. Send less text.")
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
            problem = f"the body took more than {seconds:g} s. Send it faster."
            raise HTTPException(408, problem) from None
        query, kind = request.scope["query_string"], request.headers.get("content-type", "")
        return await asyncio.to_thread(lambda: reader(read_fields(query, kind, bytes(body))))

    async def _translations(
        self, direction: tuple[str, str], lines: Sequence[str], receive: Receive
    ) -> Sequence[Sequence[str]]:
        """Returns the translations of each line. A client that goes away takes its lines back.

        Raises:
          HTTPException: the queue is full, the time is over, or the translator failed.
          ClientDisconnect: the client closed the connection.
        """
        seconds = self._limits.seconds
        translations = asyncio.ensure_future(self._batcher.translate(direction, lines))
        gone = asyncio.ensure_future(_disconnection(receive))
        both = (translations, gone)
        try:
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if translations.done():
                return translations.result()
            if gone.done():
                raise ClientDisconnect
            problem = f"the translation took more than {seconds:g} s. Send less text, or try later."
            raise HTTPException(504, problem)
        finally:
            translations.cancel()
            gone.cancel()


async def _disconnection(receive: Receive) -> None:
    """Returns when the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _other_method(_: Request, error: HTTPException) -> Response:
    allowed = ", ".join(sorted((error.headers or {})["Allow"].split(", ")))
    return _json({"error": f"this address takes {allowed}. Use it."}, 405, {"Allow": allowed})


def _json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(content, status, {**_HEADERS, **(headers or {})})
