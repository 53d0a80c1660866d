"""gshard-data translate: its flags, and the translation that it makes once."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli.decode_command import define_direction
from gshard_nmt.cli.decode_files import check_output
from gshard_nmt.cli.decode_job import Job, read_job, translate
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    define_checkpoint,
    define_trust,
    existing_file,
    existing_folder,
)
from gshard_nmt.cli.process_flags import define_decoding_settings
from gshard_nmt.cli.search_flags import define_search
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.translate_corpus import Files


def _define(flags: Flags) -> None:
    flags.text("workdir", "DIR|URL", "the run folder of the model; may be gs://bucket/folder")
    flags.text(
        "input",
        "FILE",
        "text in one language, one sentence a line. It may be compressed: .gz, .zst, .xz or .bz2",
    )
    flags.text(
        "out",
        "DIR",
        "the corpus folder for the new pairs. What it has from other inputs and other languages stays. "
        "If the program is stopped, the same command goes on. If only --min_score or --max_ratio "
        "changes, nothing is translated again",
    )
    define_direction(flags)
    flags.switch(
        "back_translation",
        "make the input the target side of the new pairs, and its translation the source side",
    )
    flags.number(
        "min_score",
        "X",
        "drop a translation whose score is lower. A score is a log-probability divided by the length "
        "norm, so it is below 0. The report shows how the scores are distributed",
    )
    flags.number(
        "max_ratio",
        "X",
        "drop a pair if one side is longer than the other by more than this factor",
        3.0,
        minimum=1.0,
    )
    define_checkpoint(flags)
    define_search(flags)
    define_decoding_settings(flags)
    define_trust(flags)


def _translate(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    source_file = existing_file(values, "input", "give a text file")
    assert source_file is not None
    if not source_file.is_file():
        raise UserError(
            f"--input {source_file} is a pipe, and the file is read twice. Write the lines to a file "
            "first."
        )
    out = paths.local_path("out", values.out)
    outputs.check_folder("--out", out)
    job = read_job(values, workdir)
    from gshard_nmt import translate_corpus

    direction = (job.source, job.target)
    files = translate_corpus.Files.of_input(out, direction, source_file, values.back_translation)
    files.decoded.parent.mkdir(parents=True, exist_ok=True)
    check_output(source_file, files.decoded, job.run)
    _decode_once(job, source_file, files)
    translate_corpus.translate_corpus(files, values.min_score, values.max_ratio)


def _decode_once(job: Job, source: Path, files: "Files") -> None:
    """Translates the input, unless the same translation is there already."""
    from gshard_nmt.decoding.source_lines import survey
    from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
    from gshard_nmt.run.checkpoint.retention import Retention
    from gshard_nmt.run.checkpoint.weights import Chosen, expected_label

    checkpoints = Checkpoints(
        job.run.checkpoints, Retention.of(job.config.train), job.run.identity(), job.processes
    )
    label = expected_label(checkpoints, Chosen.parse(job.checkpoint))
    known = survey(source, f"--input {source}")
    made_of = {"file": str(source.resolve()), "input": known.sha256, **job.origin(label)}
    if label and files.holds(made_of):
        sys.stderr.write(
            f"{files.decoded} has the translations of {source} by this model already; only the filters "
            "run\n"
        )
        return
    # If this program dies before the last line, the next start must not trust the facts of before.
    files.record({"file": made_of["file"]})
    translate(job, source, files.decoded)
    files.record(made_of)


TRANSLATE = Command(
    "gshard-data translate",
    "translates text in one language with a trained model, drops bad translations, and writes the pairs "
    "as a corpus for gshard-data prepare: back-translation, or the training text of a student.",
    "gshard-data translate --workdir runs/en-xx --lang en --target fr --input news.en.gz "
    "--back_translation --out back",
    ("workdir", "input", "out"),
    _define,
    _translate,
)
