"""The answers to requests, without a socket: the application is called as uvicorn calls it."""

import asyncio
import json

import pytest
from starlette.exceptions import HTTPException

from gshard_nmt.errors import UserError
from gshard_nmt.serving.application import Application, detect, direction_of, listed
from gshard_nmt.serving.batching import Batcher
from gshard_nmt.serving.requests import Limits
from tests.serving.fake_translator import DIRECTIONS, FakeTranslator

JSON = "application/json"


class Client:
    """Sends requests to an application, and keeps its log."""

    def __init__(self, origins=(), **limits):
        self.limits = Limits(**limits)
        self.translator = FakeTranslator()
        self.batcher = Batcher(self.translator, 4, self.limits.queue)
        self.log: list[str] = []
        self.application = Application(
            DIRECTIONS, self.batcher, self.limits, self.log.append, origins
        )

    def ask(self, method, path, body=b"", content_type=JSON, **changes):
        """Returns the status, the headers and the content of the answer."""
        return asyncio.run(self.asked(method, path, body, content_type, **changes))

    async def asked(self, method, path, body=b"", content_type=JSON, messages=(), headers=()):
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
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
        start, end = sent
        answer_headers = {name.decode(): value.decode() for name, value in start["headers"]}
        # A client that has gone and a browser that asks what a page may do need no JSON.
        content = None
        if start["status"] != 499 and not headers[1:]:
            assert answer_headers["content-type"] == "application/json"
            content = json.loads(end["body"])
        assert int(answer_headers["content-length"]) == len(end["body"])
        return start["status"], answer_headers, content

    def translate(self, **fields):
        status, _, content = self.ask("POST", "/translate", json.dumps(fields).encode())
        return status, content


@pytest.fixture
def client():
    client = Client()
    yield client
    client.translator.gate.set()
    assert client.batcher.is_idle(20)


def test_a_text_and_a_list_are_translated(client):
    assert client.translate(q="un", source="fr", target="en") == (200, {"translatedText": "UN>en"})
    assert client.translate(q=["un", "à\n\ndeux"], source="FR", target="de") == (
        200,
        {"translatedText": ["UN>de", "À>de\n\nDEUX>de"]},
    )
    client.translator.confidence = 0.5
    answer = {"translatedText": "A>en\nB>en", "confidence": [0.5, 0.5]}
    assert client.translate(q="a\nb", source="fr", target="en") == (200, answer)
    assert client.translate(q=[], source="fr", target="en") == (200, {"translatedText": []})
    assert client.translate(q=" ", source="fr", target="en") == (200, {"translatedText": " "})


def test_alternatives_are_those_that_the_server_has(client):
    assert client.translate(q="un", source="fr", target="en", alternatives=3) == (
        200,
        {"translatedText": "UN>en", "alternatives": ["UN>en 2"]},
    )


def test_an_answer_says_what_its_texts_have_lost(client):
    texts = ["a", "lose %s\nb\nlose it"]
    _, both = client.translate(q=texts, source="fr", target="en", alternatives=1)
    assert both["lost"] == [[], ["%s", "%s"]]
    _, one = client.translate(q=texts[1], source="fr", target="en")
    assert one["lost"] == ["%s", "%s"]
    _, nothing = client.translate(q=texts[:1], source="fr", target="en")
    assert "lost" not in nothing


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


def test_a_server_without_the_detector_says_so(monkeypatch, client):
    def missing():
        raise UserError("no package")

    monkeypatch.setattr("gshard_nmt.serving.application.identifier", missing)
    for path in ("/translate", "/detect"):
        body = json.dumps({"q": "un", "source": "auto", "target": "en"}).encode()
        status, _, content = client.ask("POST", path, body)
        assert status == 501
        assert content["error"].startswith("this server does not detect languages")


FRENCH = "Le fichier que vous cherchez est introuvable."
CHINESE = "\u627e\u4e0d\u5230\u6587\u4ef6\uff0c\u8bf7\u91cd\u8bd5\u3002"
ENGLISH = "The file that you are looking for could not be found."


def test_the_source_is_detected(client):
    for text, source in ((FRENCH, "fr"), (CHINESE, "zh-CN")):
        status, content = client.translate(q=[text], source="auto", target="en")
        assert (status, content["translatedText"]) == (200, [f"{text.upper()}>en"])
        (detected,) = content["detectedLanguage"]
        assert detected["language"] == source
        assert 50 < detected["confidence"] <= 100
    # A text in the target language is its own translation.
    status, content = client.translate(q=ENGLISH, source="auto", target="en")
    assert (content["translatedText"], content["detectedLanguage"]["language"]) == (ENGLISH, "en")
    detections = client.ask("POST", "/detect", json.dumps({"q": FRENCH}).encode())[2]
    assert detections[0]["language"] == "fr"
    assert sum(entry["confidence"] for entry in detections) == pytest.approx(100, abs=0.5)


def test_html_keeps_its_tags(client):
    # Mastodon asks like this, with the mentions of people marked as no language.
    asked = f'<p>{FRENCH} <span translate="no">@<b>le</b></span><br>A &amp; b</p>'
    _, content = client.translate(q=[asked], source="auto", target="en", format="html")
    assert content["translatedText"] == [
        f'<p>{FRENCH.upper()}&gt;en <span translate="no">@<b>le</b></span><br>A &amp; B&gt;en</p>'
    ]
    assert content["detectedLanguage"][0]["language"] == "fr"


def test_query_arguments_are_fields(client):
    status, _, content = client.ask(
        "POST", "/translate?q=d%C3%A9j%C3%A0+vu&source=fr&target=en", b"", ""
    )
    assert (status, content) == (200, {"translatedText": "DÉJÀ VU>en"})


@pytest.mark.parametrize(
    ("method", "path", "status", "start"),
    [
        ("GET", "/translate/", 404, "there is no such address"),
        ("GET", "/", 404, "there is no such address. There are: /translate"),
        ("GET", "/../etc/passwd", 404, "there is no such address"),
        ("POST", "/translate_file", 404, "there is no such address"),
        ("GET", "/translate", 405, "Method Not Allowed"),
        ("POST", "/translate", 400, "Invalid request: missing q parameter"),
    ],
)
def test_what_the_server_does_not_do_is_an_error_in_json(client, method, path, status, start):
    answered, headers, content = client.ask(method, path)
    assert answered == status
    assert content["error"].startswith(start)
    assert headers.get("allow") == ("POST" if status == 405 else None)


def test_the_server_tells_its_languages_and_health(client):
    languages = client.ask("GET", "/languages")[2]
    assert {"code": "fr", "name": "French", "targets": ["de", "en"]} in languages
    assert client.ask("GET", "/health")[2] == {"status": "ok"}


def test_only_pages_of_named_origins_may_use_the_server():
    page = "https://example.org"
    origin = (b"origin", page.encode())
    preflight = [origin, (b"access-control-request-method", b"POST")]
    for origins, status, allowed in (([], 403, None), ([page], 200, page), (["*"], 200, "*")):
        client = Client(origins=origins)
        answered, headers, _ = client.ask("GET", "/health", headers=[origin])
        assert (answered, headers.get("access-control-allow-origin")) == (status, allowed)
        assert client.ask("GET", "/health")[0] == 200
        if origins:
            body = json.dumps({"q": "un", "source": "fr", "target": "en"}).encode()
            _, headers, content = client.ask("POST", "/translate", body, headers=[origin])
            assert (headers["access-control-allow-origin"], content) == (
                *(allowed, {"translatedText": "UN>en"}),
            )
            assert [
                client.ask("OPTIONS", "/translate", headers=asked)[0]
                for asked in (preflight, [(b"origin", b"https://example.com"), *preflight[1:]])
            ] == [200, 200 if allowed == "*" else 403]


def test_a_body_that_is_too_large_is_refused(client):
    limit = client.limits.body_bytes
    chunk = {"type": "http.request", "body": b"x" * limit, "more_body": True}
    status, _, content = client.ask("POST", "/translate", messages=[chunk, chunk, None])
    assert (status, content) == (
        413,
        {"error": f"the body has more than {limit} bytes. Send less text."},
    )


def test_a_body_that_comes_too_slowly_is_refused():
    status, _, content = Client(body_seconds=0.01).ask("POST", "/translate", messages=[None])
    assert status == 408
    assert content["error"] == "the body took more than 0.01 s. Send it faster."


def test_a_translation_that_takes_too_long_is_given_up():
    client = Client(seconds=0.05)
    client.translator.gate.clear()
    status, content = client.translate(q="un", source="fr", target="en")
    assert status == 504
    assert content["error"].startswith("the translation took more than 0.05 s.")
    assert client.batcher.unfinished == []
    client.translator.gate.set()


def test_a_client_that_goes_away_takes_its_lines_with_it(client):
    client.translator.gate.clear()
    body = json.dumps({"q": "un", "source": "fr", "target": "en"}).encode()
    request = {"type": "http.request", "body": body, "more_body": False}
    gone = {"type": "http.disconnect"}
    assert client.ask("POST", "/translate", messages=[request, gone])[0] == 499
    assert client.batcher.unfinished == []
    assert client.ask("POST", "/translate", messages=[gone])[0] == 499
    client.translator.gate.set()
    assert [line.split(" ms")[0].rsplit(" ", 1)[0] for line in client.log] == [
        "192.0.2.7 POST /translate 499"
    ] * 2


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


def direction(source, target):
    return direction_of(sorted(DIRECTIONS), source, target, "")


def refusal(source, target):
    with pytest.raises(HTTPException) as caught:
        direction(source, target)
    assert caught.value.status_code == 400
    return caught.value.detail


@pytest.mark.parametrize("code", ["zh-Hans", "zho_Hans", "cmn", "zh"])
def test_a_language_is_found_by_any_of_its_codes(code):
    assert direction(code, "eng") == ("zh-CN", "en", None)
    assert direction("fr_CA", "de-DE") == ("fr", "de", None)


def test_an_unknown_language_is_named_with_the_nearest_known():
    assert refusal("zh-TW", "en") == (
        "zh-TW is not supported: this server translates from de, fr, zh-CN; did you mean 'zh-CN'? "
        "GET /languages lists the directions."
    )
    assert refusal("auto", "enn").startswith(
        "enn is not supported: this server translates to de, en; did you mean 'en'?"
    )
    assert refusal("de", "de").startswith(
        "de is not supported: this server translates from de to en."
    )


def test_every_language_is_listed_with_its_targets():
    assert listed(sorted(DIRECTIONS)) == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},
        {"code": "fr", "name": "French", "targets": ["de", "en"]},
        {"code": "zh-CN", "name": "Chinese (CN)", "targets": ["en"]},
    ]


def test_the_languages_are_ranked_with_their_shares():
    ranked = detect("Die Datei konnte nicht gefunden werden.", ["fr", "de-AT", "de", "nb", "tlh"])
    assert ranked[0][0] == "de-AT"
    assert sorted(language for language, _ in ranked) == ["de-AT", "fr", "nb"]
    assert sum(share for _, share in ranked) == pytest.approx(100, abs=0.2)
    assert detect("x", ["tlh"]) == []
