"""gshard-eval: BLEU of each language of a run, compared with bilingual baselines and other systems."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.progress import Progress

from gshard_nmt import outputs
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import routing
from gshard_nmt.evaluation.metrics.metrics import Measures
from gshard_nmt.evaluation.report import (
    baselines,
    comparison,
    convergence,
    faults,
    overlap,
    page,
    report,
    studies,
    tables,
    terminal,
)
from gshard_nmt.evaluation.report.report import Evaluation, Options, Report, Request, Section
from gshard_nmt.evaluation.systems.opening import Files, Others, open_files, open_systems
from gshard_nmt.evaluation.systems.scoring import score_files, scored
from gshard_nmt.evaluation.systems.systems import System, Systems
from gshard_nmt.evaluation.texts import corpora, test_sets, translations
from gshard_nmt.evaluation.texts.corpora import Pairs
from gshard_nmt.evaluation.texts.test_sets import Published, open_folder
from gshard_nmt.evaluation.texts.translations import TestSet, Translate, translate_all
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.terminal import Terminal

# The command line gets these from here, because it imports programs and not their parts.
__all__ = [
    "Files",
    "Measures",
    "Options",
    "Others",
    "Published",
    "Request",
    "evaluate",
    "evaluate_files",
    "open_folder",
]

SECTIONS: tuple[Callable[[Evaluation], Section | None], ...] = (
    tables.systems_section,
    comparison.differences_section,
    comparison.seeds_section,
    convergence.convergence_section,
    baselines.baselines_section,
    studies.significance_section,
    studies.length_section,
    faults.checks_section,
    faults.outputs_section,
    overlap.overlap_section,
)
"""The sections of a report in the order of the page. Each is None if it has nothing to say."""

_OF_FILES = (studies.files_section, studies.length_section)


@dataclasses.dataclass(frozen=True)
class _Text:
    """The test sets, the pairs of the corpus, and what the report says about both."""

    tests: list[TestSet]
    split: str
    pairs: Pairs
    facts: list[tuple[str, str]]
    alarms: list[str]


def evaluate(
    workdir: Path,
    corpus: Path | Mapping[str, Path] | None,
    split: str,
    folder: Path,
    translate: Translate,
    request: Request | None = None,
) -> None:
    """Scores a run on a split of a corpus or on a published test set, and writes the report.

    Args:
      workdir: the run folder.
      corpus: the folder of the text, or the folders by the names of their subsets. The report says if it
        is not the text that the run was trained on. With a published test set it may be None; else the
        test set is compared with its training text.
      split: name of the split, such as "test" or "dev".
      folder: the folder of the report.
      translate: translates lines with the model of a run folder, which keeps the translations.
      request: what the user asks; None asks for nothing special.
    """
    # Decoding takes long, so what may be wrong with the report is checked before.
    _check_report(folder)
    run, request = RunFolder(workdir), request or Request()
    text = _read_text(run, corpus, split, request)
    systems = open_systems(run, text.tests, request.others, request.baselines)
    if request.count_experts is not None:
        routing.check_any_has_experts([each.run for each in systems.compared if each.run])
    stored = translations.descriptions(run.path / "decodes")
    translated = systems = _translated(systems, text.split, translate, request)
    languages = len({test.language for test in text.tests} & set(text.pairs))
    with _progress("reading the training text", languages) as advance:
        training = overlap.read_training(text.tests, text.pairs, advance)
    if request.options.leave_out_overlap:
        systems = overlap.leave_out(systems, training)
    with _progress("scoring", len(systems.main.tests)) as advance:
        systems = scored(systems, request.options.measures, advance)
    signature = report.signatures_of(systems.main.results)["bleu"]
    cautions = list(comparison.cautions(systems, text.pairs, signature))
    evaluation = Evaluation(systems, request, translated, training, text.alarms, cautions)
    sections = [part for section in SECTIONS if (part := section(evaluation))]
    if request.count_experts is not None:
        runs = [(each.name, each.run, each.tests) for each in systems.compared if each.run]
        sections += routing.sections(runs, request.count_experts, request.choices.checkpoint)
    facts = [
        ("run", str(run.path)),
        ("decoding", systems.main.made_by),
        *text.facts,
        *baselines.budget_facts(systems),
        *([("command", request.command)] if request.command else []),
        *_training_commands(systems),
        *translations.translated_again(run.path / "decodes", stored),
        *((caution.name, caution.text) for caution in cautions),
    ]
    title, caution = f"{workdir.name}: {text.split} BLEU", baselines.caution(systems.baselines)
    _finish(Report(systems, title, facts, sections, caution), folder)


def _read_text(
    run: RunFolder, corpus: Path | Mapping[str, Path] | None, split: str, request: Request
) -> _Text:
    folders = corpus if isinstance(corpus, Mapping) else {"": corpus} if corpus else {}
    pairs = corpora.pairs_of(run, folders)
    facts, alarms = corpora.facts(run, folders, pairs, split) if folders else ([], [])
    published = request.published
    if published is None:
        tests, notes = corpora.test_sets(run, folders, pairs, split, request.sentences)
        return _Text(tests, split, pairs, facts, notes + alarms)
    tests, notes = test_sets.read(published, run.data["pairs"], request.sentences)
    for note in (*published.notes, *notes):
        Terminal(stderr=True).print(f"--test_set: {note}")
    of_training = [fact for fact in facts if fact[0] == "training text"]
    facts = [*test_sets.facts(published, tests, notes), *of_training]
    return _Text(tests, published.name, pairs, facts, alarms)


def _translated(systems: Systems, split: str, translate: Translate, request: Request) -> Systems:
    of_baselines = dataclasses.replace(request.choices, checkpoint="best")
    every = [*systems.compared, *systems.baselines]
    with _progress("decoding", sum(len(each.tests) for each in every if each.run)) as advance:

        def change(system: System) -> System:
            if system.run is None:
                return system
            choices = of_baselines if system in systems.baselines else request.choices
            made = translate_all(system.run, split, system.tests, translate, advance, choices)
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


def evaluate_files(files: Files, folder: Path | None, options: Options | None = None) -> None:
    """Scores files, compares them with the first one, and writes a report if there is a folder."""
    if folder:
        _check_report(folder)
    request = Request(options=options or Options())
    systems = score_files(open_files(files), request.options.measures)
    facts = [
        ("translations", str(files.hypotheses[0])),
        ("references", ", ".join(map(str, files.references))),
        ("sources", str(files.sources) if files.sources else "not given"),
    ]
    evaluation = Evaluation(systems, request, systems)
    sections = [part for section in _OF_FILES if (part := section(evaluation))]
    _finish(Report(systems, f"{files.hypotheses[0].name}: BLEU", facts, sections), folder)


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


def _finish(result: Report, folder: Path | None) -> None:
    if folder:
        with outputs.named(folder):
            page.write(result, folder)
    terminal.show(result, folder)


@contextlib.contextmanager
def _progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows a progress bar in a terminal. Yields the function that moves it by one."""
    console = Terminal(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=total)
        yield functools.partial(progress.advance, task)
