"""The settings of a run: looked up by name, checked by type, and written out as text.

`cli.py` reads gin files into bindings such as ("Model", "layers") -> 4; here the names are looked
up, the values checked against the fields' types, and the `Config` made. Its text spells out every
setting; it is kept in the run folder as `config.gin`, and `read_config` reads it back. That text is
literals only, so whoever resumes, decodes or evaluates a run needs no gin.
"""

import ast
import collections.abc
import dataclasses
import difflib
import functools
import importlib
import math
import pathlib
import pprint
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from gshard_nmt.errors import UserError
from gshard_nmt.settings.config import Config

CLASSES: Mapping[str, str] = types.MappingProxyType(
    {
        "Model": "gshard_nmt.model.transformer",
        "Mesh": "gshard_nmt.spmd.mesh",
        "Data": "gshard_nmt.data.config",
        "Optimizer": "gshard_nmt.model.optimizer",
        "Train": "gshard_nmt.train",
        "Decode": "gshard_nmt.decode",
    }
)
"""Where each class of the configuration lives; a module is imported when a config is read."""

Key = tuple[str, str]
"""The name of a setting: class and field, ("Model", "layers")."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value that a config binds.

    Attributes:
      value: what the config says, before its type is checked.
      where: the file and line, or the flag, that says so; for messages.
    """

    value: object
    where: str


def named_settings(parts: Iterable[object]) -> dict[Key, object]:
    """Every setting of these dataclasses by name, defaults included, in the order declared."""
    return {
        (type(part).__name__, field.name): getattr(part, field.name)
        for part in parts
        for field in dataclasses.fields(typing.cast(Any, part))
        if field.init
    }


def as_text(parts: Iterable[object]) -> str:
    """The settings of these dataclasses as gin bindings; equal settings give equal text."""
    lines = ["# The resolved configuration of this run: every setting with its value."]
    previous = ""
    for (class_name, field), value in named_settings(parts).items():
        if class_name != previous:
            lines.append("")
            previous = class_name
        literal = pprint.pformat(_plain(value), width=96, sort_dicts=False)
        lines.append(f"{class_name}.{field} = {literal}")
    return "\n".join(lines) + "\n"


def differences(recorded: object, given: object) -> list[str]:
    """The settings in which two instances of one class differ: "Model.layers: 4, now 6"."""
    now = named_settings([given])
    return [
        f"{class_name}.{field}: {value!r}, now {now[class_name, field]!r}"
        for (class_name, field), value in named_settings([recorded]).items()
        if now[class_name, field] != value
    ]


def read_config(path: pathlib.Path, classes: Mapping[str, str | type] = CLASSES) -> Config:
    """The configuration of a run folder, from the `config.gin` that holds its text.

    Raises:
      UserError: there is no such file, or it holds something else than `Class.field = literal`.
    """
    if not path.is_file():
        raise UserError(
            f"there is no {path}, so {path.parent} is not a run folder; name the --workdir of a "
            "run that gshard-train made."
        )
    loaded = load_classes(classes)
    try:
        statements = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}.") from error
    bindings: dict[Key, Setting] = {}
    for statement in statements:
        where = f"{path}, line {statement.lineno}"
        match statement:
            case ast.Assign([ast.Attribute(ast.Name(class_name), field)], value):
                check_name(loaded, class_name, field, where)
                bindings[class_name, field] = Setting(_literal(value, where), where)
            case _:
                raise UserError(f"{where}: {_ONLY_LITERALS}")
    return build(bindings, loaded)


_ONLY_LITERALS = (
    "the config.gin of a run folder has only lines `Class.field = value` as gshard-train wrote "
    "them; put other gin files behind --config."
)


def _literal(node: ast.expr, where: str) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise UserError(f"{where}: {_ONLY_LITERALS}") from error


def load_classes(classes: Mapping[str, str | type] = CLASSES) -> dict[str, type]:
    """The classes of a table, imported where it names a module."""
    return {
        name: getattr(importlib.import_module(entry), name) if isinstance(entry, str) else entry
        for name, entry in classes.items()
    }


def build(bindings: Mapping[Key, Setting], classes: Mapping[str, type]) -> Config:
    """Makes the configuration of these bindings and the defaults.

    Args:
      bindings: settings by name; the names have passed `check_name`.
      classes: the table as `load_classes` gives it, one class for each part of `Config`.

    Raises:
      UserError: a value is not of its field's type, or a field without default is not bound.
    """
    parts = {}
    for class_name, cls in classes.items():
        hints = _field_types(cls)
        values = {}
        for field in dataclasses.fields(cls):
            setting = bindings.get((class_name, field.name))
            if setting is not None:
                values[field.name] = _checked(
                    setting, hints[field.name], f"{class_name}.{field.name}"
                )
            elif field.init and _is_required(field):
                raise UserError(
                    f"{class_name}.{field.name} has no value and no default; set it in the config "
                    f"or with --gin '{class_name}.{field.name} = ...'."
                )
        parts[class_name.lower()] = cls(**values)
    return Config(**parts, text=as_text(parts.values()))


def check_name(classes: Mapping[str, type], class_name: str, field: str, where: str) -> None:
    """Raises UserError where there is no such class, or it has no such field."""
    if class_name not in classes:
        raise UserError(
            f"{where}: there is nothing called {class_name!r} to configure"
            f"{did_you_mean(class_name, classes)} Known: {', '.join(classes)}."
        )
    fields = [each.name for each in dataclasses.fields(classes[class_name]) if each.init]
    if field not in fields:
        raise UserError(
            f"{where}: {class_name} has no parameter {field!r}{did_you_mean(field, fields)} "
            f"{class_name} has: {', '.join(fields)}."
        )


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a sentence: "; did you mean 'x'?", or "." where no known word is near."""
    by_lower_case = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), by_lower_case, n=1, cutoff=0.6)
    return f"; did you mean {prefix + by_lower_case[near[0]]!r}?" if near else "."


def configs_folder() -> pathlib.Path:
    """The folder of the configs that come with the package: a wheel's own, or the checkout's."""
    package = pathlib.Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_config(source: str) -> pathlib.Path:
    """The file of a config given by path, or by name: the stem of a file of configs/experiments.

    Raises:
      UserError: there is no such file or no such name; the message lists the names.
    """
    path = pathlib.Path(source)
    if path.is_file():
        return path
    folder = configs_folder()
    if path.is_dir():
        inside = path / "config.gin"
        hint = f"; did you mean {str(inside)!r}?" if inside.is_file() else "; name a .gin file."
        raise UserError(f"--config {source} is a folder{hint}")
    names = {file.stem: file for file in sorted(folder.glob("experiments/*.gin"))}
    if source in names:
        return names[source]
    if path.suffix == ".gin" or len(path.parts) > 1:
        if not path.is_absolute() and (folder / path).is_file():
            return folder / path
        what = f"there is no file {source}"
    else:
        what = f"there is no config called {source!r}"
    raise UserError(
        f"{what}{did_you_mean(path.stem, names)} Give the path of a .gin file, or one of the "
        f"names: {', '.join(names)}."
    )


@functools.cache
def _field_types(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


class _WrongTypeError(Exception):
    """A value does not conform to a type."""


def _checked(setting: Setting, hint: Any, name: str) -> object:
    try:
        return _conform(setting.value, hint)
    except _WrongTypeError:
        advice = ""
        if isinstance(setting.value, str) and hint in (int, float, bool):
            advice = " without quotes"
        raise UserError(
            f"{setting.where}: {name} is {setting.value!r}; it must be {_describe(hint)}{advice}."
        ) from None


def _conform(value: object, hint: Any) -> object:
    """`value` as the type says it: lists become tuples, a whole number may stand for a float."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if hint in (bool, int, str, types.NoneType):
        return value if type(value) is hint else _refuse()
    if hint is float:
        if type(value) not in (int, float):
            _refuse()
        try:
            number = float(typing.cast(float, value))
        except OverflowError:  # a whole number of hundreds of digits
            _refuse()
        return number if math.isfinite(number) else _refuse()
    if origin is typing.Literal:
        same = [each for each in arguments if each == value and type(each) is type(value)]
        return same[0] if same else _refuse()
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _conform(value, option)
            except _WrongTypeError:
                continue
        return _refuse()
    if origin in (tuple, list, collections.abc.Sequence):
        if not isinstance(value, list | tuple):
            _refuse()
        return _conform_entries(tuple(typing.cast(tuple[object, ...], value)), origin, arguments)
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, Mapping):
            _refuse()
        items = typing.cast(Mapping[object, object], value).items()
        return {_conform(k, arguments[0]): _conform(v, arguments[1]) for k, v in items}
    raise TypeError(f"a setting cannot have the type {hint}; see gshard_nmt.settings._conform")


def _conform_entries(
    values: tuple[object, ...], origin: Any, arguments: tuple[Any, ...]
) -> tuple[object, ...]:
    if origin is tuple and arguments[-1] is not Ellipsis:
        if len(values) != len(arguments):
            _refuse()
        return tuple(_conform(v, hint) for v, hint in zip(values, arguments, strict=True))
    return tuple(_conform(v, arguments[0]) for v in values)


def _refuse() -> typing.NoReturn:
    raise _WrongTypeError


def _describe(hint: Any) -> str:
    """A type in the user's words."""
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
        return " or ".join(map(_describe, arguments))
    if origin in (dict, collections.abc.Mapping):
        return f"a dict {{...}} from {_describe(arguments[0])} to {_describe(arguments[1])}"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"a list [...] of {', '.join(map(_describe, arguments))}"
    return f"a list [...], each entry {_describe(arguments[0])}"


def _plain(value: object) -> object:
    """Lists as tuples and mappings as dicts, so that equal settings have equal text."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    return value
