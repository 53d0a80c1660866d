"""gshard-eval: its flags, and the call of the program."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli.data_commands import define_corpora, read_corpora
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    command_text,
    define_changes,
    define_checkpoint,
    define_trust,
    existing,
    existing_file,
    existing_files,
    existing_folder,
    require,
)
from gshard_nmt.cli.processes import PROCESS_NEEDS, compare, define_processes, join
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.decoding.runs import RunTranslators
    from gshard_nmt.evaluate import Options
    from gshard_nmt.settings.values import Changes


_FORMATS = ("flores", "ntrex", "wmt", "plain")
_OF_FILES = ("references", "sources", "target")
"""The flags that need --hypotheses."""
_EXAMPLE = "gshard-eval --hypotheses system.en --references ref.en --target en"
"""A command that scores files."""
_OF_RUNS = ("workdir", "corpus", "test_set", "baselines", "scores")


def _define_eval(flags: Flags) -> None:
    # fmt: off
    flags.texts("workdir", "DIR|URL",
        "the run folder of the model; may be gs://bucket/folder. Given several times, the report "
        "compares the runs: it describes the first in full and shows the others beside it")
    flags.texts("name", "NAME",
        "the name of a run in the report, instead of that of its folder; may be given once for "
        "each --workdir, in the same order")
    define_corpora(flags,
        "the corpus folder with the references, and with the training text that the test sentences are "
        "compared with")
    flags.text("test_set", "DIR",
        "a published test set in place of that of --corpus: a folder of FLORES-200 or FLORES+, of "
        "NTREX-128, of WMT files without SGML, or of plain files src.de, ref.en, ref2.en. Only "
        "directions that the run was trained on are translated. With --corpus too, the test set is "
        "compared with its training text")
    flags.choice("format", "NAME",
        f"the format of --test_set: {', '.join(_FORMATS)}; by default it is recognized", _FORMATS)
    flags.text("split", "NAME",
        "split of the corpus or of FLORES to translate, such as test or dev", default="test")
    flags.text("baselines", "DIR|JSON",
        "bilingual baselines to compare with: the --workdir of gshard-train --baselines_of, or a "
        'JSON file with the BLEU of each language or direction, such as {"fr": 30.1} or {"fr-en": '
        "30.1}")
    flags.texts("scores", "FILE",
        'published scores to compare with, as a JSON file such as {"name": "a model", "bleu": '
        '{"fr": 30.1}}, or the bleu.json of another report; may be given several times')
    flags.text("cross_entropies", "A,B,...",
        "count the tokens that each run needed to reach these cross-entropies; if not given, three "
        "values are chosen that tell the runs apart", default="")
    flags.text("report", "DIR", "the folder of the report to make")
    flags.integer("sentences", "N",
        "number of sentences of each language, from the start of the split; 0 means all",
        0, minimum=0)
    flags.switch("routing",
        "also show which experts each language uses in each layer, on the test text: maps and "
        "tables in the report, and the numbers in bleu.json. The model must have experts")
    flags.words("metrics", "NAME ...",
        "metrics in addition to bleu and chrf: chrf++, ter, spbleu, comet")
    flags.text("spm_model", "FILE", "the SentencePiece model of spbleu, such as that of FLORES-200")
    flags.text("comet_model", "FILE", "the checkpoint of comet, which needs unbabel-comet")
    flags.words("length_edges", "N ...",
        "source lengths, in words, at which the buckets of the scores by length begin; if not "
        "given, 10 20 30 40")
    flags.switch("leave_out_overlap",
        "score without the test sentences that are in the training text of the corpus, exactly or "
        "nearly; the report always counts them")
    flags.words("hypotheses", "FILE ...",
        "translations to score without a run; further files are compared with the first one. Needs "
        "--references and --target")
    flags.words("references", "FILE ...",
        "the references of --hypotheses; each file is one reference")
    flags.text("sources", "FILE",
        "the sources of --hypotheses, for samples, lengths and comet")
    flags.text("target", "TAG", "the language of --hypotheses, which chooses the tokenizer of BLEU")
    flags.text("source", "TAG", "the language of --sources")
    define_checkpoint(flags, "computed in memory. Each baseline uses its best checkpoint")
    define_changes(flags)
    define_processes(flags)
    define_trust(flags)
    # fmt: on


def _eval(values: FlagValues) -> None:
    if values.hypotheses:
        _score_files(values)
        return
    _check_text(values)
    processes = join(values, "gshard-eval")
    workdirs = [existing("workdir", text, "gshard-train") for text in values.workdir]
    from gshard_nmt.decoding.runs import RunTranslators
    from gshard_nmt.decoding.text_translator import ending
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.gin_reader import read_changes
    from gshard_nmt.settings.values import read_run_config

    changes = read_changes(values.gin)
    if processes.count > 1:
        config = changes.apply(read_run_config(RunFolder(workdirs[0]).config))
        compare(values, config, processes)
    translators = RunTranslators(values.trust_programs, changes, processes)
    with processes.waiting_for_lost_peers():
        if not processes.is_first:
            translators.follow()
            return
        with ending(processes):
            _evaluate(values, workdirs, translators, changes)


def _evaluate(
    values: FlagValues, workdirs: Sequence[Path], translators: "RunTranslators", changes: "Changes"
) -> None:
    from gshard_nmt.evaluate import Others, Request, evaluate, open_folder

    published = None
    if values.test_set:
        published = open_folder(_test_set_folder(values), values.format, values.split)
    corpus = read_corpora(values) if values.corpus or not published else None
    baselines = paths.folder_path("baselines", values.baselines) if values.baselines else None
    if baselines and not baselines.exists():
        raise UserError(
            f"--baselines {baselines}: there is no such folder or file; give the --workdir of "
            "gshard-train --baselines_of, or a JSON file with the BLEU of each language."
        )
    if values.leave_out_overlap and corpus is None:
        raise UserError(
            "--leave_out_overlap compares test text with training text, and none is given. Give --corpus "
            "too."
        )
    if "/" in values.split:
        raise UserError(
            f"--split {values.split} is a path. Give the name of a split, such as test."
        )
    report = paths.local_path("report", values.report)
    outputs.check_folder("--report", report)
    options = _read_options(values)
    from gshard_nmt.decoding.runs import Choices
    from gshard_nmt.run.checkpoint.weights import Chosen

    Chosen.parse(values.checkpoint)
    others = Others(
        workdirs[1:],
        values.name,
        [paths.local_path("scores", file) for file in values.scores],
        _cross_entropies(values.cross_entropies),
    )
    request = Request(
        baselines,
        values.sentences,
        Choices(values.checkpoint, changes),
        options,
        published,
        others,
        command_text("gshard-eval", values),
        translators.expert_use if values.routing else None,
    )
    evaluate(workdirs[0], corpus, values.split, report, translators.translate, request)


def _cross_entropies(text: str) -> list[float]:
    """Returns the values of --cross_entropies, highest first."""
    try:
        values = [float(word) for word in text.split(",")] if text else []
    except ValueError:
        values = [math.nan]
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise UserError(
            f"--cross_entropies is {text!r}; it must be numbers above 0 with commas between them, such "
            "as 2.5,2,1.5."
        )
    return sorted(values, reverse=True)


def _score_files(values: FlagValues) -> None:
    for other in _OF_RUNS:
        if values[other].value:
            raise UserError(
                f"--hypotheses scores files and no run, so it cannot be used with --{other}. Give one of "
                "them."
            )
    require(dataclasses.replace(EVAL, example=_EXAMPLE), values, ("references", "target"))
    hypotheses = existing_files(values, "hypotheses", "give a text file with the translations")
    references = existing_files(values, "references", "give a text file with the references")
    sources = existing_file(values, "sources", "give a text file with the sources")
    report = paths.local_path("report", values.report) if values.report else None
    options = _read_options(values)
    from gshard_nmt.evaluate import Files, evaluate_files

    files = Files(hypotheses, references, values.target, sources, values.source or "")
    evaluate_files(files, report, options)


def _check_text(values: FlagValues) -> None:
    if not values.test_set:
        if values.workdir and values.report and not values.corpus:
            raise UserError(
                "--corpus and --test_set are missing. Give one of them: --corpus DIR has your own "
                "text, and --test_set DIR the files of FLORES, NTREX or WMT. See gshard-eval --help."
            )
        require(EVAL, values, ("workdir", "corpus", "report"))
        return
    _test_set_folder(values)
    require(EVAL, values, ("workdir", "report"))


def _test_set_folder(values: FlagValues) -> Path:
    source = "the download of FLORES, NTREX or WMT"
    return existing_folder(values, "test_set", source, on_this_machine=True)


def _read_options(values: FlagValues) -> "Options":
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


EVAL = Command(
    "gshard-eval",
    "translates a test set, scores each language, compares it with baselines and writes a report. "
    "Translations are kept in the run folder and used again. It needs --workdir, --report, and --corpus "
    "or --test_set. With --hypotheses it scores files.",
    "gshard-eval --workdir runs/demo --corpus corpus --report runs/demo/report",
    (),
    _define_eval,
    _eval,
    needs={
        "format": "test_set",
        "name": "workdir",
        "source": "sources",
        **dict.fromkeys(_OF_FILES, "hypotheses"),
        **PROCESS_NEEDS,
    },
)
