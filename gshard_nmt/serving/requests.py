"""What a request asks: its query arguments and its body, JSON or a form, and the lines of its texts."""

import dataclasses
import functools
import html
import itertools
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from lxml import etree
from starlette.exceptions import HTTPException

from gshard_nmt.data.text import protection

Parts = tuple[list[str], Callable[[Sequence[str]], str]]
"""The lines of a text, and the function that returns the text with their translations."""

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

    def answer(
        self,
        nbest: Sequence[Sequence[str]],
        lost: Sequence[Sequence[str]] = (),
        sure: Sequence[float | None] = (),
        **of_each: object,
    ) -> dict[str, object]:
        """Returns the answer, from the translations of each line; `of_each` are values of each text.

        `lost` is what the best translation of each line lacks, and `sure` the confidence of each line.

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
        if any(lost):
            each = iter(lost)
            answer["lost"] = [
                [value for values in itertools.islice(each, len(lines)) for value in values]
                for lines, _ in self.texts
            ]
        if sure and None not in sure:
            numbers = (round(number, 4) for number in sure if number is not None)
            answer["confidence"] = [list(itertools.islice(numbers, len(t))) for t, _ in self.texts]
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


def read_request(
    fields: Mapping[str, object], limits: Limits, keeps_tags: bool = False
) -> TranslateRequest:
    """Returns the request that fields describe, an empty one counting as missing, or refuses it.

    `keeps_tags` says whether the translator keeps tags in a line.
    """
    texts = read_texts(fields, limits)
    languages: dict[str, str] = {}
    for name in ("source", "target"):
        language = fields.get(name) or ""
        if language == "":
            _refuse(f"missing {name} parameter. Send q, source and target.")
        if not isinstance(language, str) or _SURROGATE.search(language):
            _refuse(f"{name} is not a language. Send the code of one, such as fr.")
        languages[name] = language
    read_html = functools.partial(html_parts, keeps_tags=keeps_tags)
    readers: dict[str, Callable[[str], Parts]] = {"text": plain_parts, "html": read_html}
    parts_of = readers.get(str(fields.get("format") or "text"))
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
    # curl -d calls JSON a form unless it is told otherwise.
    is_json = media_type == "application/json" or (is_form and body.lstrip()[:1] == b"{")
    if body and not (is_form or is_json):
        types = "application/json or application/x-www-form-urlencoded"
        raise HTTPException(415, f"Content-Type must be {types}. Send the fields in such a body.")
    try:
        fields = _pairs(query)
        if not body:
            return fields
        value: Any = json.loads(body.decode("utf-8-sig")) if is_json else _pairs(body)
    except (ValueError, RecursionError) as error:
        _refuse(f"the body or the query cannot be read ({error}). Send JSON or a form in UTF-8.")
    if not isinstance(value, dict):
        _refuse("the body is not a JSON object. Send one.")
    return fields | value


def _pairs(encoded: bytes) -> dict[str, object]:
    values = urllib.parse.parse_qs(
        encoded.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
    )
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in values.items()}


def _refuse(problem: str) -> NoReturn:
    raise HTTPException(400, f"Invalid request: {problem}")


_LINE_BREAK = re.compile(r"(\r\n|\r|\n)")
_SPACES = re.compile("[ \t\r\n\f]+")
_CONTROLS = re.compile("[\0-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_DECLARATION = re.compile(r"[\s\ufeff]*(?:<\?xml\b[^<>]*>\s*)*")
_IS_PAGE = re.compile(
    r"(?:\s|<!--(?:(?!-->).)*-->|<\?[^<>]*>)*+<(?:!doctype|html)\b", re.IGNORECASE | re.DOTALL
)
_IS_BODY = re.compile(_IS_PAGE.pattern.replace("!doctype|html", "head|body"), _IS_PAGE.flags)
# libxml2 drops everything after these tags. Without them, a page still ends at its end. In comments and
# scripts they are text, which group 1 keeps.
_END_OF_PAGE = re.compile(
    r"(<!--(?!-?>)(?:(?!-->).)*+|<(script|style|textarea)\b(?:(?!</\2\b).)*+)|</(?:body|html)\s*>",
    re.IGNORECASE | re.DOTALL,
)
_INLINE = "a abbr b big cite del em font i ins mark q s small span strong sub sup u"
"""The elements that may be inside a sentence."""
_MOST_TAGS = 8
"""The most tags and entities of such a sentence. A line has room for nine values."""
_NOT_LANGUAGE = frozenset(["code", "kbd", "pre", "samp", "script", "style", "textarea", "var"])
"""The elements whose text is not translated, like that of elements with translate="no"."""


def plain_parts(text: str) -> Parts:
    """Returns the parts of a text: its lines but the blank ones. Line breaks and blank lines stay."""
    pieces = _LINE_BREAK.split(text)

    def translated(lines: Sequence[str]) -> str:
        remaining = iter(lines)
        return "".join(next(remaining) if piece.strip() else piece for piece in pieces)

    return [piece for piece in pieces if piece.strip()], translated


def html_parts(text: str, keeps_tags: bool = False) -> Parts:
    """Returns the parts of a page or a part of one: its text nodes with a letter. All other nodes stay.

    If the translator `keeps_tags`, text with a few inline elements is one part, as HTML. We parse with
    libxml2: the standard library's parser takes time in the square of the text's length. It refuses a
    text without an element, or one that is nested too deeply.
    """
    text = _END_OF_PAGE.sub(r"\1", _clean(text))
    head = _DECLARATION.match(text)[0]  # type: ignore[index]
    text = text.removeprefix(head)
    is_page = bool(_IS_PAGE.match(text))
    parser = etree.HTMLParser(huge_tree=True, default_doctype=False)
    is_body = bool(_IS_BODY.match(text))
    has_body = is_body and bool(re.search(r"<body\b", text, re.IGNORECASE))
    root = etree.fromstring(text if is_page or is_body else f"<body>{text}", parser)
    if root is None:
        _refuse("q is HTML without an element. Correct it.")
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
        _refuse("the elements of q are nested too deeply. Send less.")
    nodes = []
    for e, place in _text_nodes(root, keeps_tags):
        own = (_inner(e), _elements(e)) if place == "inner" else (str(getattr(e, place)), [])
        nodes.append((e, place, *own))

    def translated(lines: Sequence[str]) -> str:
        for (element, place, old, inside), line in zip(nodes, lines, strict=True):
            before, after = old[: len(old) - len(old.lstrip())], old[len(old.rstrip()) :]
            new = _clean(before + line + after)
            if place == "inner":
                body = etree.fromstring(f"<body>{new}", etree.HTMLParser())[0]
                # A model may write any text, but no element that was not there.
                if _elements(body) == inside:
                    element[:], element.text = body[:], body.text
                else:
                    element[:], element.text = [], "".join(body.itertext())
            else:
                setattr(element, place, new)
        comments = "".join(map(_html, [*root.itersiblings(preceding=True)][::-1]))
        if is_page:
            doctype = root.getroottree().docinfo.doctype
            return "".join([head, doctype and f"{doctype}\n", comments, _html(root)])
        # What follows the end of the body is beside it.
        written = (
            _html(e) if has_body or e.tag != "body" else _inner(e) + (e.tail or "") for e in root
        )
        return "".join([head, comments, *written])

    return [_SPACES.sub(" ", old.strip()) for _, _, old, _ in nodes], translated


def _clean(text: str) -> str:
    """Returns the text without characters that XML does not have."""
    return _CONTROLS.sub("", text.replace("\f", " "))


def _html(node: Any) -> str:
    return etree.tostring(node, method="html", encoding="unicode")


def _inner(element: Any) -> str:
    return html.escape(element.text or "", quote=False) + "".join(map(_html, element))


def _elements(parent: Any) -> list[tuple[str, list[tuple[str, str]]]]:
    return sorted((str(e.tag), sorted(e.attrib.items())) for e in parent.iterdescendants())


def _is_sentence(element: Any) -> bool:
    """Returns whether an element has text with a few inline elements in it, and no others."""
    inside = list(itertools.islice(element.iterdescendants(), _MOST_TAGS // 2 + 1))
    return (
        0 < len(inside) <= _MOST_TAGS // 2  # first, so that the time does not grow with the square
        and all(e.tag in _INLINE.split() and not e.get("translate") for e in inside)
        and any(map(_has_letter, (element.text, *(child.tail for child in element))))
        and len(protection.spans(_inner(element))) <= protection.MOST
    )


def _text_nodes(root: Any, keeps_tags: bool) -> Iterator[tuple[Any, str]]:
    """Yields the text nodes to translate, in order: an element, and "text" or "tail".

    If the translator `keeps_tags`, "inner" stands for all that is in an element.
    """
    kept = set()
    for event, element in etree.iterwalk(root, events=("start", "end", "comment", "pi")):
        parent = element.getparent()
        if event == "start":
            is_marked = element.get("translate", "").lower() == "no"
            if parent in kept or element.tag in _NOT_LANGUAGE or is_marked:
                kept.add(element)
            elif keeps_tags and _is_sentence(element):
                kept.add(element)
                yield element, "inner"
            elif _has_letter(element.text):
                yield element, "text"
        elif parent not in kept and _has_letter(element.tail):
            yield element, "tail"


def _has_letter(text: str | None) -> bool:
    return any(map(str.isalpha, text or ""))
