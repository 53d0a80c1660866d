"""The flags of a command: their definitions, their values, and the text of `--help`."""

import contextlib
import dataclasses
import math
import shlex
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from gshard_nmt import outputs, paths
from gshard_nmt.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that a user types, such as `gshard-train` or `gshard-data prepare`."""

    name: str  # the words that the user types
    about: str  # what the command does, in a sentence or two
    example: str  # a command line that works
    required: Sequence[str]  # names of the flags that must be given
    define: Callable[["Flags"], None]  # defines the flags
    run: Callable[[flags.FlagValues], None]  # does the work with the values of the flags
    # required flags that another flag makes needless: {flag: the other flag}
    replaced: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # flags that have no effect without another one: {flag: the other flag}
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)


class _Parser(flags.ArgumentParser[Any]):
    """A parser of absl whose error says what the flag is, and what it must be."""

    def __init__(self, name: str, parser: flags.ArgumentParser[Any]) -> None:
        self._name, self._parser = name, parser

    def parse(self, text: Any) -> Any:
        with contextlib.suppress(ValueError, TypeError):
            value = self._parser.parse(text)
            if not isinstance(value, float) or math.isfinite(value):
                return value
        if isinstance(self._parser, flags.EnumParser):
            allowed = "one of " + ", ".join(self._parser.enum_values)
        else:
            allowed = self._parser.syntactic_help or "true or false"
        raise ValueError(f"--{self._name} is {text!r}; it must be {allowed}.")


class Flags:
    """The flags of a command: absl's flags, and their texts for `--help`.

    Each method defines a flag. `about` is its text in `--help`, and `placeholder` stands for its value.
    """

    def __init__(self) -> None:
        self.values = flags.FlagValues()
        self.placeholders: dict[str, str] = {}  # by flag; "" if it takes no value
        self.abouts: dict[str, str] = {}
        self.lists: set[str] = set()  # the flags that take several words

    def _define(
        self, define: Callable[..., Any], name: str, placeholder: str, about: str, *rest: Any
    ) -> None:
        self.placeholders[name], self.abouts[name] = placeholder, about
        define(name, *rest, flag_values=self.values)

    def text(self, name: str, placeholder: str, about: str, default: str | None = None) -> None:
        self._define(flags.DEFINE_string, name, placeholder, about, default, about)

    def texts(self, name: str, placeholder: str, about: str) -> None:
        """Defines a flag that may be given several times. Its value is a list."""
        self._define(flags.DEFINE_multi_string, name, placeholder, about, [], about)

    def words(self, name: str, placeholder: str, about: str) -> None:
        """Defines a flag with several words, as in `--metrics bleu chrf` or `--metrics bleu,chrf`."""
        self.lists.add(name)
        self.texts(name, placeholder, about)

    def integer(
        self,
        name: str,
        placeholder: str,
        about: str,
        default: int | None,
        minimum: int,
        maximum: int | None = None,
    ) -> None:
        limits = minimum, maximum
        self._define(flags.DEFINE_integer, name, placeholder, about, default, about, *limits)

    def number(
        self,
        name: str,
        placeholder: str,
        about: str,
        default: float | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> None:
        limits = minimum, maximum
        self._define(flags.DEFINE_float, name, placeholder, about, default, about, *limits)

    def choice(self, name: str, placeholder: str, about: str, choices: Sequence[str]) -> None:
        self._define(flags.DEFINE_enum, name, placeholder, about, None, choices, about)

    def switch(self, name: str, about: str) -> None:
        self._define(flags.DEFINE_boolean, name, "", about, False, about)


def parse_flags(command: Command, arguments: Sequence[str]) -> flags.FlagValues:
    """Returns the values of the flags. Raises UserError for a flag that is unknown, wrong or missing."""
    defined = Flags()
    command.define(defined)
    values = defined.values
    values.set_gnu_getopt()
    for name in values:
        values[name].parser = _Parser(name, values[name].parser)
    see = f"See {command.name} --help."
    try:
        words = values([command.name, *_spread(arguments, defined.lists)])[1:]
    except flags.UnrecognizedFlagError as error:
        hint = _our_flag(error.flagname, list(values)) or did_you_mean(error.flagname, values, "--")
        raise UserError(f"there is no flag --{error.flagname}{hint} {see}") from None
    except flags.IllegalFlagValueError as error:
        raise UserError(f"{error.__context__} {see}") from None
    except flags.Error as error:
        raise UserError(f"{error}. {see}") from None
    if words:
        raise UserError(f"{words[0]!r} is not a flag; write a flag as --name value. {see}")
    for name, other in command.needs.items():
        if values[other].using_default_value and not values[name].using_default_value:
            raise UserError(
                f"--{name} has no effect without --{other}. Add --{other}, or leave out --{name}. {see}"
            )
    require(command, values, command.required)
    return values


def require(command: Command, values: flags.FlagValues, names: Sequence[str]) -> None:
    """Raises UserError if one of these flags is missing, and no other flag replaces it."""
    needless = {name for name, other in command.replaced.items() if values[other].value}
    missing = [f"--{name}" for name in names if not values[name].value and name not in needless]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        listed = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
        raise UserError(
            f"{listed} {verb} missing. For example:\n  {command.example}\nSee {command.name} --help."
        )


def check_apart(values: flags.FlagValues, other: str, names: Sequence[str], reason: str) -> None:
    """Raises UserError if a flag is given that the flag `other`, which is given too, excludes."""
    for name in names if values[other].value else ():
        if values[name].value != values[name].default:
            raise UserError(
                f"--{name} does not go with --{other}, which {reason}. Leave out one of them."
            )


def _spread(arguments: Sequence[str], lists: Collection[str]) -> list[str]:
    """Repeats the name of a flag before each of its words: `--a x y` becomes `--a=x --a=y`."""
    result: list[str] = []
    current = ""
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=False):
        if argument.startswith("-"):
            name, equals, value = argument.lstrip("-").partition("=")
            current = name if name in lists else ""
            if not current:
                result.append(argument)
            elif equals or following.startswith("-"):
                result += _each_word(current, value)
        else:
            result += _each_word(current, argument) if current else [argument]
    return result


def _each_word(name: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    return [f"--{name}={word}" for word in words or [text]]


_WORDS = {
    "the same command resumes the run": "resume restore continue resume_from_checkpoint",
    "steps": "max_steps max_update train_steps num_train_steps epochs max_epoch num_train_epochs",
    "rows": "batch batch_size bs",
    "learning_rate": "lr",
    "activation_dtype": "fp16 bf16 mixed_precision dtype",
    "shape": "gpus num_gpus n_gpu devices num_devices",
    "residual_dropout": "dropout",
    "experts": "num_experts",
    "config": "arch model",
    "workdir": "output_dir save_dir model_dir run_dir model_path model",
    "data": "data_dir data_path dataset",
    "init_from": "finetune pretrained from_pretrained",
    "beam": "beam_size num_beams",
    "lang": "src source_lang src_lang",
    "target": "tgt target_lang tgt_lang",
}
"""The words of other systems, by the name of our flag or setting, or by what to do."""


def _our_flag(flag: str, known: Collection[str]) -> str:
    """Returns the end of a sentence that says what to give in place of another system's flag, or ""."""
    from gshard_nmt.settings.config import CLASSES

    word = flag.replace("-", "_").lower()
    for name in [name for name, words in _WORDS.items() if word in words.split()] or [word]:
        if " " in name and "config" in known:
            return f"; {name}."
        if name in known:
            return f"; use --{name}."
        for class_name, cls in CLASSES.items() if "gin" in known else ():
            is_meant = "config" in known or class_name in ("Decode", "Mesh")
            if is_meant and name in [field.name for field in dataclasses.fields(cls)]:
                return f"; use --gin '{class_name}.{name} = ...'."
    return ""


def command_text(program: str, values: flags.FlagValues) -> str:
    """Returns the command as one line for a shell, without flags that have their defaults."""
    words = [program]
    for name in values:
        value = values[name].value
        if isinstance(value, bool):
            words += [f"--{name}"] if value else []
        elif not values[name].using_default_value:
            words += [f"--{name}={t}" for t in (value if isinstance(value, list) else [value])]
    return shlex.join(words)


def help_text(command: Command) -> str:
    """Returns the text of `--help`: what the command does, an example, and every flag."""
    defined = Flags()
    command.define(defined)
    lines = [*textwrap.wrap(f"{command.name}: {command.about}", 96), "", "Example:"]
    lines += [f"  {command.example}", "", "Flags:"]
    for name, about in defined.abouts.items():
        default = defined.values[name].default
        if name in command.replaced:
            about += f" (required, but not with --{command.replaced[name]})"
        elif name in command.required:
            about += " (required)"
        elif default:
            about += f" (default: {f'{default:g}' if isinstance(default, float) else default})"
        lines += help_entry(f"--{name} {defined.placeholders[name]}", about)
    lines += help_entry("--help", "print this text")
    lines += help_entry("--version", "print the version")
    return "\n".join(lines) + "\n"


def help_entry(head: str, about: str) -> list[str]:
    """Returns the lines of one flag or command in a help text: its name, and beside it the text."""
    indent = " " * 26
    lines = textwrap.wrap(about, 96, initial_indent=indent, subsequent_indent=indent)
    if len(head) < 23:
        return [f"  {head:<24}{lines[0].lstrip()}", *lines[1:]]
    return [f"  {head}", *lines]


def define_run(defined: Flags) -> None:
    defined.text("workdir", "DIR|URL", "the run folder of the model; may be gs://bucket/folder")


def define_changes(defined: Flags) -> None:
    defined.texts("gin", "'NAME = VALUE'",
        "a setting of Mesh or Decode in place of the run's, such as 'Mesh.shape = (8,)'; may be given "
        "several times")  # fmt: skip


def define_config(defined: Flags) -> None:
    # fmt: off
    defined.text("config", "NAME|FILE", "a gin file, or the name of one in configs/experiments")
    defined.texts("gin", "'NAME = VALUE'",
        "a setting in place of the config's, such as 'Train.steps = 100'; may be given several times")


def define_checkpoint(
    defined: Flags, about_averages: str = "computed in memory", use: str = "the weights to use"
) -> None:
    """Defines --checkpoint, which `run.checkpoint.weights.Chosen` parses."""
    defined.text("checkpoint", "NAME",
        f"{use}: best (the last, if there is no best), last, a step such as 500, or "
        f"average:N for the mean of the last N checkpoints, {about_averages}. If the run has a moving "
        "average (Train.ema), it is used", default="best")  # fmt: skip


def define_trust(defined: Flags) -> None:
    defined.switch("trust_programs",
        "execute the compiled programs in the run folder, which saves compiling them once: only if you "
        "trust everybody who could write to the folder")  # fmt: skip


def read_config(values: flags.FlagValues) -> "Config":
    from gshard_nmt.settings.gin_reader import load_config

    return load_config(values.config, values.gin)


def existing_folder(
    values: flags.FlagValues, name: str, source: str, on_this_machine: bool = False
) -> Path:
    resolve = paths.local_path if on_this_machine else paths.folder_path
    return existing(name, str(values[name].value), source, resolve)


def existing(
    name: str, text: str, source: str, resolve: Callable[[str, str], Path] = paths.folder_path
) -> Path:
    """Returns the folder that a text names; `source`, the command that makes it, is for the message."""
    path = resolve(name, text)
    with paths.reaching(name, path):
        is_file, is_folder = path.is_file(), path.is_dir()
    if is_file:
        raise UserError(f"--{name} {path}: it is a file. Give a folder; make one with {source}.")
    if not is_folder:
        raise UserError(f"--{name} {path}: there is no such folder; make it with {source}.")
    return path


def written_file(values: flags.FlagValues, name: str, ending: str = "") -> Path | None:
    """Returns the file of a flag, which can be written; None if the flag is not given."""
    text = values[name].value
    if not text:
        return None
    file = paths.local_path(name, text)
    if not text.endswith(ending):
        raise UserError(f"--{name} is {text!r}; it must end in {ending}. Give another name.")
    outputs.check_file(f"--{name}", file)
    return file


def existing_file(values: flags.FlagValues, name: str, advice: str) -> Path | None:
    """Returns the file that a flag names; None if the flag is not given. The advice says what to give."""
    if not values[name].value:
        return None
    path = paths.local_path(name, str(values[name].value))
    if path.is_dir():
        raise UserError(f"--{name} {path}: it is a folder; {advice}.")
    if not path.exists():
        raise UserError(f"--{name} {path}: there is no such file; {advice}.")
    return path
