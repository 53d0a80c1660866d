"""Reads JSON and checks its shape: which keys it has, and which values are allowed.

SHAPE = fields({"name": text(), "sizes": list_of(whole())})
problem(SHAPE, {"name": "a", "sizes": [1, -2]}) == "sizes[1] is -2; it must be a whole number ..."

`read` is for files that must be sound: its error names the file. `parse` is for all other JSON.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gshard_nmt.errors import UserError

Shape = Callable[[Any, str], None]
"""A function of a value and its place, such as "pairs[3].source". Raises ValueError for a problem."""

_SHOWN = 80


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


def read_if_there(file: Path, shape: Shape, remedy: str) -> Any:
    """Returns the content of a JSON file as `read` does; None if there is no file."""
    return read(file, shape, remedy) if file.exists() else None


def parse(content: str | bytes, shape: Shape) -> Any:
    """Returns the value of a JSON text; bytes are UTF-8.

    Raises:
      ValueError: the content is not JSON, or does not have the shape. The message says what is wrong.
    """
    try:
        value = json.loads(content if isinstance(content, str) else content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    shape(value, "")
    return value


def problem(shape: Shape, value: object) -> str | None:
    try:
        shape(value, "")
    except ValueError as error:
        return str(error)
    return None


def anything() -> Shape:
    return _shape(lambda _: True, "")


def truth() -> Shape:
    return _shape(lambda value: type(value) is bool, "true or false")


def whole(least: int = 0, most: int = 2**63 - 1) -> Shape:
    words = f"a whole number from {least} to {most}"
    return _shape(lambda value: type(value) is int and least <= value <= most, words)


def number(least: float = 0, most: float = sys.float_info.max) -> Shape:
    """Returns the shape of finite numbers from `least` to `most`."""
    words = f"a number of {least} or more"
    words += f", at most {most}" if most < sys.float_info.max else ""
    return _shape(lambda value: type(value) in (int, float) and least <= value <= most, words)


def text(pattern: str = ".*", words: str = "a text") -> Shape:
    """Returns the shape of texts that match a regular expression as a whole; `words` describes them."""
    match = re.compile(pattern, re.DOTALL).fullmatch
    return _shape(lambda value: isinstance(value, str) and match(value) is not None, words)


def list_of(entry: Shape, least: int = 0) -> Shape:
    """Returns the shape of lists of at least `least` entries, each of which has a shape."""
    return _shape(
        lambda value: isinstance(value, list) and len(value) >= least,
        f"a list of {least} or more entries" if least else "a list",
        lambda value: ((f"[{i}]", entry, item) for i, item in enumerate(value)),
    )


def entries(*shapes: Shape) -> Shape:
    """Returns the shape of lists with one entry for each of these shapes."""
    return _shape(
        lambda value: isinstance(value, list) and len(value) == len(shapes),
        f"a list of {len(shapes)} entries",
        lambda value: ((f"[{i}]", shapes[i], item) for i, item in enumerate(value)),
    )


def mapping_of(entry: Shape) -> Shape:
    """Returns the shape of objects with any keys, whose values have a shape."""
    return _object(lambda value: ((f".{key}", entry, item) for key, item in value.items()))


def fields(
    required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, closed: bool = False
) -> Shape:
    """Returns the shape of objects with these keys. If it is `closed`, other keys are refused."""
    known = {**required, **(optional or {})}
    other = _never("is not a known key") if closed else anything()
    return _object(
        lambda value: [
            *((f".{key}", _never("is missing"), None) for key in required if key not in value),
            *((f".{key}", known.get(key, other), item) for key, item in value.items()),
        ]
    )


_Parts = Callable[[Any], Iterable[tuple[str, Shape, object]]]
"""Returns the place of each part of a value, such as ".source" or "[3]", its shape and the part."""


def _object(parts: _Parts) -> Shape:
    return _shape(lambda value: isinstance(value, dict), "an object {...}", parts)


def _shape(allows: Callable[[Any], bool], words: str, parts: _Parts = lambda _: ()) -> Shape:
    def check(value: Any, place: str) -> None:
        if not allows(value):
            shown = json.dumps(value)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
            raise ValueError(f"{place or 'the content'} is {shown}; it must be {words}")
        for within, shape, part in parts(value):
            shape(part, f"{place}{within}".removeprefix("."))

    return check


def _never(problem: str) -> Shape:
    def check(_: object, place: str) -> None:
        raise ValueError(f"{place} {problem}")

    return check
