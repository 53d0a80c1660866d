"""Requests to gshard-serve made to take long: none of them may make the answer to /health wait."""

import dataclasses
import http.client
import json
import threading
import time
from collections.abc import Iterator

from gshard_nmt.serve import Server
from gshard_nmt.serving.requests import Limits
from tests.serving.fake_translator import DIRECTIONS, FakeTranslator
from tests.soak.campaign import Clock, Report, generator

LONGEST_WAIT = 0.2
"""The most seconds that the answer to /health may take."""

_BYTES = 300_000
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
# Each of these, said many times, has made some parser of HTML, forms or languages slow.
_UNITS = [
    "<", "<a", "<a ", "<a b=", "<a b='", "<a/", "<!--", "<!", "<![", "<?", "</", "</p>", "<b>",
    "<p>", "<li>", "<table>", "<b><p>", "<script>", "&", "&#", "&amp;", ";", "(a)", "%", "%2", "+",
    "=", "&q=", "a=b;", "[", '{"a":', "1", '"', "\\", "\\u", " ", "\n", "\r", "\t", "a", "é", "\0",
    "\ud800", "--X\r\n", "boundary=",
]  # fmt: skip
_STARTS = ["", "", "<a ", "<a b='", "<!--", '{"q": ', "--X\r\nContent-Disposition: form-data"]
_TYPES = [_JSON, _FORM, "multipart/form-data; boundary=X", "a/b" + "; a=b" * 1000]


def campaign(clock: Clock, seed: int) -> Report:
    """Attacks a server whose translator is a stand-in."""
    server = Server(
        FakeTranslator(), DIRECTIONS, 16, ("127.0.0.1", 0), Limits(), log=lambda line: None
    )
    try:
        result = attack(server.port, seed, int(min(clock.cases_left, 10**9)), clock.ends)
    finally:
        server.stop()
    wait = f"/health took at most {1000 * result.longest_wait:.0f} ms"
    defects = []
    if result.longest_wait > LONGEST_WAIT:
        defects.append(f"{wait}, during {result.slowest}")
    if unexpected := result.statuses - {200, 400, 413, 415, 429}:
        defects.append(f"answers with the statuses {sorted(unexpected)}")
    return Report(f"{result.requests} hostile requests, {wait}", defects)


@dataclasses.dataclass
class Attack:
    """How many hostile requests were answered, and the longest answer to /health, with its request."""

    requests: int = 0
    statuses: set[int] = dataclasses.field(default_factory=set)
    longest_wait: float = 0.0
    slowest: str = ""


def attack(port: int, seed: int, enough: int, until: float = float("inf")) -> Attack:
    """Sends hostile requests to a server of this machine, and asks /health all the time."""
    result = Attack()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            start = time.monotonic()
            result.statuses.add(_ask(port, "GET", "/health", b"", {}))
            wait = time.monotonic() - start
            if wait > result.longest_wait:
                result.longest_wait, result.slowest = wait, said

    said = ""
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for about, path, body, content_type in _requests(seed, enough):
            if time.monotonic() > until:
                break
            said = about
            result.statuses.add(_ask(port, "POST", path, body, {"Content-Type": content_type}))
            result.requests += 1
    finally:
        is_over.set()
        watcher.join()
    return result


def _requests(seed: int, count: int) -> Iterator[tuple[str, str, bytes, str]]:
    """Yields hostile requests: words about each, its address, body and content type."""
    head = "--X\r\nContent-Disposition: form-data" + ";" * 40_000
    yield "a part with a long head", "/translate", head.encode(), _TYPES[2]
    for number in range(1, count):
        random = generator(seed, "hostile", number)
        unit = "".join(random.choices(_UNITS, k=random.choice([1, 1, 2, 3])))
        size = random.choice([1000, 19_000, _BYTES])
        text = (random.choice(_STARTS) + unit * size)[:size]
        kind = random.choice(["text", "html", "html", "language", "detect", "raw", "raw"])
        path = "/detect" if kind == "detect" else "/translate"
        if kind == "raw":
            body, content_type = text.encode(errors="replace")[:_BYTES], random.choice(_TYPES)
        else:
            fields = {"q": text, "source": "auto", "target": "en", "format": "html"}
            if kind != "html":
                fields["format"] = "text"
            if kind == "language":
                fields |= {"q": "un", random.choice(["source", "target"]): text}
            body, content_type = json.dumps(fields).encode(), _JSON
        yield f"case {number}: {kind}, {size} characters of {unit!r}", path, body, content_type


def _ask(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status
    except ConnectionError as error:
        # The server may answer, and close the connection before the whole body was sent.
        is_early = isinstance(error, BrokenPipeError | ConnectionResetError)
        return 413 if is_early and len(body) > Limits().body_bytes else 0
    finally:
        connection.close()
