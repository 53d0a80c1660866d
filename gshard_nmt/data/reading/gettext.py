"""Message catalogues (.mo and .po files): their messages, and how `gshard-data harvest` cleans these.

A message is an English text (the msgid) and its translation.
"""

import codecs
import collections
import functools
import gettext
import html
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gshard_nmt.data.text.normal_form import PLACEHOLDER, without_markup, without_placeholders

_MOST_CHARACTERS = 200

_CONTEXT_END = "\x04"
_PLURAL = "\x00"
_SPACE = re.compile(r"\s+")
# Accelerator marks: `_File`, `&File` and `~File`; Chinese, Japanese and Korean end in `(_F)` or `(&F)`.
_CJK_MARK = re.compile(r"\s*[(（][_&~]?[A-Z0-9][)）](?=\W*$)|\s*[(（][_&~][A-Za-z0-9][)）]")
_LATIN_MARK = re.compile(r"(?<![\w&_~.])[_&~](?=\w)|(?<=[^\W_])[_&](?=[^\W_])")
_IDENTIFIER = re.compile(r"(?<!\w)[a-z]\w*_\w|\w[_&]\w+[_&]\w|__|\w_\w*[(=]|\b[A-Z]&[A-Z]\b")
_KEY = re.compile(r"[\w.-]+")
_CODE = re.compile(r"[{}<>=\\|#$@^]")


class Message(NamedTuple):
    """An English text and its translation; `singular` is the English singular of a plural form, or ""."""

    english: str
    translation: str
    singular: str = ""


Entry = tuple[str, list[str]]
"""The msgid, with its context and its plural, and the forms of its translation."""


def read_catalogue(path: Path) -> tuple[list[Message], int]:
    """Returns the messages of a .mo or .po file, and how many have a plural on one side only.

    A plural gives two messages: the form for n = 1 with the English singular, and the form that most n
    from 2 to 100 take with the English plural. If this is one form, there is no singular. Without a rule
    in the header it is the first and the last form. The header and the fuzzy and obsolete entries of a
    .po file are left out.

    Raises:
      ValueError: the file is damaged or not a catalogue.
    """
    header, entries = (_read_po if path.suffix == ".po" else _read_mo)(path.read_bytes())
    match = re.search(r"\bplural\s*=([^;\n]*)", header)
    rule = _plural_rule(match[1]) if match else None
    messages, incomplete = [], 0
    for msgid, forms in entries:
        english, *plural = msgid.rpartition(_CONTEXT_END)[2].split(_PLURAL)
        if not english:
            continue
        if not plural and len(forms) == 1:
            messages.append(Message(english, forms[0]))
        elif not plural or not forms:
            incomplete += any(forms) or not forms
        else:
            one, many = rule or (0, len(forms) - 1)
            if max(one, many) >= len(forms) or (rule is None and len(forms) > 2):
                one, many = 0, len(forms) - 1
            if one != many:
                messages.append(Message(english, forms[one]))
            messages.append(Message(plural[0], forms[many], english))
    # ValueError: half a pair of surrogates is no character.
    "".join(map("".join, messages)).encode()
    return messages, incomplete


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
    parts = PLACEHOLDER.split(text)
    if any(_IDENTIFIER.search(part) for part in parts[::2]) or "%(" in text:
        return text
    if sum(len(_LATIN_MARK.findall(part)) for part in parts[::2]) == 1:
        parts[::2] = [_LATIN_MARK.sub("", part) for part in parts[::2]]
    return "".join(parts)


def _read_mo(data: bytes) -> tuple[str, list[Entry]]:
    """Returns the header and the entries of a .mo file of GNU gettext.

    It holds a header of numbers, two tables of (length, offset), and the texts.
    """
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4])
    if order is None:
        raise ValueError("no .mo header")
    try:
        _, count, *places = struct.unpack_from(f"{order}4I", data, 4)
        tables = [struct.unpack_from(f"{order}{2 * count}I", data, at) for at in places]
    except struct.error:
        raise ValueError("cut short") from None
    columns = [list(zip(table[::2], table[1::2], strict=True)) for table in tables]
    if any(at + length > len(data) for column in columns for length, at in column):
        raise ValueError("cut short")
    raw = [[data[at : at + length] for length, at in row] for row in zip(*columns, strict=True)]
    header = next((msgstr for msgid, msgstr in raw if not msgid), b"")
    charset = _charset(header)
    pairs = [[text.decode(charset) for text in pair] for pair in raw if pair[0]]
    return header.decode(charset), [(msgid, forms.split(_PLURAL)) for msgid, forms in pairs]


def _read_po(data: bytes) -> tuple[str, list[Entry]]:
    """Returns the header and the entries of a .po file."""
    import polib

    text = data.removeprefix(codecs.BOM_UTF8).decode(_charset(data))
    try:
        file = polib.pofile(f"{text}\n")  # it would take a text without a newline for a name
    except OSError as error:
        raise ValueError(str(error)) from None
    return "\n".join(f"{key}: {value}" for key, value in file.metadata.items()), [*_entries(file)]


def _entries(file: Iterable[Any]) -> Iterator[Entry]:
    for entry in file:
        if entry.obsolete or entry.fuzzy:
            continue
        forms = [entry.msgstr_plural[i] for i in sorted(entry.msgstr_plural)] or [entry.msgstr]
        msgid = entry.msgid
        if entry.msgid_plural:
            msgid += f"{_PLURAL}{entry.msgid_plural}"
            forms = forms if entry.msgstr_plural or not entry.msgstr else []
        yield msgid, forms


def _charset(data: bytes) -> str:
    """Returns the charset that a header names; UTF-8 if Python does not know it."""
    match = re.search(rb"Content-Type:[^\n]*?charset=([\w.:-]+)", data)
    try:
        return codecs.lookup(match[1].decode()).name if match else "utf-8"
    except (LookupError, UnicodeError):
        return "utf-8"
