"""gshard-eval: its flags, and the call of the program."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import paths
from gshard_nmt.cli.data_commands import define_corpora, read_corpora
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    check_apart,
    command_text,
    define_changes,
    define_checkpoint,
    define_trust,
    existing,
    existing_folder,
    require,
)
from gshard_nmt.cli.processes import PROCESS_NEEDS, compare, define_processes, join
from gshard_nmt.errors import UserError
from gshard_nmt.ranges import MOST

if TYPE_CHECKING:
    from gshard_nmt.decoding.runs import RunTranslators
    from gshard_nmt.settings.values import Changes


def _define_eval(flags: Flags) -> None:
    # fmt: off
    flags.texts("workdir", "DIR|URL",
        "the run folder of the model; may be gs://bucket/folder. Given several times, the report "
        "compares the runs: it describes the first in full and shows the others beside it")
    flags.texts("name", "NAME",
        "the name of a run in the report, instead of that of its folder; may be given once for "
        "each --workdir, in the same order")
    define_corpora(flags, "the corpus folder with the test text")
    flags.text("test_set", "DIR",
        "a published test set in place of that of --corpus: a folder of FLORES-200, or of files "
        "src.de, ref.en, ref2.en. Only directions that the run was trained on are translated")
    flags.text("split", "NAME",
        "split of the corpus or of FLORES to translate, such as test or dev", default="test")
    flags.text("baselines", "DIR|JSON",
        "bilingual baselines to compare with: the --workdir of gshard-train --baselines_of, or a "
        'JSON file with the BLEU of each language or direction, such as {"fr": 30.1} or {"fr-en": '
        "30.1}")
    flags.text("report", "DIR", "the folder of the report to make")
    flags.integer("sentences", "N",
        "number of sentences of each language, from the start of the split; 0 means all",
        0, minimum=0, maximum=MOST)
    flags.switch("routing",
        "also show which experts of the first run each language uses in each layer, on the test text: "
        "maps and tables in the report, and the numbers in bleu.json. The model must have experts")
    flags.switch("calibrate",
        "write no report, but the confidence of translations, for gshard-decode --format jsonl and "
        "gshard-serve: fitted on the dev text of --corpus, and measured on its test text")
    flags.words("metrics", "NAME ...",
        "metrics in addition to bleu and chrf: chrf++, ter, spbleu")
    define_checkpoint(flags, "computed in memory. Each baseline uses its best checkpoint")
    define_changes(flags)
    define_processes(flags)
    define_trust(flags)


def _eval(values: FlagValues) -> None:
    (_check_calibration if values.calibrate else _check_text)(values)
    processes = join(values, "gshard-eval")
    workdirs = [existing("workdir", text, "gshard-train") for text in values.workdir]
    from gshard_nmt.decoding.runs import RunTranslators
    from gshard_nmt.decoding.text_translator import ending
    from gshard_nmt.run.checkpoint.weights import Chosen
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.gin_reader import read_changes
    from gshard_nmt.settings.values import read_run_config

    Chosen.parse(values.checkpoint)
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
            if values.calibrate:
                from gshard_nmt.evaluate import calibrate

                text = read_corpora(values), values.sentences
                work = translators.from_first("hypotheses")
                calibrate(RunFolder(workdirs[0]), *text, work, values.checkpoint)
            else:
                _evaluate(values, workdirs, translators, changes)


def _check_calibration(values: FlagValues) -> None:
    require(EVAL, values, ("workdir", "corpus"))
    names = ("report", "test_set", "split", "baselines", "routing", "metrics", "name")
    check_apart(
        values, "calibrate", names, "uses dev and test text of --corpus and writes no report"
    )
    if len(values.workdir) > 1:
        raise UserError(
            f"--calibrate takes one run, and {len(values.workdir)} are given. Give one --workdir."
        )


def _check_text(values: FlagValues) -> None:
    if values.test_set and values.corpus:
        raise UserError(
            "--test_set takes the place of --corpus. Give one of them. See gshard-eval --help."
        )
    if values.workdir and values.report and not values.corpus and not values.test_set:
        raise UserError(
            "--corpus and --test_set are missing. Give one of them: --corpus DIR has your own "
            "text, and --test_set DIR the files of FLORES or plain files. See gshard-eval --help."
        )
    text = () if values.test_set else ("corpus",)
    require(EVAL, values, ("workdir", *text, "report"))
    if "/" in values.split:
        raise UserError(
            f"--split {values.split} is a path. Give the name of a split, such as test."
        )


def _evaluate(
    values: FlagValues, workdirs: Sequence[Path], translators: "RunTranslators", changes: "Changes"
) -> None:
    from gshard_nmt.decoding.runs import Choices
    from gshard_nmt.evaluate import Request, check_names, evaluate, open_folder

    published = None
    if values.test_set:
        source = "the download of FLORES"
        folder = existing_folder(values, "test_set", source, on_this_machine=True)
        published = open_folder(folder, values.split)
    report = paths.local_path("report", values.report)
    check_names(values.metrics)
    request = Request(
        paths.folder_path("baselines", values.baselines) if values.baselines else None,
        values.sentences,
        Choices(values.checkpoint, changes),
        values.metrics,
        published,
        workdirs[1:],
        values.name,
        command_text("gshard-eval", values),
        translators.from_first("expert_use") if values.routing else None,
    )
    corpus = None if published else read_corpora(values)
    translate = translators.from_first("translate")
    evaluate(workdirs[0], corpus, values.split, report, translate, request)


EVAL = Command("gshard-eval",
    "translates a test set, scores each language, compares it with baselines and writes a report. "
    "Translations are kept in the run folder and used again. It needs --workdir, --report, and --corpus "
    "or --test_set.",
    "gshard-eval --workdir runs/demo --corpus corpus --report runs/demo/report",
    (), _define_eval, _eval, needs={"name": "workdir", **PROCESS_NEEDS})  # fmt: skip
