"""gshard-decode: its flags, and the input and output that they name."""

import dataclasses
import sys
from pathlib import Path

from absl.flags import FlagValues

from gshard_nmt.cli.decode_files import check_output, is_written
from gshard_nmt.cli.decode_job import Job, read_job, show_check, translate
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    define_checkpoint,
    define_trust,
    existing_file,
    existing_folder,
)
from gshard_nmt.cli.process_flags import PROCESS_NEEDS, define_decoding_processes, join_to_decode
from gshard_nmt.cli.search_flags import define_search
from gshard_nmt.errors import UserError


def define_direction(flags: Flags) -> None:
    """Defines --lang and --target."""
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


def _define_decode(flags: Flags) -> None:
    flags.text("workdir", "DIR|URL", "the run folder of the model; may be gs://bucket/folder")
    define_direction(flags)
    flags.text(
        "input",
        "FILE",
        "file to translate, one sentence a line; stdin if not given. It may be compressed: .gz, .zst, "
        ".xz or .bz2",
    )
    flags.text(
        "output",
        "FILE",
        "file for the translations; stdout if not given. It is complete when it appears; until then the "
        "finished lines are in FILE.partial. If the program is killed, the same command goes on from "
        "there; input from stdin or from a pipe is translated from its start",
    )
    define_checkpoint(flags)
    define_search(flags)
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
    flags.switch(
        "check",
        "translate the input several times, in other batches and on other numbers of devices, and say "
        "whether each line has the same translation and score, bit for bit",
    )
    define_decoding_processes(flags)
    define_trust(flags)


def _decode(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    job = read_job(values, workdir)
    # Loading the model takes long, so we check all flags before that.
    _check_beside(values)
    from gshard_nmt.decoding.formats import chosen_format

    form = chosen_format(values.format, values.nbest, values.scores)
    processes = join_to_decode(values, "gshard-decode", workdir, lambda: job.config)
    job = dataclasses.replace(job, form=form, processes=processes)
    with processes.waiting_for_lost_peers():
        if processes.is_first:
            _translate_files(values, job)
        else:
            job.load().follow()


def _translate_files(values: FlagValues, job: Job) -> None:
    """Checks the files that the flags name, and translates one to the other."""
    advice = "give a text file, or leave out --input to read stdin"
    source_file = existing_file(values, "input", advice)
    output_file = Path(values.output) if values.output else None
    if values.check:
        _check_flags_of_check(values, job.processes.count)
    if source_file is None and sys.stdin is None:
        raise UserError(
            "stdin is closed. Give a file with --input, or pipe text into gshard-decode."
        )
    if output_file is None and getattr(sys.stdout, "was_closed", False):
        raise UserError("stdout is closed. Give a file with --output, or redirect stdout to one.")
    check_output(source_file, output_file, job.run)
    for name, words in (("prefix", "of prefixes"), ("score", "of translations")):
        path = existing_file(values, name, f"give a text file {words}, or leave out --{name}")
        if path and not path.is_file():
            raise UserError(
                f"--{name} {path} is a pipe, and the file is read twice. Write the lines to a file first."
            )
        if path and output_file and is_written(path, output_file):
            raise UserError(
                f"--output {output_file} would overwrite the file of --{name}, {path}. Give --output a "
                "new file."
            )
        if path:
            job = dataclasses.replace(job, beside=(name, path))
    if values.check:
        show_check(job, source_file)
    else:
        translate(job, source_file, output_file)


def _check_flags_of_check(values: FlagValues, processes: int) -> None:
    """Raises UserError if a flag does not go with --check."""
    for name in ("output", "prefix", "score", "scores", "format"):
        if values[name].value != values[name].default:
            raise UserError(
                f"--{name} does not go with --check, which writes no translations. Leave out one of them."
            )
    if processes > 1:
        raise UserError(
            f"--check runs in one process, and there are {processes}. Start it in one process; it tries "
            "several numbers of devices."
        )


def _check_beside(values: FlagValues) -> None:
    """Raises UserError if a flag does not go with --score."""
    for name in ("prefix", "sample", "scores", "nbest", "format") if values.score else ():
        if values[name].value != values[name].default:
            raise UserError(
                f"--{name} does not go with --score, which gives one score a line. Leave out one of them."
            )


DECODE = Command(
    "gshard-decode",
    "translates text with a trained model; line N of the output translates line N of the input.",
    'echo "Fichier introuvable" | gshard-decode --workdir runs/demo --lang fr',
    ("workdir",),
    _define_decode,
    _decode,
    needs=PROCESS_NEEDS,
)
