"""The lines of a text or an HTML document, and the same text with their translations."""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lxml import etree
from starlette.exceptions import HTTPException

Parts = tuple[list[str], Callable[[Sequence[str]], str]]
"""The lines of a text, and the function that returns the text with their translations."""

_LINE_BREAK = re.compile(r"(\r\n|\r|\n)")
_SPACES = re.compile("[ \t\r\n\f]+")
_CONTROLS = re.compile("[\0-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_IS_PAGE = re.compile(r"\s*<(?:!doctype|html)\b", re.IGNORECASE)
# libxml2 drops everything after these tags. Without them, a page still ends at its end.
_END_OF_PAGE = re.compile("</(?:body|html)>", re.IGNORECASE)
_NOT_LANGUAGE = frozenset(["code", "kbd", "pre", "samp", "script", "style", "textarea", "var"])
"""The elements whose text is not translated, like that of elements with translate="no"."""


def plain_parts(text: str) -> Parts:
    """Returns the parts of a text: its lines but the blank ones. Line breaks and blank lines stay."""
    pieces = _LINE_BREAK.split(text)

    def translated(lines: Sequence[str]) -> str:
        remaining = iter(lines)
        return "".join(next(remaining) if piece.strip() else piece for piece in pieces)

    return [piece for piece in pieces if piece.strip()], translated


def html_parts(text: str) -> Parts:
    """Returns the parts of a page or a part of one: its text nodes with a letter. All other nodes stay.

    We parse with libxml2: the standard library's parser takes time in the square of the text's length.

    Raises:
      HTTPException: the text has no element, or is nested too deeply.
    """
    text = _END_OF_PAGE.sub("", _CONTROLS.sub("", text))
    is_page, has_doctype = bool(_IS_PAGE.match(text)), text.lstrip().startswith("<!")
    parser = etree.HTMLParser(huge_tree=True)
    root = etree.fromstring(text if is_page else f"<body>{text}", parser)
    if root is None:
        raise HTTPException(400, "Invalid request: q is HTML without an element. Correct it.")
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
        problem = "the elements of q are nested too deeply. Send less."
        raise HTTPException(400, f"Invalid request: {problem}")
    nodes = [(*node, str(getattr(*node))) for node in _text_nodes(root)]

    def translated(lines: Sequence[str]) -> str:
        for (element, place, old), line in zip(nodes, lines, strict=True):
            before, after = old[: len(old) - len(old.lstrip())], old[len(old.rstrip()) :]
            setattr(element, place, before + _CONTROLS.sub("", line) + after)
        if is_page:
            return _html(root.getroottree() if has_doctype else root)
        return "".join(
            html.escape(body.text or "", quote=False) + "".join(map(_html, body))
            for body in root.iterchildren("body")
        )

    return [_SPACES.sub(" ", old.strip()) for *_, old in nodes], translated


def _html(node: Any) -> str:
    return etree.tostring(node, method="html", encoding="unicode")


def _text_nodes(root: Any) -> Iterator[tuple[Any, str]]:
    """Yields the text nodes to translate, in order: an element, and "text" or "tail"."""
    kept = set()
    for event, element in etree.iterwalk(root, events=("start", "end", "comment", "pi")):
        parent = element.getparent()
        if event == "start":
            is_marked = element.get("translate", "").lower() == "no"
            if parent in kept or element.tag in _NOT_LANGUAGE or is_marked:
                kept.add(element)
            elif _has_letter(element.text):
                yield element, "text"
        elif parent not in kept and _has_letter(element.tail):
            yield element, "tail"


def _has_letter(text: str | None) -> bool:
    return any(map(str.isalpha, text or ""))
