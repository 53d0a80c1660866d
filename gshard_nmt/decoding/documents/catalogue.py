"""Catalogues of gettext, .po and .pot: messages without a translation get one, marked as fuzzy."""

import contextlib
import gettext
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polib
from babel import UnknownLocaleError
from babel.messages.plurals import get_plural

import gshard_nmt
from gshard_nmt.decoding.documents.document import Document, Part, note_language
from gshard_nmt.decoding.documents.markup import has_letter

_PLACEHOLDER = re.compile(
    r"%(?:\d+\$)?(?:\(\w+\))?[-+ #0']*(?:\*|\d+)?(?:\.(?:\*|\d+))?[hlLqjzt]*[a-zA-Z%]|\{[^{}\s]*\}"
)
"""What C, Python and PHP replace in a message with a flag such as c-format."""
_LOST = re.compile(r'(?m)^\s*+(?!#(?![~|])).*?(?<!\\)(?:\\\\)*(\\[^\\"ntrvbf\n])')
"""A control character that polib does not know, such as \\a, outside comments."""


def read(path: Path, target: str, everything: bool) -> Document:
    """Returns a catalogue; see `document.read`.

    The form of a plural that stands for one thing gets the translation of the singular, and the others
    that of the plural. Without Plural-Forms, the forms are those of CLDR. ValueError: it is no catalogue.
    """
    try:
        file = polib.pofile(str(path))
    except OSError as error:
        raise ValueError(error) from None
    text = path.read_bytes().decode(file.encoding)
    if lost := _LOST.search(re.sub(r"\r\n?", "\n", text).lstrip("\ufeff")):
        raise ValueError(f"its {lost[1]} would be changed")
    note_language(path, file.metadata.get("Language", ""), target)
    header = file.metadata.get("Plural-Forms", "")
    if "EXPRESSION" in header or not header:
        header = "nplurals=2; plural=(n != 1);"
        with contextlib.suppress(UnknownLocaleError, ValueError):
            header = get_plural(target.replace("-", "_")).plural_forms
        file.metadata["Plural-Forms"] = header
    rule = re.fullmatch(r"\s*nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;]+);?\s*", header)
    if not rule:
        raise ValueError(f"Plural-Forms is {header!r}")
    forms, plural = int(rule[1]), gettext.c2py(rule[2])
    singular, is_for_1 = plural(1), plural(1) not in map(plural, range(2, 200))
    parts = []
    for entry in file:
        if not entry.obsolete and not entry.msgid_plural and (everything or not entry.msgstr):
            parts.append(_part(entry, entry.msgid, None))
        # A template has two forms for every language.
        for form in [n for n, text in entry.msgstr_plural.items() if n >= forms and not text]:
            del entry.msgstr_plural[form]
        for form in range(forms) if entry.msgid_plural and not entry.obsolete else ():
            if everything or not entry.msgstr_plural.setdefault(form, ""):
                # In Russian, the form for 1 is also that for 21, so it needs the number.
                ids = entry.msgid, entry.msgid_plural
                is_alone = is_for_1 or len({tuple(_PLACEHOLDER.findall(text)) for text in ids}) == 1
                is_singular = form == singular and forms > 1 and is_alone
                parts.append(_part(entry, entry.msgid if is_singular else entry.msgid_plural, form))
    newline = "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"
    return Document(parts, lambda: _saved(file, target).replace("\n", newline).encode())


def _part(entry: Any, source: str, form: int | None) -> Part:
    """Returns the part of a message, or of a form of its plural. Its line breaks stay."""
    pieces = re.split(r"(\s*\n\s*|^\s+|\s+$)", source)

    def fill(translations: Sequence[str]) -> bool:
        remaining = iter(translations)
        text = "".join(next(remaining) if has_letter(piece) else piece for piece in pieces)
        formats = [f for f in entry.flags if f.endswith("-format") and not f.startswith("no-")]
        names = [sorted(_PLACEHOLDER.findall(each)) for each in (source, text)]
        if all(name.endswith("-brace-format") for name in formats):
            names = [[name for name in each if name[0] == "{"] for each in names]
        if formats and names[0] != names[1]:
            return False
        if form is None:
            entry.msgstr = text
        else:
            entry.msgstr_plural[form] = text
        if "fuzzy" not in entry.flags:
            entry.flags.append("fuzzy")
        return True

    return Part([piece for piece in pieces if has_letter(piece)], fill)


def _saved(file: Any, target: str) -> str:
    file.metadata_is_fuzzy = False
    file.metadata |= {
        "PO-Revision-Date": time.strftime("%Y-%m-%d %H:%M%z"),
        "Language": file.metadata.get("Language") or target.replace("-", "_"),
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=UTF-8",
        "Content-Transfer-Encoding": "8bit",
        "X-Generator": f"gshard-nmt {gshard_nmt.__version__}",
    }
    return f"{str(file).rstrip()}\n"
