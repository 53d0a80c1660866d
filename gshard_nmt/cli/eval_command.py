"""gshard-eval: its flags, and the call of the program."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli.corpus_flags import define_corpora, read_corpora
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    command_text,
    define_checkpoint,
    define_trust,
    existing_folders,
)
from gshard_nmt.cli.process_flags import PROCESS_NEEDS, define_decoding_processes, join_to_decode
from gshard_nmt.cli.score_flags import (
    OF_FILES,
    check_text,
    define_files,
    define_metrics,
    define_test_set,
    open_test_set,
    read_options,
    score_files,
    scores_files,
)
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.decoding.runs import RunTranslators
    from gshard_nmt.settings.changes import Changes
    from gshard_nmt.settings.config import Config


def _define_eval(flags: Flags) -> None:
    flags.texts(
        "workdir",
        "DIR|URL",
        "the run folder of the model; may be gs://bucket/folder. Given several times, the report "
        "compares the runs: it describes the first in full and shows the others beside it",
    )
    flags.texts(
        "name",
        "NAME",
        "the name of a run in the report, instead of that of its folder; may be given once for each "
        "--workdir, in the same order",
    )
    define_corpora(
        flags,
        "the corpus folder with the references, and with the training text that the test sentences are "
        "compared with",
    )
    define_test_set(flags)
    flags.text(
        "split",
        "NAME",
        "split of the corpus or of FLORES to translate, such as test or dev",
        default="test",
    )
    flags.text(
        "baselines",
        "DIR|JSON",
        "bilingual baselines to compare with: the --workdir of gshard-train --baselines_of, or a JSON "
        'file with the BLEU of each language or direction, such as {"fr": 30.1} or {"fr-en": 30.1}',
    )
    flags.texts(
        "scores",
        "FILE",
        "published scores to compare with, as a JSON file such as "
        '{"name": "a model", "bleu": {"fr": 30.1}}, or the bleu.json of another report; may be given '
        "several times",
    )
    flags.text(
        "cross_entropies",
        "A,B,...",
        "count the tokens that each run needed to reach these cross-entropies; if not given, three "
        "values are chosen that tell the runs apart",
        default="",
    )
    flags.text("report", "DIR", "the folder of the report to make")
    flags.integer(
        "sentences",
        "N",
        "number of sentences of each language, from the start of the split; 0 means all",
        0,
        minimum=0,
    )
    flags.switch(
        "routing",
        "also show which experts each language uses in each layer, on the test text: maps and tables in "
        "the report, and the numbers in bleu.json. The model must have experts",
    )
    define_metrics(flags)
    define_files(flags)
    define_checkpoint(flags, "computed in memory. Each baseline uses its best checkpoint")
    define_decoding_processes(flags)
    define_trust(flags)


def _eval(values: FlagValues) -> None:
    if scores_files(values):
        score_files(EVAL, values)
        return
    check_text(EVAL, values)
    workdir, *other_workdirs = existing_folders(values, "workdir", "gshard-train")
    from gshard_nmt.decoding import calls
    from gshard_nmt.decoding.runs import RunTranslators
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.changes import read_changes
    from gshard_nmt.settings.values import read_run_config

    changes = read_changes(values.gin)

    def config() -> "Config":
        return changes.apply(read_run_config(RunFolder(workdir).config))

    processes = join_to_decode(values, "gshard-eval", workdir, config)
    translators = RunTranslators(values.trust_programs, changes, processes)
    with processes.waiting_for_lost_peers():
        if not processes.is_first:
            calls.follow(translators, processes)
            return
        with calls.ending(processes):
            translating = calls.leading(translators, processes, ["translate", "expert_use"])
            _evaluate(values, [workdir, *other_workdirs], translating, changes)


def _evaluate(
    values: FlagValues,
    workdirs: Sequence[Path],
    translators: "RunTranslators",
    changes: "Changes",
) -> None:
    published = open_test_set(values)
    corpus = None
    if published is None or values.corpus:
        corpus = read_corpora(values)
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
    options = read_options(values)
    from gshard_nmt.decoding.runs import Choices
    from gshard_nmt.evaluate import Others, Request, evaluate
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
        **dict.fromkeys(OF_FILES, "hypotheses"),
        **PROCESS_NEEDS,
    },
)
