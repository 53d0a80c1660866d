"""Message catalogues (.mo and .po files): their messages, and how `gshard-data harvest` cleans these.

A message is an English text (the msgid) and its translation. In the folder of a language pair the texts
are taken as they are.
"""

import codecs
import collections
import dataclasses
import functools
import gettext
import html
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from gshard_nmt.data.language_codes import names_language
from gshard_nmt.data.reading.rows import Input, SentencePair, listed, note, one_line
from gshard_nmt.data.reading.text_lines import blocks, without_compression
from gshard_nmt.data.text.normal_form import (
    split_at_placeholders,
    without_markup,
    without_placeholders,
)
from gshard_nmt.errors import UserError

_ENGLISH = "en"
_MOST_CHARACTERS = 200

_CONTEXT_END = "\x04"
_PLURAL = "\x00"
_SPACE = re.compile(r"\s+")
# Accelerator marks: `_File`, `&File` and `~File`; Chinese, Japanese and Korean end in `(_F)` or `(&F)`.
_CJK_MARK = re.compile(r"\s*[(（][_&~]?[A-Z0-9][)）](?=\W*$)|\s*[(（][_&~][A-Za-z0-9][)）]")
_LATIN_MARK = re.compile(r"(?<![\w&_~.])[_&~](?=\w)|(?<=[^\W_])[_&](?=[^\W_])")
_IDENTIFIER = re.compile(r"(?<!\w)[a-z]\w*_\w|\w[_&]\w+[_&]\w|__|\w_\w*[(=]|\b[A-Z]&[A-Z]\b")
_LINE_ENDS = dict.fromkeys(map(ord, "\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")
_KEY = re.compile(r"[\w.-]+")
_CODE = re.compile(r"[{}<>=\\|#$@^]")


@dataclasses.dataclass(frozen=True)
class Message:
    """An English text and its translation; `singular` is the English singular of a plural form, or ""."""

    english: str
    translation: str
    singular: str = ""


@dataclasses.dataclass
class Contents:
    """The messages of a catalogue as they are, but without contexts.

    `incomplete` is the English of entries whose plural is on one side only, and `unclear` the number of
    plurals whose forms are not those of the header's rule.
    """

    messages: list[Message] = dataclasses.field(default_factory=list)
    incomplete: list[str] = dataclasses.field(default_factory=list)
    unclear: int = 0


class UnreadableError(ValueError):
    """The file is not a message catalogue, or it is damaged.

    Attributes:
      remedy: what the user can do, as a sentence without its full stop.
    """

    def __init__(self, reason: str, remedy: str = "Copy the file again") -> None:
        super().__init__(reason)
        self.remedy = remedy


def read_gettext(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the messages of a catalogue that have a translation, in one block."""
    (path,) = source.files
    if not any(names_language(_ENGLISH, tag) for tag in (source.source, source.target)):
        raise UserError(
            f"{path} is a message catalogue, whose messages are English, but its folder is of "
            f"{source.source} and {source.target}; put it into a folder with English, or remove it."
        )
    is_english_first = names_language(_ENGLISH, source.source)
    try:
        contents = read_catalogue(path)
    except UnreadableError as error:
        raise UserError(
            f"{path} cannot be read: {error}. {error.remedy}, or remove the file; msgfmt --check tests a "
            ".po file."
        ) from None
    rows = []
    for message in contents.messages:
        texts = (one_line(message.english), one_line(message.translation))
        if texts[0].strip() and texts[1].strip():
            rows.append(SentencePair(*(texts if is_english_first else texts[::-1])))
    if contents.incomplete:
        entries = listed([repr(one_line(english)) for english in contents.incomplete])
        note(
            f"{path} has entries with plural forms on one side only, which are left out: {entries}"
        )
    if contents.unclear:
        note(
            f"{path} has {contents.unclear} plurals without a right Plural-Forms in its header; the "
            "first form is used for the singular and the last for the plural"
        )
    yield rows


def read_catalogue(path: Path) -> Contents:
    """Reads a .mo or .po file.

    A plural gives two messages: the form for n = 1 with the English singular, and the form that most n
    from 2 to 100 take with the English plural. If this is one form, there is no singular. The header
    and the fuzzy and obsolete entries of a .po file are left out.

    Raises:
      UnreadableError: the file is damaged or not a catalogue.
    """
    content = b"".join(blocks(path))
    is_po = without_compression(path.name).endswith(".po")
    header, entries = _read_po(content) if is_po else _read_mo(content)
    match = re.search(r"\bplural\s*=([^;\n]*)", header)
    rule = _plural_rule(match[1]) if match else None
    result = Contents()
    for msgid, forms in entries:
        english, *plural = msgid.rpartition(_CONTEXT_END)[2].split(_PLURAL)
        if not english:
            continue
        if not plural and len(forms) == 1:
            result.messages.append(Message(english, forms[0]))
        elif not plural or not forms:
            if any(forms) or not forms:
                result.incomplete.append(english)
        else:
            one, many = rule or (0, len(forms) - 1)
            if max(one, many) >= len(forms) or (rule is None and len(forms) > 2):
                result.unclear += 1
                one, many = 0, len(forms) - 1
            if one != many:
                result.messages.append(Message(english, forms[one]))
            result.messages.append(Message(plural[0], forms[many], english))
    return result


@functools.lru_cache(maxsize=256)
def _plural_rule(expression: str) -> tuple[int, int] | None:
    """Returns the form for n = 1 and the form of most n from 2 to 100; None if the rule is wrong."""
    try:
        form = gettext.c2py(expression.strip())
        counts = collections.Counter(form(n) for n in range(2, 101))
        one, many = form(1), counts.most_common(1)[0][0]
    except (ValueError, ArithmeticError, RecursionError, MemoryError, SyntaxError):
        return None
    return (one, many) if min(one, many) >= 0 else None


def clean(message: Message) -> Message | str:
    """Returns the cleaned message, or the reason why it is dropped."""
    texts = (message.english, message.translation)
    if not all(map(str.strip, texts)):
        return "empty"
    if max(map(len, texts)) > 2 * _MOST_CHARACTERS:
        return "overlong"
    english, translation = map(_clean_text, texts)
    shortest, longest = sorted((len(english), len(translation)))
    bare = without_placeholders(english)
    is_key = " " not in english and _KEY.fullmatch(english)
    reasons = {
        "markup": not shortest,
        "overlong": longest > _MOST_CHARACTERS,
        "identical": english == translation,
        "length ratio": longest > 10 + 4 * shortest,
        "no letters": not all(any(map(str.isalpha, text)) for text in (bare, translation)),
        "not English": sum(c.isalpha() and not c.isascii() for c in english) > 3,
        "key": is_key and re.search(r"[._\d]|[a-z][A-Z]", english),
        "code": len(_CODE.findall(bare)) * 6 > len(bare),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    return Message(english, translation, _clean_text(message.singular))


def _clean_text(text: str) -> str:
    if "<" in text or "&" in text:
        text = html.unescape(without_markup(text))
    if "_" in text or "&" in text or "~" in text:
        text = _without_mark(text)
    return _SPACE.sub(" ", text).strip()


def _without_mark(text: str) -> str:
    """Removes the accelerator mark, if there is exactly one and it is not part of an identifier."""
    text = _CJK_MARK.sub("", text)
    # A placeholder such as <FILE_NAME> has no mark.
    parts = split_at_placeholders(text)
    if any(_IDENTIFIER.search(part) for part in parts[::2]) or "%(" in text:
        return text
    if sum(len(_LATIN_MARK.findall(part)) for part in parts[::2]) == 1:
        parts[::2] = [_LATIN_MARK.sub("", part) for part in parts[::2]]
    return "".join(parts)


def _read_mo(data: bytes) -> tuple[str, list[tuple[str, list[str]]]]:
    """Returns the header, and the id and the forms of each entry of a .mo file of GNU gettext.

    It holds a header of numbers, two tables of (length, offset), and the texts.
    """
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4])
    if order is None or len(data) < 20:
        raise UnreadableError("no .mo header")
    _, count, *places = struct.unpack_from(f"{order}4I", data, 4)
    if count > len(data) // 16:
        raise UnreadableError("more entries than the file can hold")
    try:
        tables = [struct.unpack_from(f"{order}{2 * count}I", data, at) for at in places]
    except struct.error:
        raise UnreadableError("cut short") from None
    raw = [[data[t[2 * i + 1] : t[2 * i + 1] + t[2 * i]] for t in tables] for i in range(count)]
    header = next((msgstr for msgid, msgstr in raw if not msgid), b"")
    charset = _charset(header)
    texts = [[_decoded(text, charset) for text in pair] for pair in raw if pair[0]]
    return _decoded(header, charset), [(msgid, forms.split(_PLURAL)) for msgid, forms in texts]


def _read_po(data: bytes) -> tuple[str, list[tuple[str, list[str]]]]:
    """Returns the header, and the id and the forms of each entry of a .po file."""
    import polib

    # polib would take a text without a newline for a name, and would end lines at these characters.
    text = _decoded(data.removeprefix(codecs.BOM_UTF8), _charset(data), is_file=True)
    try:
        file = polib.pofile(text.translate(_LINE_ENDS) + "\n")
    except OSError as error:
        raise UnreadableError(" ".join(str(error).split()), "Mend the line") from None
    entries = []
    for entry in file:
        if entry.obsolete or entry.fuzzy:
            continue
        forms = [entry.msgstr_plural[i] for i in sorted(entry.msgstr_plural)] or [entry.msgstr]
        msgid = entry.msgid
        if entry.msgid_plural:
            msgid += f"{_PLURAL}{entry.msgid_plural}"
            forms = forms if entry.msgstr_plural or not entry.msgstr else []
        entries.append((msgid, forms))
    return "\n".join(f"{key}: {value}" for key, value in file.metadata.items()), entries


def _charset(data: bytes) -> str:
    """Returns the charset that a header names; UTF-8 if Python does not know it."""
    match = re.search(rb"Content-Type:[^\n]*?charset=([\w.:-]+)", data)
    try:
        return codecs.lookup(match[1].decode()).name if match else "utf-8"
    except (LookupError, UnicodeError):
        return "utf-8"


def _decoded(data: bytes, charset: str, is_file: bool = False) -> str:
    """Returns a text, which may be a whole file. Raises UnreadableError if it has another charset."""
    try:
        text = data.decode(charset)
        text.encode()
    except (UnicodeError, LookupError) as error:
        line = data.count(b"\n", 0, getattr(error, "start", 0)) + 1
        where = f"line {line}" if is_file else "a text"
        raise UnreadableError(
            f"{where} is not {charset.upper()}, the charset of its header",
            "Write the right charset into the header, such as charset=ISO-8859-1",
        ) from None
    return text
