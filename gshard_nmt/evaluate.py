"""gshard-eval: BLEU of each language of a run, compared with bilingual baselines."""

import dataclasses
import functools
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from gshard_nmt import outputs
from gshard_nmt.decoding.runs import Choices
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import routing
from gshard_nmt.evaluation.metrics.metrics import Measures
from gshard_nmt.evaluation.report import (
    baselines_section,
    comparison,
    differences,
    faults,
    hypothesis_files,
    report,
    samples,
    studies,
    tables,
    terminal,
)
from gshard_nmt.evaluation.report.baselines import (
    Baselines,
    budget_facts,
    directions_without,
    read_baselines,
)
from gshard_nmt.evaluation.report.comparison import Lines
from gshard_nmt.evaluation.report.hypothesis_files import Files
from gshard_nmt.evaluation.report.studies import Options, Studied
from gshard_nmt.evaluation.systems.candidates import Candidate, Others, read_candidates
from gshard_nmt.evaluation.texts import corpora, test_sets, translations
from gshard_nmt.evaluation.texts.test_sets import Published, open_folder
from gshard_nmt.evaluation.texts.translations import TestSet, Translate, translate_all
from gshard_nmt.run import training_command
from gshard_nmt.run.folder import RunFolder

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


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks of a report.

    Attributes:
      baselines: a folder of run folders that are named by language, or a JSON file {"fr": 30.1, ...}.
      sentences: number of sentences of each language, from the start of the split; 0 means all.
      choices: the weights of the runs, and changed settings. Each baseline uses its best checkpoint.
      options: the metrics, the buckets of lengths, and whether to leave out overlap.
      published: a test set that takes the place of the corpus.
      others: other runs and published scores to compare the run with.
      command: the command that makes the report. The page shows it.
      count_experts: counts which experts the runs use for the test sets; None leaves this out.
    """

    baselines: Path | None = None
    sentences: int = 0
    choices: Choices = dataclasses.field(default_factory=Choices)
    options: Options = dataclasses.field(default_factory=Options)
    published: Published | None = None
    others: Others = dataclasses.field(default_factory=Others)
    command: str = ""
    count_experts: routing.CountExperts | None = None


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
      corpus: the folder of the parallel text, or several folders by the names of their subsets, as for
        `prepare`. The report says if it is not the text that the run was trained on. With a published
        test set it may be None; else the test set is compared with its training text.
      split: name of the split, such as "test" or "dev".
      folder: the folder of the report.
      translate: translates lines with the model of a run folder. Its translations are kept in the run
        folder and used again.
      request: what the user asks; None asks for nothing special.

    Raises:
      UserError: the corpus has the split of no language, the baselines or another system cannot be
        read or compared, no run has experts and they are to be counted, or the report cannot be
        written.
    """
    # Decoding takes long, so what may be wrong with the report is checked before.
    _check_report(folder)
    console = Console(stderr=True, highlight=False, markup=False)
    run, request = RunFolder(workdir), request or Request()
    published, options, others = request.published, request.options, request.others
    folders = corpus if isinstance(corpus, Mapping) else {"": corpus} if corpus else {}
    pairs = corpora.pairs_of(run, folders)
    text_facts, alarms_of_text = corpora.facts(run, folders, pairs, split) if folders else ([], [])
    if published:
        split = published.name
        tests, notes = test_sets.read(published, run.data["pairs"], request.sentences)
        for note in (*published.notes, *notes):
            console.print(f"--test_set: {note}", markup=False, soft_wrap=True)
        of_training = [fact for fact in text_facts if fact[0] == "training text"]
        text_facts = [*test_sets.facts(published, tests, notes), *of_training]
        notes = alarms_of_text
    else:
        tests, notes = corpora.test_sets(run, folders, pairs, split, request.sentences)
        notes += alarms_of_text
    compared = read_baselines(request.baselines, [test.language for test in tests])
    without = directions_without(compared, request.baselines, tests)
    main_name, candidates = read_candidates(run, tests, others)
    if request.count_experts is not None:
        routing.check_any_has_experts([run, *(other.run for other in candidates if other.run)])
    stored = translations.descriptions(run.path / "decodes")
    lines, made_by = _translate(run, compared, candidates, tests, split, translate, request.choices)
    systems_to_check = _systems(run, tests, lines, compared, candidates)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        read = len({test.language for test in tests} & set(pairs))
        task = progress.add_task("reading the training text", total=read)
        checks, overlaps = faults.sections(
            tests,
            systems_to_check,
            pairs,
            notes,
            options.leave_out_overlap,
            functools.partial(progress.advance, task),
        )
    if options.leave_out_overlap:
        tests, lines, candidates = faults.without_overlap(overlaps, lines, candidates)
    results, studied = [], {}
    with Progress(console=console, disable=not console.is_terminal) as progress:
        for test in progress.track(tests, description="scoring"):
            direction = test.source, test.target
            own, of_baseline = lines.main[direction], lines.baselines.get(direction)
            studied[direction] = studies.study(test, own, of_baseline, options)
            results.append(_result(run, test, own, compared, of_baseline, studied[direction]))
    signatures = studies.signatures(studied)
    systems = comparison.systems(main_name, run, results, tests, candidates, lines)
    cautions = list(comparison.cautions(run, candidates, pairs, signatures["bleu"]))
    facts = [
        ("run", str(run.path)),
        ("decoding", made_by),
        *text_facts,
        *budget_facts(run, compared),
        *([("without a baseline", ", ".join(without))] if without else []),
        *([("command", request.command)] if request.command else []),
        *_training_commands(run, compared, candidates),
        *translations.translated_again(run.path / "decodes", stored),
        *((caution.name, caution.text) for caution in cautions),
    ]
    alarms = tuple(caution.text for caution in cautions if caution.is_alarm)
    all_baselines = comparison.baselines_together(list(compared.runs.values()), results)
    about_baselines = baselines_section.section(compared.folders)
    sections = [
        dataclasses.replace(tables.systems_section(systems, all_baselines), alarms=alarms),
        *differences.sections(systems),
        *comparison.seeds_section(run, systems, candidates),
        *comparison.convergence_sections(run, systems, candidates, others.cross_entropies),
        *([about_baselines] if about_baselines else []),
        *studies.sections(studied, options),
        *checks,
    ]
    title = f"{workdir.name}: {split} BLEU"
    if request.count_experts is not None:
        runs = [(main_name, run, tests), *((c.name, c.run, c.tests) for c in candidates if c.run)]
        sections += routing.sections(runs, request.count_experts, request.choices.checkpoint)
    caution = baselines_section.caution(compared.folders)
    evaluation = report.Report(results, signatures, facts, title, sections, systems, caution)
    with outputs.named(folder):
        report.write(evaluation, folder)
    terminal.show(evaluation, folder)


def _training_commands(
    run: RunFolder, baselines: Baselines, candidates: Sequence[Candidate]
) -> list[tuple[str, str]]:
    """Returns the commands that have trained the systems, as facts of the report."""
    runs = {"": [run]}
    runs |= {f" of {other.name}": [other.run] for other in candidates if other.run}
    runs[" of the baselines"] = list(baselines.runs.values())
    facts = []
    for name, folders in runs.items():
        commands = dict.fromkeys(line for each in folders for line in training_command.read(each))
        if commands:
            facts.append((f"training command{name}", "\n".join(commands)))
    return facts


def _systems(
    run: RunFolder,
    tests: Sequence[TestSet],
    lines: Lines,
    baselines: Baselines,
    candidates: Sequence[Candidate],
) -> faults.Systems:
    """Returns the systems whose translations are checked for faults."""
    scores = {t.language: score for t in tests if (score := baselines.score_of(t)) is not None}
    others = {
        candidate.name: own
        for candidate, own in zip(candidates, lines.candidates, strict=True)
        if candidate.run
    }
    return faults.Systems(run, lines.main, baselines.runs, lines.baselines, scores, others)


def _translate(
    run: RunFolder,
    baselines: Baselines,
    candidates: Sequence[Candidate],
    tests: Sequence[TestSet],
    split: str,
    translate: Translate,
    choices: Choices,
) -> tuple[Lines, str]:
    """Translates the test sets with every system, one model after the other.

    Returns:
      The translations, and the description of how those of the main run were made.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    of_baselines = dataclasses.replace(choices, checkpoint="best")
    works = [(run, tests, choices)]
    for language, baseline in baselines.runs.items():
        works.append((baseline, [t for t in tests if t.language == language], of_baselines))
    runs = [(candidate, candidate.run) for candidate in candidates if candidate.run]
    works += [(other, candidate.tests, choices) for candidate, other in runs]
    results, made_by = [], ""
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("decoding", total=sum(len(sets) for _, sets, _ in works))
        advance = functools.partial(progress.advance, task)
        for folder, sets, chosen in works:
            translated = translate_all(folder, split, sets, translate, advance, chosen)
            made_by = made_by or translated[-1].made_by
            results.append(
                {
                    (test.source, test.target): translation.lines
                    for test, translation in zip(sets, translated, strict=True)
                }
            )
    first = 1 + len(baselines.runs)
    of_all_baselines = dict(ChainMap(*results[1:first]))
    of_runs = iter(results[first:])
    of_candidates = [next(of_runs) if candidate.run else {} for candidate in candidates]
    return Lines(results[0], of_all_baselines, of_candidates), made_by


def evaluate_files(files: Files, folder: Path | None, options: Options | None = None) -> None:
    """Scores files with translations, and writes the report if there is a folder for it.

    Raises:
      UserError: a file is empty, the numbers of lines differ, or the report cannot be written.
    """
    if folder:
        _check_report(folder)
    evaluation = hypothesis_files.report_of(files, options)
    if folder:
        with outputs.named(folder):
            report.write(evaluation, folder)
    terminal.show(evaluation, folder)


def _check_report(folder: Path) -> None:
    """Checks that a report can be written into a folder, and that it replaces reports only.

    Raises:
      UserError: it cannot, or the folder has a file of the user with the name of one of a report.
    """
    outputs.check_folder("--report", folder)
    for name in report.FILES if folder.is_dir() else ():
        outputs.check_file("--report", folder / name)
    own = next((name for name in ("index.html", "bleu.json") if (folder / name).exists()), "")
    if own and not report.is_in(folder):
        raise UserError(
            f"--report {folder} has a file {own} that is not of a report. Move it away, or give another "
            "folder."
        )


def _result(
    run: RunFolder,
    test: TestSet,
    translations: Sequence[str],
    baselines: Baselines,
    baseline_translations: Sequence[str] | None,
    studied: Studied,
) -> report.LanguageResult:
    """Returns the row of a direction: its scores, and those of the baseline."""
    baseline_bleu, baseline_tokens = studied.baseline_bleu, None
    if baseline_translations is None:
        baseline_bleu = baselines.score_of(test)
    else:
        baseline_tokens = _tokens_seen(baselines.runs[test.language], test.language)
    bleu, chrf = studied.bleu_and_chrf
    return report.LanguageResult(
        test.language,
        test.train_pairs,
        len(translations),
        bleu,
        chrf,
        baseline_bleu,
        studied.interval,
        _tokens_seen(run, test.language),
        baseline_tokens,
        _samples(run, test, translations, baseline_translations),
        test.source,
        test.target,
        studied.others,
        studied.counts,
    )


def _samples(
    run: RunFolder,
    test: TestSet,
    translations: Sequence[str],
    baseline_translations: Sequence[str] | None,
) -> tuple[report.Sample, ...]:
    direction, directions = (test.source, test.target), len(run.data["pairs"])
    return tuple(
        report.Sample(
            test.sources[i],
            test.references[i],
            translations[i],
            baseline_translations[i] if baseline_translations else None,
        )
        for i in samples.choose(direction, len(translations), directions)
    )


def _tokens_seen(run: RunFolder, language: str) -> int | None:
    """Returns the number of training tokens of a language that a run has seen; None if unknown."""
    return run.budget().get("tokens_by_language", {}).get(language)
