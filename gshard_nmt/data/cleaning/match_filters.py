"""Filters that compare the sides: numbers, addresses, placeholders; and scores."""

import functools
import re
import unicodedata

import numpy as np

from gshard_nmt.data.cleaning import registry
from gshard_nmt.data.cleaning.block import DIGIT, PLACEHOLDER, About, Block
from gshard_nmt.data.cleaning.registry import Mask
from gshard_nmt.data.text import normal_form

_DIGITS = re.compile(r"\d+")
_FORMAT = re.compile(
    r"^%(?:\d+\$)?[-+#0' ]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|L|q|j|z|t)?(?=[a-zA-Z])"
)
"""The position, the width and the size of a number in a placeholder of printf."""


@registry.filter
def numbers(rows: Block, about: About) -> Mask:
    """Drops a pair if each side has a number that the other side lacks.

    Only digits are compared. Separators, trailing zeros, and parts of one digit do not count, so 1,000
    and 1.000, 2.5 million and 2,500,000, and 3:30 pm and 15:30 do match. Digits of all scripts are
    equal. A number that is spelled out on one side is no contradiction.
    """
    del about
    candidates = rows.source.has(DIGIT) & rows.target.has(DIGIT)
    return rows.check(candidates, _numbers_match)


def _numbers_match(source: str, target: str) -> bool:
    sides = _digits(source), _digits(target)
    return not (_has_other(sides[0], sides[1]) and _has_other(sides[1], sides[0]))


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


@registry.filter
def addresses(rows: Block, about: About) -> Mask:
    """Drops a pair if one side has a web or mail address, and the other has nothing like it."""
    del about
    marks = [
        np.fromiter(map(normal_form.may_have_address, side.lines), bool, len(rows))
        for side in rows.sides
    ]
    return rows.check(
        marks[0] != marks[1],
        lambda source, target: (
            not (normal_form.has_address(source) or normal_form.has_address(target))
        ),
    )


@registry.filter
def placeholders(rows: Block, about: About) -> Mask:
    """Drops a pair if the sides have different placeholders, such as `%s`, `{name}` or `$name`.

    Their order and their format do not matter, nor how often each occurs: `%s` and `%2$-5s` are equal.
    Names in `<angle brackets>` are often translated, so they are not compared.
    """
    del about
    candidates = rows.source.has(PLACEHOLDER) | rows.target.has(PLACEHOLDER)
    return rows.check(
        candidates, lambda source, target: _fixed_parts(source) == _fixed_parts(target)
    )


def _fixed_parts(text: str) -> set[str]:
    """Returns the placeholders of a text that a translation must keep, without their formats."""
    return {_without_format(part) for part in normal_form.placeholders(text) if part[0] in "%{$"}


@functools.lru_cache(1 << 12)
def _without_format(part: str) -> str:
    return _FORMAT.sub("%", "".join(part.split())).replace("%u", "%d").replace("%i", "%d")


@registry.filter
def score(rows: Block, about: About) -> Mask:
    """Drops a pair whose score in the corpus is below `Cleaning.minimum_score`."""
    least = about.settings.minimum_score
    if least is None:
        return np.ones(len(rows), bool)
    return np.fromiter((row.score is None or row.score >= least for row in rows), bool, len(rows))
