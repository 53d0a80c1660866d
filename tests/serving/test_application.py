"""The answers to requests, without a socket: the application is called as uvicorn calls it."""

import asyncio
import json
import threading

import pytest

from gshard_nmt.serving.application import Application
from gshard_nmt.serving.batching import Batcher
from gshard_nmt.serving.languages import Languages
from gshard_nmt.serving.translate_request import Limits
from tests.serving.fake_translator import DIRECTIONS, FakeTranslator

JSON = "application/json"


class Client:
    """Sends requests to an application, and keeps its log."""

    def __init__(self, **limits):
        self.limits = Limits(**limits)
        self.translator = FakeTranslator()
        self.batcher = Batcher(self.translator, 4, self.limits.queue)
        self.log: list[str] = []
        self.application = Application(
            Languages(DIRECTIONS), self.batcher, self.limits, self.log.append
        )

    def ask(self, method, path, body=b"", content_type=JSON, **changes):
        """Returns the status, the headers and the content of the answer."""
        return asyncio.run(self.asked(method, path, body, content_type, **changes))

    async def asked(self, method, path, body=b"", content_type=JSON, messages=(), headers=()):
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "client": ("192.0.2.7", 5),
            "headers": [(b"content-type", content_type.encode("latin-1")), *headers],
        }
        incoming = [*messages, {"type": "http.request", "body": body, "more_body": False}]
        sent = []

        async def receive():
            if incoming:
                message = incoming.pop(0)
                if message is not None:
                    return message
            return await asyncio.Future()

        async def send(message):
            sent.append(message)

        await self.application(scope, receive, send)
        if not sent:
            return None
        start, end = sent
        answer_headers = {name.decode(): value.decode() for name, value in start["headers"]}
        assert answer_headers["content-type"] == "application/json; charset=utf-8"
        assert int(answer_headers["content-length"]) == len(end["body"])
        return start["status"], answer_headers, json.loads(end["body"])

    def translate(self, **fields):
        status, _, content = self.ask("POST", "/translate", json.dumps(fields).encode())
        return status, content


@pytest.fixture
def client():
    client = Client()
    yield client
    client.translator.gate.set()
    client.batcher.close()
    assert client.batcher.join(20)


def test_a_text_and_a_list_are_translated(client):
    assert client.translate(q="un", source="fr", target="en") == (200, {"translatedText": "UN>en"})
    assert client.translate(q=["un", "à\n\ndeux"], source="FR", target="de") == (
        200,
        {"translatedText": ["UN>de", "À>de\n\nDEUX>de"]},
    )
    assert client.translate(q=[], source="fr", target="en") == (200, {"translatedText": []})
    assert client.translate(q=" ", source="fr", target="en") == (200, {"translatedText": " "})


def test_alternatives_are_those_that_the_server_has(client):
    assert client.translate(q="un", source="fr", target="en", alternatives=3) == (
        200,
        {"translatedText": "UN>en", "alternatives": ["UN>en 2"]},
    )


def test_the_only_source_language_needs_no_detection(client):
    detected = {"confidence": 100, "language": "fr"}
    assert client.translate(q="un", source="auto", target="de") == (
        200,
        {"translatedText": "UN>de", "detectedLanguage": detected},
    )
    assert client.translate(q=["a", "b"], source="auto", target="de") == (
        200,
        {"translatedText": ["A>de", "B>de"], "detectedLanguage": [detected] * 2},
    )
    status, content = client.translate(q="un", source="auto", target="en")
    assert status == 400
    assert content["error"].startswith("source is auto, and this server does not detect languages.")


@pytest.mark.parametrize(
    ("method", "path", "status", "start"),
    [
        ("POST", "/detect", 501, "this server does not detect languages"),
        ("GET", "/", 404, "there is no such address. There are: /translate"),
        ("GET", "/../etc/passwd", 404, "there is no such address"),
        ("POST", "/translate_file", 404, "there is no such address"),
        ("GET", "/translate", 405, "this address takes POST"),
        ("OPTIONS", "/translate", 405, "this address takes POST"),
        ("POST", "/languages", 405, "this address takes GET, HEAD"),
        ("POST", "/translate", 400, "Invalid request: the body is not JSON"),
    ],
)
def test_what_the_server_does_not_do_is_an_error_in_json(client, method, path, status, start):
    answered, headers, content = client.ask(method, path)
    assert answered == status
    assert content["error"].startswith(start)
    assert headers.get("allow") == (
        {"/translate": "POST"}.get(path, "GET, HEAD") if status == 405 else None
    )


def test_the_server_tells_its_languages_health_and_limits(client):
    languages = client.ask("GET", "/languages")[2]
    assert {"code": "fr", "name": "French", "targets": ["de", "en"]} in languages
    assert client.ask("GET", "/health")[2] == {"status": "ok"}
    settings = client.ask("GET", "/frontend/settings")[2]
    assert (settings["charLimit"], settings["batchLimit"]) == (20_000, 100)
    assert settings["language"]["source"]["code"] == "de"


def test_no_page_of_another_origin_may_read_the_answer(client):
    _, headers, _ = client.ask("GET", "/health", headers=[(b"origin", b"https://example.org")])
    assert "access-control-allow-origin" not in headers
    assert headers["x-content-type-options"] == "nosniff"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(client):
    limit = client.limits.body_bytes
    length = [(b"content-length", str(limit + 1).encode())]
    status, _, content = client.ask("POST", "/translate", messages=[None], headers=length)
    assert (status, content) == (
        413,
        {"error": f"the body has more than {limit} bytes. Send less text."},
    )
    huge = [(b"content-length", b"9" * 5_000)]
    assert client.ask("POST", "/translate", messages=[None], headers=huge)[0] == 413
    chunk = {"type": "http.request", "body": b"x" * limit, "more_body": True}
    assert client.ask("POST", "/translate", messages=[chunk, chunk, None])[0] == 413


def test_a_body_that_comes_too_slowly_is_refused():
    client = Client(body_seconds=0.01)
    status, _, content = client.ask("POST", "/translate", messages=[None])
    assert status == 408
    assert content["error"] == "the body took more than 0.01 s. Send it faster."
    client.batcher.close()


def test_a_translation_that_takes_too_long_is_given_up():
    client = Client(seconds=0.05)
    client.translator.hold()
    status, content = client.translate(q="un", source="fr", target="en")
    assert status == 504
    assert content["error"].startswith("the translation took more than 0.05 s.")
    assert client.batcher.unfinished == 0
    client.translator.gate.set()
    client.batcher.close()


def test_a_full_queue_says_when_to_try_again():
    client = Client(queue=1)
    client.translator.hold()
    client.batcher.submit("fr", "en", ["first"])
    body = json.dumps({"q": "un", "source": "fr", "target": "en"}).encode()
    status, headers, content = client.ask("POST", "/translate", body)
    assert status == 503
    assert content == {"error": "the server is busy: 1 requests wait. Try again later."}
    assert int(headers["retry-after"]) >= 1
    client.translator.gate.set()
    client.batcher.close()


def test_a_client_that_goes_away_takes_its_lines_with_it(client):
    client.translator.hold()
    client.batcher.submit("fr", "en", ["first"])
    assert client.translator.started.wait(20)
    body = json.dumps({"q": "un", "source": "fr", "target": "en"}).encode()
    request = {"type": "http.request", "body": body, "more_body": False}
    gone = {"type": "http.disconnect"}
    assert client.ask("POST", "/translate", messages=[request, gone]) is None
    assert client.batcher.unfinished == 1
    assert client.ask("POST", "/translate", messages=[gone]) is None
    client.translator.gate.set()
    assert [line.split(" ms")[0].rsplit(" ", 1)[0] for line in client.log] == [
        "192.0.2.7 POST /translate 499"
    ] * 2
    assert len(client.translator.batches) == 1


def test_requests_that_come_together_share_batches(client):
    client.translator.hold()

    async def ask_all():
        body = {"source": "fr", "target": "en"}
        requests = [
            client.asked("POST", "/translate", json.dumps({"q": f"w{i}", **body}).encode())
            for i in range(9)
        ]
        threading.Timer(0.05, client.translator.gate.set).start()
        return await asyncio.gather(*requests)

    answers = asyncio.run(ask_all())
    assert [content["translatedText"] for _, _, content in answers] == [
        f"W{i}>en" for i in range(9)
    ]
    assert [len(lines) for lines, *_ in client.translator.batches] in ([1, 4, 4], [4, 4, 1])


def test_the_log_has_no_text_of_users(client):
    client.translate(q=["secret", "secret"], source="fr", target="en")
    client.translate(q="secret", source="secret", target="en")
    client.ask("POST", "/secret")
    client.ask("SECRET", "/translate")
    client.ask("POST", "/translate", b"secret")
    assert len(client.log) == 5
    assert "secret" not in "\n".join(client.log).lower()
    assert client.log[0].startswith("192.0.2.7 POST /translate 200 ")
    assert client.log[0].endswith(" ms fr-en 2 texts 12 characters")


def test_a_defect_is_answered_and_raised(client, monkeypatch):
    monkeypatch.setattr(client.batcher, "submit", None)
    with pytest.raises(TypeError):
        client.translate(q="un", source="fr", target="en")
    assert client.log[0].startswith("192.0.2.7 POST /translate 500 ")
