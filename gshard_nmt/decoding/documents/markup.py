"""Lines with markup: <g1>, </g1> and <x2/> stand for it while a line is translated.

If one of these tags is lost in translation, the translation is not used.
"""

import html
import itertools
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

TAG = r"""<!--.*?-->|<[!?][^>]*>|</?[a-zA-Z](?:"[^"]*"|'[^']*'|[^'"<>])*>|<\d\d:[\d:.]+>|\{\\[^{}]*\}"""
"""A tag, comment or declaration of HTML or XML, <00:01.5> or {\\an8} of subtitles, as a pattern."""
_IS_KEPT = r"""<([\w:]+)\b[^<>]*\b(?:translate=["']?no|mtype=["']protected)\b"""
_TAGS = r"(</?g\d+>|<x\d+/>)"
_ASIDES = ("img", "input", "wbr", "!--", "?", "\\")


class Piece(NamedTuple):
    """A piece of a line: its source, and the text that is `shown` to the model.

    Its kind is "text"; "open" or "close", the ends of an element with a `key`; "atom", which stays, such
    as code; or "aside", an atom that a sentence does without.
    """

    kind: str
    source: str
    shown: str = ""
    key: str = ""


def tagged(text: str, kept: Collection[str]) -> list[Piece]:
    """Returns the pieces of a text in HTML or XML; elements with `kept` names are atoms."""
    whole = rf"<({'|'.join(kept) or '(?!)'})\b[^<>]*(?<!/)>.*?</\1\s*>|{_IS_KEPT}[^<>]*(?<!/)>.*?</\2\s*>"
    pieces, end = [], 0
    for match in re.finditer(f"{whole}|{TAG}", text, re.DOTALL | re.IGNORECASE):
        before, source = text[end : match.start()], match.group()
        pieces.append(Piece("text", before, html.unescape(before)))
        end = match.end()
        name = re.match(r"[<{]/?(!--|\?|\\|[\w:-]*)", source.lower())[1]  # type: ignore[index]
        kind = "close" if source.startswith("</") else "open"
        if match[1] or match[2] or source.endswith("/>"):
            kind = "atom"
        pieces.append(Piece("aside" if name in _ASIDES else kind, source, key=name))
    return [*pieces, Piece("text", text[end:], html.unescape(text[end:]))]


class Line(NamedTuple):
    """The text of some pieces; `marks` has the source of what each tag in it stands for.

    `before` and `after` are the sources of what is left out at its ends.
    """

    text: str
    marks: dict[str, str]
    before: str
    after: str

    def restored(self, translation: str, escape: Callable[[str], str]) -> str | None:
        """Returns the source of a translation; None if it does not have each tag once, in order.

        An element that loses its content is a loss too: a link needs its text. Spaces at its ends go out.
        `escape` writes plain text as the format needs it.
        """
        translation = re.sub(r"\s*(<g\d+>)\s+", r" \1", translation)
        translation = re.sub(r"\s+(</g\d+>)\s*", r"\1 ", translation).strip()
        parts = re.split(_TAGS, translation)
        tags = [part for part in parts if part in self.marks]
        if sorted(tags) != sorted(self.marks):
            return None
        had, has = self._filled(re.split(_TAGS, self.text)), self._filled(parts)
        if has is None or not (had or set()) <= has:
            return None
        return self.before + "".join(self.marks.get(p) or escape(p) for p in parts) + self.after

    def _filled(self, parts: Sequence[str]) -> set[str] | None:
        """Returns the starts of the elements that have content; None if elements do not nest."""
        opened, filled = [""], set()
        for part in parts:
            is_end = part in self.marks and part.startswith("</")
            if is_end and opened.pop() != part.replace("/", ""):
                return None
            if part in self.marks and part.startswith("<g"):
                opened.append(part)
            elif not is_end and part.strip():
                filled.update(opened)
        return filled


def line_of(pieces: Sequence[Piece], unpaired: str = "atom") -> Line | None:
    """Returns the line to translate; None if it has no letter.

    Elements that enclose the whole line, and asides and empty elements at its ends, are left out of it.
    The kind of an end of an element without the other end becomes `unpaired`.
    """
    if not has_letter("".join(piece.shown for piece in pieces)):
        return None
    partners: dict[int, int] = {}
    opened: list[int] = []
    for i, piece in enumerate(pieces):
        same = [n for n, j in enumerate(opened) if pieces[j].key == piece.key]
        if piece.kind == "open":
            opened.append(i)
        elif piece.kind == "close" and same:
            partners |= {i: opened[same[-1]], opened[same[-1]]: i}
            del opened[same[-1] :]
    kinds = [
        unpaired if piece.kind in ("open", "close") and i not in partners else piece.kind
        for i, piece in enumerate(pieces)
    ]

    def is_outside(i: int) -> bool:
        text = pieces[i].shown or pieces[i].source
        return kinds[i] == "aside" or (kinds[i] == "text" and not text.strip())

    inside = [0, *itertools.accumulate(not is_outside(i) for i in range(len(pieces)))]

    def is_empty(i: int) -> bool:
        return kinds[i] == "open" and inside[i + 1] == inside[partners[i]]

    first, last = 0, len(pieces)
    while True:
        if is_outside(first):
            first += 1
        elif is_empty(first):
            first = partners[first] + 1
        elif is_outside(last - 1):
            last -= 1
        elif kinds[last - 1] == "close" and is_empty(partners[last - 1]):
            last = partners[last - 1]
        elif kinds[first] == "open" and partners[first] == last - 1:
            first, last = first + 1, last - 1
        else:
            break
    text, marks = "", {}
    numbers: dict[int, int] = {}
    for i in range(first, last):
        if kinds[i] == "text":
            text += pieces[i].shown or pieces[i].source
            continue
        number = numbers.setdefault(min(i, partners.get(i, i)), len(numbers) + 1)
        tag = {"open": f"<g{number}>", "close": f"</g{number}>"}.get(kinds[i], f"<x{number}/>")
        marks[tag] = pieces[i].source
        text += tag
    sources = [piece.source for piece in pieces]
    lead, trail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    before, after = "".join(sources[:first]) + lead, trail + "".join(sources[last:])
    return Line(" ".join(text.split()), marks, before, after)


def has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))
