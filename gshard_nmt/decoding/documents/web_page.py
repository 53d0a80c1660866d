"""Pages of HTML: sentences are translated with their inline tags. All other characters stay."""

import functools
import html
import re
from collections.abc import Sequence
from pathlib import Path

from gshard_nmt.decoding.documents.document import Document, Part, part_of
from gshard_nmt.decoding.documents.markup import has_letter, line_of, tagged

_INLINE = """a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|input|ins|kbd|label|mark|q
|s|samp|small|span|strike|strong|sub|sup|time|tt|u|var|wbr"""
"""The elements that a sentence may contain. All others end it."""
_KEPT = ("code", "kbd", "samp", "var")
_OPEN_ENDED = re.compile("li|option|r[tp]|d[dt]|t[dhr]|tbody|p")
_ENDS = re.compile(
    r"(li|option|tr|tbody) \1|r[tp] r[tp]|d[dt] d[dt]|t[dh] t[dhr]|t[dhr] tbody|p (p|address|article|"
    r"aside|blockquote|div|dl|fieldset|figure|footer|form|h\d|header|hr|main|nav|ol|section|table|ul)"
)
"""An element without end tag, and the beginning of one that ends it."""
_VOID = ("area", "base", "br", "col", "embed", "hr", "link", "meta", "source", "track")
_BLOCK = re.compile(
    rf"""(<!--.*?-->
    |<(?:(math|noscript|pre|script|style|svg|template|textarea)\b[^>]*(?<!/)>.*?</\2\s*>
    |(?!/?(?:{_INLINE})\b)[!?/a-zA-Z](?:"[^"]*"|'[^']*'|[^'">])*>))""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
"""A comment, a tag that ends a sentence, or an element whose text is not translated."""
_IS_KEPT = re.compile(r"""\btranslate\s*=\s*["']?no\b""", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""(?<=\s)([\w:@.-]+)\s*=\s*("[^"]*"|'[^']*')""")
_LANGUAGE = re.compile(
    r"""(?<=\s)((?:xml:)?lang)\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>{%]+)|"[^"]*"|'[^']*'""",
    re.IGNORECASE,
)
"""An attribute with the language of the page, or any quoted value."""


def read(path: Path, target: str, _everything: bool) -> Document:
    """Returns the sentences of a page, and the attributes alt and title of its elements.

    Code, scripts, styles and elements with translate="no" stay.
    """
    text = path.read_bytes().decode()
    pieces = _BLOCK.split(text)
    parts: list[Part] = []
    kept, depth = "", 0
    for i in range(0, len(pieces), 3):
        if not kept:
            parts += _sentence(pieces, i) + _attributes(pieces, i)
        if i + 1 == len(pieces):
            break
        tag, raw, pieces[i + 2] = *pieces[i + 1 : i + 3], ""
        name = re.split(r"[</>\s]+", tag.lower())[1]
        if raw or tag.startswith("<!"):
            continue
        is_end = tag.startswith("</")
        if _OPEN_ENDED.fullmatch(kept):
            has_end = not _OPEN_ENDED.fullmatch(name) and name not in _VOID and tag[-2] != "/"
            is_last = is_end and (has_end or name == kept)
            if not depth and (is_last or (not is_end and _ENDS.fullmatch(f"{kept} {name}"))):
                kept = ""
            elif has_end:
                depth += -1 if is_end else 1
        elif kept == name:
            depth += -1 if is_end else 1
            kept = kept if depth else ""
        if not kept and not is_end:
            if _IS_KEPT.search(tag) and name not in _VOID:
                kept, depth = name, int(not _OPEN_ENDED.fullmatch(name))
            else:
                parts += _attributes(pieces, i + 1)
        if name == "html":
            pieces[i + 1] = _LANGUAGE.sub(lambda m: f'{m[1]}="{target}"' if m[1] else m[0], tag)
    # A page of ASCII may have any charset, so it gets character references.
    charset = (
        "ascii" if text.isascii() and not re.search("utf-?8", text, re.IGNORECASE) else "utf-8"
    )
    return Document(parts, lambda: "".join(pieces).encode(charset, "xmlcharrefreplace"))


def _sentence(pieces: list[str], place: int) -> list[Part]:
    """Returns the part of a piece with inline tags, if it has a letter."""
    escape = functools.partial(html.escape, quote=False)
    put = functools.partial(pieces.__setitem__, place)
    return part_of(line_of(tagged(pieces[place], _KEPT)), escape, put)


def _attributes(pieces: list[str], place: int) -> list[Part]:
    """Returns the parts of the attributes alt and title of the tags in a piece."""

    def part(source: str, value: str) -> Part:
        def fill(translations: Sequence[str]) -> bool:
            new = source.replace(value, f'"{html.escape(translations[0])}"')
            pieces[place] = pieces[place].replace(source, new)
            return True

        return Part([" ".join(html.unescape(value[1:-1]).split())], fill)

    own = [p for p in tagged(pieces[place], _KEPT) if not _IS_KEPT.search(p.source)]
    own = [p for p in own if p.kind in ("open", "aside") or p.source.endswith("/>")]
    tags = "".join(piece.source for piece in own)
    found = [m for m in _ATTRIBUTE.finditer(tags) if m[1].lower() in ("alt", "title")]
    # With the space before it, so that data-alt="..." stays.
    return [part(tags[m.start() - 1 : m.end()], m[2]) for m in found if has_letter(m[2])]
