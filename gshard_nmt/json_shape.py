"""Reads JSON and checks its shape: which keys it has, and which values are allowed.

SHAPE = fields({"name": text(), "sizes": list_of(whole())})
problem(SHAPE, {"name": "a", "sizes": [1, -2]}) == "sizes[1] is -2; it must be a whole number ..."

`read` is for files that must be sound: its error names the file. `parse` is for all other JSON.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gshard_nmt.errors import UserError

Shape = Callable[[object, str], Iterator[str]]
"""A function of a value and its place, such as "pairs[3].source". Yields a text for each problem."""

_SHOWN = 80
_LARGEST = sys.float_info.max


def read(file: Path, shape: Shape, remedy: str) -> Any:
    """Returns the content of a JSON file. `remedy` says what the user can do if it is damaged.

    Raises:
      UserError: the content is not JSON, or does not have the shape. The message names file and key.
      OSError: the file cannot be read.
    """
    content = file.read_bytes()
    try:
        return parse(content, shape)
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error}. {remedy}") from None


def parse(content: str | bytes, shape: Shape) -> Any:
    """Returns the value of a JSON text; bytes are UTF-8.

    Raises:
      ValueError: the content is not JSON, or does not have the shape. The message says what is wrong.
    """
    try:
        value = json.loads(content if isinstance(content, str) else content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if wrong := problem(shape, value):
        raise ValueError(wrong)
    return value


def problem(shape: Shape, value: object) -> str | None:
    return next(shape(value, ""), None)


def whole(least: int = 0, most: int = 2**63 - 1) -> Shape:
    """Returns the shape of whole numbers from `least` to `most`."""
    words = f"a whole number from {least} to {most}"
    return _shape(lambda value: type(value) is int and least <= value <= most, words)


def number(least: float = 0, most: float = _LARGEST, above: float = -math.inf) -> Shape:
    """Returns the shape of finite numbers from `least` to `most` that are greater than `above`."""
    words = f"a number above {above}" if above >= least else f"a number of {least} or more"
    words += f", at most {most}" if most < _LARGEST else ""
    return _shape(
        lambda value: type(value) in (int, float) and least <= value <= most and value > above,
        words,
    )


def anything() -> Shape:
    return lambda _value, _place: iter(())


def text(pattern: str = "", words: str = "a text") -> Shape:
    """Returns the shape of texts that match a regular expression as a whole; `words` describes them."""
    return _shape(
        lambda value: (
            isinstance(value, str) and (not pattern or re.fullmatch(pattern, value) is not None)
        ),
        words,
    )


def truth() -> Shape:
    return _shape(lambda value: type(value) is bool, "true or false")


def _shape(allows: Callable[[Any], bool], words: str) -> Shape:
    def check(value: object, place: str) -> Iterator[str]:
        if not allows(value):
            yield _wrong(value, place, words)

    return check


def list_of(entry: Shape, least: int = 0) -> Shape:
    """Returns the shape of lists of at least `least` entries, each of which has a shape."""

    def check(value: object, place: str) -> Iterator[str]:
        if not isinstance(value, list) or len(value) < least:
            yield _wrong(value, place, f"a list of {least} or more entries" if least else "a list")
            return
        for index, item in enumerate(value):
            yield from entry(item, f"{place}[{index}]")

    return check


def entries(*shapes: Shape) -> Shape:
    """Returns the shape of lists with one entry for each of these shapes."""

    def check(value: object, place: str) -> Iterator[str]:
        if not isinstance(value, list) or len(value) != len(shapes):
            yield _wrong(value, place, f"a list of {len(shapes)} entries")
            return
        for index, (shape, item) in enumerate(zip(shapes, value, strict=True)):
            yield from shape(item, f"{place}[{index}]")

    return check


def mapping_of(entry: Shape) -> Shape:
    """Returns the shape of objects with any keys, whose values have a shape."""

    def check(value: object, place: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield _wrong(value, place, "an object {...}")
            return
        for key, item in value.items():
            yield from entry(item, _join(place, key))

    return check


def fields(
    required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, closed: bool = False
) -> Shape:
    """Returns the shape of objects with these keys. If it is `closed`, other keys are refused."""
    known = {**required, **(optional or {})}

    def check(value: object, place: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield _wrong(value, place, "an object {...}")
            return
        for key in required:
            if key not in value:
                yield f"{_join(place, key)} is missing"
        for key, item in value.items():
            if key in known:
                yield from known[key](item, _join(place, key))
            elif closed:
                yield f"{_join(place, key)} is not a known key"

    return check


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _wrong(value: object, place: str, words: str) -> str:
    shown = json.dumps(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return f"{place or 'the content'} is {shown}; it must be {words}"
