"""gshard-decode: its flags, and the input and output that they name."""

import contextlib
import dataclasses
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from absl.flags import FlagValues

import gshard_nmt
from gshard_nmt import files, outputs
from gshard_nmt.cli.flags import Command, Flags, define_trust, existing_file, existing_folder
from gshard_nmt.cli.process_flags import define_decoding_processes, join_to_decode
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.decode import Output
    from gshard_nmt.decoding.source_lines import Survey
    from gshard_nmt.decoding.translator import TextTranslator
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.config import Config
    from gshard_nmt.spmd.processes import Processes

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
        "finished lines are in FILE.partial. If the program is killed, the same command goes on from "
        "there; input from stdin or from a pipe is translated from its start",
    )
    flags.text(
        "checkpoint",
        "NAME",
        "the weights to use: best, last, a step such as 500, or average:N for the mean of the last N "
        "checkpoints, which is computed in memory",
        default="best",
    )
    flags.integer(
        "beam",
        "K",
        "beam size; if not given, Decode.beam of the run's config (4 by default)",
        None,
        minimum=1,
    )
    flags.integer(
        "nbest",
        "N",
        "number of translations of each line, best first; at most --beam",
        1,
        minimum=1,
    )
    flags.switch(
        "scores", "write the line number and the score before each translation, separated by tabs"
    )
    flags.choice(
        "format",
        "NAME",
        "format of the output: text (the translations alone), tsv (line number, score and translation, "
        "separated by tabs), or jsonl (a JSON object for each line). If not given, tsv with --scores or "
        "if --nbest is above 1, otherwise text",
        ["text", "tsv", "jsonl"],
    )
    flags.choice(
        "length_norm",
        "NAME",
        "how to normalise a score by length: gnmt, lingvo or none; if not given, as in the run's config",
        ["gnmt", "lingvo", "none"],
    )
    flags.number(
        "alpha", "X", "exponent of the length normalisation; if not given, as in the run's config"
    )
    define_decoding_processes(flags)
    define_trust(flags)


def _decode(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.changes import read_changes
    from gshard_nmt.settings.values import read_run_config

    run = RunFolder(workdir, values.trust_programs)
    search = {name: values[name].value for name in ("beam", "length_norm", "alpha")}
    flags = {name: value for name, value in search.items() if value is not None}
    changes = read_changes(values.gin)
    config = changes.apply(read_run_config(run.config)).replace(decode=flags)
    # Loading the model takes long, so we check all flags before that.
    source, target = run.direction(values.lang, values.target)
    if values.nbest > config.decode.beam:
        raise UserError(
            f"--nbest is {values.nbest}; it must be from 1 to the beam size, {config.decode.beam}. Lower "
            "--nbest, or set a larger --beam."
        )
    from gshard_nmt.decoding.formats import chosen_format
    from gshard_nmt.decoding.weights import Chosen

    Chosen.parse(values.checkpoint)
    form = chosen_format(values.format, values.nbest, values.scores)
    processes = join_to_decode(values, "gshard-decode", workdir, lambda: config)
    job = _Job(
        config,
        run,
        source,
        target,
        values.nbest,
        form,
        values.checkpoint,
        processes,
        fits=not changes.name_a_mesh,
    )
    with processes.waiting_for_lost_peers():
        if processes.is_first:
            _translate_files(values, job)
        else:
            job.load().follow()


def _translate_files(values: FlagValues, job: "_Job") -> None:
    """Checks the files that the flags name, and translates one to the other."""
    advice = "give a text file, or leave out --input to read stdin"
    source_file = existing_file(values, "input", advice)
    output_file = Path(values.output) if values.output else None
    if source_file is None and sys.stdin is None:
        raise UserError(
            "stdin is closed. Give a file with --input, or pipe text into gshard-decode."
        )
    _check_output(source_file, output_file, job.run)
    _translate(job, source_file, output_file)


@dataclasses.dataclass(frozen=True)
class _Job:
    """What the flags ask for, after they have been checked.

    Attributes:
      config: the run's config, with the search of the flags.
      run: the run folder.
      source, target: the direction.
      nbest: the number of translations of each line.
      form: the name of the output format.
      checkpoint: the weights, as --checkpoint names them.
      processes: the processes that decode together.
      fits: whether another mesh is chosen if that of the config does not fit this machine.
    """

    config: "Config"
    run: "RunFolder"
    source: str
    target: str
    nbest: int
    form: str
    checkpoint: str
    processes: "Processes"
    fits: bool

    def load(self) -> "TextTranslator":
        """Loads the model, together with the other processes."""
        from gshard_nmt.decoding.translator import load_translator

        return load_translator(
            self.config,
            self.run,
            self.nbest,
            self.checkpoint,
            processes=self.processes,
            fits=self.fits,
        )

    def origin(self, checkpoint: str) -> dict[str, str]:
        """Returns what the translations depend on besides the input, in words for a user.

        Args:
          checkpoint: the label of the weights.
        """
        return {
            "checkpoint": checkpoint,
            "search": f"{self.config.decode}, {self.nbest} best",
            "direction": f"{self.source}-{self.target}",
            "format": self.form,
            "version of gshard-nmt": gshard_nmt.__version__,
        }


def _translate(job: _Job, source: Path | None, target: Path | None) -> None:
    """Translates a file or stdin to a file or stdout."""
    from gshard_nmt.decode import Request, decode
    from gshard_nmt.decoding.calls import ending
    from gshard_nmt.decoding.formats import FORMATS
    from gshard_nmt.decoding.progress import DecodingProgress
    from gshard_nmt.decoding.source_lines import SourceLines, survey

    name = f"--input {source}" if source else "stdin"
    known = survey(source, name) if source and source.is_file() else None
    request = Request(job.source, job.target, FORMATS[job.form], job.config.decode.rows)
    quiet = target is None and sys.stdout.isatty()
    with (
        _input(source) as stream,
        DecodingProgress(known.lines if known else None, quiet) as progress,
    ):
        lines = SourceLines(stream, name)
        translator = job.load()
        if job.processes.count > 1:
            translator = translator.lead()
        origin = job.origin(translator.checkpoint)
        with ending(job.processes), _output(target, known, origin) as output:
            decode(translator, request, lines, output, progress)
            if known and lines.sha256 != known.sha256:
                raise UserError(
                    f"{name} was changed while it was translated. Start again when it is complete."
                )


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
    written = output or _stdout()
    if outputs.is_same_file(read, written):
        raise UserError(
            f"the input and the output are the same file, {output or source or 'behind stdin'}. Give "
            "--output a new file."
        )
    if output is None:
        return
    partial = outputs.partial_file(output)
    for beside in (partial, partial.with_name(f"{partial.name}.progress")):
        if outputs.is_same_file(read, beside):
            raise UserError(
                f"--output {output} is written to {beside} first, and that is the input. "
                "Rename the input, or give --output another file."
            )
    if _is_part_of(run, output):
        raise UserError(
            f"--output {output} is a file that the run {run.path} needs. Give another file."
        )
    outputs.check_file("--output", output)


def _stdout() -> Path:
    """Returns the path of stdout, which has another number than 1 in a worker process."""
    try:
        return Path(f"/dev/fd/{sys.stdout.fileno()}")
    except OSError:  # an object of Python that is no file
        return Path("/dev/stdout")


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
def _input(path: Path | None) -> Iterator[IO[bytes]]:
    """Opens a file, or stdin if there is no path."""
    if path is not None:
        with path.open("rb") as file:
            yield file
    elif isinstance(sys.stdin, io.TextIOWrapper):
        yield sys.stdin.buffer
    else:
        yield io.BytesIO(sys.stdin.read().encode())


class _Stream:
    """An output that cannot be resumed.

    Attributes:
      lines: the number of input lines whose translations have been written.
    """

    def __init__(self, text: TextIO) -> None:
        self.lines = 0
        self._text = text

    def write(self, text: str) -> None:
        self._text.write(text)

    def commit(self, lines: int) -> None:
        self._text.flush()
        self.lines = lines


@contextlib.contextmanager
def _output(
    path: Path | None, known: "Survey | None", origin: Mapping[str, str]
) -> Iterator["Output"]:
    """Opens the output.

    Args:
      path: the file to write; None is stdout.
      known: what is known of the input. A file that is translated from stdin or a pipe is not resumed.
      origin: what the translations depend on besides the input.
    """
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="\n")
        yield _Stream(sys.stdout)
        sys.stdout.flush()
    elif known is None or files.is_stream(path):
        with _closed_pipe_named(path), outputs.text_file(path) as file:
            yield _Stream(file)
    else:
        from gshard_nmt.decoding.resumable_file import ResumableFile

        with ResumableFile(path, {"input": known.sha256, **origin}) as file:
            yield file


@contextlib.contextmanager
def _closed_pipe_named(path: Path) -> Iterator[None]:
    """Turns the error of a pipe without a reader into a UserError that names the pipe."""
    try:
        yield
    except BrokenPipeError:
        raise UserError(
            f"--output {path}: the program that reads it has closed it. Start that program again first."
        ) from None


DECODE = Command(
    "gshard-decode",
    "translates text with a trained model; line N of the output translates line N of the input.",
    'echo "Fichier introuvable" | gshard-decode --workdir runs/demo --lang fr',
    ("workdir",),
    _define_decode,
    _decode,
)
