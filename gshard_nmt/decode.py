"""gshard-decode: translates text with a trained model, scores given translations, or checks itself."""

import contextlib
import dataclasses
import hashlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TextIO

import gshard_nmt
from gshard_nmt import files, outputs
from gshard_nmt.data.reading.text_lines import COMPRESSIONS
from gshard_nmt.decoding import company
from gshard_nmt.decoding.documents.document import read
from gshard_nmt.decoding.pieces import lost_note, pieces_note
from gshard_nmt.decoding.progress import DecodingProgress
from gshard_nmt.decoding.protected import Protection
from gshard_nmt.decoding.resumable_file import ResumableFile, progress_file
from gshard_nmt.decoding.runs import RULES_VERSION
from gshard_nmt.decoding.source_lines import (
    InputChanged,
    SourceLines,
    Survey,
    opened,
    rendered,
    survey,
)
from gshard_nmt.decoding.text_translator import TextTranslator, ending, load_translator
from gshard_nmt.errors import UserError
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import Processes

RUN_FILES = (
    *("checkpoints", "tensorboard", "decodes", "config.gin", "parameters.txt", "data.json"),
    *("source.model", "target.model", "metrics.jsonl", "budget.json", "baseline.json"),
    *("trainer.lock", "command.txt", "init.json", "confidence.json", "imported"),
)
"""The files and folders of a run folder that translations must not overwrite."""
_ONE_EACH = "Give it one line for each line of the input."


@dataclasses.dataclass(frozen=True)
class Job:
    """What a command asks for, after its flags have been checked."""

    config: Config
    run: RunFolder
    source: str
    target: str
    nbest: int
    form: str  # the name of the output format
    checkpoint: str
    processes: Processes
    fits: bool  # whether another mesh is chosen if that of the config does not fit this machine
    # the flag --prefix or --score, and the file that it names, if there is one
    beside: tuple[str, Path] | None = None
    protection: Protection | None = None
    rates: bool = False  # whether each line gets the confidence of the run, if it has one

    def load(self) -> TextTranslator:
        model = (self.config, self.run, self.nbest, self.checkpoint, self.processes, self.fits)
        translator = load_translator(*model, self.protection)
        translator.leads = self.processes.is_first and self.processes.count > 1
        if self.rates:
            translator.rate(self.run, self.config.decode)
        return translator

    def origin(self, checkpoint: str) -> dict[str, str]:
        """Returns what the translations depend on besides the input, in words for a user."""
        protected = {"protected text": self.protection.digest} if self.protection else {}
        return {
            "checkpoint": checkpoint,
            "search": f"{self.config.decode}, {self.nbest} best",
            "direction": f"{self.source}-{self.target}",
            "format": self.form,
            "version of gshard-nmt": f"{gshard_nmt.__version__}, decoding rules {RULES_VERSION}",
        } | protected


def decode_file(job: Job, source: Path | None, target: Path | None) -> str:
    """Translates a file or stdin to a file or stdout; or writes the score of each given translation.

    Returns the label of the checkpoint.
    """
    name = f"--input {source}" if source else "stdin"
    known = survey(source, name) if source and source.is_file() else None
    flag, path = job.beside or ("", Path())
    beside = survey(path, f"--{flag} {path}") if flag else None
    if known and beside and known.lines != beside.lines:
        raise UserError(
            f"--{flag} {path} has {beside.lines:,} lines, and the input has {known.lines:,}. {_ONE_EACH}"
        )
    quiet = target is None and sys.stdout.isatty()
    with (
        _open_input(source) as stream,
        DecodingProgress(known.lines if known else None, quiet) as progress,
    ):
        lines = SourceLines(stream, name)
        translator = job.load()
        origin = job.origin(translator.checkpoint)
        if job.rates:
            origin["confidence"] = str(translator.confidence)
        if beside:
            origin[f"file of --{flag}"] = beside.sha256
        with contextlib.ExitStack() as until:
            until.enter_context(ending(job.processes))
            texts = None
            if flag:
                texts = SourceLines(until.enter_context(opened(path)), f"--{flag} {path}")
            output = until.enter_context(_open_output(target, known, origin))
            decode(job, translator, lines, output, progress, texts)
            for read, expected in ((lines, known), (texts, beside)):
                if read and expected:
                    _check_same(read.name, read.sha256, expected.sha256)
    return translator.checkpoint


def decode_document(job: Job, source: Path, target: Path, everything: bool) -> None:
    """Translates a document, such as a catalogue or a page; see `document.read`.

    Its finished lines are in the partial file. The document is written when all are there.
    """
    document = read(source, job.target, everything)
    before = source.read_bytes()
    content = "".join(f"{line}\n" for line in document.lines).encode()
    lines = SourceLines(io.BytesIO(content), f"--input {source}")
    with DecodingProgress(len(document.lines)) as progress, ending(job.processes):
        translator = job.load()
        made_of = {"input": hashlib.sha256(content).hexdigest()}
        made_of |= {**job.origin(translator.checkpoint), "document": source.suffix}

        def finished(text: str) -> bytes:
            return document.filled(text.split("\n")[:-1])

        with ResumableFile(target, made_of, finished) as output:
            decode(job, translator, lines, output, progress, what="text")
            _check_same(lines.name, source.read_bytes(), before)


def _check_same(name: str, now: object, before: object) -> None:
    if now != before:
        changed = f"{name} was changed while it was translated"
        raise InputChanged(f"{changed}. Start again when it is complete.")


def show_check(job: Job, source: Path | None) -> None:
    """Translates a file or stdin in several arrangements, and prints what each has given."""
    # jax takes the number of CPU devices once, when it starts.
    runtime.request_cpu_devices(max(company.DEVICES))
    with _open_input(source) as stream:
        lines = SourceLines(stream, f"--input {source}" if source else "stdin")
        text = [line for chunk in iter(lambda: lines.take(1 << 12), []) for line in chunk]
    translator = job.load()
    sentences = translator.sentences(text, job.source, job.target)
    if not sentences:
        raise UserError(
            "the input has no text to translate. Give --check a file with a few hundred lines."
        )
    ids, experts = translator.of_ids, job.config.model.experts
    plans = company.arrangements(ids.mesh, ids.rows, ids.least_rows, experts, ids.is_on_cpu)
    subject = company.Subject(
        sources=[sentence for _, sentence in sentences],
        lines=[number for number, _ in sentences],
        lengths=job.config.decode.source_lengths,
        weights=ids.letters,
        is_cpu=ids.is_on_cpu,
    )
    outcomes = company.compare(subject, plans, lambda *plan: ids.moved(*plan).translate_ids)
    company.show(outcomes, len(sentences))


def decode(
    job: Job,
    translator: TextTranslator,
    lines: SourceLines,
    output: "ResumableFile | _Stream",
    progress: DecodingProgress,
    beside: SourceLines | None = None,
    what: str = "line",
) -> None:
    """Translates or scores lines, in order, from the first that the output does not have yet.

    A line of `beside` begins the translation of each line, and an empty one leaves it free; or with
    --score it is the translation to score. `what` is the word for a line in notes. Raises UserError if a
    line is not UTF-8 or too long, `beside` has more or fewer lines, or the model is not finite.
    """
    flag = job.beside[0] if job.beside else ""
    for stream in filter(None, (lines, beside)):
        stream.skip(output.lines)
    progress.begin(output.lines)
    in_pieces: list[int] = []
    lost: dict[int, str] = {}
    while chunk := lines.take(chunk_size(output.lines, translator.of_ids.rows)):
        first = output.lines + 1
        texts: list[str] = []
        while beside and len(texts) < len(chunk) and (more := beside.take(len(chunk) - len(texts))):
            texts += more
        if beside and len(texts) < len(chunk):
            ends = f"ends after line {output.lines + len(texts)}, and the input goes on"
            raise UserError(f"the file of --{flag} {ends}. {_ONE_EACH}")
        if flag == "score":
            pairs = zip(chunk, texts, strict=True)
            for value in translator.score(list(pairs), job.source, job.target, first_line=first):
                output.write(f"{value:.4f}\n")
        else:
            options: dict[str, Any] = {"prefixes": texts, "first_line": first} if beside else {}
            translations = translator.translate(chunk, job.source, job.target, **options)
            for number, line in enumerate(chunk, first):
                hypotheses = next(translations)
                output.write(rendered(job.form, number, line, hypotheses))
                if hypotheses[0].pieces > 1:
                    in_pieces.append(number)
                if hypotheses[0].lost:
                    lost[number] = hypotheses[0].lost[0]
        output.commit(output.lines + len(chunk))
        progress.show(output.lines)
    if beside and beside.take(1):
        more_lines = f"has more lines than the input, which has {output.lines}"
        raise UserError(f"the file of --{flag} {more_lines}. {_ONE_EACH}")
    if in_pieces:
        sys.stderr.write(f"{pieces_note(in_pieces, translator.longest_source, what)}\n")
    if lost:
        sys.stderr.write(f"{lost_note(lost, what)}\n")


def chunk_size(done: int, rows: int) -> int:
    """Returns the number of lines to translate next, after `done`. They are sorted by length.

    The first chunks are small, so that the first lines come soon. Sixteen batches are enough to gain from
    sorting. A program that was killed goes on with the same chunks.
    """
    return min(max(done, 2 * rows), 16 * rows)


def check_output(source: Path | None, output: Path | None, run: RunFolder, flag: str) -> None:
    """Raises UserError if the translations cannot be written, or destroy the input or the model.

    None stands for stdin and stdout.
    """
    read = source or Path("/dev/stdin")
    if outputs.is_same_file(read, output or _stdout()):
        raise UserError(
            f"the input and the output are the same file, {output or source or 'behind stdin'}. Give "
            f"{flag} a new place."
        )
    if output is None:
        return
    if output.suffix in COMPRESSIONS:
        raise UserError(
            f"{flag} {output}: the output is not compressed. Leave out {output.suffix}."
        )
    if file := written_instead(read, output):
        raise UserError(
            f"{flag} {output} is written to {file} first, and that is the input. "
            f"Rename the input, or give {flag} another place."
        )
    place, folder = Path(os.path.realpath(output)), Path(os.path.realpath(run.path))
    needed = [*(folder / name for name in RUN_FILES), Path(os.path.realpath(run.programs))]
    if any(place.is_relative_to(path) or outputs.is_same_file(output, path) for path in needed):
        raise UserError(
            f"{flag} {output} is a file that the run {run.path} needs. Give another place."
        )
    outputs.check_file(flag, output)


def written_instead(path: Path, output: Path) -> Path | None:
    """Returns the file that an output is first written to, if a path is that file."""
    first = (outputs.partial_path(output), progress_file(output))
    return next((file for file in first if outputs.is_same_file(path, file)), None)


def _stdout() -> Path:
    """Returns the path of stdout, which has another number than 1 if there are several processes."""
    try:
        return Path(f"/dev/fd/{sys.stdout.fileno()}")
    except OSError:  # an object of Python that is no file
        return Path("/dev/stdout")


@contextlib.contextmanager
def _open_input(path: Path | None) -> Iterator[IO[bytes]]:
    """Opens a file, decompressed, or stdin if there is no path."""
    if path is not None:
        with opened(path) as file:
            yield file
    elif isinstance(sys.stdin, io.TextIOWrapper):
        yield sys.stdin.buffer
    else:
        yield io.BytesIO(sys.stdin.read().encode())


class _Stream:
    """An output that cannot be resumed."""

    def __init__(self, text: TextIO) -> None:
        self.lines = 0
        self._text = text

    def write(self, text: str) -> None:
        self._text.write(text)

    def commit(self, lines: int) -> None:
        self._text.flush()
        self.lines = lines


@contextlib.contextmanager
def _open_output(
    path: Path | None, known: Survey | None, origin: Mapping[str, str]
) -> Iterator[ResumableFile | _Stream]:
    """Opens a file or stdout. What is translated from stdin or a pipe is not resumed."""
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="\n")
        yield _Stream(sys.stdout)
    elif known is None or files.is_stream(path):
        try:
            with outputs.text_file(path) as file:
                yield _Stream(file)
        except BrokenPipeError:
            raise UserError(
                f"--output {path}: the program that reads it has closed it. Start that program again "
                "first."
            ) from None
    else:
        with ResumableFile(path, {"input": known.sha256, **origin}) as file:
            yield file
