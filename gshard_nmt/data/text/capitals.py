"""Text in capitals, and the same text in small letters, by the rules of its language.

Python knows the rules of most languages. The letter i of Turkish, the accents of Greek and the letters of
Georgian are here.
"""

import re

_DOTTED_I = ("tr", "az", "crh", "tt", "gag", "kaa")
"""Languages whose capital of i is İ, and whose capital of ı is I."""
_GEORGIAN = {0x1C90 + i: 0x10D0 + i for i in range(0x30)}
"""Capitals that Python makes of Georgian letters, and the letters. Nobody types these capitals."""
_GREEK = str.maketrans("ΆΈΉΊΌΎΏ", "ΑΕΗΙΟΥΩ")
"""Greek capitals have no accents."""
_FEWEST = 6
"""A line with fewer letters may be an abbreviation, such as PDF."""


def upper(text: str, language: str) -> str:
    """Returns a text in capitals. Letters of scripts without case stay."""
    base = language.split("-")[0]
    if base in _DOTTED_I:
        text = text.replace("i", "İ").replace("ı", "I")
    text = text.upper().translate(_GEORGIAN)
    return text.translate(_GREEK) if base == "el" else text


def lower(text: str, language: str) -> str | None:
    """Returns a line in capitals in small letters; None for any other line.

    The first letter of each sentence stays: a long line is split at sentences.
    """
    letters = [character for character in text if character.isalpha()]
    if any("\u13a0" <= letter <= "\u13f5" for letter in letters):
        return None  # Cherokee is written in these capitals
    if len(letters) < _FEWEST or not all(map(str.isupper, letters)):
        return None
    first = text.index(letters[0]) + 1
    parts = re.split(r"(?<=[.!?\u2026])(\s+\w)", text[first:])
    if language.split("-")[0] in _DOTTED_I:
        parts[::2] = [part.replace("I", "ı").replace("İ", "i") for part in parts[::2]]
    parts[::2] = map(str.lower, parts[::2])
    # A sigma at the end of a word, which Python does not see if the word begins before it.
    return re.sub(r"(?<=[^\W\d_])σ\b", "ς", text[:first] + "".join(parts))
