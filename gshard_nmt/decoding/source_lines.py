"""The lines to translate and the lines of the output.

The input is read as bytes, so that a byte that is not UTF-8 can be named. The output is text,
tab-separated values, or JSON lines.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import re
import select
import types
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

from gshard_nmt.data.reading import text_lines
from gshard_nmt.data.text.vocabulary import LINE_BREAKS
from gshard_nmt.decoding.confidence import Evidence
from gshard_nmt.errors import UserError

_BLOCK = 1 << 16
_PATIENCE = 50
"""Milliseconds to wait for more lines before the lines that have come are translated."""

INVISIBLE = "\xad\u061c\u180e\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
"""Characters without a shape that no language needs, as ranges of a regular expression: the soft hyphen,
word joiners, marks of direction. They would split a word into pieces that no training text has.
The space of no width stays, as in training: it stands between the words of Khmer."""


def visible(line: str) -> str:
    """Returns a line without its `INVISIBLE` characters."""
    return re.sub(f"[{INVISIBLE}]", "", line)


def copied(line: str) -> str | None:
    """Returns the translation of a line without letters and digits: itself, without spaces at its ends.

    For all other lines it returns None. A model would invent text for punctuation, symbols or emoji.
    """
    if any(unicodedata.category(character)[0] in "LN" for character in line):
        return None
    return re.sub(f"[{LINE_BREAKS}]", " ", line).strip()


class InputChanged(UserError):
    """The input was changed while it was translated, so the finished lines may be of the old text."""


class Survey(NamedTuple):
    """The number of lines of a file, and the SHA-256 of its bytes, decompressed, as hex digits."""

    lines: int
    sha256: str


class SourceLines:
    """The lines of a stream of UTF-8 text; `number` of them have been taken.

    Only newline characters end a line. A carriage return before a newline and a byte order mark at the
    start do not belong to the text. The last line needs no newline.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        """Reads nothing yet. `name` is the name of the stream in messages."""
        self.number = 0
        self._stream, self.name = stream, name
        self._digest = hashlib.sha256()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._begun: list[bytes] = []
        self._ended = False

    @property
    def sha256(self) -> str:
        """The SHA-256 of all bytes that have been read, as hex digits."""
        return self._digest.hexdigest()

    def take(self, count: int) -> list[str]:
        """Returns the next lines, without newlines; [] at the end.

        It waits for the first line, but not for `count` lines: a program that writes lines into a pipe
        and waits for the translations gets them. Raises UserError if the next line is no UTF-8, or too
        long.
        """
        while len(self._waiting) < count and not self._ended:
            is_too_long = sum(map(len, self._begun)) > text_lines.LONGEST_LINE
            if self._waiting and (is_too_long or not self._is_ready()):
                break  # the lines before it can be translated
            if is_too_long:
                raise UserError(
                    f"{self.name}, line {self.number + 1} has more than "
                    f"{text_lines.LONGEST_LINE >> 20} MiB; a line holds one sentence. Break it up."
                )
            self._read()
        lines: list[str] = []
        while self._waiting and len(lines) < count:
            try:
                lines.append(self._text(self._waiting[0]))
            except UserError:
                if lines:
                    break  # the lines before it can be translated; the next call raises the error
                raise
            self._waiting.popleft()
            self.number += 1
        return lines

    def skip(self, count: int) -> None:
        """Takes lines that need no translation."""
        last = self.number + count
        while self.number < last and self.take(min(last - self.number, 1 << 12)):
            pass

    def _read(self) -> None:
        """Waits for bytes and cuts them into lines."""
        block = self._stream.read1(_BLOCK)  # type: ignore[attr-defined]
        self._digest.update(block)
        if not block:
            self._ended = True
            if last := b"".join(self._begun):
                if not self.number and not self._waiting and b"\r" in last.rstrip(b"\r"):
                    raise UserError(
                        f"{self.name} has carriage returns and no newline characters, so it is one "
                        "line; they end the lines of old Macs. Convert it: tr '\\r' '\\n' < OLD > NEW"
                    )
                self._waiting.append(last)
            return
        first, *others = block.split(b"\n")
        self._begun.append(first)
        for line in others:
            self._waiting.append(b"".join(self._begun))
            self._begun = [line]

    def _is_ready(self) -> bool:
        """Returns whether the stream has more bytes, or its end, within a moment."""
        try:
            number = self._stream.fileno()
        except (AttributeError, OSError):  # nobody can wait for the bytes of a decompressor
            return True
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(_PATIENCE))

    def _text(self, line: bytes) -> str:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if self.number == 0 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise UserError(
                    f"{self.name} is UTF-16, not UTF-8. Convert it, for instance with iconv -f UTF-16 "
                    "-t UTF-8."
                ) from None
            raise UserError(
                f"{self.name}, line {self.number + 1}, byte {error.start + 1}: "
                f"0x{line[error.start]:02x} is not UTF-8. Convert the text, for instance with iconv -f "
                "ISO-8859-1 -t UTF-8."
            ) from None
        if self.number == 0:
            text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
        return text.removesuffix("\r").replace("\r", " ")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file to read its bytes, decompressed if its name ends in .gz, .zst, .xz or .bz2."""
    if path.suffix in text_lines.COMPRESSIONS and path.is_file():
        blocks = text_lines.blocks(path)
        yield cast(IO[bytes], types.SimpleNamespace(read1=lambda _: next(blocks, b"")))
    else:
        with path.open("rb") as file:
            yield file


def survey(path: Path, name: str) -> Survey:
    """Reads a regular file before the long work; raises UserError if it is not UTF-8 or damaged."""
    with opened(path) as stream:
        lines = SourceLines(stream, name)
        while lines.take(1 << 12):
            pass
        return Survey(lines.number, lines.sha256)


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A detokenized translation, without a character that ends a line or a column.

    `score` is its log-probability in nats, divided by the length norm. The source was translated in
    `pieces`, several if it was too long. `lost` is what should not have changed, and is not in the text.
    The confidence is None if the run has none.
    """

    text: str
    score: float
    pieces: int = 1
    lost: tuple[str, ...] = ()
    evidence: Evidence | None = dataclasses.field(default=None, compare=False)
    confidence: float | None = None


_SEPARATORS = {n: f"\\u{n:04x}" for n in (0x85, 0x2028, 0x2029)}
"""What some programs take for the end of a line, and JSON need not escape."""


def rendered(form: str, number: int, source: str, translations: Sequence[Hypothesis]) -> str:
    """Returns the output for a line, from its number, itself and its translations, best first.

    The form "text" has the best translation alone, and "tsv" a row for each: number of the line, score,
    text. "jsonl" has a JSON object in one line: "line", "source", "translations", "confidence" of the
    best if the run has it, and "pieces" if the line was split. A translation that has lost something also
    has "lost".
    """
    if form == "text":
        return f"{translations[0].text}\n"
    if form == "tsv":
        return "".join(f"{number}\t{best.score:.4f}\t{best.text}\n" for best in translations)
    record = {
        "line": number,
        "source": source,
        "translations": [
            {"text": best.text, "score": best.score} | ({"lost": best.lost} if best.lost else {})
            for best in translations
        ],
    }
    if translations[0].confidence is not None:
        record["confidence"] = round(translations[0].confidence, 4)
    if translations[0].pieces > 1:
        record["pieces"] = translations[0].pieces
    return json.dumps(record, ensure_ascii=False).translate(_SEPARATORS) + "\n"


def chosen_format(name: str | None, nbest: int, scores: bool) -> str:
    """Returns --format, or "tsv" with scores or --nbest, or "text"; raises UserError if they clash."""
    if name == "text" and (nbest > 1 or scores):
        flag, lacks = "--scores", "no scores, and --scores is given"
        if nbest > 1:
            flag, lacks = "--nbest", f"one translation a line, and --nbest is {nbest}"
        raise UserError(
            f"--format is text, which has {lacks}. Give --format tsv or jsonl, or leave out {flag}."
        )
    return name or ("tsv" if scores or nbest > 1 else "text")
