"""Filters that look at each side for itself, at lengths, and at equal sides."""

import re

import numpy as np

from gshard_nmt.data.cleaning import registry
from gshard_nmt.data.cleaning.block import CONTROL, SUSPECT, VISIBLE, About, Block, Side
from gshard_nmt.data.cleaning.registry import Mask
from gshard_nmt.data.text import normal_form
from gshard_nmt.data.text.scripts import script_of, scripts_of_language

_RATIO_SLACK = 15
"""Characters that are added before lengths are compared, so short lines may differ more."""
_WORDS = re.compile(r"[a-zA-Z]+|[^\W\d_a-zA-Z]+")
"""Words of ASCII letters end where other letters begin: "PDF文件" has two words."""
_LEAST_LETTERS = 4
"""The script of fewer letters, such as "OK" or "PDF", says nothing."""

# Characters of UTF-8 that were read as Latin-1 or Windows-1252: "é" became "Ã©". A continuation is a byte
# from 0x80 to 0xBF, as one of these encodings shows it.
_CONTINUATION = (
    "\u0080-\u00bf\u20ac\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\u017d"
    "\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\u017e\u0178"
)
# German and French put quotes and dots behind letters, so only some letters are suspicious in one place.
# Others must occur twice in a row, as they do in every word of Cyrillic or Chinese text.
_RARE_CONTINUATION = _CONTINUATION.replace(
    "\u0080-\u00bf", "\u0080-\u009f\u00a1-\u00aa\u00ac-\u00ba"
)
_MOJIBAKE = re.compile(
    "\ufffd|[\u00c2\u00c3][\u0080-\u009f\u00a1-\u00bf\u20ac\u2122\u0161\u0153\u017e\u0178\u0192]"
    rf"|\u00e2\u20ac[{_CONTINUATION}]|\u00ef\u00bb\u00bf|\u00ef\u00bf\u00bd"
    rf"|(?:[\u00e0-\u00ef][{_CONTINUATION}][{_CONTINUATION}]){{2}}"
    rf"|(?:[\u00c4\u00c5\u00ce\u00cf\u00d0\u00d1\u00d7-\u00da][{_RARE_CONTINUATION}]){{2}}"
)


@registry.filter
def empty(rows: Block, about: About) -> Mask:
    """Drops a pair if a side has no visible character."""
    del about
    return rows.source.has(VISIBLE) & rows.target.has(VISIBLE)


@registry.filter
def control(rows: Block, about: About) -> Mask:
    """Drops a pair with control characters, such as U+0007. Tabs and marks of direction are kept."""
    del about
    return ~(rows.source.has(CONTROL) | rows.target.has(CONTROL))


@registry.filter
def encoding(rows: Block, about: About) -> Mask:
    """Drops a pair with U+FFFD, or with UTF-8 that was read in another encoding ("Ã©" for "é")."""
    del about
    mask = np.ones(len(rows), bool)
    for side in rows.sides:
        for row in np.flatnonzero(side.has(SUSPECT)).tolist():
            if _MOJIBAKE.search(side.lines[row]):
                mask[row] = False
    return mask


@registry.filter
def length(rows: Block, about: About) -> Mask:
    """Drops a pair if a side is too long, or has a word that is too long."""
    settings = about.settings
    mask = np.ones(len(rows), bool)
    may_have_long_word = np.zeros(len(rows), bool)
    for side in rows.sides:
        mask &= side.words <= settings.maximum_words
        mask &= side.characters <= settings.maximum_characters
        may_have_long_word |= side.characters > settings.longest_word
    # In scripts without spaces each character is a word: then a line has about as many words as letters.
    may_have_long_word &= mask
    long = settings.longest_word

    def has_no_long_word(side: Side, row: int) -> bool:
        is_spaced = 2 * side.words[row] < side.characters[row]
        return not is_spaced or max(map(len, side.lines[row].split()), default=0) <= long

    for row in np.flatnonzero(may_have_long_word).tolist():
        mask[row] = all(has_no_long_word(side, row) for side in rows.sides)
    return mask


@registry.filter
def ratio(rows: Block, about: About) -> Mask:
    """Drops a pair if one side is much longer than the other."""
    quotient = (rows.source.weight + _RATIO_SLACK) / (rows.target.weight + _RATIO_SLACK)
    return np.maximum(quotient, 1 / quotient) <= about.settings.ratio


@registry.filter
def identical(rows: Block, about: About) -> Mask:
    """Drops a pair of equal sides, if it has several words with letters. Case and spaces do not matter.

    Two variants of one language, such as pt-BR and pt, may have equal sides.
    """
    if about.source.split("-")[0] == about.target.split("-")[0]:
        return np.ones(len(rows), bool)
    candidates = (
        (rows.source.words >= about.settings.identical_words)
        & (rows.source.letters == rows.target.letters)
        & (rows.source.letters > 0)
    )
    return rows.check(candidates, lambda source, target: _folded(source) != _folded(target))


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


@registry.filter
def script(rows: Block, about: About) -> Mask:
    """Drops a pair if most letters of a side are in a script that its language does not use.

    Words that both sides have, such as names, do not count, nor do placeholders.
    """
    share = about.settings.script_share
    mask = np.ones(len(rows), bool)
    for side, other in (rows.sides, rows.sides[::-1]):
        if not (scripts := scripts_of_language(side.language)):
            continue
        suspects = (side.own_letters < share * side.letters) & (side.letters >= _LEAST_LETTERS)
        for row in np.flatnonzero(suspects & mask).tolist():
            letters = _letters_of_its_own(side.lines[row], other.lines[row])
            own = sum(script_of(letter) in scripts for letter in letters)
            mask[row] = len(letters) < _LEAST_LETTERS or own >= share * len(letters)
    return mask


def _letters_of_its_own(text: str, other: str) -> list[str]:
    """Returns the letters of a text in the words that the other side does not have."""
    shared = {word.casefold() for word in _WORDS.findall(other)}
    words = _WORDS.findall(normal_form.without_placeholders(text))
    return [
        letter
        for word in words
        if word.casefold() not in shared
        for letter in word
        if script_of(letter)
    ]
