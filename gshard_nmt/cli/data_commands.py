"""The flags of the verbs of `gshard-data` that look at data, and the function that each verb calls."""

from pathlib import Path

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli.corpus_flags import define_corpora, read_corpora
from gshard_nmt.cli.flags import Command, Flags, define_config, existing_folder, read_config
from gshard_nmt.errors import UserError


def _define_show(flags: Flags) -> None:
    define_config(flags)
    flags.text("data", "DIR|URL", "the folder that gshard-data prepare made")
    flags.integer("batches", "N", "number of batches to print", 1, minimum=1)
    flags.integer("rows", "N", "number of rows of each batch to print; 0 prints all", 4, minimum=0)
    flags.integer("step", "N", "the training step of the first batch", 1, minimum=1)
    flags.switch("pieces", "print the pieces of the vocabulary instead of text")
    flags.choice(
        "format",
        "FORMAT",
        "text, or jsonl for one JSON object for each row (default: text)",
        ("text", "jsonl"),
    )


def _show(values: FlagValues) -> None:
    config = read_config(values)
    data = existing_folder(values, "data", "gshard-data prepare")
    from gshard_nmt.show_batches import show_batches

    show_batches(
        config.data,
        data,
        values.batches,
        values.rows,
        int(values["step"].value or 1),
        values.pieces,
        values.format == "jsonl",
    )


def _define_plan(flags: Flags) -> None:
    define_config(flags)
    flags.text("data", "DIR|URL", "the folder that gshard-data prepare made")
    flags.text(
        "sizes",
        "NAME=N,...",
        "the training examples of each language with English, or of a pair, such as "
        "fr=1000000,de=20000,fr-de=5000, instead of --data",
    )
    flags.number(
        "pair_tokens",
        "X",
        "with --sizes: the mean number of tokens of an example, source and target together",
        60.0,
        minimum=2.0,
    )
    flags.integer(
        "steps", "N", "number of training steps; if not given, Train.steps", None, minimum=1
    )
    flags.text("out", "FILE", "a file to write the plan to; it ends in .json")


def _plan(values: FlagValues) -> None:
    if bool(values.data) == bool(values.sizes):
        what = "both are given" if values.data else "neither is given"
        raise UserError(
            f"--data or --sizes must say how large each language is, but {what}. Give one of the two."
        )
    config = read_config(values)
    out = _output(values, "out", (".json",))
    from gshard_nmt.ranges import MOST

    steps = values["steps"].value or config.train.steps
    if steps > MOST:
        raise UserError(f"--steps is {steps}; it must be at most {MOST:,}. Give fewer.")
    from gshard_nmt import plan_mixture

    if values.sizes:
        sizes = plan_mixture.read_sizes(values.sizes)
        plan = plan_mixture.plan_sizes(config.data, steps, sizes, values.pair_tokens)
    else:
        data = existing_folder(values, "data", "gshard-data prepare")
        plan = plan_mixture.plan_data(config.data, steps, data)
    plan_mixture.show(plan, out)


def _define_check(flags: Flags) -> None:
    define_corpora(flags, "the corpus folder to check, in which nothing is changed")
    define_config(flags)
    flags.text("report", "FILE", "a file to write the findings to; it ends in .json", default="")
    flags.switch("strict", "end with exit code 2 if anything looks wrong")


def _check(values: FlagValues) -> None:
    config = read_config(values).data if values.config else None
    corpora = read_corpora(values)
    report = _output(values, "report", (".json",))
    from gshard_nmt.check_corpus import check_corpus

    check_corpus(corpora, config, report, values.strict)


def _output(values: FlagValues, name: str, endings: tuple[str, ...]) -> Path | None:
    """Returns the file of a flag; None if the flag is not given.

    Raises:
      UserError: the name has another ending, or the file cannot be written.
    """
    text = values[name].value
    if not text:
        return None
    file = paths.local_path(name, text)
    if file.suffix not in endings:
        allowed = " or ".join(endings)
        raise UserError(f"--{name} is {text!r}; it must end in {allowed}. Give another name.")
    outputs.check_file(f"--{name}", file)
    return file


LOOKING_VERBS = {
    "show": Command(
        "gshard-data show",
        "prints training batches as text, exactly as training sees them.",
        "gshard-data show --config demo --data data --rows 2",
        ("config", "data"),
        _define_show,
        _show,
    ),
    "plan": Command(
        "gshard-data plan",
        "computes before training how often each language will be seen, and warns of extremes.",
        "gshard-data plan --config demo --data data --out plan.json",
        ("config",),
        _define_plan,
        _plan,
        needs={"pair_tokens": "sizes"},
    ),
    "check": Command(
        "gshard-data check",
        "lists what looks wrong in a corpus: swapped sides, shifted lines, wrong languages, test text "
        "in the training text, and more. Nothing is changed.",
        "gshard-data check --corpus corpus --report check.json",
        ("corpus",),
        _define_check,
        _check,
        needs={"gin": "config"},
    ),
}
