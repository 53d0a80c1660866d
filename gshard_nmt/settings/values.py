"""Turns named values into a `Config`: looks the names up and checks the values' types.

`gin_reader.py` reads gin files into named values such as ("Model", "model_dim") -> 512, and
`build` makes a `Config` from them. The run folder keeps the text of its `Config` as `config.gin`, and
`read_run_config` reads it back. This text has only literals, so programs that resume, decode or
evaluate a run need no gin.
"""

import ast
import collections.abc
import dataclasses
import functools
import math
import pathlib
import types
import typing
from collections.abc import Mapping
from typing import Any

from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.settings.config import CLASSES, GIN_END, GIN_HEADER, Config, Key


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value as a config gives it, unchecked, and the file and line, or the flag, that gives it."""

    value: object
    where: str


REMOVED: tuple[Key, ...] = (
    ("Mesh", "partitioner"),
    *(("Data", name) for name in ("maximum_pairs", "source_model", "target_model")),
)
"""Settings in the config.gin of older runs, which change nothing in a run."""


def read_run_config(path: pathlib.Path, classes: Mapping[str, type] = CLASSES) -> Config:
    """Reads the `config.gin` of a run folder. Raises UserError if it is missing or damaged."""
    if not path.is_file():
        raise UserError(
            f"there is no {path}, so {path.parent} is not a run folder; give the --workdir of a "
            "run that gshard-train made."
        )
    try:
        text = path.read_text(encoding="utf-8")
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _damaged(path, str(error)) from error
    if not statements or (text.startswith(GIN_HEADER) and GIN_END not in text):
        raise _damaged(path, "lines are missing at its end")
    bindings: dict[Key, Setting] = {}
    for statement in statements:
        where = f"{path}, line {statement.lineno}"
        match statement:
            case ast.Assign([ast.Attribute(ast.Name(class_name), field)], value):
                if (class_name, field) not in REMOVED:
                    check_name(classes, class_name, field, where)
                    bindings[class_name, field] = Setting(_literal(value, where), where)
            case _:
                raise UserError(f"{where}: {_ONLY_LITERALS}")
    return build(bindings, classes)


def _damaged(path: pathlib.Path, problem: str) -> UserError:
    return UserError(f"{path} is damaged: {problem}. Restore the file as gshard-train wrote it.")


_ONLY_LITERALS = (
    "cannot read this line; the config.gin of a run folder has only lines `Class.field = value`. "
    "Restore the file as gshard-train wrote it."
)


def _literal(node: ast.expr, where: str) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UserError(f"{where}: {_ONLY_LITERALS}") from error


def build(bindings: Mapping[Key, Setting], classes: Mapping[str, type] = CLASSES) -> Config:
    """Makes the configuration from settings, whose names have passed `check_name`, and the defaults."""
    parts = {}
    for class_name, cls in classes.items():
        hints = _field_types(cls)
        values = {}
        for field in dataclasses.fields(cls):
            setting = bindings.get((class_name, field.name))
            name = f"{class_name}.{field.name}"
            if setting is not None:
                values[field.name] = _checked(setting, hints[field.name], name)
            elif field.init and field.default is field.default_factory is dataclasses.MISSING:
                raise UserError(
                    f"{name} has no value and no default; set it in the config or with --gin "
                    f"'{name} = ...'."
                )
        parts[class_name.lower()] = cls(**values)
    return Config(**parts)


def check_name(classes: Mapping[str, type], class_name: str, field: str, where: str) -> None:
    """Raises UserError if there is no such class, or the class has no such field."""
    if class_name not in classes:
        raise UserError(
            f"{where}: there is no class of settings called {class_name!r}"
            f"{did_you_mean(class_name, classes)} Known: {', '.join(classes)}."
        )
    fields = [known.name for known in dataclasses.fields(classes[class_name]) if known.init]
    if field not in fields:
        raise UserError(
            f"{where}: {class_name} has no setting {field!r}{did_you_mean(field, fields)} "
            f"{class_name} has: {', '.join(fields)}."
        )


@functools.cache
def _field_types(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


class _WrongTypeError(Exception):
    """A value does not conform to a type."""


def _checked(setting: Setting, hint: Any, name: str) -> object:
    try:
        return _conform(setting.value, hint)
    except _WrongTypeError:
        is_quoted = isinstance(setting.value, str) and hint in (int, float, bool)
        advice = " without quotes" if is_quoted else ""
        raise UserError(
            f"{setting.where}: {name} is {setting.value!r}; it must be {describe_type(hint)}{advice}.",
            [name],
        ) from None


def _conform(value: object, hint: Any) -> object:
    """Returns `value` converted to a type.

    A list becomes a tuple. An int becomes a float if the type is float.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if hint in (bool, int, str, types.NoneType):
        return value if type(value) is hint else _refuse()
    if hint is float:
        try:
            number = float(typing.cast(float, value)) if type(value) in (int, float) else math.nan
        except OverflowError:  # an int above the largest float
            _refuse()
        return number if math.isfinite(number) else _refuse()
    if origin is typing.Literal:
        equal = [word for word in arguments if word == value and type(word) is type(value)]
        return equal[0] if equal else _refuse()
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _conform(value, option)
            except _WrongTypeError:
                continue
        return _refuse()
    if origin in (tuple, list, collections.abc.Sequence):
        entries = tuple(typing.cast(Any, value)) if isinstance(value, list | tuple) else _refuse()
        is_fixed = origin is tuple and arguments[-1] is not Ellipsis
        hints = arguments if is_fixed else arguments[:1] * len(entries)
        if len(hints) != len(entries):
            _refuse()
        return tuple(_conform(*pair) for pair in zip(entries, hints, strict=True))
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, Mapping):
            _refuse()
        items = typing.cast(Mapping[object, object], value).items()
        return {_conform(k, arguments[0]): _conform(v, arguments[1]) for k, v in items}
    raise TypeError(
        f"a setting cannot have the type {hint}; see gshard_nmt.settings.values._conform"
    )


def _refuse() -> typing.NoReturn:
    raise _WrongTypeError


def describe_type(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a string in quotes"}
    if hint in words:
        return words[hint]
    if hint is bool:
        return "True or False"
    if hint is types.NoneType:
        return "None"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(describe_type, arguments))
    if origin in (dict, collections.abc.Mapping):
        return f"a dict {{...}} from {describe_type(arguments[0])} to {describe_type(arguments[1])}"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"a list [...] of {', '.join(map(describe_type, arguments))}"
    return f"a list [...], each entry {describe_type(arguments[0])}"
