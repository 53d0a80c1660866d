"""gshard-decode and gshard-data translate: their flags, and the input and output that they name."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    check_apart,
    define_changes,
    define_checkpoint,
    define_run,
    define_trust,
    existing_file,
    existing_folder,
)
from gshard_nmt.cli.processes import PROCESS_NEEDS, compare, define_processes, join
from gshard_nmt.errors import UserError
from gshard_nmt.files import is_stream
from gshard_nmt.ranges import MOST

if TYPE_CHECKING:
    from gshard_nmt.decode import Job
    from gshard_nmt.decoding.protected import Protection
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.config import Config, Decode
    from gshard_nmt.spmd.processes import Processes

SAMPLING = ("temperature", "top_k", "top_p", "seed")
"""The settings of `Decode` that only sampling reads."""


def _define_direction(flags: Flags) -> None:
    # fmt: off
    flags.text("lang", "TAG",
        "language of the input; needed only if the model translates from several", default="")
    flags.text("target", "TAG",
        "language to translate to; needed only if the model translates to several", default="")


def define_protection(flags: Flags) -> None:
    flags.choice("protect", "WHETHER",
        "on: placeholders such as %s, {name} and $HOME, tags, addresses, files and emoji come through "
        "the translation as they are, as often as in the source. numbers: also numbers with their units. "
        "off: they are text. If not given, on if the run was trained with Data.augmentation = "
        "{'placeholders': RATE}", ["on", "numbers", "off"])  # fmt: skip
    flags.text("glossary", "FILE",
        "terms and their translations, a pair in each line, separated by a tab: Fichier<tab>File. A "
        "third column may name the language that it is for")  # fmt: skip


def read_protection(
    values: FlagValues, config: "Config", run: "RunFolder", processes: "Processes"
) -> "Protection | None":
    """Returns what --protect and --glossary ask for; or raises UserError if the model cannot do it."""
    from gshard_nmt.data.text.protection import symbol
    from gshard_nmt.decoding.protected import Protection, read_glossary, trained_protection

    path = existing_file(values, "glossary", "give a text file, or leave out --glossary")
    glossary = read_glossary(path, run.directions) if path else ()
    trained = trained_protection(config)
    placeholders = values.protect != "off" if values.protect else trained is not None
    if not (placeholders or glossary):
        return None
    flag = "--glossary" if glossary else f"--protect {values.protect or 'on'}"
    if trained is None and None in map(symbol, run.vocabularies()):
        raise UserError(
            f"{flag} needs the symbol <ph>, which the vocabularies of {run.path} do not have. Leave it "
            "out, or train a run with vocabularies of gshard-data prepare."
        )
    if trained is None and processes.is_first:
        sys.stderr.write(
            f"{flag}: this run was not trained with placeholders, so it does not write their symbol "
            "itself. Each value goes to the likeliest place, which takes longer and is often not the "
            "right one. Train with Data.augmentation = {'placeholders': 0.3}.\n"
        )
    return Protection(placeholders, glossary, values.protect == "numbers")


def _define_search(flags: Flags) -> None:
    # fmt: off
    flags.integer("beam", "K",
        "beam size; if not given, Decode.beam of the run's config (4 by default)", None, minimum=1)
    flags.integer("nbest", "N",
        "number of translations of each line, best first, at most --beam; or of samples", 1, minimum=1)
    flags.switch("sample",
        "draw random translations; --gin sets Decode.temperature, top_k, top_p and seed")


def _define_decode(flags: Flags) -> None:
    # fmt: off
    define_run(flags)
    _define_direction(flags)
    flags.text("input", "FILE",
        "file to translate, one sentence a line; stdin if not given; may end in .gz, .zst, .xz or "
        ".bz2. A document (.po, .pot, .xliff, .srt, .vtt, .html, .md) keeps its structure")
    flags.switch("retranslate",
        "in a .po or XLIFF document, also translate what has a translation already")
    flags.text("output", "FILE",
        "file for the translations; stdout if not given. Until it is complete, the finished lines are in "
        "FILE.partial, and the same command goes on from there")
    define_checkpoint(flags)
    _define_search(flags)
    flags.switch("scores",
        "write the line number and the score before each translation, separated by tabs")
    flags.choice("format", "NAME",
        "text (translations alone), tsv (line number, score, translation) or jsonl (an object for each "
        "line). If not given, tsv with --scores or several translations", ["text", "tsv", "jsonl"])
    define_protection(flags)
    flags.text("prefix", "FILE",
        "the beginning of each translation: line N for line N of the input, or an empty line")
    flags.text("score", "FILE",
        "translations to score: line N translates line N of the input; the output has their scores")
    flags.switch("check",
        "translate the input in other batches and on other numbers of devices, and say whether each line "
        "has the same translation and score, bit for bit")
    define_changes(flags)
    define_processes(flags)
    define_trust(flags)


def _decode(values: FlagValues) -> None:
    processes = join(values, "gshard-decode")
    workdir = existing_folder(values, "workdir", "gshard-train")
    job = _read_job(values, workdir, processes)
    # Loading the model takes long, so we check all flags before that.
    check_apart(values, "score", *_NOT_WITH["score"])
    from gshard_nmt.decoding.source_lines import chosen_format

    form = chosen_format(values.format, values.nbest, values.scores)
    rates = form == "jsonl" and not values.prefix and processes.is_first
    job = dataclasses.replace(job, form=form, rates=rates)
    compare(values, job.config, processes)
    with processes.waiting_for_lost_peers():
        if processes.is_first:
            _translate_files(values, job)
        else:
            job.load().follow()


def _translate_files(values: FlagValues, job: "Job") -> None:
    from gshard_nmt.decode import (
        check_output,
        decode_document,
        decode_file,
        show_check,
        written_instead,
    )
    from gshard_nmt.decoding.documents.document import is_document

    advice = "give a text file, or leave out --input to read stdin"
    source_file = existing_file(values, "input", advice)
    output_file = paths.local_path("output", values.output) if values.output else None
    check_apart(values, "check", *_NOT_WITH["check"])
    if values.check and job.processes.count > 1:
        raise UserError(
            f"--check runs in one process, and there are {job.processes.count}. Start it in one process; "
            "it tries several numbers of devices."
        )
    check_output(source_file, output_file, job.run, "--output")
    document = (
        source_file if source_file and (is_document(source_file) or values.retranslate) else None
    )
    if document:
        check_apart(values, "input", *_NOT_WITH["input"])
    for name in ("glossary", "prefix", "score"):
        path = existing_file(values, name, f"give a text file, or leave out --{name}")
        if path is None:
            continue
        if output_file and (
            outputs.is_same_file(path, output_file) or written_instead(path, output_file)
        ):
            raise UserError(
                f"--output {output_file} would overwrite the file of --{name}, {path}. Give --output a "
                "new file."
            )
        if name != "glossary":
            _check_is_no_pipe(name, path)
            job = dataclasses.replace(job, beside=(name, path))
    if document:
        if output_file is None or is_stream(output_file):
            raise UserError(
                f"--input {document} is a document, which is written at the end. Give --output a file, "
                "or translate its lines as text: gshard-decode < FILE."
            )
        decode_document(job, document, output_file, values.retranslate)
    elif values.check:
        show_check(job, source_file)
    else:
        decode_file(job, source_file, output_file)


def _check_is_no_pipe(name: str, path: Path) -> None:
    if not path.is_file():
        raise UserError(
            f"--{name} {path} is a pipe, and the file is read twice. Write the lines to a file first."
        )


_NOT_WITH = {
    "check": (("output", "prefix", "score", "scores", "format"), "writes no translations"),
    "input": (
        ("check", "format", "nbest", "prefix", "score", "scores"),
        "names a document, written with the best translations",
    ),
    "score": (("prefix", "sample", "scores", "nbest", "format"), "gives one score a line"),
}
"""The flags that --check, a document and --score exclude, and why."""


def _read_job(values: FlagValues, workdir: Path, processes: "Processes") -> "Job":
    """Returns the job of the flags for the model and the search, with JSON lines as output."""
    from gshard_nmt.decode import Job
    from gshard_nmt.run.checkpoint.weights import Chosen
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.gin_reader import read_changes
    from gshard_nmt.settings.values import read_run_config

    run = RunFolder(workdir, values.trust_programs)
    changes = read_changes(values.gin)
    search = {"beam": values.beam} if values.beam else {}
    if values.sample:
        search["method"] = "sample"
    config = changes.apply(read_run_config(run.config)).replace(decode=search)
    source, target = run.direction(values.lang, values.target)
    _check_search(values, config.decode, [name for _, name in changes.settings])
    Chosen.parse(values.checkpoint)
    fits = not changes.name_a_mesh
    protection = read_protection(values, config, run, processes)
    chosen = (values.nbest, "jsonl", values.checkpoint, processes, fits)
    return Job(config, run, source, target, *chosen, protection=protection)


def _check_search(values: FlagValues, decode: "Decode", settings: Sequence[str]) -> None:
    """Raises UserError if a flag or setting of the search has no effect, or --nbest is too large."""
    if decode.method == "sample":
        if values.beam:
            raise UserError("--beam has no effect with sampling. Leave it out.")
        for name in settings:
            if name in ("beam", "expansion"):
                raise UserError(f"Decode.{name} has no effect with sampling. Leave it out.")
        return
    for name in settings:
        if name in SAMPLING:
            raise UserError(
                f"Decode.{name} has no effect without --sample. Add --sample, or leave it out."
            )
    check_nbest(values.nbest, decode)


def check_nbest(nbest: int, decode: "Decode") -> None:
    if nbest > decode.beam:
        raise UserError(
            f"--nbest is {nbest}; it must be from 1 to the beam size, {decode.beam}. Lower --nbest, or "
            "set a larger --beam."
        )


def _define_translate(flags: Flags) -> None:
    # fmt: off
    define_run(flags)
    flags.text("input", "FILE",
        "text in one language, one sentence a line. It may end in .gz, .zst, .xz or .bz2")
    flags.text("out", "DIR",
        "the corpus folder for the new pairs, beside those of other inputs. The same command goes on "
        "after a stop, and translates nothing again if only --min_score or --max_ratio changes")
    _define_direction(flags)
    define_protection(flags)
    flags.switch("back_translation",
        "make the input the target side of the new pairs, and its translation the source side")
    flags.number("min_score", "X",
        "drop a translation whose score is lower. Scores are below 0; the report shows them",
        minimum=-MOST, maximum=MOST)
    flags.number("max_ratio", "X",
        "drop a pair if one side is longer than the other by more than this factor", 3.0,
        minimum=1.0, maximum=1000.0)
    define_checkpoint(flags)
    _define_search(flags)
    define_changes(flags)
    define_trust(flags)


def _translate(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    source_file = existing_file(values, "input", "give a text file")
    assert source_file is not None
    _check_is_no_pipe("input", source_file)
    out = paths.local_path("out", values.out)
    outputs.check_folder("--out", out)
    from gshard_nmt import translate_corpus
    from gshard_nmt.decode import check_output, decode_file
    from gshard_nmt.decoding.source_lines import survey
    from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
    from gshard_nmt.run.checkpoint.weights import Chosen, expected_label
    from gshard_nmt.spmd.processes import ALONE

    job = _read_job(values, workdir, ALONE)
    direction = (job.source, job.target)
    files = translate_corpus.Files.of_input(out, direction, source_file, values.back_translation)
    files.decoded.parent.mkdir(parents=True, exist_ok=True)
    check_output(source_file, files.decoded, job.run, "--out")
    checkpoints = Checkpoints.of(job.run, job.config.train, job.processes)
    label = expected_label(checkpoints, Chosen.parse(job.checkpoint))
    known = survey(source_file, f"--input {source_file}")
    made_of = {"file": str(source_file.resolve()), "input": known.sha256, **job.origin(label)}
    if label and files.holds(made_of):
        sys.stderr.write(
            f"{files.decoded} has the translations of {source_file} by this model already; only the "
            "filters run\n"
        )
    else:
        # If this program dies before the last line, the next start must not trust the facts of before.
        files.record({"file": made_of["file"]})
        # Training may have saved a better checkpoint meanwhile.
        used = decode_file(job, source_file, files.decoded)
        files.record(made_of | {"checkpoint": used})
    translate_corpus.translate_corpus(files, values.min_score, values.max_ratio)


TRANSLATE = Command("gshard-data translate",
    "translates text in one language with a trained model, drops bad translations, and writes the pairs "
    "as a corpus for gshard-data prepare: back-translation, or the training text of a student.",
    "gshard-data translate --workdir runs/en-xx --lang en --target fr --input news.en.gz "
    "--back_translation --out back",
    ("workdir", "input", "out"), _define_translate, _translate)  # fmt: skip


DECODE = Command("gshard-decode",
    "translates text with a trained model; line N of the output translates line N of the input.",
    'echo "Fichier introuvable" | gshard-decode --workdir runs/demo --lang fr',
    ("workdir",), _define_decode, _decode,
    needs={"retranslate": "input", **PROCESS_NEEDS})  # fmt: skip
