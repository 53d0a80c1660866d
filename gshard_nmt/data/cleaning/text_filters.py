"""The built-in filters except `overlap`: each looks at the sides for themselves, or compares them."""

import functools
import re
import unicodedata
from typing import Any

import numpy as np

from gshard_nmt.data.cleaning import block
from gshard_nmt.data.cleaning.block import About, Block, Mask
from gshard_nmt.data.text import normal_form
from gshard_nmt.data.text.scripts import script_of, scripts_of_language
from gshard_nmt.errors import UserError

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

_DIGITS = re.compile(r"\d+")
_FORMAT = re.compile(
    r"^%(?:\d+\$)?[-+#0' ]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|L|q|j|z|t)?(?=[a-zA-Z])"
)
"""The position, the width and the size of a number in a placeholder of printf."""
_LEAST_LETTERS_OF_LANGUAGE = 20
"""The language of shorter lines cannot be told well."""
_SAME_NAME = {"nb": "no", "fil": "tl", "iw": "he", "sh": "hr"}
_NO_LANGUAGE = "zxx"


def empty(rows: Block, _: About) -> Mask:
    """Drops a pair if a side has no visible character."""
    return rows.source.has(block.VISIBLE) & rows.target.has(block.VISIBLE)


def control(rows: Block, _: About) -> Mask:
    """Drops a pair with control characters, such as U+0007. Tabs and marks of direction are kept."""
    return ~(rows.source.has(block.CONTROL) | rows.target.has(block.CONTROL))


def encoding(rows: Block, _: About) -> Mask:
    """Drops a pair with U+FFFD, or with UTF-8 that was read in another encoding ("Ã©" for "é")."""
    candidates = rows.source.has(block.SUSPECT) | rows.target.has(block.SUSPECT)
    return rows.check(candidates, lambda *sides: not any(_MOJIBAKE.search(text) for text in sides))


def length(rows: Block, about: About) -> Mask:
    """Drops a pair if a side is too long, or has a word that is too long."""
    settings = about.settings
    mask = np.ones(len(rows), bool)
    for side in rows.sides:
        mask &= side.words <= settings.maximum_words
        mask &= side.characters <= settings.maximum_characters
        own = scripts_of_language(side.language)
        if own and own <= {*block.WITHOUT_SPACES}:
            continue
        suspects = mask & (2 * side.words < side.characters)
        for row in np.flatnonzero(suspects & (side.characters > settings.longest_word)).tolist():
            longest = max(map(len, side.lines[row].split()), default=0)
            mask[row] = longest <= settings.longest_word
    return mask


def ratio(rows: Block, about: About) -> Mask:
    """Drops a pair if one side is much longer than the other."""
    quotient = (rows.source.weight + _RATIO_SLACK) / (rows.target.weight + _RATIO_SLACK)
    return np.maximum(quotient, 1 / quotient) <= about.settings.ratio


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
    own = "".join(word for word in words if word.casefold() not in shared)
    return [letter for letter in own if script_of(letter)]


def numbers(rows: Block, _: About) -> Mask:
    """Drops a pair if each side has a number that the other side lacks.

    Only digits are compared. Separators, trailing zeros, and parts of one digit do not count, so 1,000
    and 1.000, 2.5 million and 2,500,000, and 3:30 pm and 15:30 do match. Digits of all scripts are
    equal. A number that is spelled out on one side is no contradiction.
    """

    def match(source: str, target: str) -> bool:
        sides = _digits(source), _digits(target)
        return not (_has_other(*sides) and _has_other(*sides[::-1]))

    return rows.check(rows.source.has(block.DIGIT) & rows.target.has(block.DIGIT), match)


def _digits(text: str) -> list[str]:
    """Returns the groups of digits of a text as ASCII digits: "1,250" gives "1" and "250"."""
    groups = _DIGITS.findall(normal_form.without_placeholders(text))
    if text.isascii():
        return groups
    return ["".join(str(unicodedata.digit(c)) for c in group) for group in groups]


def _has_other(groups: list[str], others: list[str]) -> bool:
    """Returns whether a text has a number of two digits or more that is not in the other text."""
    joined = "".join(others)
    return any(len(group.strip("0")) > 1 and group.strip("0") not in joined for group in groups)


def addresses(rows: Block, _: About) -> Mask:
    """Drops a pair if one side has a web or mail address, and the other has nothing like it."""
    first, second = (
        np.array(list(map(normal_form.may_have_address, side.lines))) for side in rows.sides
    )
    return rows.check(
        first | second,
        lambda *sides: len({*map(bool, map(normal_form.ADDRESS.search, sides))}) == 1,
    )


def placeholders(rows: Block, _: About) -> Mask:
    """Drops a pair if the sides have different placeholders, such as `%s`, `{name}` or `$name`.

    Their order and their format do not matter, nor how often each occurs: `%s` and `%2$-5s` are equal.
    Names in `<angle brackets>` are often translated, so they are not compared.
    """
    candidates = rows.source.has(block.PLACEHOLDER) | rows.target.has(block.PLACEHOLDER)
    return rows.check(candidates, lambda a, b: _fixed_parts(a) == _fixed_parts(b))


def _fixed_parts(text: str) -> set[str]:
    """Returns the placeholders of a text that a translation must keep, without their formats."""
    return {_without_format(part) for part in normal_form.placeholders(text) if part[0] in "%{$"}


@functools.lru_cache(1 << 12)
def _without_format(part: str) -> str:
    return _FORMAT.sub("%", "".join(part.split())).replace("%u", "%d").replace("%i", "%d")


def score(rows: Block, about: About) -> Mask:
    """Drops a pair whose score in the corpus is below `Cleaning.minimum_score`."""
    least = about.settings.minimum_score
    if least is None:
        return np.ones(len(rows), bool)
    return np.fromiter((row.score is None or row.score >= least for row in rows), bool, len(rows))


def language(rows: Block, about: About) -> Mask:
    """Drops a pair if a side of 20 letters or more is surely in another language than its own.

    The identifier must give another language at least the probability `Cleaning.language_confidence`.
    Languages that it does not know are not checked.
    """
    mask, confidence = np.ones(len(rows), bool), about.settings.language_confidence
    for side in rows.sides:
        name = label_of(side.language)
        if name not in identifier().labels:
            continue
        for row in np.flatnonzero(mask & (side.letters >= _LEAST_LETTERS_OF_LANGUAGE)).tolist():
            best, probability = identifier().rank(side.lines[row])[0]
            mask[row] = best in (name, _NO_LANGUAGE) or probability < confidence
    return mask


def label_of(language: str) -> str:
    """Returns the name that the identifier has for a language, whether it knows it or not."""
    name = language.split("-")[0]
    return _SAME_NAME.get(name, name)


@functools.cache
def identifier() -> Any:
    """Returns the identifier of languages."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UserError(
            "Cleaning.filters has 'language', which needs the package py3langid. Install it: "
            "pip install 'gshard-nmt[langid]'.",
            ["Cleaning.filters"],
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
