"""The verbs of `gshard-data`: their flags, and the function that each verb calls."""

import re
from pathlib import Path

from absl.flags import FlagValues

from gshard_nmt import paths
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    define_config,
    existing,
    existing_folder,
    read_config,
    written_file,
)
from gshard_nmt.errors import UserError
from gshard_nmt.ranges import MOST

_CORPUS_SOURCE = "gshard-data harvest, or put your own text there"

_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=(.+)", re.DOTALL)


def define_corpora(flags: Flags, what: str = "the corpus folder to read") -> None:
    """Defines --corpus, which may be given several times; `what` says what the folder is."""
    flags.texts("corpus", "[NAME=]DIR|URL",
        f"{what}; may be gs://bucket/folder or s3://bucket/folder, and may be given several times with "
        "names: --corpus DIR --corpus back=DIR2")  # fmt: skip


def read_corpora(values: FlagValues) -> dict[str, Path]:
    """Returns the folders of --corpus by their names; the corpus without a name is "" and comes first."""
    corpora: dict[str, Path] = {}
    for text in values.corpus:
        match = _NAMED.fullmatch(text)
        name, place = match.groups() if match else ("", text)
        if not place or (
            not match and "=" in text and "://" not in text and not Path(text).exists()
        ):
            raise UserError(
                f"--corpus {text!r}: there is no such folder, and it is not NAME=DIR with a name of "
                "letters, digits, - and _. Write, for example, --corpus back=DIR."
            )
        if name in corpora:
            raise UserError(
                f"--corpus {text}: another corpus has the name {name!r}; each corpus but one needs a "
                f"name of its own. Write --corpus NAME={place}, or put the folders of both into one."
            )
        corpora[name] = existing("corpus", place, _CORPUS_SOURCE, paths.source_path)
    return dict(sorted(corpora.items(), key=lambda item: item[0] != ""))


def _define_harvest(flags: Flags) -> None:
    flags.text("out", "DIR", "the corpus folder to make")
    flags.texts("root", "DIR",
        "a folder to search besides the system's and Python's; may be given several times")  # fmt: skip


def _harvest(values: FlagValues) -> None:
    out = paths.local_path("out", values.out)
    from gshard_nmt.harvest import harvest

    harvest(out, [Path(root) for root in values.root])


def _define_prepare(flags: Flags) -> None:
    # fmt: off
    define_config(flags)
    define_corpora(flags)
    flags.text("out", "DIR", "the folder of prepared data to make")
    flags.integer("workers", "N",
        "the number of processes; if not given, that of the CPUs", None, minimum=1)
    flags.text("scheduler", "URL",
        "the address of a Dask scheduler, such as tcp://10.0.0.1:8786, whose workers see the same paths")
    flags.text("vocabulary_of", "DIR",
        "prepared data, or a run folder, whose vocabularies are used")


def _prepare(values: FlagValues) -> None:
    if values.workers and values.scheduler:
        raise UserError(
            "--workers and --scheduler are given, but a Dask cluster has workers of its own. Leave out "
            "one of them."
        )
    out = paths.local_path("out", values.out)
    config = read_config(values)
    corpora = read_corpora(values)
    vocabulary_of = None
    if values.vocabulary_of:
        vocabulary_of = existing_folder(
            values, "vocabulary_of", "gshard-data prepare", on_this_machine=True
        )
    from gshard_nmt.prepare import Options, prepare

    if values.scheduler:
        # The workers have other working directories.
        corpora = {name: paths.absolute(folder) for name, folder in corpora.items()}
    options = Options(values.workers or 0, vocabulary_of, config.cleaning, values.scheduler)
    prepare(config.data, corpora, out, options)


def _define_show(flags: Flags) -> None:
    define_config(flags)
    flags.text("data", "DIR|URL", "the folder that gshard-data prepare made")
    flags.integer("batches", "N", "number of batches to print", 1, minimum=1)
    flags.integer("rows", "N", "number of rows of each batch to print; 0 prints all", 4, minimum=0)
    flags.integer("step", "N", "the training step of the first batch", 1, minimum=1)
    flags.switch("pieces", "print the pieces of the vocabulary instead of text")
    flags.choice("format", "FORMAT",
        "text, or jsonl for one JSON object for each row (default: text)", ("text", "jsonl"))  # fmt: skip


def _show(values: FlagValues) -> None:
    config = read_config(values)
    data = existing_folder(values, "data", "gshard-data prepare")
    from gshard_nmt.show_batches import show_batches

    shown = values.batches, values.rows, values.step, values.pieces, values.format == "jsonl"
    show_batches(config.data.in_run(config.train.steps), data, *shown)


def _define_plan(flags: Flags) -> None:
    define_config(flags)
    flags.text("data", "DIR|URL", "the folder that gshard-data prepare made")
    flags.integer("steps", "N",
        "number of training steps; if not given, Train.steps", None, minimum=1, maximum=MOST)  # fmt: skip
    flags.text("out", "FILE", "a file to write the plan to; it ends in .json")


def _plan(values: FlagValues) -> None:
    config = read_config(values)
    out = written_file(values, "out", ".json")
    from gshard_nmt import plan_mixture

    steps = values["steps"].value or config.train.steps
    data = existing_folder(values, "data", "gshard-data prepare")
    plan_mixture.show(plan_mixture.plan_data(config.data, steps, data), out)


def _define_check(flags: Flags) -> None:
    define_corpora(flags, "the corpus folder to check, in which nothing is changed")
    define_config(flags)
    flags.text("report", "FILE", "a file to write the findings to; it ends in .json", default="")
    flags.switch("strict", "end with exit code 2 if anything looks wrong")


def _check(values: FlagValues) -> None:
    config = read_config(values).data if values.config else None
    corpora = read_corpora(values)
    report = written_file(values, "report", ".json")
    from gshard_nmt.check_corpus import check_corpus

    check_corpus(corpora, config, report, values.strict)


DATA_VERBS = {
    "harvest": Command("gshard-data harvest",
        "makes a parallel corpus between English and many languages from the message catalogues "
        "(.mo, .po) of the software on this machine.",
        "gshard-data harvest --out corpus", ("out",), _define_harvest, _harvest),
    "prepare": Command("gshard-data prepare",
        "makes the vocabularies and the tokenized shards of a corpus folder.",
        "gshard-data prepare --config demo --corpus corpus --out prepared",
        ("config", "corpus", "out"), _define_prepare, _prepare),
    "show": Command("gshard-data show",
        "prints training batches as text, exactly as training sees them.",
        "gshard-data show --config demo --data prepared --rows 2",
        ("config", "data"), _define_show, _show),
    "plan": Command("gshard-data plan",
        "computes before training how often each language will be seen, and warns of extremes.",
        "gshard-data plan --config demo --data prepared --out plan.json",
        ("config", "data"), _define_plan, _plan),
    "check": Command("gshard-data check",
        "lists what looks wrong in a corpus: swapped sides, shifted lines, wrong languages, test text "
        "in the training text, and more. Nothing is changed.",
        "gshard-data check --corpus corpus --report check.json",
        ("corpus",), _define_check, _check, needs={"gin": "config"}),
}  # fmt: skip
