"""gshard-decode: its flags, and the input and output that they name."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from absl.flags import FlagValues

from gshard_nmt import outputs
from gshard_nmt.cli.flags import Command, Flags, define_trust, existing_file, existing_folder
from gshard_nmt.cli.search_flags import check_search, define_search, search_changes
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.run.folder import RunFolder

RUN_FILES = (
    *("checkpoints", "tensorboard", "decodes", "config.gin", "parameters.txt", "data.json"),
    *("source.model", "target.model", "metrics.jsonl", "budget.json", "divergence"),
    *("trainer.lock", "deaths.json"),
)
"""The files and folders of a run folder that translations must not overwrite."""


def _define_decode(flags: Flags) -> None:
    flags.text("workdir", "DIR|URL", "the run folder of the model; may be gs://bucket/folder")
    flags.text(
        "lang",
        "TAG",
        "language of the input; needed only if the model translates from several",
        default="",
    )
    flags.text(
        "target",
        "TAG",
        "language to translate to; needed only if the model translates to several",
        default="",
    )
    flags.text("input", "FILE", "file to translate, one sentence a line; stdin if not given")
    flags.text(
        "output",
        "FILE",
        "file for the translations; stdout if not given. It is complete when it appears; until then the "
        "finished lines are in FILE.partial",
    )
    flags.switch(
        "scores", "write the line number and the score before each translation, separated by tabs"
    )
    define_search(flags)
    flags.text(
        "prefix",
        "FILE",
        "the beginning of each translation: line N for line N of the input, or an empty line",
    )
    flags.text(
        "score",
        "FILE",
        "translations to score: line N translates line N of the input. The output has one score a line",
    )
    define_trust(flags)


def _decode(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.values import read_run_config

    run = RunFolder(workdir, values.trust_programs)
    config = read_run_config(run.config).replace(decode=search_changes(values))
    advice = "give a text file, or leave out --input to read stdin"
    source_file = existing_file(values, "input", advice)
    output_file = Path(values.output) if values.output else None
    if source_file is None and sys.stdin is None:
        raise UserError(
            "stdin is closed. Give a file with --input, or pipe text into gshard-decode."
        )
    # Loading the model takes long, so we check all flags before that.
    source, target = run.direction(values.lang, values.target)
    check_search(values, config.decode)
    prefixes, translations = _files_beside(values, output_file)
    _check_output(source_file, output_file, run)
    from gshard_nmt.decode import decode, score
    from gshard_nmt.decoding.translator import load_translator

    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(_input_text(source_file))
        beside = stack.enter_context(_input_text(prefixes or translations or Path(os.devnull)))
        translator = load_translator(config, run, values.nbest)
        output = stack.enter_context(_output_text(output_file))
        if translations:
            score(translator, lines, beside, output, source, target)
        else:
            starts = beside if prefixes else None
            decode(translator, lines, output, source, target, values.nbest, values.scores, starts)


def _files_beside(values: FlagValues, output: Path | None) -> tuple[Path | None, Path | None]:
    """Returns the files of --prefix and --score, which are read beside the input.

    Raises:
      UserError: a file does not exist or is the output, or a flag does not go with --score.
    """
    if values.score:
        for name in ("prefix", "sample", "scores", "nbest"):
            if values[name].value != values[name].default:
                raise UserError(
                    f"--{name} does not go with --score, which gives one score a line. Leave out one of "
                    "them."
                )
    prefixes = existing_file(values, "prefix", "give a text file, or leave out --prefix")
    translations = existing_file(values, "score", "give a text file of translations")
    for name, path in (("prefix", prefixes), ("score", translations)):
        if path and output and outputs.is_same_file(path, output):
            raise UserError(
                f"--{name} and --output are the same file, {path}. Give --output a new file."
            )
    return prefixes, translations


def _check_output(source: Path | None, output: Path | None, run: "RunFolder") -> None:
    """Checks that the translations can be written, and that they destroy neither input nor model.

    Args:
      source: the file to translate; None is stdin.
      output: the file for the translations; None is stdout.
      run: the run folder of the model.

    Raises:
      UserError: the output is the input, it is a file of the run, or it cannot be written.
    """
    read = source or Path("/dev/stdin")
    written = output or Path("/dev/stdout")
    if outputs.is_same_file(read, written):
        raise UserError(
            f"the input and the output are the same file, {output or source or 'behind stdin'}. Give "
            "--output a new file."
        )
    if output is None:
        return
    partial = outputs.partial_file(output)
    if outputs.is_same_file(read, partial):
        raise UserError(
            f"--output {output} is written to {partial} first, and that is the input. "
            "Rename the input, or give --output another file."
        )
    if _is_part_of(run, output):
        raise UserError(
            f"--output {output} is a file that the run {run.path} needs. Give another file."
        )
    outputs.check_file("--output", output)


def _is_part_of(run: "RunFolder", file: Path) -> bool:
    """Returns whether a file is one that the run needs, or lies in a folder that the run needs."""
    place, folder = Path(os.path.realpath(file)), Path(os.path.realpath(run.path))
    needed = [folder / name for name in RUN_FILES]
    programs = Path(os.path.realpath(run.programs))
    return any(
        place.is_relative_to(path) or outputs.is_same_file(file, path)
        for path in (*needed, programs)
    )


@contextlib.contextmanager
def _input_text(path: Path | None) -> Iterator[TextIO]:
    """Opens a UTF-8 text file, or stdin if there is no path. Only newline characters end a line."""
    if path is not None:
        with path.open(encoding="utf-8", newline="\n") as file:
            yield file
        return
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict", newline="\n")
    yield sys.stdin


@contextlib.contextmanager
def _output_text(path: Path | None) -> Iterator[TextIO]:
    """Opens a UTF-8 text file as `outputs.text_file` does, or stdout if there is no path."""
    if path is not None:
        with outputs.text_file(path) as file:
            yield file
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="\n")
    yield sys.stdout
    sys.stdout.flush()


DECODE = Command(
    "gshard-decode",
    "translates text with a trained model; line N of the output translates line N of the input.",
    'echo "Fichier introuvable" | gshard-decode --workdir runs/demo --lang fr',
    ("workdir",),
    _define_decode,
    _decode,
)
