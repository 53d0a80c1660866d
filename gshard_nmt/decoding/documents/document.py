"""A document to translate: its lines, and the functions that fill in their translations."""

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gshard_nmt.data.reading.text_lines import without_compression
from gshard_nmt.decoding.documents.markup import Line
from gshard_nmt.errors import UserError

_WITH_TARGETS = {".po": "catalogue", ".pot": "catalogue", ".xlf": "xliff", ".xliff": "xliff"}
_MODULES = {
    **_WITH_TARGETS,
    **dict.fromkeys((".srt", ".vtt"), "subtitles"),
    **dict.fromkeys((".html", ".htm"), "web_page"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
}
"""The module of each kind of document. It is imported when it is needed."""


class Part(NamedTuple):
    """Some lines of a document that are translated together.

    `fill` puts their translations into the document. It returns False if it cannot, because markup or
    placeholders are lost; then this part stays as it was.
    """

    lines: Sequence[str]
    fill: Callable[[Sequence[str]], bool]


def part_of(
    line: Line | None, escape: Callable[[str], str], put: Callable[[str], None]
) -> list[Part]:
    """Returns the part of a line with markup, if there is a line. `put` takes the new source of the line.

    `escape` is as in `Line.restored`.
    """
    if line is None:
        return []

    def fill(translations: Sequence[str]) -> bool:
        new = line.restored(translations[0], escape)
        if new is not None:
            put(new)
        return new is not None

    return [Part([line.text], fill)]


class Document(NamedTuple):
    """The parts of a document to translate, and the function that returns its bytes."""

    parts: Sequence[Part]
    saved: Callable[[], bytes]

    @property
    def lines(self) -> list[str]:
        return [line for part in self.parts for line in part.lines]

    def filled(self, translations: Sequence[str]) -> bytes:
        """Returns the document with translations of its lines. stderr says how many parts stay."""
        remaining = iter(translations)
        stayed = []
        for part in self.parts:
            own = [next(remaining) for _ in part.lines]
            if not all(own) or not part.fill(own):
                stayed.append(part.lines[0])
        text = f"{len(self.parts) - len(stayed):,} of {len(self.parts):,} parts are translated"
        if stayed:
            text += (
                ". The others stay as they were, because their translations are empty or have lost "
                f"markup or placeholders (--protect on keeps most); the first is {stayed[0][:80]!r}"
            )
        sys.stderr.write(f"{text}\n")
        return self.saved()


def note_language(path: Path, language: str, target: str) -> None:
    """Says on stderr if a document is for another language than that of the translations."""
    if language and re.split("[-_@]", language)[0].lower() != target.split("-")[0].lower():
        sys.stderr.write(f"{path} is for translations to {language!r}, and these are to {target}\n")


def is_document(path: Path) -> bool:
    """Returns whether a file is a document; raises UserError if it is a compressed one."""
    plain = Path(without_compression(path.name))
    if plain.name != path.name and plain.suffix.lower() in _MODULES:
        raise UserError(f"--input {path} is a compressed document. Decompress it first.")
    return path.suffix.lower() in _MODULES and path.is_file()


def read(path: Path, target: str, everything: bool) -> Document:
    """Returns a document that is to be translated to a language, a BCP 47 tag.

    With `everything`, what has a translation already is translated too. Raises UserError if the document
    is damaged or not UTF-8, or `everything` has no effect on it.
    """
    kind = path.suffix.lower()
    if everything and kind not in _WITH_TARGETS:
        raise UserError(
            f"--retranslate has no effect on {path}, all of whose text is translated; it is for "
            f"{', '.join(_WITH_TARGETS)}. Leave it out."
        )
    module = importlib.import_module(f"gshard_nmt.decoding.documents.{_MODULES[kind]}")
    try:
        return module.read(path, target, everything)
    except UnicodeDecodeError as error:
        raise UserError(
            f"--input {path}, byte {error.start + 1}: it is not {error.encoding}. Convert it, for "
            "instance with iconv -f ISO-8859-1 -t UTF-8."
        ) from None
    except (ValueError, ArithmeticError) as error:  # a plural rule may divide by 0
        raise UserError(f"--input {path} cannot be read: {error}. Correct it.") from None
