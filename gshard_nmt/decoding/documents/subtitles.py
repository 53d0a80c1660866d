"""Subtitles, .srt and .vtt: the text of each cue is translated, its number and times stay."""

import html
import re
import textwrap
from pathlib import Path

from gshard_nmt.decoding.documents.document import Document, Part, part_of
from gshard_nmt.decoding.documents.markup import line_of, tagged

_CUE = re.compile(
    r"(?m)(^[^\n]*-->[^\n]*\n)"
    r"((?:(?!(?:[^\S\n]*\d+[^\S\n]*\n)?[^\S\n]*[\d:.,]+[^\S\n]*-->)[^\S\n]*\S[^\n]*(?:\n|\Z))+)"
)
"""The line with the times, and the lines of text up to a blank line or to the next cue."""


def read(path: Path, _target: str, _everything: bool) -> Document:
    """Returns the cues of subtitles.

    The lines of a cue are one sentence, broken again into lines of about the same length. If each
    begins with a dash, they are of several speakers, and each is translated alone.
    """
    pieces = _CUE.split(re.sub(r"\r(?!\n)", "\n", path.read_bytes().decode()))
    rows = [_rows(text) for text in pieces[2::3]]
    parts = [part for own in rows for i in range(len(own)) for part in _part(own, i)]

    def saved() -> bytes:
        pieces[2::3] = map("".join, rows)
        return "".join(pieces).encode()

    return Document(parts, saved)


def _rows(text: str) -> list[str]:
    """Returns the text of each speaker of a cue, with its line breaks."""
    lines = text.splitlines(keepends=True)
    return lines if all(re.match(r"\s*[-–—]", line) for line in lines) else [text]


def _part(rows: list[str], place: int) -> list[Part]:
    old = rows[place]

    def escape(text: str) -> str:
        return html.escape(text, quote=False) if html.unescape(old) != old else text

    def put(new: str) -> None:
        ending = "\r\n" if "\r\n" in old else "\n"
        widest = max(map(len, old.splitlines()))
        new = re.sub("<[^<>]*>", lambda tag: tag[0].replace(" ", "\0"), new)
        broken = textwrap.wrap(new, max(widest, 32), break_long_words=False, break_on_hyphens=False)
        rows[place] = ending.join(broken).replace("\0", " ") + old[len(old.rstrip()) :]

    return part_of(line_of(tagged(old, ())), escape, put)
