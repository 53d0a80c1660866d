import json
import urllib.parse

import pytest
from starlette.exceptions import HTTPException

from gshard_nmt.serving.requests import Limits, read_fields, read_request

LIMITS = Limits(characters=20, texts=3)
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
RIGHT = {"q": "un", "source": "fr", "target": "en"}


def read(fields):
    return sent(JSON, json.dumps(fields).encode())


def sent(content_type, body, query=b""):
    return read_request(read_fields(query, content_type, body), LIMITS)


def lines(request):
    return [text for text, _ in request.texts]


def refusal(content_type, body):
    with pytest.raises(HTTPException) as caught:
        sent(content_type, body)
    return caught.value.status_code, caught.value.detail


def test_json_a_form_and_a_query_are_one_request():
    right = RIGHT | {"q": "déjà vu"}
    requests = [
        sent(f"{JSON}; charset=utf-8", json.dumps(right).encode()),
        sent(FORM, urllib.parse.urlencode(right).encode()),
        sent(FORM, json.dumps(right).encode()),
        sent("", b"", urllib.parse.urlencode(right).encode()),
        sent(JSON, json.dumps(right).encode(), b"q=other&source=de"),
    ]
    for request in requests:
        assert (lines(request), request.is_list) == ([["déjà vu"]], False)
        assert (request.source, request.target, request.alternatives) == ("fr", "en", 0)


def test_a_list_is_a_list_in_json_and_in_a_form():
    assert read(RIGHT | {"q": ["a", "b"]}).is_list
    assert lines(read(RIGHT | {"q": []})) == []
    request = sent(FORM, b"q=a&q=b&source=fr&target=en&alternatives=2")
    assert (lines(request), request.is_list, request.alternatives) == ([["a"], ["b"]], True, 2)


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_field_has_its_default(empty):
    assert read(RIGHT | {"format": empty, "alternatives": empty}).alternatives == 0
    for name in ("source", "target"):
        _, message = refusal(JSON, json.dumps(RIGHT | {name: empty}).encode())
        assert message.startswith(f"Invalid request: missing {name} parameter")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"q": None}, "missing q parameter"),
        ({"q": 5}, "q is not a string or a list of strings"),
        ({"q": ["a", None]}, "q is not a string or a list of strings"),
        ({"q": "a\0b"}, "q has a NUL character"),
        ({"q": "\ud800"}, "q has a NUL character or half of a surrogate pair"),
        ({"q": "x" * 21}, "q has 21 characters; at most 20 are allowed"),
        ({"q": ["x" * 7] * 3}, "q has 21 characters"),
        ({"q": ["x"] * 4}, "q has 4 texts; at most 3 are allowed"),
        ({"source": ["fr"]}, "source is not a language"),
        ({"target": "\udfff"}, "target is not a language"),
        ({"format": "pdf"}, "format is not supported; it must be text or html."),
        ({"format": 3}, "format is not supported"),
        ({"alternatives": -1}, "alternatives is not a number"),
        ({"alternatives": True}, "alternatives is not a number"),
        ({"alternatives": "many"}, "alternatives is not a number"),
    ],
)
def test_a_wrong_field_is_named(changes, problem):
    status, message = refusal(JSON, json.dumps(RIGHT | changes).encode())
    assert status == 400
    assert message.startswith(f"Invalid request: {problem}")


@pytest.mark.parametrize(
    ("content_type", "body", "status", "problem"),
    [
        (JSON, b"", 400, "missing q parameter"),
        (JSON, b"{", 400, "the body is not JSON (line 1, column 2)"),
        (JSON, b'{"q": ', 400, "the body is not JSON"),
        (JSON, b"[1]", 400, "the body is not a JSON object"),
        (JSON, b'{"q": "\xff"}', 400, "the body or the query is not UTF-8"),
        (JSON, b'{"q": ' + b"[" * 100_000, 400, "the body has too many fields, digits or levels"),
        (JSON, b'{"q": ' + b"1" * 5_000 + b"}", 400, "the body has too many fields"),
        (FORM, b"q=%ff", 400, "the body or the query is not UTF-8"),
        (FORM, b"q=\xff", 400, "the body or the query is not UTF-8"),
        (FORM, b"q=1&" * 2_000, 400, "the body has too many fields"),
        (FORM, b'{"q": "un"', 400, "the body is not JSON"),
        ("multipart/form-data; boundary=X", b"--X", 415, "Content-Type must be application/json"),
        ("text/plain", b"{}", 415, "Content-Type must be application/json"),
        ("", b"{}", 415, "Content-Type must be application/json"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(content_type, body, status, problem):
    refused_status, message = refusal(content_type, body)
    assert refused_status == status
    assert problem in message


def test_the_largest_text_fits_into_the_largest_body():
    limits = Limits(characters=1000)
    request = RIGHT | {"q": "\N{PARTY POPPER}" * 1000}
    for body in (json.dumps(request), urllib.parse.urlencode(request)):
        assert 12_000 < len(body) < limits.body_bytes


def test_alternatives_are_whole_texts():
    request = read(RIGHT | {"q": ["a\r\n\r\nb\n", " "], "alternatives": 5})
    assert lines(request) == [["a", "b"], []]
    assert request.answer([["A", "A2", "A3"], ["B", "B2"]], extra=7) == {
        "translatedText": ["A\r\n\r\nB\n", " "],
        "alternatives": [["A2\r\n\r\nB2\n", "A3\r\n\r\nB\n"], []],
        "extra": [7, 7],
    }
    single = read(RIGHT | {"alternatives": 1})
    assert single.answer([["A", "A2", "A3"]]) == {"translatedText": "A", "alternatives": ["A2"]}
