"""Reads gin files and the bindings of `--gin` into a `Config`. The only importer of gin.

gin parses the statements, keeps the bindings and resolves the macros; here each statement is looked
at on its way, so that every mistake is told in the user's words with its file and line.
"""

import contextlib
import copy
import dataclasses
import pathlib
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
import gin.config
import gin.config_parser

from gshard_nmt.errors import UserError
from gshard_nmt.settings import values
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.values import CLASSES, Key, Setting, did_you_mean


def load_config(
    source: str, overrides: Sequence[str] = (), classes: Mapping[str, str | type] = CLASSES
) -> Config:
    """Reads a config and the bindings of `--gin`, in this order, and makes the instances.

    Args:
      source: a path, or a name (the stem of a file of configs/experiments).
      overrides: gin statements, such as "Model.layers = 4" or, for a macro, "EXPERTS = 8".
      classes: the configurable classes by name, or the modules that hold them.

    Raises:
      UserError: anything in the config that does not parse, is not known, has the wrong type or
        is required and missing.
    """
    return values.build(read_settings(source, overrides, classes), values.load_classes(classes))


def read_settings(
    source: str,
    overrides: Sequence[str] = (),
    classes: Mapping[str, str | type] = CLASSES,
    problems: list[str] | None = None,
) -> dict[Key, Setting]:
    """What a config and the bindings of `--gin` set, by name; the values are not checked yet.

    Args:
      source, overrides, classes: as for `load_config`.
      problems: where it is given, gets what is wrong with each statement, which is left out.

    Raises:
      UserError: there is no such config; and, without `problems`, anything that does not parse or
        is not known, or is required and missing.
    """
    reader = _Reader(values.load_classes(classes), problems)
    reader.read_file(values.find_config(source))
    for override in overrides:
        reader.read_text(override, f"--gin {override!r}")
    return reader.resolve()


@dataclasses.dataclass(frozen=True)
class _Reference:
    """`@name` in a gin file; our configs hold values only."""

    name: str


class _Delegate(gin.config.ParserDelegate):
    """Makes gin's macros, but no references to functions."""

    def configurable_reference(self, scoped_selector: str, evaluate: bool) -> _Reference:
        del evaluate
        return _Reference(scoped_selector)

    def macro(self, name: str) -> object:
        return gin.REQUIRED if name in ("gin.REQUIRED", "REQUIRED") else super().macro(name)


class _Reader:
    """Binds the statements of gin files, one by one, so that each mistake names its line."""

    def __init__(self, classes: Mapping[str, type], problems: list[str] | None = None) -> None:
        self._classes = classes
        self._problems = problems
        self._selectors = {name: _register(cls) for name, cls in classes.items()}
        self._bound: dict[Key, str] = {}
        self._macros: dict[str, str] = {}
        self._uses: dict[str, str] = {}
        self._open_files: list[pathlib.Path] = []
        gin.clear_config()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A mistake ends the reading; where problems are kept, only what it is in is left out."""
        try:
            yield
        except UserError as error:
            if self._problems is None:
                raise
            self._problems.append(str(error))

    def read_file(self, path: pathlib.Path) -> None:
        """Binds what a file says; an include is read where it stands."""
        if path.resolve() in self._open_files:
            raise UserError(f"{path} includes itself; take one include away.")
        self._open_files.append(path.resolve())
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a text file: {error}.") from error
        with self._told():
            self._read(text, str(path), path.parent, in_file=True)
        self._open_files.pop()

    def read_text(self, text: str, where: str) -> None:
        """Binds what one `--gin` flag says."""
        with self._told():
            self._read(text, where, pathlib.Path(), in_file=False)

    def _read(self, text: str, name: str, folder: pathlib.Path, in_file: bool) -> None:
        # Without an end of the statement there is no beginning of the next.
        goes_on = in_file and self._problems is not None
        rest = " What follows in this file was not read." if goes_on else ""

        def at(line: int) -> str:
            return f"{name}, line {line}" if in_file else name

        try:
            for statement in gin.config_parser.ConfigParser(text, _Delegate()):
                with self._told():
                    self._read_statement(statement, folder, at(statement.location.line_num))
        except SyntaxError as error:
            raise UserError(f"{at(error.lineno or 1)}: {_plain_words(error)}{rest}") from error
        except tokenize.TokenError as error:
            raise UserError(f"{name}: a bracket or a quote is not closed.{rest}") from error

    def _read_statement(self, statement: Any, folder: pathlib.Path, where: str) -> None:
        match statement:
            case gin.config_parser.BindingStatement():
                self._bind(statement, where)
            case gin.config_parser.BlockDeclaration():
                self._check_class(statement.scope, statement.selector, where)
            case gin.config_parser.IncludeStatement():
                self.read_file(_find_include(statement.filename, folder, where))
            case _:
                raise UserError(f"{where}: configs import no modules; take this line away.")

    def _bind(self, statement: Any, where: str) -> None:
        self._check_value(statement.value, where)
        if not statement.arg_name:
            macro = "/".join(filter(None, (statement.scope, statement.selector)))
            gin.bind_parameter((macro, "gin.macro", "value"), statement.value)
            self._macros[macro] = where
            return
        self._check_class(statement.scope, statement.selector, where)
        values.check_name(self._classes, statement.selector, statement.arg_name, where)
        selector = self._selectors[statement.selector]
        gin.bind_parameter(("", selector, statement.arg_name), statement.value)
        self._bound[statement.selector, statement.arg_name] = where

    def _check_class(self, scope: str, class_name: str, where: str) -> None:
        if scope:
            raise UserError(f"{where}: configs have no scopes; write {class_name}, not {scope}/.")
        if class_name not in self._classes:
            values.check_name(self._classes, class_name, "", where)

    def _check_value(self, value: object, where: str) -> None:
        for part in _parts(value):
            if isinstance(part, _Reference):
                raise UserError(
                    f"{where}: configs hold values, not references; @{part.name} is one."
                )
        for macro in _macros_in(value):
            self._uses.setdefault(macro, where)

    def resolve(self) -> dict[Key, Setting]:
        """The bindings with the macros' values in their places."""
        for macro, where in self._uses.items():
            with self._told():
                self._check_has_value(macro, where)
        for macro, where in self._macros.items():
            with self._told():
                _check_not_required(macro, _value_of(macro), where)
                self._check_is_used(macro, where)
        values = {}
        for (class_name, field), where in self._bound.items():
            with self._told():
                bound = gin.get_bindings(self._selectors[class_name], resolve_references=False)
                value = bound[field]
                _check_not_required(f"{class_name}.{field}", value, where)
                if self._has_values(value):
                    # A copy of gin's has the macros' values in their places.
                    values[class_name, field] = Setting(copy.deepcopy(value), where)
        return values

    def _has_values(self, value: object) -> bool:
        """Whether all macros in a value have one; those without have been told.

        Raises:
          UserError: they use one another.
        """
        try:
            return all(
                macro in self._macros
                and not any(part is gin.REQUIRED for part in _parts(_value_of(macro)))
                and self._has_values(_value_of(macro))
                for macro in _macros_in(value)
            )
        except RecursionError:
            raise UserError(
                f"the macros {', '.join(self._macros)} use one another in a ring."
            ) from None

    def _check_has_value(self, macro: str, where: str) -> None:
        if macro not in self._macros:
            raise UserError(
                f"{where}: the macro %{macro} has no value{did_you_mean(macro, self._macros)} "
                f"Set it in the config or with --gin '{macro} = ...'."
            )

    def _check_is_used(self, macro: str, where: str) -> None:
        if macro not in self._uses:
            names = [
                f"{name}.{field.name}"
                for name, cls in self._classes.items()
                for field in dataclasses.fields(cls)
            ]
            same = [each for each in names if each.split(".")[1] == macro]
            hint = f"; did you mean {same[0]!r}?" if same else did_you_mean(macro, self._uses)
            raise UserError(
                f"{where}: nothing uses {macro!r}{hint} A setting is written Class.name, with "
                f"one of the classes {', '.join(self._classes)}."
            )


def _value_of(macro: str) -> object:
    return gin.query_parameter(f"{macro}/gin.macro.value")


def _macros_in(value: object) -> Iterator[str]:
    for part in _parts(value):
        if isinstance(part, gin.config.ConfigurableReference):
            yield part.scoped_selector.removesuffix("/gin.macro")


def _check_not_required(name: str, value: object, where: str) -> None:
    if any(part is gin.REQUIRED for part in _parts(value)):
        raise UserError(
            f"{where}: {name} is required; set it in the config or with --gin '{name} = ...'."
        )


_registered: dict[type, str] = {}


def _register(cls: type) -> str:
    """The full name that gin knows a class by, after making it one of its configurables once."""
    if cls not in _registered:
        gin.external_configurable(cls, cls.__name__, module=cls.__module__)
        _registered[cls] = f"{cls.__module__}.{cls.__name__}"
    return _registered[cls]


def _parts(value: object) -> Iterator[object]:
    """A value and everything in it."""
    yield value
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each)


def _find_include(name: str, folder: pathlib.Path, where: str) -> pathlib.Path:
    """An included file: beside the file that includes it, or below the configs folder."""
    configs = values.configs_folder()
    for base in (folder, configs):
        if (base / name).is_file():
            return base / name
    known = [str(path.relative_to(configs)) for path in sorted(configs.glob("*/*.gin"))]
    raise UserError(
        f"{where}: there is no file {name!r} to include, neither in {folder} nor in {configs}"
        f"{did_you_mean(name, known)}"
    )


def _plain_words(error: SyntaxError) -> str:
    """What gin's parser could not read, for someone who does not know its insides."""
    token = re.search(r"Failed to parse token '(.*)'", str(error.msg))
    if token:
        return f"cannot read {token[1]}; a string needs quotes, a macro a % before its name."
    line = (error.text or "").strip()
    return f"cannot read {line!r}; a setting is written Class.name = value ({error.msg})"
