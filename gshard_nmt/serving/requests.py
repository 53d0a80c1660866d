"""What a request asks: its query arguments and its body, JSON or a form, and the limits on them."""

import dataclasses
import functools
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import NoReturn

from gshard_nmt.serving.batching import Refusal
from gshard_nmt.serving.text_parts import HtmlText, PlainText

_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_FIELDS = 1000


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits on requests.

    Attributes:
      characters, texts: the most characters of all texts of a request together, and the most texts.
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
      is_html: whether the texts are HTML.
    """

    texts: Sequence[str]
    is_list: bool
    source: str
    target: str
    alternatives: int = 0
    is_html: bool = False

    @functools.cached_property
    def _parts(self) -> list[HtmlText | PlainText]:
        return [HtmlText(text) if self.is_html else PlainText(text) for text in self.texts]

    def lines(self) -> list[str]:
        """Returns the lines of all texts, in order; raises Refusal if one should be HTML and is not."""
        return [line for parts in self._parts for line in parts.lines()]

    def translated(self, nbest: Sequence[Sequence[str]]) -> dict[str, object]:
        """Returns the answer to the request.

        Translation number n of a text has translation number n of each line. A line that has fewer
        translations gives its best.

        Args:
          nbest: for each line of `lines()` its translations, best first.
        """
        remaining = iter(nbest)
        best: list[object] = []
        others: list[object] = []
        for parts in self._parts:
            lines = [next(remaining) for _ in parts.lines()]
            count = max(map(len, lines), default=1)
            versions = [
                parts.translated([line[n if n < len(line) else 0] for line in lines])
                for n in range(min(count, 1 + self.alternatives))
            ]
            best.append(versions[0])
            others.append(versions[1:])
        answer: dict[str, object] = {"translatedText": best if self.is_list else best[0]}
        if self.alternatives:
            answer["alternatives"] = others if self.is_list else others[0]
        return answer


def read_texts(fields: Mapping[str, object], limits: Limits) -> list[str]:
    """Returns the texts of the field q; raises Refusal if it is missing, wrong or too large."""
    value = fields.get("q")
    if value is None:
        _refuse("missing q parameter. Send the text as q.")
    texts = [_text(text) for text in (value if isinstance(value, list) else [value])]
    if len(texts) > limits.texts:
        _refuse(f"q has {len(texts)} texts; at most {limits.texts} are allowed. Send fewer.")
    characters = sum(map(len, texts))
    if characters > limits.characters:
        _refuse(
            f"q has {characters} characters; at most {limits.characters} are allowed. Send less text."
        )
    return texts


def read_request(fields: Mapping[str, object], limits: Limits) -> TranslateRequest:
    """Returns the request that fields describe, an empty one counting as missing, or raises Refusal."""
    texts = read_texts(fields, limits)
    source, target = (_language(fields, name) for name in ("source", "target"))
    text_format = fields.get("format") or "text"
    if text_format not in ("text", "html"):
        _refuse("format is not supported; it must be text or html. Send one of them.")
    alternatives = fields.get("alternatives") or 0
    if isinstance(alternatives, str) and re.fullmatch("[0-9]{1,4}", alternatives):
        alternatives = int(alternatives)
    if not isinstance(alternatives, int) or isinstance(alternatives, bool) or alternatives < 0:
        _refuse("alternatives is not a number of translations. Send 0 or more.")
    is_list, is_html = isinstance(fields["q"], list), text_format == "html"
    return TranslateRequest(texts, is_list, source, target, alternatives, is_html)


def _text(value: object) -> str:
    if not isinstance(value, str):
        _refuse("q is not a string or a list of strings. Send text.")
    if "\0" in value or _SURROGATE.search(value):
        _refuse("q has a NUL character or half of a surrogate pair, which is not text. Remove it.")
    return value


def _language(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name) or ""
    if value == "":
        _refuse(f"missing {name} parameter. Send q, source and target.")
    if not isinstance(value, str) or _SURROGATE.search(value):
        _refuse(f"{name} is not a language. Send the code of one, such as fr.")
    return value


def read_fields(query: bytes, content_type: str, body: bytes) -> dict[str, object]:
    """Returns the fields of a request: the query arguments, and then those of the body.

    A query argument, or a field of a form, that is there twice is a list.

    Raises:
      Refusal: the body is neither a JSON object nor a form, or something is not UTF-8.
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
    raise Refusal(
        415,
        "Content-Type must be application/json or application/x-www-form-urlencoded. Send the fields in "
        "a body of one of these types.",
    )


def _pairs(encoded: bytes) -> dict[str, object]:
    values = urllib.parse.parse_qs(
        encoded.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
    )
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in values.items()}


def _refuse(problem: str) -> NoReturn:
    raise Refusal(400, f"Invalid request: {problem}")
