"""What a request asks: its query arguments and its body, JSON or a form, and the limits on them."""

import dataclasses
import itertools
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import NoReturn

from starlette.exceptions import HTTPException

from gshard_nmt.serving.text_parts import Parts, html_parts, plain_parts

_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_FIELDS = 1000


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits on requests; a request that waits or is being translated is in the queue."""

    characters: int = 20_000  # of all texts of a request together
    texts: int = 100
    queue: int = 64
    seconds: float = 60.0  # from the end of a request to its answer
    body_seconds: float = 30.0  # until a client has sent the body of a request

    @property
    def body_bytes(self) -> int:
        """The most bytes of a body. A character takes up to 12 bytes, in JSON and in forms."""
        return 12 * self.characters + 65_536


@dataclasses.dataclass(frozen=True)
class TranslateRequest:
    """A request to /translate, checked. A client that sends a list of texts expects lists."""

    texts: Sequence[Parts]
    is_list: bool
    source: str
    target: str
    alternatives: int

    def answer(self, nbest: Sequence[Sequence[str]], **of_each: object) -> dict[str, object]:
        """Returns the answer, from the translations of each line; `of_each` are values of each text.

        Translation number n of a text has translation number n of each line. A line that has fewer
        translations gives its best.
        """
        remaining = iter(nbest)
        translations = []
        for lines, translated in self.texts:
            rows = list(itertools.islice(remaining, len(lines)))
            count = min(max(map(len, rows), default=1), 1 + self.alternatives)
            translations.append(
                [translated([row[n if n < len(row) else 0] for row in rows]) for n in range(count)]
            )
        answer: dict[str, list] = {"translatedText": [best for best, *_ in translations]}
        if self.alternatives:
            answer["alternatives"] = [others for _, *others in translations]
        answer |= {name: [value] * len(translations) for name, value in of_each.items()}
        return {name: values if self.is_list else values[0] for name, values in answer.items()}


def read_texts(fields: Mapping[str, object], limits: Limits) -> list[str]:
    """Returns the texts of the field q; refuses it if it is missing, wrong or too large."""
    value = fields.get("q")
    if value is None:
        _refuse("missing q parameter. Send the text as q.")
    texts: list = value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            _refuse("q is not a string or a list of strings. Send text.")
        if "\0" in text or _SURROGATE.search(text):
            _refuse("q has a NUL character or half of a surrogate pair. Remove it.")
    if len(texts) > limits.texts:
        _refuse(f"q has {len(texts)} texts; at most {limits.texts} are allowed. Send fewer.")
    if (characters := sum(map(len, texts))) > (most := limits.characters):
        _refuse(f"q has {characters} characters; at most {most} are allowed. Send less text.")
    return texts


def read_request(fields: Mapping[str, object], limits: Limits) -> TranslateRequest:
    """Returns the request that fields describe, an empty one counting as missing, or refuses it."""
    texts = read_texts(fields, limits)
    languages: dict[str, str] = {}
    for name in ("source", "target"):
        language = fields.get(name) or ""
        if language == "":
            _refuse(f"missing {name} parameter. Send q, source and target.")
        if not isinstance(language, str) or _SURROGATE.search(language):
            _refuse(f"{name} is not a language. Send the code of one, such as fr.")
        languages[name] = language
    parts_of = {"text": plain_parts, "html": html_parts}.get(str(fields.get("format") or "text"))
    if parts_of is None:
        _refuse("format is not supported; it must be text or html. Send one of them.")
    alternatives = str(fields.get("alternatives") or 0)
    if not re.fullmatch("[0-9]{1,4}", alternatives):
        _refuse("alternatives is not a number of translations. Send 0 or more.")
    parts, is_list = [parts_of(text) for text in texts], isinstance(fields["q"], list)
    return TranslateRequest(parts, is_list, alternatives=int(alternatives), **languages)


def read_fields(query: bytes, content_type: str, body: bytes) -> dict[str, object]:
    """Returns the fields of a request: the query arguments, and then those of the body.

    A query argument, or a field of a form, that is there twice is a list. It refuses a body that is
    neither a JSON object nor a form, and what is not UTF-8.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    is_form = media_type == "application/x-www-form-urlencoded"
    try:
        fields = _pairs(query)
        if not body:
            return fields
        # curl -d calls JSON a form unless it is told otherwise.
        if media_type == "application/json" or (is_form and body.lstrip()[:1] == b"{"):
            value = json.loads(body.decode("utf-8-sig"))
            if not isinstance(value, dict):
                _refuse("the body is not a JSON object. Send one.")
            return fields | value
        if is_form:
            return fields | _pairs(body)
    except UnicodeDecodeError:
        _refuse("the body or the query is not UTF-8. Send UTF-8.")
    except json.JSONDecodeError as error:
        _refuse(f"the body is not JSON (line {error.lineno}, column {error.colno}). Correct it.")
    except (ValueError, RecursionError):
        _refuse("the body has too many fields, digits or levels. Send q, source and target.")
    types = "application/json or application/x-www-form-urlencoded"
    raise HTTPException(415, f"Content-Type must be {types}. Send the fields in such a body.")


def _pairs(encoded: bytes) -> dict[str, object]:
    values = urllib.parse.parse_qs(
        encoded.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
    )
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in values.items()}


def _refuse(problem: str) -> NoReturn:
    raise HTTPException(400, f"Invalid request: {problem}")
