"""The body of a request to /translate: JSON or a form, and the limits on what it may hold."""

import dataclasses
import email.parser
import email.policy
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import NoReturn

from gshard_nmt.serving.refusal import Refusal

_LINE_BREAK = re.compile(r"(\r\n|\r|\n)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_FIELDS = 1000


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits on requests.

    Attributes:
      characters: the most characters of all texts of a request together.
      texts: the most texts in a request.
      queue: the most requests that wait or are being translated.
      seconds: the longest time from the end of a request to its answer.
      body_seconds: the longest time that a client may take to send the body of a request.
    """

    characters: int = 20_000
    texts: int = 100
    queue: int = 64
    seconds: float = 60.0
    body_seconds: float = 30.0

    @property
    def body_bytes(self) -> int:
        """The most bytes of a body. A character takes up to 12 bytes, in JSON and in forms."""
        return 12 * self.characters + 65_536


@dataclasses.dataclass(frozen=True)
class TranslateRequest:
    """A request to /translate, checked.

    Attributes:
      texts: the texts to translate. Each may have several lines.
      is_list: whether the client sent a list of texts, and so expects a list.
      source, target: the languages that the client named.
      alternatives: number of further translations of each text that the client asked for.
    """

    texts: Sequence[str]
    is_list: bool
    source: str
    target: str
    alternatives: int

    def lines(self) -> list[str]:
        """Returns the lines to translate: those of all texts that are not blank, in order."""
        return [line for text in self.texts for line in _lines(text) if line.strip()]

    def translated(self, nbest: Sequence[Sequence[str]]) -> dict[str, object]:
        """Returns the answer to the request.

        Args:
          nbest: for each line of `lines()` its translations, best first.
        """
        remaining = iter(nbest)
        versions = [
            _versions(text, [next(remaining) for line in _lines(text) if line.strip()])
            for text in self.texts
        ]
        best: list[object] = [text[0] for text in versions]
        others: list[object] = [text[1 : 1 + self.alternatives] for text in versions]
        answer = {"translatedText": best if self.is_list else best[0]}
        if self.alternatives:
            answer["alternatives"] = others if self.is_list else others[0]
        return answer


def read_request(content_type: str, body: bytes, limits: Limits) -> TranslateRequest:
    """Returns the request that a body holds.

    Raises:
      Refusal: the body is no JSON object or form, or a field is missing, wrong or too large.
    """
    fields = _fields(content_type, body)
    for name in ("q", "source", "target"):
        if fields.get(name) is None:
            _refuse(f"missing {name} parameter. Send q, source and target.")
    texts = [_text(value) for value in _as_list(fields["q"])]
    if len(texts) > limits.texts:
        _refuse(f"q has {len(texts)} texts; at most {limits.texts} are allowed. Send fewer.")
    characters = sum(map(len, texts))
    if characters > limits.characters:
        _refuse(
            f"q has {characters} characters; at most {limits.characters} are allowed. Send less text."
        )
    source, target = (_language(fields, name) for name in ("source", "target"))
    if fields.get("format", "text") != "text":
        _refuse("format is not supported; it must be text. Remove the markup.")
    return TranslateRequest(
        texts, isinstance(fields["q"], list), source, target, _alternatives(fields)
    )


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _text(value: object) -> str:
    if not isinstance(value, str):
        _refuse("q is not a string or a list of strings. Send text.")
    if "\0" in value or _SURROGATE.search(value):
        _refuse("q has a NUL character or half of a surrogate pair, which is not text. Remove it.")
    return value


def _language(fields: Mapping[str, object], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str) or _SURROGATE.search(value):
        _refuse(f"{name} is not a language. Send the code of one, such as fr.")
    return value


def _alternatives(fields: Mapping[str, object]) -> int:
    value = fields.get("alternatives", 0)
    if isinstance(value, str) and re.fullmatch("[0-9]{1,4}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        _refuse("alternatives is not a number of translations. Send 0 or more.")
    return value


def _fields(content_type: str, body: bytes) -> Mapping[str, object]:
    """Returns the fields of a JSON object or a form. A field that a form has twice is a list."""
    media_type = content_type.partition(";")[0].strip().lower()
    try:
        if media_type == "application/json":
            value = json.loads(body.decode("utf-8-sig"))
            if not isinstance(value, dict):
                _refuse("the body is not a JSON object. Send one.")
            return value
        if media_type == "application/x-www-form-urlencoded":
            values = urllib.parse.parse_qs(
                body.decode(),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MOST_FIELDS,
            )
        elif media_type == "multipart/form-data":
            values = _multipart_fields(content_type, body)
        else:
            raise Refusal(
                415,
                "Content-Type must be application/json, application/x-www-form-urlencoded or "
                "multipart/form-data. Send one of them.",
            )
    except UnicodeDecodeError:
        _refuse("the body is not UTF-8. Send UTF-8.")
    except json.JSONDecodeError as error:
        _refuse(f"the body is not JSON (line {error.lineno}, column {error.colno}). Correct it.")
    except (ValueError, RecursionError):
        _refuse("the body has too many fields, digits or levels. Send q, source and target.")
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in values.items()}


def _multipart_fields(content_type: str, body: bytes) -> dict[str, list[str]]:
    """Returns the fields of a form in parts, as curl -F sends it.

    Raises:
      UnicodeDecodeError: a field is not UTF-8.
      ValueError: there are too many fields.
    """
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1")
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    parts = list(message.iter_parts()) if message.is_multipart() else []
    if len(parts) > _MOST_FIELDS:
        raise ValueError
    fields: dict[str, list[str]] = {}
    for part in parts:
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            fields.setdefault(name, []).append(content.decode())
    return fields


def _refuse(problem: str) -> NoReturn:
    raise Refusal(400, f"Invalid request: {problem}")


def _lines(text: str) -> list[str]:
    """Returns the lines of a text, without line breaks."""
    return _LINE_BREAK.split(text)[::2]


def _versions(text: str, nbest: Sequence[Sequence[str]]) -> list[str]:
    """Returns the translations of a text, best first. Each keeps the text's line breaks.

    Translation number n has translation number n of each line. A line that has fewer translations
    gives its best.

    Args:
      text: the text.
      nbest: for each line that is not blank its translations, best first.
    """
    versions = []
    for n in range(max(map(len, nbest), default=1)):
        remaining = iter(nbest)
        parts = _LINE_BREAK.split(text)
        for i in range(0, len(parts), 2):
            if parts[i].strip():
                line = next(remaining)
                parts[i] = line[n if n < len(line) else 0]
        versions.append("".join(parts))
    return versions
