"""What gshard-decode does after its flags have been checked: translates, scores, or checks itself."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

import gshard_nmt
from gshard_nmt.cli.decode_files import open_beside, open_input, open_output
from gshard_nmt.cli.search_flags import check_search, search_changes
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.decoding.text_translator import TextTranslator
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.config import Config
    from gshard_nmt.spmd.processes import Processes


@dataclasses.dataclass(frozen=True)
class Job:
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
      beside: the flag --prefix or --score, and the file that it names, if there is one.
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
    beside: tuple[str, Path] | None = None

    def load(self) -> "TextTranslator":
        """Loads the model, together with the other processes."""
        from gshard_nmt.decoding.text_translator import load_translator

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


def read_job(values: FlagValues, workdir: Path) -> Job:
    """Returns the job of the flags for the model and the search, for one process and JSON lines.

    Raises:
      UserError: the folder is not a run folder, or a flag does not fit it or another flag.
    """
    from gshard_nmt.run.checkpoint.weights import Chosen
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.changes import read_changes
    from gshard_nmt.settings.values import read_run_config
    from gshard_nmt.spmd.processes import ALONE

    run = RunFolder(workdir, values.trust_programs)
    changes = read_changes(values.gin)
    config = changes.apply(read_run_config(run.config)).replace(decode=search_changes(values))
    source, target = run.direction(values.lang, values.target)
    check_search(values, config.decode)
    Chosen.parse(values.checkpoint)
    fits = not changes.name_a_mesh
    return Job(
        config, run, source, target, values.nbest, "jsonl", values.checkpoint, ALONE, fits=fits
    )


def translate(job: Job, source: Path | None, target: Path | None) -> None:
    """Translates a file or stdin to a file or stdout."""
    from gshard_nmt.decode import Request, decode, score
    from gshard_nmt.decoding.calls import ending
    from gshard_nmt.decoding.formats import FORMATS
    from gshard_nmt.decoding.progress import DecodingProgress
    from gshard_nmt.decoding.source_lines import InputChanged, SourceLines, survey

    name = f"--input {source}" if source else "stdin"
    known = survey(source, name) if source and source.is_file() else None
    beside = None
    if job.beside:
        flag, path = job.beside
        beside = survey(path, f"--{flag} {path}")
        if known and known.lines != beside.lines:
            raise UserError(
                f"--{flag} {path} has {beside.lines:,} lines, and the input has {known.lines:,}. Give it "
                "one line for each line of the input."
            )
    quiet = target is None and sys.stdout.isatty()
    with (
        open_input(source) as stream,
        DecodingProgress(known.lines if known else None, quiet) as progress,
    ):
        lines = SourceLines(stream, name)
        translator = job.load()
        if job.processes.count > 1:
            translator = translator.lead()
        rows = translator.of_ids.rows
        request = Request(job.source, job.target, FORMATS[job.form], rows)
        origin = job.origin(translator.checkpoint)
        if beside and job.beside:
            origin[f"file of --{job.beside[0]}"] = beside.sha256
        with (
            ending(job.processes),
            open_beside(job.beside) as texts,
            open_output(target, known, origin) as output,
        ):
            if texts and job.beside and job.beside[0] == "score":
                score(translator, request, lines, texts, output, progress)
            else:
                decode(translator, request, lines, output, progress, texts)
            if known and lines.sha256 != known.sha256:
                raise InputChanged(
                    f"{name} was changed while it was translated. Start again when it is complete."
                )


def show_check(job: Job, source: Path | None) -> None:
    """Translates a file or stdin in several arrangements, and prints what each has given."""
    from gshard_nmt.decoding import company
    from gshard_nmt.decoding.source_lines import SourceLines
    from gshard_nmt.spmd import runtime

    # jax takes the number of CPU devices once, when it starts.
    runtime.request_cpu_devices(max(company.DEVICES))
    with open_input(source) as stream:
        lines = SourceLines(stream, f"--input {source}" if source else "stdin")
        text = []
        while more := lines.take(1 << 12):
            text += more
    translator = job.load()
    sentences = translator.sentences(text, job.source, job.target)
    if not sentences:
        raise UserError(
            "the input has no text to translate. Give --check a file with a few hundred lines."
        )
    of_ids, decode = translator.of_ids, job.config.decode
    experts = job.config.model.experts
    plans = company.arrangements(
        of_ids.mesh, of_ids.rows, of_ids.least_rows, experts, of_ids.is_on_cpu
    )
    subject = company.Subject(
        sources=[ids for _, ids in sentences],
        lines=[number for number, _ in sentences],
        lengths=decode.source_lengths,
        weights=of_ids.letters,
        is_cpu=of_ids.is_on_cpu,
    )
    outcomes = company.compare(
        subject, plans, lambda mesh, rows: of_ids.moved(mesh, rows).translate_ids
    )
    company.show(outcomes, len(sentences))
