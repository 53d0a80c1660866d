"""The lines of a text or an HTML document, and the same text with their translations."""

import html
import re
from collections.abc import Iterator, Sequence
from typing import Any

from lxml import etree

from gshard_nmt.serving.batching import Refusal

_LINE_BREAK = re.compile(r"(\r\n|\r|\n)")
_SPACES = re.compile("[ \t\r\n\f]+")
_CONTROLS = re.compile("[\0-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_IS_PAGE = re.compile(r"\s*<(?:!doctype|html)\b", re.IGNORECASE)
_HAS_DOCTYPE = re.compile(r"\s*<!", re.IGNORECASE)
# libxml2 drops everything after these tags. Without them, a page still ends at its end.
_END_OF_PAGE = re.compile("</(?:body|html)>", re.IGNORECASE)
_NOT_LANGUAGE = frozenset(["code", "kbd", "pre", "samp", "script", "style", "textarea", "var"])
"""The elements whose text is not translated, like that of elements with translate="no"."""


class PlainText:
    """A text of lines, without the blank ones. Line breaks and blank lines stay."""

    def __init__(self, text: str) -> None:
        self._parts = _LINE_BREAK.split(text)

    def lines(self) -> list[str]:
        return [part for part in self._parts if part.strip()]

    def translated(self, lines: Sequence[str]) -> str:
        remaining = iter(lines)
        return "".join(next(remaining) if part.strip() else part for part in self._parts)


class HtmlText:
    """A page, or a part of one, whose text nodes with a letter are the lines. All other nodes stay.

    We parse with libxml2: the standard library's parser takes time in the square of the text's length.
    """

    def __init__(self, text: str) -> None:
        """Parses the text; raises Refusal if it is empty or nested too deeply."""
        text = _END_OF_PAGE.sub("", _CONTROLS.sub("", text))
        self._is_page = bool(_IS_PAGE.match(text))
        self._has_doctype = bool(_HAS_DOCTYPE.match(text))
        parser = etree.HTMLParser(huge_tree=True)
        self._root = etree.fromstring(text if self._is_page else f"<body>{text}", parser)
        if self._root is None:
            raise Refusal(400, "Invalid request: q is HTML without an element. Correct it.")
        if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
            raise Refusal(
                400, "Invalid request: the elements of q are nested too deeply. Send less."
            )
        self._nodes = list(_text_nodes(self._root))
        self._texts = [str(getattr(*node)) for node in self._nodes]

    def lines(self) -> list[str]:
        """Returns the text nodes, without the spaces around them."""
        return [_SPACES.sub(" ", text.strip()) for text in self._texts]

    def translated(self, lines: Sequence[str]) -> str:
        for (element, place), text, line in zip(self._nodes, self._texts, lines, strict=True):
            before = text[: len(text) - len(text.lstrip())]
            after = text[len(text.rstrip()) :]
            setattr(element, place, before + _CONTROLS.sub("", line) + after)
        if self._is_page:
            return _html(self._root.getroottree() if self._has_doctype else self._root)
        return "".join(
            html.escape(body.text or "", quote=False) + "".join(map(_html, body))
            for body in self._root.iterchildren("body")
        )


def _html(node: Any) -> str:
    return etree.tostring(node, method="html", encoding="unicode")


def _text_nodes(root: Any) -> Iterator[tuple[Any, str]]:
    """Yields the text nodes to translate, in order: an element, and "text" or "tail"."""
    kept = set()
    for event, element in etree.iterwalk(root, events=("start", "end", "comment", "pi")):
        parent = element.getparent()
        if event == "start":
            if (
                parent in kept
                or element.tag in _NOT_LANGUAGE
                or element.get("translate", "").lower() == "no"
            ):
                kept.add(element)
            elif _has_letter(element.text):
                yield element, "text"
        elif parent not in kept and _has_letter(element.tail):
            yield element, "tail"


def _has_letter(text: str | None) -> bool:
    return any(map(str.isalpha, text or ""))
