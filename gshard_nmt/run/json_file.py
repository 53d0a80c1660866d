"""Reads the JSON files of a run folder, and names what is damaged in them.

`read` compares the contents with a shape. A shape is

    str, int, float, dict    a value of this type; float takes whole numbers too
    {"step": int}            an object; these keys have these shapes if they are present
    [shape]                  a list, and each entry has the shape
    Table(shape)             an object with any keys, and each value has the shape

Keys that the shape does not name are free. Looking up a key that is missing is an error that names the
file, so readers need no checks of their own.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gshard_nmt.errors import UserError

Shape = Any
"""See the text at the top of this module."""


@dataclasses.dataclass(frozen=True)
class Table:
    """The shape of an object with any keys.

    Attributes:
      values: the shape of each value.
    """

    values: Shape


@dataclasses.dataclass(frozen=True)
class _Source:
    """The file that a value comes from.

    Attributes:
      path: the file.
      remedy: a sentence that says what the user can do if the file is damaged.
    """

    path: Path
    remedy: str

    def damaged(self, problem: str) -> UserError:
        """Returns the error for a damaged file."""
        return UserError(f"{self.path} is damaged: {problem}. {self.remedy}")


class Record(dict[str, Any]):
    """An object of a JSON file. Looking up a missing key raises UserError instead of KeyError."""

    def __init__(self, values: Mapping[str, Any], source: _Source, place: str) -> None:
        """Copies `values`. `place` is the path of keys to this object, such as "pairs[0]."."""
        super().__init__(values)
        self._source, self._place = source, place

    def __missing__(self, key: str) -> Any:
        raise self._source.damaged(f"{self._place}{key} is missing")


def read(path: Path, shape: Mapping[str, Shape], remedy: str) -> Record:
    """Reads a file that holds one JSON object.

    Args:
      path: the file.
      shape: the shape of the object.
      remedy: a sentence for the error: what the user can do if the file is damaged.

    Raises:
      UserError: the file is no JSON object of this shape.
      OSError: the file cannot be read.
    """
    source = _Source(path, remedy)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise source.damaged(f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise source.damaged("it does not hold a JSON object")
    return _conform(value, shape, source, "")


def _conform(value: Any, shape: Shape, source: _Source, place: str) -> Any:
    """Returns `value` with its objects as `Record`, after a check against the shape."""
    match shape:
        case Table(values):
            _require(value, dict, source, place)
            return {k: _conform(v, values, source, f"{place}[{k!r}]") for k, v in value.items()}
        case dict():
            _require(value, dict, source, place)
            prefix = f"{place}." if place else ""
            entries = {
                name: _conform(entry, shape[name], source, prefix + name)
                if name in shape
                else entry
                for name, entry in value.items()
            }
            return Record(entries, source, prefix)
        case [entry_shape]:
            _require(value, list, source, place)
            return [
                _conform(entry, entry_shape, source, f"{place}[{i}]")
                for i, entry in enumerate(value)
            ]
        case _:
            _require(value, shape, source, place)
            return value


_WORDS = {
    str: "a string",
    int: "a whole number of 0 or more",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def _require(value: Any, kind: type, source: _Source, place: str) -> None:
    fits = type(value) in ((int, float) if kind is float else (kind,))
    if fits and not (kind is int and value < 0):
        return
    text = json.dumps(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    raise source.damaged(f"{place} is {text}; it must be {_WORDS[kind]}")
