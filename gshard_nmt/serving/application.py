"""The HTTP interface of LibreTranslate, as an ASGI application.

POST /translate and /detect, GET /languages and /health. Every answer of it is JSON, and an error is
{"error": "..."}. The `directions` are the (source, target) pairs of the model, as BCP 47 tags.
"""

import asyncio
import itertools
import math
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

from gshard_nmt.data.cleaning.text_filters import identifier, label_of
from gshard_nmt.data.language_codes import language_name, nearest
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.serving.batching import Batcher
from gshard_nmt.serving.requests import Limits, read_fields, read_request, read_texts

Directions = Sequence[tuple[str, str]]

_CLIENT_GONE = 499
"""The status in the log, as nginx has it, of a request whose client went away."""
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_METHODS = ("GET", "HEAD", "OPTIONS", "POST")
_SHOWN = 40
"""The most characters of a language in an error message. A client may send any text there."""
_CHARACTERS = 5000
"""The characters of a text that the detector looks at."""


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
        self._log, self._origins = log, frozenset(origins)
        languages = listed(self._directions)
        routes = [
            Route("/translate", self._translate, methods=["POST"]),
            Route("/detect", self._detect, methods=["POST"]),
            Route("/languages", lambda _: _json(languages)),
            Route("/health", lambda _: _json({"status": "ok"})),
        ]
        self._paths = [route.path for route in routes]
        no_address = {"error": f"there is no such address. There are: {', '.join(self._paths)}."}
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
            # Paths and methods of a client's own might be text of users.
            place = "(unknown)"
            if scope["path"] in self._paths and scope["method"] in _METHODS:
                place = f"{scope['method']} {scope['path']}"
            milliseconds = round(1000 * (time.monotonic() - start))
            self._log(f"{client} {place} {status} {milliseconds} ms{state['note']}")

    async def _translate(self, request: Request) -> Response:
        def reader(fields: Mapping[str, object]) -> Any:
            asked = read_request(fields, self._limits, self._batcher.keeps_tags)
            lines = [line for part, _ in asked.texts for line in part]
            languages = (asked.source, asked.target)
            return asked, lines, direction_of(self._directions, *languages, "\n".join(lines))

        asked, lines, (source, target, confidence) = await self._read(request, reader)
        nbest, lost, sure = [[line] for line in lines], [()] * len(lines), []
        if lines and source != target:
            translations = await self._translations((source, target), lines, request.receive)
            nbest = [[translation.text for translation in of_line] for of_line in translations]
            lost = [best.lost for best, *_ in translations]
            sure = [best.confidence for best, *_ in translations]
        detected = {"confidence": confidence, "language": source}
        of_each = {} if confidence is None else {"detectedLanguage": detected}
        number, characters = len(asked.texts), sum(map(len, lines))
        request.state.note = f" {source}-{target} {number} texts {characters} characters"
        return _json(await asyncio.to_thread(asked.answer, nbest, lost, sure, **of_each))

    async def _detect(self, request: Request) -> Response:
        known = sorted(set(itertools.chain(*self._directions)))

        def reader(fields: Mapping[str, object]) -> list[tuple[str, float]]:
            return detect("\n".join(read_texts(fields, self._limits)), known)

        ranked = await self._read(request, reader)
        return _json([{"confidence": share, "language": language} for language, share in ranked])

    async def _read(self, request: Request, reader: Callable[[Mapping[str, object]], Any]) -> Any:
        """Returns what a reader makes of the fields of a request. Its body has limits.

        No text is read in the thread of the event loop, so a large one makes no other request wait.
        """
        limit, seconds = self._limits.body_bytes, self._limits.body_seconds
        too_large = HTTPException(413, f"the body has more than {limit} bytes. Send less text.")
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
    ) -> Sequence[Sequence[Any]]:
        """Returns the translations of each line. A client that goes away takes its lines back.

        Besides what the batcher raises, HTTPException if the time is over, or ClientDisconnect.
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


def _json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(content, status, {**_HEADERS, **(headers or {})})


def direction_of(
    directions: Directions, source: str, target: str, text: str
) -> tuple[str, str, float | None]:
    """Returns source and target as the model knows them, and how sure a detected source is, in percent.

    pt_BR finds pt-BR, or pt if the model has no pt-BR. The source may be "auto". Then it is the target
    itself if the text seems to be in the target language. HTTPException if a language is not found.
    """
    if source.lower() != "auto":
        source = _known(source, sorted({a for a, _ in directions}), "from")
        targets = [b for a, b in directions if a == source]
        return source, _known(target, targets, f"from {source} to"), None
    target = _known(target, sorted({b for _, b in directions}), "to")
    sources = [a for a, b in directions if b == target]
    if len(sources) == 1:
        return sources[0], target, 100.0
    if ranked := detect(text, [*sources, target]):
        source, confidence = ranked[0]
        return source, target, confidence
    raise HTTPException(400, f"the source is not detected. Give one of: {', '.join(sources)}.")


def _known(tag: str, known: Collection[str], verb: str) -> str:
    if found := nearest(tag[:_SHOWN], known):
        return found
    hint = did_you_mean(tag[:_SHOWN], known)
    raise HTTPException(
        400,
        f"{tag[:_SHOWN]} is not supported: this server translates {verb} {', '.join(known)}{hint} "
        "GET /languages lists the directions.",
    )


def listed(directions: Directions) -> list[dict[str, object]]:
    """Returns the answer to /languages: the code, name and targets of each language."""
    return [
        {"code": tag, "name": language_name(tag), "targets": [b for a, b in directions if a == tag]}
        for tag in sorted(set(itertools.chain(*directions)))
    ]


def detect(text: str, languages: Collection[str]) -> list[tuple[str, float]]:
    """Returns the languages that the detector knows with their confidence in percent, best first."""
    try:
        ranking = identifier().rank(text[:_CHARACTERS])
    except UserError:
        problem = "this server does not detect languages: it lacks py3langid. Name the source."
        raise HTTPException(501, problem) from None
    names: dict[str, str] = {}
    for language in languages:
        names.setdefault(label_of(language), language)
    ranked = [(names[label], share) for label, share in ranking if label in names]
    total = math.fsum(share for _, share in ranked) or 1.0
    return [(language, round(100 * share / total, 1)) for language, share in ranked]
