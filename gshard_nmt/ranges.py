"""The legal values of settings: rules that check them, and that describe them in messages."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gshard_nmt.errors import UserError

MOST = 2**31 - 1
"""The largest number that a setting without a limit of its own may have: programs count in int32."""

LARGEST_SIZE = 2**24
"""The largest size of a dimension. A larger number in a config is almost certainly a typing error."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """The legal values of some fields of a class of settings.

    Attributes:
      fields: names of the fields. If a field is a list, the rule applies to every entry.
      allows: returns whether a value is legal.
      words: the exact legal values, for an error message that ends in "it must be ...".
      summary: the legal values for documentation, such as "at least 1"; it leaves out the limits
        MOST and LARGEST_SIZE.
    """

    fields: tuple[str, ...]
    allows: Callable[[Any], bool]
    words: str
    summary: str


def check(settings: object, rules: Sequence[Rule]) -> None:
    """Raises UserError for the first field that breaks a rule: its name, its value, the legal values."""
    for rule in rules:
        for name in rule.fields:
            value = getattr(settings, name)
            is_list = isinstance(value, list | tuple)
            if all(map(rule.allows, value)) if is_list else rule.allows(value):
                continue
            shown = list(value) if isinstance(value, tuple) else value
            subject = "every entry must be" if is_list else "it must be"
            setting = f"{type(settings).__name__}.{name}"
            raise UserError(f"{setting} is {shown!r}; {subject} {rule.words}.", [setting])


def between(low: float, high: float, *fields: str) -> Rule:
    """Returns the rule for numbers from `low` to `high`. Like every rule here it refuses NaN."""
    limit = high in (MOST, LARGEST_SIZE)
    return Rule(
        fields,
        lambda value: low <= value <= high,
        f"from {low} to {high}",
        f"at least {low}" if limit else f"from {low} to {high}",
    )


def at_least(low: float, *fields: str) -> Rule:
    return between(low, MOST, *fields)


def size(*fields: str, least: int = 1) -> Rule:
    return between(least, LARGEST_SIZE, *fields)


def above(low: float, *fields: str, most: float = MOST) -> Rule:
    """Returns the rule for numbers greater than `low`."""
    words = f"above {low} and at most {most}"
    return Rule(
        fields, lambda value: low < value <= most, words, f"above {low}" if most == MOST else words
    )


def rate(*fields: str) -> Rule:
    """Returns the rule for fractions below 1, such as rates of dropout, label smoothing and noise."""
    words = "from 0 to below 1"
    return Rule(fields, lambda value: 0 <= value < 1, words, words)


def matching(pattern: str, words: str, *fields: str) -> Rule:
    """Returns the rule for texts that match a regular expression as a whole; `words` describes them."""
    return Rule(fields, lambda value: re.fullmatch(pattern, value) is not None, words, words)


def one_of(words: Iterable[str], *fields: str) -> Rule:
    """Returns the rule for fields that hold one of these words."""
    allowed = list(words)
    summary = "one of " + ", ".join(f'"{word}"' for word in allowed)
    return Rule(fields, lambda value: value in allowed, f"one of {allowed}", summary)
