"""What a setting may be: one check for the ranges and the words of every class of settings."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from gshard_nmt.errors import UserError

MOST = 2**31 - 1
"""The largest number of a setting that says nothing else: programs count in int32."""

LARGEST_SIZE = 2**24
"""The longest dimension that a setting may ask for; beyond it sizes are slips of the keyboard."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """What some fields of a class of settings may be.

    Attributes:
      fields: their names; of a list every entry is checked.
      allows: whether a value is legal.
      words: the legal values, as the end of "it must be ...".
    """

    fields: tuple[str, ...]
    allows: Callable[[Any], bool]
    words: str


def check(settings: object, *rules: Rule) -> None:
    """Raises UserError, with setting, value and what is allowed, at the first field out of its rule."""
    for rule in rules:
        for name in rule.fields:
            value = getattr(settings, name)
            if isinstance(value, list | tuple):
                wrong, what = not all(map(rule.allows, value)), "every entry must be"
            else:
                wrong, what = not rule.allows(value), "it must be"
            if wrong:
                shown = list(value) if isinstance(value, tuple) else value
                setting = f"{type(settings).__name__}.{name}"
                raise UserError(f"{setting} is {shown!r}; {what} {rule.words}.")


def between(low: float, high: float, *fields: str) -> Rule:
    """Numbers from `low` to `high`; what is no number is refused, as by every rule here."""
    return Rule(fields, lambda value: low <= value <= high, f"from {low} to {high}")


def at_least(low: float, *fields: str) -> Rule:
    """Numbers from `low` on."""
    return between(low, MOST, *fields)


def size(*fields: str, least: int = 1) -> Rule:
    """Lengths of dimensions."""
    return between(least, LARGEST_SIZE, *fields)


def above(low: float, *fields: str, most: float = MOST) -> Rule:
    """Numbers greater than `low`."""
    return Rule(fields, lambda value: low < value <= most, f"above {low} and at most {most}")


def rate(*fields: str) -> Rule:
    """Shares that leave something: of dropout, smoothing, noise."""
    return Rule(fields, lambda value: 0 <= value < 1, "from 0 to below 1")


def one_of(words: Iterable[str], *fields: str) -> Rule:
    """Words of a list."""
    allowed = list(words)
    return Rule(fields, lambda value: value in allowed, f"one of {allowed}")
