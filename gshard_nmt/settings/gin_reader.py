"""Reads gin files and `--gin` flags into a `Config`. This is the only module that imports gin.

gin parses the statements. We keep the values and resolve the macros, so that an error names the file and
the line, and says in plain words what to do.
"""

import dataclasses
import os
import pathlib
import re
import tokenize
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import gin.config_parser

from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.settings.config import CLASSES, Config, Key, configs_folder, find_config
from gshard_nmt.settings.values import Changes, Setting, build, check_name


def load_config(source: str, overrides: Sequence[str] = ()) -> Config:
    """Reads a config, then the `--gin` flags, which override it.

    Overrides are statements such as "Model.model_dim = 512" or, for a macro, "EXPERTS = 8".
    """
    return build(read_settings(source, overrides))


def read_settings(
    source: str | None, overrides: Sequence[str] = (), problems: list[str] | None = None
) -> dict[Key, Setting]:
    """Returns the settings of a config, if there is a `source`, and of the `--gin` flags, unchecked.

    If `problems` is a list, the error of each bad statement is appended to it, and reading goes on
    without that statement.
    """
    reader = _Reader()
    if source is not None:
        reader.read_file(find_config(source))
    for override in overrides:
        reader.read_text(override, f"--gin {override!r}")
    settings = reader.resolved()
    if problems is not None:
        problems += reader.problems
    elif reader.problems:
        raise UserError(reader.problems[0])
    return settings


def read_changes(statements: Sequence[str], classes: Sequence[str] = ("Mesh", "Decode")) -> Changes:
    """Reads the `--gin` flags of a program that decodes. Only these classes may change."""
    settings = read_settings(None, statements)
    for (class_name, field), setting in settings.items():
        if class_name not in classes:
            raise UserError(
                f"{setting.where}: {class_name}.{field} cannot change now, because it belongs to the "
                f"trained run or has no effect here. Give only settings of {' and '.join(classes)}."
            )
    return Changes(settings)


@dataclasses.dataclass(frozen=True)
class _Macro:
    """`%NAME` in a value, until all statements have been read."""

    name: str


@dataclasses.dataclass(frozen=True)
class _Reference:
    """`@name` in a value. It is an error, because our configs hold only values."""

    name: str


class _Reader(gin.config_parser.ParserDelegate):
    """Keeps the values of the statements, each with the place of its last statement, and the errors."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._settings: dict[Key, Setting] = {}
        self._macros: dict[str, Setting] = {}
        self._used: set[str] = set()

    def configurable_reference(self, scoped_selector: str, evaluate: bool) -> _Reference:
        """gin's parser calls this for `@name`."""
        del evaluate
        return _Reference(scoped_selector)

    def macro(self, name: str) -> object:
        """gin's parser calls this for `%name`."""
        if name in ("gin.REQUIRED", "REQUIRED"):
            return gin.REQUIRED
        self._used.add(name)
        return _Macro(name)

    def read_file(self, path: pathlib.Path, opened: tuple[str, ...] = ()) -> None:
        """Reads the statements of a file. An included file is read at the line that includes it."""
        place = os.path.realpath(path)
        if place in opened:
            self.problems.append(f"{path} includes itself; remove one of the includes.")
            return
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            self.problems.append(f"{path} is not a text file: {error}. Give a gin file in UTF-8.")
            return
        self.read_text(text, str(path), path.parent, (*opened, place))

    def read_text(
        self,
        text: str,
        name: str,
        folder: pathlib.Path = pathlib.Path(),
        opened: tuple[str, ...] = (),
    ) -> None:
        """Reads the statements of a file, or of a flag, which has no `opened` files."""

        def at(line: int) -> str:
            return f"{name}, line {line}" if opened else name

        # After a syntax error we do not know where the next statement starts.
        rest = " The rest of this file was not read." if opened else ""
        try:
            for statement in gin.config_parser.ConfigParser(text, self):
                try:
                    self._read_statement(statement, folder, at(statement.location.line_num), opened)
                except UserError as error:
                    self.problems.append(str(error))
        except SyntaxError as error:
            self.problems.append(f"{at(error.lineno or 1)}: {_plain_words(error)}{rest}")
        except (tokenize.TokenError, UnicodeEncodeError) as error:
            reason = getattr(error, "reason", error.args[0])
            problem = f"it cannot be read ({reason})."  # Python 3.12 and later has more of these
            if re.search("EOF|unterminated", reason):
                problem = "a bracket or a quote is not closed."
            self.problems.append(f"{name}: {problem}{rest}")
        except TypeError:
            self.problems.append(f"{name}: a list or mapping cannot be a key; give a text.{rest}")

    def _read_statement(
        self, statement: Any, folder: pathlib.Path, where: str, opened: tuple[str, ...]
    ) -> None:
        match statement:
            case gin.config_parser.BindingStatement():
                name, field, value = statement.selector, statement.arg_name, statement.value
                name = "/".join(filter(None, (statement.scope, name)))
                if not field:
                    self._macros[name] = Setting(value, where)
                else:
                    check_name(name, field, where)
                    self._settings[name, field] = Setting(value, where)
            case gin.config_parser.IncludeStatement():
                self.read_file(_find_include(statement.filename, folder, where), opened)
            case gin.config_parser.ImportStatement():
                raise UserError(f"{where}: configs import no modules; remove this line.")

    def resolved(self) -> dict[Key, Setting]:
        """Returns the settings with the values of their macros."""
        settings = {}
        for key, setting in self._settings.items():
            try:
                value = self._value(".".join(key), setting)
                settings[key] = Setting(value, setting.where)
            except UserError as error:
                self.problems.append(str(error))
            except TypeError:
                text = "a list or mapping cannot be a key; give a text."
                self.problems.append(f"{setting.where}: {'.'.join(key)}: {text}")
        names = [f"{n}.{f.name}" for n, cls in CLASSES.items() for f in dataclasses.fields(cls)]
        for macro, setting in self._macros.items():
            if macro not in self._used:
                meant = [name for name in names if name.split(".")[1] == macro]
                hint = f"; did you mean {meant[0]!r}?" if meant else did_you_mean(macro, self._used)
                self.problems.append(
                    f"{setting.where}: nothing uses {macro!r}{hint} A setting is written Class.name, "
                    f"with one of the classes {', '.join(CLASSES)}."
                )
        return settings

    def _value(self, name: str, setting: Setting, opened: tuple[str, ...] = ()) -> Any:
        """Returns the value of a setting or of a part of it, which is in the values of some macros."""
        value, where = setting.value, setting.where
        if value is gin.REQUIRED:
            raise UserError(
                f"{where}: {name} is required; set it in the config or with --gin '{name} = ...'."
            )

        def part(entry: object) -> Any:
            return self._value(name, Setting(entry, where), opened)

        match value:
            case _Reference():
                raise UserError(
                    f"{where}: @{value.name} is a reference, but configs hold only values; write the "
                    "value itself."
                )
            case _Macro(macro) if macro in opened:
                raise UserError(
                    f"{where}: the macro %{macro} refers to itself in a circle; give it a value."
                )
            case _Macro(macro) if macro not in self._macros:
                raise UserError(
                    f"{where}: the macro %{macro} has no value{did_you_mean(macro, self._macros)} "
                    f"Set it in the config or with --gin '{macro} = ...'."
                )
            case _Macro(macro):
                return self._value(macro, self._macros[macro], (*opened, macro))
            case Mapping():
                return {part(key): part(entry) for key, entry in value.items()}
            case list() | tuple():
                return type(value)(map(part, value))
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
