"""The files that gshard-decode reads and writes: checked before the long work, opened, and resumed."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from gshard_nmt import files, outputs
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.decode import Output
    from gshard_nmt.decoding.source_lines import SourceLines, Survey
    from gshard_nmt.run.folder import RunFolder

RUN_FILES = (
    *("checkpoints", "tensorboard", "decodes", "config.gin", "parameters.txt", "data.json"),
    *("source.model", "target.model", "metrics.jsonl", "budget.json", "divergence"),
    *("trainer.lock", "deaths.json", "command.txt"),
)
"""The files and folders of a run folder that translations must not overwrite."""


@contextlib.contextmanager
def open_beside(beside: tuple[str, Path] | None) -> "Iterator[SourceLines | None]":
    """Opens a file that is read beside the input."""
    from gshard_nmt.decoding.source_lines import SourceLines

    if beside is None:
        yield None
        return
    name, path = beside
    with path.open("rb") as stream:
        yield SourceLines(stream, f"--{name} {path}")


def check_output(source: Path | None, output: Path | None, run: "RunFolder") -> None:
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


def is_written(path: Path, output: Path) -> bool:
    """Returns whether a file is an output, or one that the output is first written to."""
    partial = outputs.partial_file(output)
    written = (output, partial, partial.with_name(f"{partial.name}.progress"))
    return any(outputs.is_same_file(path, file) for file in written)


def _stdout() -> Path:
    """Returns the path of stdout, which has another number than 1 in a worker process."""
    try:
        return Path(f"/dev/fd/{sys.stdout.fileno()}")
    except OSError:  # an object of Python that is no file
        return Path("/dev/stdout")


def _is_part_of(run: "RunFolder", file: Path) -> bool:
    """Returns whether a file is one that the run needs, or is in a folder that the run needs."""
    place, folder = Path(os.path.realpath(file)), Path(os.path.realpath(run.path))
    needed = [folder / name for name in RUN_FILES]
    programs = Path(os.path.realpath(run.programs))
    return any(
        place.is_relative_to(path) or outputs.is_same_file(file, path)
        for path in (*needed, programs)
    )


@contextlib.contextmanager
def open_input(path: Path | None) -> Iterator[IO[bytes]]:
    """Opens a file, decompressed, or stdin if there is no path."""
    from gshard_nmt.decoding.source_lines import opened

    if path is not None:
        with opened(path) as file:
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
def open_output(
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
