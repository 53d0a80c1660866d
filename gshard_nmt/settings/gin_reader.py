"""Reads gin files and `--gin` flags into a `Config`. This is the only module that imports gin.

gin parses the statements. We keep the values and resolve the macros, so that an error names the file and
the line, and says in plain words what to do.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
import gin.config_parser

from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.settings.config import CLASSES, Config, Key, configs_folder, find_config
from gshard_nmt.settings.values import REMOVED, Setting, build, check_name


def load_config(
    source: str, overrides: Sequence[str] = (), classes: Mapping[str, type] = CLASSES
) -> Config:
    """Reads a config, then the `--gin` flags, which override it.

    Overrides are statements such as "Model.model_dim = 512" or, for a macro, "EXPERTS = 8".
    """
    return build(read_settings(source, overrides, classes), classes)


def read_settings(
    source: str,
    overrides: Sequence[str] = (),
    classes: Mapping[str, type] = CLASSES,
    problems: list[str] | None = None,
) -> dict[Key, Setting]:
    """Returns the settings of a config and of the `--gin` flags. Their values are not checked yet.

    If `problems` is a list, the error of each bad statement is appended to it, and reading goes on
    without that statement.
    """
    reader = _Reader(classes, problems)
    reader.read_file(find_config(source))
    for override in overrides:
        reader.read_text(override, f"--gin {override!r}")
    return reader.resolve()


def read_statements(statements: Sequence[str]) -> dict[Key, Setting]:
    """Returns the settings of `--gin` flags alone. Their values are not checked yet."""
    reader = _Reader(CLASSES)
    for statement in statements:
        reader.read_text(statement, f"--gin {statement!r}")
    return reader.resolve()


@dataclasses.dataclass(frozen=True)
class _Macro:
    """`%NAME` in a value, until all statements have been read."""

    name: str


@dataclasses.dataclass(frozen=True)
class _Reference:
    """`@name` in a value. It is an error, because our configs hold only values."""

    name: str


class _Delegate(gin.config_parser.ParserDelegate):
    """Tells gin's parser what to make of macros and references."""

    def configurable_reference(self, scoped_selector: str, evaluate: bool) -> _Reference:
        del evaluate
        return _Reference(scoped_selector)

    def macro(self, name: str) -> object:
        return gin.REQUIRED if name in ("gin.REQUIRED", "REQUIRED") else _Macro(name)


_FILES = (("Cleaning", "modules"),)
"""Settings with names of files, which may be relative to the config."""


class _Reader:
    """Keeps the values of the statements, each with the place of its last statement."""

    def __init__(self, classes: Mapping[str, type], problems: list[str] | None = None) -> None:
        self._classes = classes
        self._problems = problems
        self._bound: dict[Key, Setting] = {}
        self._macros: dict[str, Setting] = {}
        self._uses: dict[str, str] = {}
        self._open_files: list[str] = []

    @contextlib.contextmanager
    def _collecting_problems(self) -> Iterator[None]:
        """Adds the message of a UserError to the list of problems. Without a list, it is raised."""
        try:
            yield
        except UserError as error:
            if self._problems is None:
                raise
            self._problems.append(str(error))

    def read_file(self, path: pathlib.Path) -> None:
        """Binds the statements of a file. An included file is read at the line that includes it."""
        place = os.path.realpath(path)
        if place in self._open_files:
            raise UserError(f"{path} includes itself; remove one of the includes.")
        self._open_files.append(place)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not a text file: {error}. Give a gin file in UTF-8."
            ) from error
        with self._collecting_problems():
            self._read(text, str(path), path.parent, in_file=True)
        self._open_files.pop()

    def read_text(self, text: str, where: str) -> None:
        with self._collecting_problems():
            self._read(text, where, pathlib.Path(), in_file=False)

    def _read(self, text: str, name: str, folder: pathlib.Path, in_file: bool) -> None:
        # After a syntax error we do not know where the next statement starts.
        goes_on = in_file and self._problems is not None
        rest = " The rest of this file was not read." if goes_on else ""

        def at(line: int) -> str:
            return f"{name}, line {line}" if in_file else name

        try:
            for statement in gin.config_parser.ConfigParser(text, _Delegate()):
                with self._collecting_problems():
                    self._read_statement(statement, folder, at(statement.location.line_num))
        except SyntaxError as error:
            raise UserError(f"{at(error.lineno or 1)}: {_plain_words(error)}{rest}") from error
        except tokenize.TokenError as error:
            raise UserError(f"{name}: a bracket or a quote is not closed.{rest}") from error

    def _read_statement(self, statement: Any, folder: pathlib.Path, where: str) -> None:
        match statement:
            case gin.config_parser.BindingStatement():
                self._bind(statement, folder, where)
            case gin.config_parser.BlockDeclaration():
                self._check_class(statement.scope, statement.selector, where)
            case gin.config_parser.IncludeStatement():
                self.read_file(_find_include(statement.filename, folder, where))
            case _:
                raise UserError(f"{where}: configs import no modules; remove this line.")

    def _bind(self, statement: Any, folder: pathlib.Path, where: str) -> None:
        class_name, field, value = statement.selector, statement.arg_name, statement.value
        for part in _parts(value):
            if isinstance(part, _Reference):
                raise UserError(
                    f"{where}: @{part.name} is a reference, but configs hold only values; write the "
                    "value itself."
                )
            if isinstance(part, _Macro):
                self._uses.setdefault(part.name, where)
        if not field:
            macro = "/".join(filter(None, (statement.scope, class_name)))
            self._macros[macro] = Setting(value, where)
            return
        self._check_class(statement.scope, class_name, where)
        # A value that `prepare` would have used must be an error.
        is_void = class_name == "Mesh" or not value
        if (class_name, field) in REMOVED and is_void and not where.startswith("--gin"):
            return
        check_name(self._classes, class_name, field, where)
        if (class_name, field) in _FILES:
            value = _found(value, folder)
        self._bound[class_name, field] = Setting(value, where)

    def _check_class(self, scope: str, class_name: str, where: str) -> None:
        if scope:
            raise UserError(
                f"{where}: configs have no scopes; write {class_name}, not {scope}/{class_name}."
            )
        if class_name not in self._classes:
            check_name(self._classes, class_name, "", where)

    def resolve(self) -> dict[Key, Setting]:
        for macro, where in self._uses.items():
            if macro not in self._macros:
                with self._collecting_problems():
                    raise UserError(
                        f"{where}: the macro %{macro} has no value"
                        f"{did_you_mean(macro, self._macros)} "
                        f"Set it in the config or with --gin '{macro} = ...'."
                    )
        values = {}
        for macro, setting in self._macros.items():
            with self._collecting_problems():
                _check_not_required(macro, setting)
                values[macro] = setting.value
                self._check_is_used(macro, setting.where)
        resolved = {}
        for (class_name, field), setting in self._bound.items():
            # A KeyError is of a macro without a value, which was reported above.
            with self._collecting_problems(), contextlib.suppress(KeyError):
                _check_not_required(f"{class_name}.{field}", setting)
                value = _with_values(setting.value, values)
                resolved[class_name, field] = Setting(value, setting.where)
        return resolved

    def _check_is_used(self, macro: str, where: str) -> None:
        if macro not in self._uses:
            names = [
                f"{name}.{field.name}"
                for name, cls in self._classes.items()
                for field in dataclasses.fields(cls)
            ]
            settings = [name for name in names if name.split(".")[1] == macro]
            hint = (
                f"; did you mean {settings[0]!r}?" if settings else did_you_mean(macro, self._uses)
            )
            raise UserError(
                f"{where}: nothing uses {macro!r}{hint} A setting is written Class.name, with "
                f"one of the classes {', '.join(self._classes)}."
            )


def _with_values(value: Any, macros: Mapping[str, Any], opened: tuple[str, ...] = ()) -> Any:
    """Returns a value with the values of its macros. `opened` are the macros that it is the value of."""
    match value:
        case _Macro(name):
            if name in opened:
                raise UserError(
                    f"some of the macros {', '.join(macros)} refer to one another in a circle; give "
                    "one macro of the circle a value."
                )
            return _with_values(macros[name], macros, (*opened, name))
        case Mapping():
            pairs = [_with_values(pair, macros, opened) for pair in value.items()]
            return dict(pairs)
        case list() | tuple():
            return type(value)(_with_values(part, macros, opened) for part in value)
    return value


def _check_not_required(name: str, setting: Setting) -> None:
    if any(part is gin.REQUIRED for part in _parts(setting.value)):
        raise UserError(
            f"{setting.where}: {name} is required; set it in the config or with --gin '{name} = ...'."
        )


def _parts(value: object) -> Iterator[object]:
    """Yields a value and, if it is a list or a mapping, everything in it."""
    yield value
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _parts(entry)


def _found(value: Any, folder: pathlib.Path) -> Any:
    """Returns the path of a file, or paths, with the folder of the config if the file is there only."""
    if isinstance(value, list | tuple):
        return type(value)(_found(part, folder) for part in value)
    if isinstance(value, str) and not os.path.exists(value) and (folder / value).is_file():
        return str(folder / value)
    return value


def _find_include(name: str, folder: pathlib.Path, where: str) -> pathlib.Path:
    """Returns the path of an included file, which is beside the including file or in configs/."""
    configs = configs_folder()
    for base in (folder, configs):
        if (base / name).is_file():
            return base / name
    known = [str(path.relative_to(configs)) for path in sorted(configs.glob("*/*.gin"))]
    raise UserError(
        f"{where}: there is no file {name!r} to include, neither in {folder} nor in {configs}"
        f"{did_you_mean(name, known)} Give a path relative to one of these folders."
    )


def _plain_words(error: SyntaxError) -> str:
    """Says what gin's parser could not read, for a user who does not know gin."""
    token = re.search(r"Failed to parse token '(.*)'", str(error.msg))
    if token:
        return (
            f"cannot read {token[1]}; a string needs quotes, and a macro needs % before its name."
        )
    line = (error.text or "").strip()
    return f"cannot read {line!r}; a setting is written Class.name = value ({error.msg})"
