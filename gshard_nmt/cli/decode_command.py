"""gshard-decode and gshard-data translate: their flags, and the input and output that they name."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    define_changes,
    define_checkpoint,
    define_run,
    define_trust,
    existing_file,
    existing_folder,
)
from gshard_nmt.cli.processes import PROCESS_NEEDS, compare, define_processes, join
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.decode import Job
    from gshard_nmt.settings.config import Decode
    from gshard_nmt.spmd.processes import Processes
    from gshard_nmt.translate_corpus import Files

_BEAM_FLAGS = ("beam", "expansion")
"""The settings that only beam search reads."""
_SAMPLING_FLAGS = ("temperature", "top_k", "top_p", "seed")
"""The settings that only sampling reads."""
_OTHER_FLAGS = ("length_norm", "alpha")


def _define_direction(flags: Flags) -> None:
    # fmt: off
    flags.text("lang", "TAG",
        "language of the input; needed only if the model translates from several", default="")
    flags.text("target", "TAG",
        "language to translate to; needed only if the model translates to several", default="")
    # fmt: on


def _define_search(flags: Flags) -> None:
    """Defines --beam, --sample and the other flags of the search. Each has the name of a setting."""
    # fmt: off
    flags.integer("beam", "K",
        "beam size; if not given, Decode.beam of the run's config (4 by default)", None, minimum=1)
    flags.integer("nbest", "N",
        "number of translations of each line, best first; at most --beam. With --sample, the "
        "number of samples", 1, minimum=1)
    flags.choice("expansion", "NAME",
        "how the beam goes on: eos_aside, fairseq or lingvo; if not given, as in the run's config",
        ["eos_aside", "fairseq", "lingvo"])
    define_length_norm(flags)
    flags.switch("sample", "draw random translations and do not search for the best ones")
    flags.number("temperature", "X",
        "with --sample: below 1, likely words become likelier; above 1, less likely (1 if not set)")
    flags.integer("top_k", "N",
        "with --sample: draw each token from the N likeliest ones; 0 means all", None, minimum=0)
    flags.number("top_p", "X",
        "with --sample: draw each token from the fewest likeliest ones whose probabilities add up "
        "to X")
    flags.integer("seed", "N",
        "with --sample: seed of the random numbers. The same seed gives a line the same samples",
        None, minimum=0)
    # fmt: on


def define_length_norm(flags: Flags) -> None:
    # fmt: off
    flags.choice("length_norm", "NAME",
        "how to normalize a score by length: gnmt, lingvo or none; if not given, as in the run's "
        "config", ["gnmt", "lingvo", "none"])
    flags.number("alpha", "X",
        "exponent of the length normalization; if not given, as in the run's config")
    # fmt: on


def _define_decode(flags: Flags) -> None:
    # fmt: off
    define_run(flags)
    _define_direction(flags)
    flags.text("input", "FILE",
        "file to translate, one sentence a line; stdin if not given. It may be compressed: .gz, "
        ".zst, .xz or .bz2")
    flags.text("output", "FILE",
        "file for the translations; stdout if not given. It is complete when it appears; until "
        "then the finished lines are in FILE.partial. If the program is killed, the same command "
        "goes on from there; input from stdin or from a pipe is translated from its start")
    define_checkpoint(flags)
    _define_search(flags)
    flags.switch("scores",
        "write the line number and the score before each translation, separated by tabs")
    flags.choice("format", "NAME",
        "format of the output: text (the translations alone), tsv (line number, score and "
        "translation, separated by tabs), or jsonl (a JSON object for each line). If not given, "
        "tsv with --scores or if --nbest is above 1, otherwise text", ["text", "tsv", "jsonl"])
    flags.text("prefix", "FILE",
        "the beginning of each translation: line N for line N of the input, or an empty line")
    flags.text("score", "FILE",
        "translations to score: line N translates line N of the input. The output has one score a "
        "line")
    flags.switch("check",
        "translate the input several times, in other batches and on other numbers of devices, and "
        "say whether each line has the same translation and score, bit for bit")
    define_changes(flags)
    define_processes(flags)
    define_trust(flags)
    # fmt: on


def _decode(values: FlagValues) -> None:
    processes = join(values, "gshard-decode")
    workdir = existing_folder(values, "workdir", "gshard-train")
    job = _read_job(values, workdir, processes)
    # Loading the model takes long, so we check all flags before that.
    _check_beside(values)
    from gshard_nmt.decoding.source_lines import chosen_format

    job = dataclasses.replace(job, form=chosen_format(values.format, values.nbest, values.scores))
    compare(values, job.config, processes)
    with processes.waiting_for_lost_peers():
        if processes.is_first:
            _translate_files(values, job)
        else:
            job.load().follow()


def _translate_files(values: FlagValues, job: "Job") -> None:
    from gshard_nmt.decode import check_output, decode_file, show_check, written_instead

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
        if path is None:
            continue
        if not path.is_file():
            raise UserError(
                f"--{name} {path} is a pipe, and the file is read twice. Write the lines to a file first."
            )
        if output_file and (
            outputs.is_same_file(path, output_file) or written_instead(path, output_file)
        ):
            raise UserError(
                f"--output {output_file} would overwrite the file of --{name}, {path}. Give --output a "
                "new file."
            )
        job = dataclasses.replace(job, beside=(name, path))
    if values.check:
        show_check(job, source_file)
    else:
        decode_file(job, source_file, output_file)


def _check_flags_of_check(values: FlagValues, processes: int) -> None:
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
    for name in ("prefix", "sample", "scores", "nbest", "format") if values.score else ():
        if values[name].value != values[name].default:
            raise UserError(
                f"--{name} does not go with --score, which gives one score a line. Leave out one of them."
            )


def _read_job(values: FlagValues, workdir: Path, processes: "Processes") -> "Job":
    """Returns the job of the flags for the model and the search, with JSON lines as output."""
    from gshard_nmt.decode import Job
    from gshard_nmt.run.checkpoint.weights import Chosen
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.changes import read_changes
    from gshard_nmt.settings.values import read_run_config

    run = RunFolder(workdir, values.trust_programs)
    changes = read_changes(values.gin)
    config = changes.apply(read_run_config(run.config)).replace(decode=search_changes(values))
    source, target = run.direction(values.lang, values.target)
    check_search(values, config.decode)
    Chosen.parse(values.checkpoint)
    fits = not changes.name_a_mesh
    form, nbest = "jsonl", values.nbest
    return Job(config, run, source, target, nbest, form, values.checkpoint, processes, fits)


def search_changes(values: FlagValues) -> Mapping[str, Any]:
    """Returns the settings of `Decode` that the flags change."""
    names = (*_BEAM_FLAGS, *_SAMPLING_FLAGS, *_OTHER_FLAGS)
    changes = {name: values[name].value for name in names if values[name].value is not None}
    return {**changes, "method": "sample"} if values.sample else changes


def check_search(values: FlagValues, decode: "Decode") -> None:
    """Raises UserError if a flag of the search has no effect, or --nbest is above the beam size."""
    samples = decode.method == "sample"
    from gshard_nmt.settings.changes import read_changes

    settings = read_changes(values.gin).settings
    for name in _BEAM_FLAGS if samples else _SAMPLING_FLAGS:
        if values[name].value is not None or ("Decode", name) in settings:
            given = f"Decode.{name}" if values[name].value is None else f"--{name}"
            reason = "with sampling" if samples else "without --sample"
            advice = "Leave it out." if samples else "Add --sample, or leave it out."
            raise UserError(f"{given} has no effect {reason}. {advice}")
    if decode.length_norm == "none" and values.alpha is not None:
        raise UserError(
            "--alpha has no effect without a length norm. Add --length_norm gnmt, or leave it out."
        )
    if not samples and values.nbest > decode.beam:
        raise UserError(
            f"--nbest is {values.nbest}; it must be from 1 to the beam size, {decode.beam}. Lower "
            "--nbest, or set a larger --beam."
        )


def _define_translate(flags: Flags) -> None:
    # fmt: off
    define_run(flags)
    flags.text("input", "FILE",
        "text in one language, one sentence a line. It may be compressed: .gz, .zst, .xz or .bz2")
    flags.text("out", "DIR",
        "the corpus folder for the new pairs. What it has from other inputs and other languages "
        "stays. If the program is stopped, the same command goes on. If only --min_score or "
        "--max_ratio changes, nothing is translated again")
    _define_direction(flags)
    flags.switch("back_translation",
        "make the input the target side of the new pairs, and its translation the source side")
    flags.number("min_score", "X",
        "drop a translation whose score is lower. A score is a log-probability divided by the "
        "length norm, so it is below 0. The report shows how the scores are distributed")
    flags.number("max_ratio", "X",
        "drop a pair if one side is longer than the other by more than this factor",
        3.0, minimum=1.0)
    define_checkpoint(flags)
    _define_search(flags)
    define_changes(flags)
    define_trust(flags)
    # fmt: on


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
    from gshard_nmt import translate_corpus
    from gshard_nmt.decode import check_output
    from gshard_nmt.spmd.processes import ALONE

    job = _read_job(values, workdir, ALONE)

    direction = (job.source, job.target)
    files = translate_corpus.Files.of_input(out, direction, source_file, values.back_translation)
    files.decoded.parent.mkdir(parents=True, exist_ok=True)
    check_output(source_file, files.decoded, job.run)
    _decode_once(job, source_file, files)
    translate_corpus.translate_corpus(files, values.min_score, values.max_ratio)


def _decode_once(job: "Job", source: Path, files: "Files") -> None:
    """Translates the input, unless the same translation is there already."""
    from gshard_nmt.decode import decode_file
    from gshard_nmt.decoding.source_lines import survey
    from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
    from gshard_nmt.run.checkpoint.weights import Chosen, expected_label

    checkpoints = Checkpoints.of(job.run, job.config.train, job.processes)
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
    decode_file(job, source, files.decoded)
    files.record(made_of)


TRANSLATE = Command(
    "gshard-data translate",
    "translates text in one language with a trained model, drops bad translations, and writes the pairs "
    "as a corpus for gshard-data prepare: back-translation, or the training text of a student.",
    "gshard-data translate --workdir runs/en-xx --lang en --target fr --input news.en.gz "
    "--back_translation --out back",
    ("workdir", "input", "out"),
    _define_translate,
    _translate,
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
