"""The flags of gshard-eval that choose the test set, the metrics, and files to score without a run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import paths
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    existing_file,
    existing_files,
    existing_folder,
    require,
)
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.evaluate import Options, Published

_FORMATS = ("flores", "ntrex", "wmt", "plain")
OF_FILES = ("references", "sources", "target")
"""The flags that need --hypotheses."""
_EXAMPLE = "gshard-eval --hypotheses system.en --references ref.en --target en"
"""A command that scores files."""
_OF_RUNS = ("workdir", "corpus", "test_set", "baselines", "scores")


def define_test_set(flags: Flags) -> None:
    """Defines --test_set and --format."""
    flags.text(
        "test_set",
        "DIR",
        "a published test set in place of that of --corpus: a folder of FLORES-200 or FLORES+, of "
        "NTREX-128, of WMT files without SGML, or of plain files src.de, ref.en, ref2.en. Only "
        "directions that the run was trained on are translated. With --corpus too, the test set is "
        "compared with its training text",
    )
    flags.choice(
        "format",
        "NAME",
        f"the format of --test_set: {', '.join(_FORMATS)}; by default it is recognized",
        _FORMATS,
    )


def define_metrics(flags: Flags) -> None:
    """Defines the flags that choose metrics and the buckets of lengths."""
    flags.words(
        "metrics",
        "NAME ...",
        "metrics in addition to bleu and chrf: chrf++, ter, spbleu, comet",
    )
    flags.text("spm_model", "FILE", "the SentencePiece model of spbleu, such as that of FLORES-200")
    flags.text("comet_model", "FILE", "the checkpoint of comet, which needs unbabel-comet")
    flags.words(
        "length_edges",
        "N ...",
        "source lengths, in words, at which the buckets of the scores by length begin; if not given, 10 "
        "20 30 40",
    )
    flags.switch(
        "leave_out_overlap",
        "score without the test sentences that are in the training text of the corpus, exactly or "
        "nearly; the report always counts them",
    )


def define_files(flags: Flags) -> None:
    """Defines the flags for scoring files."""
    flags.words(
        "hypotheses",
        "FILE ...",
        "translations to score without a run; further files are compared with the first one. Needs "
        "--references and --target",
    )
    flags.words(
        "references", "FILE ...", "the references of --hypotheses; each file is one reference"
    )
    flags.text("sources", "FILE", "the sources of --hypotheses, for samples, lengths and comet")
    flags.text("target", "TAG", "the language of --hypotheses, which chooses the tokenizer of BLEU")
    flags.text("source", "TAG", "the language of --sources")


def scores_files(values: FlagValues) -> bool:
    """Returns whether the command scores files and not a run.

    Raises:
      UserError: flags of both are given.
    """
    if values.hypotheses:
        _refuse_together(values, "hypotheses", _OF_RUNS, "scores files and no run")
    return bool(values.hypotheses)


def score_files(command: Command, values: FlagValues) -> None:
    """Scores the files of --hypotheses."""
    require(dataclasses.replace(command, example=_EXAMPLE), values, ("references", "target"))
    hypotheses = existing_files(values, "hypotheses", "give a text file with the translations")
    references = existing_files(values, "references", "give a text file with the references")
    sources = existing_file(values, "sources", "give a text file with the sources")
    report = paths.local_path("report", values.report) if values.report else None
    options = read_options(values)
    from gshard_nmt.evaluate import Files, evaluate_files

    files = Files(hypotheses, references, values.target, sources, values.source or "")
    evaluate_files(files, report, options)


def check_text(command: Command, values: FlagValues) -> None:
    """Checks that the flags name a run, a folder for the report, and either a corpus or a test set."""
    if not values.test_set:
        if values.workdir and values.report and not values.corpus:
            raise UserError(
                "--corpus and --test_set are missing. Give one of them: --corpus DIR has your own "
                "text, and --test_set DIR the files of FLORES, NTREX or WMT. See gshard-eval --help."
            )
        require(command, values, ("workdir", "corpus", "report"))
        return
    _test_set_folder(values)
    require(command, values, ("workdir", "report"))


def open_test_set(values: FlagValues) -> "Published | None":
    """Returns the published test set of the flags; None if they name a corpus."""
    if not values.test_set:
        return None
    from gshard_nmt.evaluate import open_folder

    return open_folder(_test_set_folder(values), values.format, values.split)


def _test_set_folder(values: FlagValues) -> Path:
    source = "the download of FLORES, NTREX or WMT"
    return existing_folder(values, "test_set", source, on_this_machine=True)


def read_options(values: FlagValues) -> "Options":
    """Returns what to measure, after checking that all of it can be measured."""
    spm_model = existing_file(values, "spm_model", "give a SentencePiece model")
    comet_model = existing_file(values, "comet_model", "give the checkpoint of a COMET model")
    names = tuple(name for text in values.metrics for name in text.split(","))
    edges = [edge for text in values.length_edges for edge in text.split(",")]
    for edge in edges:
        if not edge.isdecimal():
            raise UserError(
                f"--length_edges is {edge!r}; lengths are whole numbers from 1. Give for example "
                "--length_edges 10 20 30 40."
            )
    from gshard_nmt.evaluate import Measures, Options

    measures = Measures(names, spm_model, comet_model)
    options = Options(measures, leave_out_overlap=values.leave_out_overlap)
    if edges:
        options = dataclasses.replace(options, length_edges=tuple(map(int, edges)))
    options.check()
    return options


def _refuse_together(values: FlagValues, flag: str, others: Sequence[str], why: str) -> None:
    for other in others:
        if values[other].value:
            raise UserError(
                f"--{flag} {why}, so it cannot be used with --{other}. Give one of them."
            )
