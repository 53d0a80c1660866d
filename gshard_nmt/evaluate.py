"""gshard-eval: BLEU of each language of a run, compared with bilingual baselines and other runs."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gshard_nmt import outputs
from gshard_nmt.decoding.runs import Choices
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import calibration, corpora, routing, test_sets
from gshard_nmt.evaluation.calibration import calibrate
from gshard_nmt.evaluation.metrics import check_names
from gshard_nmt.evaluation.opening import open_systems
from gshard_nmt.evaluation.report import (
    baselines,
    comparison,
    convergence,
    faults,
    page,
    report,
    tables,
    terminal,
)
from gshard_nmt.evaluation.report.report import Report
from gshard_nmt.evaluation.routing import CountExperts
from gshard_nmt.evaluation.systems import System, Systems, scored
from gshard_nmt.evaluation.test_sets import Published, open_folder
from gshard_nmt.evaluation.translations import TestSet, Translate, translate_all
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.terminal import Terminal, counting

# The command line gets these from here, because it imports programs and not their parts.
__all__ = ["Request", "calibrate", "check_names", "evaluate", "open_folder"]


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks of a report."""

    # a folder of run folders that are named by language, or a JSON file {"fr": 30.1, ...}
    baselines: Path | None = None
    # number of sentences of each language, from the start of the split; 0 means all
    sentences: int = 0
    # the weights of the runs, and changed settings. Each baseline uses its best checkpoint
    choices: Choices = dataclasses.field(default_factory=Choices)
    metrics: Sequence[str] = ()  # names of metrics in addition to BLEU and chrF
    published: Published | None = None  # a test set that takes the place of the corpus
    others: Sequence[Path] = ()  # the folders of other runs to compare the run with
    names: Sequence[str] = ()  # names of the runs in the report, the main run first
    command: str = ""  # the command that makes the report. The page shows it
    # counts which experts the main run uses for the test sets; None leaves this out
    count_experts: CountExperts | None = None


def evaluate(
    workdir: Path,
    corpus: Mapping[str, Path] | None,
    split: str,
    folder: Path,
    translate: Translate,
    request: Request,
) -> None:
    """Scores a run on a split of a corpus or on a published test set, and writes the report to a folder.

    `corpus` has the folders of the text by the names of their subsets; None with a published test set.
    The report says if it is not the text that the run was trained on. `translate`
    translates lines with the model of a run folder, which keeps the translations.
    """
    # Decoding takes long, so what may be wrong with the report is checked before.
    _check_report(folder)
    run = RunFolder(workdir)
    tests, of_text, alarms = _read_text(run, corpus, split, request)
    split = request.published.name if request.published else split
    systems = open_systems(run, tests, request.others, request.names, request.baselines)
    runs = {each.name: each.run for each in systems.compared if each.run}
    if request.count_experts is not None:
        routing.check_has_experts(run)
    systems = _translated(systems, split, translate, request)
    with counting("scoring", len(tests)) as advance:
        systems = scored(systems, request.metrics, advance)
    cautions = list(comparison.cautions(systems))
    records, languages = baselines.records_of(systems.baselines), len(systems.baselines)
    sections = [
        tables.systems_section(systems, [text for _, text in cautions]),
        comparison.differences_section(systems),
        convergence.convergence_section(runs),
        baselines.baselines_section(records, languages),
        comparison.significance_section(systems.main),
        comparison.length_section(systems.main),
        faults.checks_section(tests, [*alarms, *baselines.alarms(systems)]),
        faults.outputs_section(systems, baselines.not_converged(records)),
        calibration.section(systems.main),
    ]
    if request.count_experts is not None:
        how = request.count_experts, request.choices.checkpoint
        sections.append(routing.section(run, systems.main.ordered(), *how))
    facts = [
        ("run", str(run.path)),
        ("decoding", systems.main.made_by),
        *of_text,
        *baselines.budget_facts(systems, records),
        *([("command", request.command)] if request.command else []),
        *_training_commands(systems),
        *cautions,
    ]
    result = Report(
        systems,
        f"{systems.main.name}: {split} BLEU",
        facts,
        [section for section in sections if section],
        baselines.caution(records, languages),
    )
    with outputs.named(folder):
        page.write(result, folder)
    terminal.show(result, folder)


def _read_text(
    run: RunFolder, corpus: Mapping[str, Path] | None, split: str, request: Request
) -> tuple[list[TestSet], list[tuple[str, str]], list[str]]:
    """Returns the test sets, what the report says about the text, and alarms about it."""
    if published := request.published:
        tests, notes = test_sets.read(published, run.data["pairs"], request.sentences)
        for note in (*published.notes, *notes):
            Terminal(stderr=True).print(f"--test_set: {note}")
        alarms = [
            n for n in notes if "is not scored" in n or n.startswith("the test set has no text")
        ]
        return tests, test_sets.facts(published, tests, notes), alarms
    folders = corpus or {}
    pairs = corpora.pairs_of(run, folders)
    facts, alarms = corpora.facts(run, folders, pairs, split)
    tests, notes = corpora.test_sets(run, folders, pairs, split, request.sentences)
    return tests, facts, notes + alarms


def _translated(systems: Systems, split: str, translate: Translate, request: Request) -> Systems:
    of_baselines = dataclasses.replace(request.choices, checkpoint="best")
    every = [*systems.compared, *systems.baselines]
    with counting("decoding", sum(len(each.tests) for each in every if each.run)) as advance:

        def change(system: System) -> System:
            if system.run is None:
                return system
            choices = of_baselines if system in systems.baselines else request.choices
            made = translate_all(system.run, split, system.tests, translate, choices, advance)
            rows = zip(system.tests, made, strict=True)
            lines = {(test.source, test.target): each.lines for test, each in rows}
            return dataclasses.replace(system, lines=lines, made_by=made[-1].made_by)

        return systems.each(change)


def _training_commands(systems: Systems) -> Iterator[tuple[str, str]]:
    runs = {"": [systems.main]}
    runs |= {f" of {other.name}": [other] for other in systems.others}
    runs[" of the baselines"] = list(systems.baselines)
    for name, each in runs.items():
        lines = (line for own in each if own.run for line in own.run.commands())
        if commands := dict.fromkeys(lines):
            yield f"training command{name}", "\n".join(commands)


def _check_report(folder: Path) -> None:
    """Raises UserError if no report can be written, or it would replace a file of the user."""
    outputs.check_folder("--report", folder)
    for name in report.FILES if folder.is_dir() else ():
        outputs.check_file("--report", folder / name)
    own = next((name for name in ("index.html", "bleu.json") if (folder / name).exists()), "")
    if own and not report.is_in(folder):
        raise UserError(
            f"--report {folder} has a file {own} that is not of a report. Move it away, or give another "
            "folder."
        )
