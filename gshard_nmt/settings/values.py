"""Turns named values into a `Config`: looks the names up and checks the values' types.

`gin_reader.py` reads gin files into named values such as ("Model", "model_dim") -> 512, and
`build` makes a `Config` from them. The run folder keeps the text of its `Config` as `config.gin`, and
`read_run_config` reads it back. This text has only literals, so programs that resume, decode or
evaluate a run need no gin.
"""

import ast
import contextlib
import dataclasses
import functools
import math
import pathlib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.settings.config import CLASSES, GIN_END, GIN_HEADER, Config, Key, named_settings
from gshard_nmt.spmd.mesh import MOST_DEVICES, nearest_mesh


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value as a config gives it, unchecked, and the file and line, or the flag, that gives it."""

    value: object
    where: str


def read_run_config(path: pathlib.Path) -> Config:
    """Reads the `config.gin` of a run folder. Raises UserError if it is missing or damaged."""
    if not path.is_file():
        raise UserError(
            f"there is no {path}, so {path.parent} is not a run folder; give the --workdir of a "
            "run that gshard-train made."
        )
    restore = "Restore the file as gshard-train wrote it."
    try:
        text = path.read_text(encoding="utf-8")
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{path} is damaged: {error}. {restore}") from error
    if not statements or (text.startswith(GIN_HEADER) and GIN_END not in text):
        raise UserError(f"{path} is damaged: lines are missing at its end. {restore}")
    settings: dict[Key, Setting] = {}
    for statement in statements:
        where = f"{path}, line {statement.lineno}"
        try:
            match statement:
                case ast.Assign([ast.Attribute(ast.Name(class_name), field)], node):
                    value = ast.literal_eval(node)
                case _:
                    raise ValueError
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            raise UserError(
                f"{where}: cannot read this line; the config.gin of a run folder has only lines "
                f"`Class.field = value`. {restore}"
            ) from error
        check_name(class_name, field, where)
        settings[class_name, field] = Setting(value, where)
    try:
        return build(settings)
    except UserError as error:
        place = "" if str(error).startswith(str(path)) else f"{path}: "
        raise UserError(f"{place}{error}", error.settings) from None


def build(settings: Mapping[Key, Setting]) -> Config:
    """Makes the configuration from settings, whose names have passed `check_name`, and the defaults."""
    parts: dict[str, dict[str, Any]] = {class_name: {} for class_name in CLASSES}
    for (class_name, field), setting in settings.items():
        hint = _field_types(CLASSES[class_name])[field]
        try:
            parts[class_name][field] = _conform(setting.value, hint)
        except (ValueError, OverflowError):
            is_quoted = isinstance(setting.value, str) and hint in (int, float, bool)
            name, advice = f"{class_name}.{field}", " without quotes" if is_quoted else ""
            raise UserError(
                f"{setting.where}: {name} is {setting.value!r}; it must be {describe_type(hint)}"
                f"{advice}.",
                [name],
            ) from None
    return Config(**{name.lower(): CLASSES[name](**values) for name, values in parts.items()})


def check_name(class_name: str, field: str, where: str) -> None:
    """Raises UserError if there is no such class, or the class has no such field."""
    if class_name not in CLASSES:
        raise UserError(
            f"{where}: there is no class of settings called {class_name!r}"
            f"{did_you_mean(class_name, CLASSES)} Known: {', '.join(CLASSES)}."
        )
    fields = [known.name for known in dataclasses.fields(CLASSES[class_name])]
    if field not in fields:
        raise UserError(
            f"{where}: {class_name} has no setting {field!r}{did_you_mean(field, fields)} "
            f"{class_name} has: {', '.join(fields)}."
        )


_field_types = functools.cache(typing.get_type_hints)


def _conform(value: Any, hint: Any) -> object:
    """Returns `value` converted to a type: a list becomes a tuple, and an int a float if it must be.

    Raises:
      ValueError, OverflowError: the value is not of this type.
    """
    arguments = typing.get_args(hint)
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if hint is not float and type(value) is hint:
        return value
    match _kind(hint):
        case "union":
            for option in arguments:
                with contextlib.suppress(ValueError, OverflowError):
                    return _conform(value, option)
        case "list" if isinstance(value, list | tuple):
            return tuple(_conform(entry, arguments[0]) for entry in value)
        case "dict" if isinstance(value, Mapping):
            return {_conform(k, arguments[0]): _conform(v, arguments[1]) for k, v in value.items()}
    raise ValueError


def _kind(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return "union"
    return {tuple: "list", Sequence: "list", None: ""}.get(origin, "dict")


_SIMPLE: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string in quotes",
    bool: "True or False",
    types.NoneType: "None",
}


def describe_type(hint: Any) -> str:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    words = [describe_type(argument) for argument in typing.get_args(hint) if argument is not ...]
    match _kind(hint):
        case "union":
            return " or ".join(words)
        case "dict":
            return f"a dict {{...}} from {words[0]} to {words[1]}"
    return f"a list [...], each entry {words[0]}"


@dataclasses.dataclass(frozen=True)
class Changes:
    """Settings of Mesh and Decode that replace those of a trained run."""

    settings: Mapping[Key, Setting] = dataclasses.field(default_factory=dict)

    @property
    def name_a_mesh(self) -> bool:
        return any(class_name == "Mesh" for class_name, _ in self.settings)

    def apply(self, config: Config) -> Config:
        """Returns the config of a run with these changes.

        A Mesh.shape with one size is the number of devices if the mesh of the run has several axes: they
        are divided over the axes as `nearest_mesh` does. A new shape drops the order of the devices,
        which fits the old shape only.
        """
        if not self.settings:
            return config
        recorded = named_settings(config.parts).items()
        settings = {key: Setting(value, "config.gin") for key, value in recorded}
        settings |= self.settings
        shape = self.settings.get(("Mesh", "shape"))
        if shape and ("Mesh", "device_order") not in self.settings:
            settings["Mesh", "device_order"] = Setting((), "the default")
        if shape and ("Mesh", "axes") not in self.settings:
            settings["Mesh", "shape"] = _shape_for_axes(config, shape)
        return build(settings)


def _shape_for_axes(config: Config, shape: Setting) -> Setting:
    """Returns the shape for the axes of the run, if the given shape is only a number of devices."""
    value: Any = shape.value
    axes = config.mesh.axes
    if not isinstance(value, list | tuple) or len(value) == len(axes):
        return shape
    if len(value) == 1 and type(value[0]) is int and 1 <= value[0] <= MOST_DEVICES:
        return Setting(tuple(nearest_mesh(config.mesh, value[0]).shape), shape.where)
    raise UserError(
        f"{shape.where}: Mesh.shape is {list(value)}, and the run has the mesh axes {list(axes)}. Give "
        "each axis one size, or give one number of devices, as in 'Mesh.shape = (8,)'.",
        ["Mesh.shape"],
    )
