"""Translation memories (.tmx, version 1.1 to 1.4), which hold units in two or more languages.

    <tu><tuv xml:lang="fr"><seg>un chat</seg></tuv><tuv xml:lang="EN-US"><seg>a cat</seg></tuv></tu>

The file is read in blocks, so memory does not grow with its size. Entities of its own are refused: a few
lines of them can stand for gigabytes of text.
"""

import xml.parsers.expat
from collections.abc import Iterator
from pathlib import Path

from gshard_nmt.data.language_codes import names_language
from gshard_nmt.data.reading.rows import Input, SentencePair, one_line, score_of
from gshard_nmt.data.reading.text_lines import LONGEST_LINE, blocks
from gshard_nmt.errors import UserError

_MARKUP = frozenset(("bpt", "ept", "ph", "it", "ut"))
"""Elements inside a segment that hold codes of a document's format and no text of the sentence."""


def read_tmx(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of a translation memory in blocks: the units that have both languages.

    The language `en` also takes a text in `EN-US` if the unit has no text in `en`. A property of type
    `score` gives the score.
    """
    (path,) = source.files
    units = _Units(source)
    count = 0
    for block in blocks(path):
        units.feed(block)
        if units.rows:
            yield units.rows
            count += len(units.rows)
            units.rows = []
    units.feed(b"", is_last=True)
    if not count:
        languages = ", ".join(sorted(units.languages)) or "no language"
        raise UserError(
            f"{path} has no unit with text in both {source.source} and {source.target}; it has "
            f"{languages}. Rename its folder after two of these languages."
        )


class _Units:
    """Collects the units of a translation memory while its XML is parsed.

    Attributes:
      rows: the sentence pairs that were completed since the caller emptied the list.
      languages: all languages that occur.
    """

    def __init__(self, source: Input) -> None:
        self.rows: list[SentencePair] = []
        self.languages: set[str] = set()
        self._tags = (source.source, source.target)
        self._path: Path = source.files[0]
        self._texts: dict[str, str] = {}
        self._language = ""
        self._score: str | None = None
        # The text that is being collected: of a segment, or of a property with the score.
        self._text: list[str] | None = None
        self._length = self._markup = 0
        self._parser = xml.parsers.expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.EntityDeclHandler = self._declaration
        self._parser.SkippedEntityHandler = self._unknown_entity

    def feed(self, content: bytes, is_last: bool = False) -> None:
        try:
            self._parser.Parse(content, is_last)
        except (LookupError, ValueError) as error:
            raise UserError(
                f"{self._path}, line 1 names an encoding that cannot be read ({error}). Write the right "
                "one, such as windows-1252, or convert the file to UTF-8."
            ) from None
        except xml.parsers.expat.ExpatError as error:
            reason = xml.parsers.expat.ErrorString(error.code)
            raise UserError(
                f"{self._path}, line {error.lineno} is not well-formed XML in the encoding that the "
                f"first line names ({reason}); mend the line, or export the memory again in UTF-8."
            ) from None

    def _where(self) -> str:
        return f"{self._path}, line {self._parser.CurrentLineNumber}"

    def _start(self, element: str, attributes: dict[str, str]) -> None:
        if element == "tu":
            self._texts, self._score = {}, None
        elif element == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang", "")
        elif element == "seg" or (element == "prop" and attributes.get("type") == "score"):
            self._text, self._length, self._markup = [], 0, 0
        elif element in _MARKUP:
            self._markup += 1

    def _end(self, element: str) -> None:
        if element == "seg" and self._text is not None:
            self._texts.setdefault(self._language, one_line("".join(self._text)))
            self._text = None
        elif element == "prop" and self._text is not None:
            self._score, self._text = "".join(self._text), None
        elif element in _MARKUP:
            self._markup -= 1
        elif element == "tu":
            self.languages.update(self._texts)
            source, target = (self._in(tag) for tag in self._tags)
            if source is not None and target is not None:
                score = score_of(self._score, self._where()) if self._score is not None else None
                self.rows.append(SentencePair(source, target, score))

    def _in(self, tag: str) -> str | None:
        for code, text in self._texts.items():
            if names_language(code, tag):
                return text
        regional = (t for code, t in self._texts.items() if names_language(code, tag, regions=True))
        return next(regional, None)

    def _characters(self, text: str) -> None:
        if self._text is None or self._markup:
            return
        self._text.append(text)
        self._length += len(text)
        if self._length > LONGEST_LINE:
            raise UserError(
                f"{self._where()} is in a segment of more than {LONGEST_LINE >> 20} million characters; "
                "a segment holds one sentence. Export the translation memory again."
            )

    def _declaration(self, name: str, *_: object) -> None:
        raise UserError(
            f"{self._where()} declares the entity {name[:40]!r}; a translation memory must not declare "
            "entities. Export it again without a document type."
        )

    def _unknown_entity(self, name: str, *_: object) -> None:
        raise UserError(
            f"{self._where()} has the entity {name[:40]!r}, which XML does not know; write the character "
            "itself in its place."
        )
