"""gshard-eval: BLEU of each language of a run, compared with bilingual baselines."""

import dataclasses
import functools
from collections import ChainMap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gshard_nmt import json_shape, outputs
from gshard_nmt.data.corpus import ENGLISH, CorpusPair, find_pairs
from gshard_nmt.decoding.runs import Choices
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import (
    baselines_section,
    comparison,
    corpora,
    decodes,
    faults,
    hypothesis_files,
    report,
    samples,
    studies,
    tables,
    test_sets,
)
from gshard_nmt.evaluation.candidates import Candidate, Others, read_candidates
from gshard_nmt.evaluation.comparison import Lines
from gshard_nmt.evaluation.hypothesis_files import Files
from gshard_nmt.evaluation.metrics import TITLES, Measures
from gshard_nmt.evaluation.studies import Options, Studied
from gshard_nmt.evaluation.test_sets import Published, open_folder
from gshard_nmt.evaluation.translations import TestSet, Translate, translate_all
from gshard_nmt.json_shape import mapping_of, number
from gshard_nmt.run.folder import RunFolder

# The command line gets these from here, because it imports programs and not their parts.
__all__ = [
    "Files",
    "Measures",
    "Options",
    "Others",
    "Published",
    "evaluate",
    "evaluate_files",
    "open_folder",
]

_SCORES = mapping_of(number(0, 100))


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The bilingual baselines to compare with: known scores, or runs to decode.

    Attributes:
      scores: BLEU of each language, or of each direction such as "fr-en".
      runs: run folder of each language.
    """

    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    runs: dict[str, RunFolder] = dataclasses.field(default_factory=dict)

    @property
    def folders(self) -> dict[str, Path]:
        """Path of the run folder of each language."""
        return {language: run.path for language, run in self.runs.items()}

    def score_of(self, test: TestSet) -> float | None:
        """Returns the known score of a direction or of its language; None if there is none."""
        return self.scores.get(_direction(test), self.scores.get(test.language))

    def has(self, test: TestSet) -> bool:
        """Returns whether there is a score or a run to compare a direction with."""
        return self.score_of(test) is not None or test.language in self.runs


def evaluate(
    workdir: Path,
    corpus: Path,
    split: str,
    folder: Path,
    translate: Translate,
    baselines: Path | None = None,
    sentences: int = 0,
    choices: Choices | None = None,
    options: Options | None = None,
    published: Published | None = None,
    others: Others | None = None,
    command: str = "",
) -> None:
    """Scores a run on a split of a corpus or on a published test set, and writes the report.

    Args:
      workdir: the run folder.
      corpus: the parallel text. The report says if it is not the text that the run was trained on. It is
        not read if there is a published test set.
      split: name of the split, such as "test" or "dev".
      folder: the folder of the report.
      translate: translates lines with the model of a run folder. Its translations are kept in the run
        folder and used again.
      baselines: a folder of run folders that are named by language, or a JSON file {"fr": 30.1, ...}.
      sentences: number of sentences of each language, from the start of the split; 0 means all.
      choices: the weights of the runs, and changed settings. Each baseline uses its best checkpoint.
      options: the metrics and the buckets of lengths.
      published: a test set that takes the place of the corpus.
      others: other runs and published scores to compare the run with.
      command: the command that makes the report. The page shows it.

    Raises:
      UserError: the corpus has the split of no language, the baselines or another system cannot be
        read or compared, or the report cannot be written.
    """
    # Decoding takes long, so what may be wrong with the report is checked before.
    outputs.check_folder("--report", folder)
    for name in report.FILES if folder.is_dir() else ():
        outputs.check_file("--report", folder / name)
    console = Console(stderr=True, highlight=False)
    run, others, choices = RunFolder(workdir), others or Others(), choices or Choices()
    pairs: dict[str, CorpusPair] = {}
    if published:
        split = published.name
        tests, notes = test_sets.read(published, run.data["pairs"], sentences)
        for note in (*published.notes, *notes):
            console.print(f"--test_set: {note}", markup=False, soft_wrap=True)
        text_facts = test_sets.facts(published, tests, notes)
    else:
        all_pairs = find_pairs(corpus, damaged=True)
        pairs = {p.language: p for p in all_pairs if ENGLISH in (p.source, p.target)}
        tests, notes = corpora.test_sets(run, corpus, pairs, split, sentences)
        text_facts, remarks = corpora.facts(run, corpus, pairs, split)
        notes += remarks
    compared = _read_baselines(baselines, [test.language for test in tests])
    without = [test for test in tests if baselines and not compared.has(test)]
    if len(without) == len(tests):
        raise UserError(
            f"--baselines {baselines} has scores of {', '.join(compared.scores)} but of none of "
            f"{', '.join(map(_direction, tests))}; name each score by its language or direction."
        )
    main_name, candidates = read_candidates(run, tests, others)
    stored = decodes.descriptions(run.path / "decodes")
    lines, made_by = _translate(run, compared, candidates, tests, split, translate, choices)
    checks, overlaps = faults.sections(
        tests,
        _systems(run, tests, lines, compared, candidates),
        pairs,
        [] if published else notes,
        options is not None and options.leave_out_overlap,
    )
    if options and options.leave_out_overlap:
        tests, lines, candidates = faults.without_overlap(overlaps, lines, candidates)
    results, studied = [], {}
    for test in tests:
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
        *_budget_facts(run, compared),
        *([("without a baseline", ", ".join(map(_direction, without)))] if without else []),
        *([("command", command)] if command else []),
        *decodes.translated_again(run.path / "decodes", stored),
        *((caution.name, caution.text) for caution in cautions),
    ]
    alarms = tuple(caution.text for caution in cautions if caution.is_alarm)
    all_baselines = comparison.baselines_together(list(compared.runs.values()), results)
    about_baselines = baselines_section.section(compared.folders)
    sections = [
        dataclasses.replace(tables.systems_section(systems, all_baselines), alarms=alarms),
        *comparison.convergence_sections(run, systems, candidates, others.cross_entropies),
        *([about_baselines] if about_baselines else []),
        *studies.sections(studied, options),
        *checks,
    ]
    title = f"{workdir.name}: {split} BLEU"
    evaluation = report.Report(results, signatures, facts, title, sections, systems)
    with outputs.named(folder):
        report.write(evaluation, folder)
    _show(evaluation, folder)


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
    console = Console(stderr=True, highlight=False)
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
            translations = translate_all(folder, split, sets, translate, advance, chosen)
            made_by = made_by or translations[-1].made_by
            results.append(
                {
                    (test.source, test.target): translation.lines
                    for test, translation in zip(sets, translations, strict=True)
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
        outputs.check_folder("--report", folder)
    evaluation = hypothesis_files.report_of(files, options)
    if folder:
        with outputs.named(folder):
            report.write(evaluation, folder)
    _show(evaluation, folder)


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


def _direction(test: TestSet) -> str:
    return f"{test.source}-{test.target}"


def _tokens_seen(run: RunFolder, language: str) -> int | None:
    """Returns the number of training tokens of a language that a run has seen; None if unknown."""
    return run.budget().get("tokens_by_language", {}).get(language)


def _read_baselines(path: Path | None, languages: Sequence[str]) -> Baselines:
    """Reads --baselines, a folder of run folders or a JSON file of scores."""
    if path is None:
        return Baselines()
    if path.is_dir():
        runs = {
            language: RunFolder(path / language)
            for language in languages
            if (path / language / "data.json").exists()
        }
        if not runs:
            raise UserError(
                f"--baselines {path} has no run folder of {', '.join(languages)}; name each folder by "
                "its language, as gshard-train --baselines_of does."
            )
        return Baselines(runs=runs)
    if not path.exists():
        raise UserError(
            f"--baselines {path}: there is no such folder or file; give the --workdir of "
            "gshard-train --baselines_of, or a JSON file with the BLEU of each language."
        )
    try:
        return Baselines(json_shape.parse(path.read_bytes(), _SCORES))
    except ValueError as error:
        raise UserError(
            f'--baselines {path} is not JSON like {{"fr": 30.1, "de": 28.4}}: {error}.'
        ) from None


def _budget_facts(run: RunFolder, baselines: Baselines) -> Iterator[tuple[str, str]]:
    """Yields what the report says about the training of the run and of its baselines."""
    if budget := run.budget():
        yield (
            "multilingual model",
            f"{budget['parameters']:,} parameters, {budget['steps']:,} steps, "
            f"{_total_tokens(budget):,} tokens, {budget['seconds']:.0f} s",
        )
    budgets = [budget for folder in baselines.runs.values() if (budget := folder.budget())]
    if budgets:
        sizes = sorted({budget["parameters"] for budget in budgets})
        size = " to ".join(f"{parameters:,}" for parameters in dict.fromkeys((sizes[0], sizes[-1])))
        records = baselines_section.read(baselines.folders)
        yield (
            "baselines",
            f"{len(budgets)} bilingual models of {size} parameters each; "
            f"{sum(map(_total_tokens, budgets)):,} tokens in total; "
            f"{sum(b['seconds'] for b in budgets):.0f} s in total. "
            + baselines_section.kind_text(records, len(baselines.runs)),
        )


def _total_tokens(budget: dict[str, Any]) -> int:
    return sum(budget["tokens_by_language"].values())


def _show(evaluation: report.Report, folder: Path | None) -> None:
    """Prints the scores of all languages, the signature, and the path of the report."""
    table = Table(title=evaluation.title)
    compared = any(result.baseline_bleu is not None for result in evaluation.languages)
    columns = ["language", "training pairs", "BLEU", "chrF"]
    columns += ["baseline", "gain", "95 % interval"] if compared else []
    others = evaluation.languages[0].scores
    for name in (*columns, *(TITLES[key] for key in others)):
        table.add_column(name, justify="left" if name == "language" else "right")
    for result in evaluation.sorted():
        base, delta = result.baseline_bleu, result.delta_bleu
        cells = ["", ""] if base is None else [f"{base:.1f}", f"{delta:+.1f}"]
        table.add_row(
            evaluation.label(result),
            f"{result.train_pairs:,}",
            f"{result.bleu:.1f}",
            f"{result.chrf:.1f}",
            *([*cells, report.interval_text(result)] if compared else []),
            *(report.score_text(key, value) for key, value in result.scores.items()),
        )
    average = evaluation.average()
    delta = average["delta_bleu"]
    table.add_section()
    gain = [] if delta is None else ["", f"{delta:+.1f}"]
    table.add_row("average", "", f"{average['bleu']:.1f}", "", *gain)
    console = Console(highlight=False)
    console.print(table)
    if len(evaluation.systems) > 1:
        console.print(tables.terminal_table(evaluation.systems))
    for section in evaluation.sections:
        for alarm in section.alarms:
            console.print(alarm, style="bold", markup=False, soft_wrap=True)
        for note in section.notes:
            console.print(note, markup=False, soft_wrap=True)
    if about := dict(evaluation.facts).get("baselines"):
        console.print(f"baselines: {about}", markup=False, soft_wrap=True)
    for key, signature in evaluation.signatures.items():
        if key in ("bleu", *others):
            console.print(f"{TITLES[key]} {signature}", markup=False, soft_wrap=True)
    if folder:
        console.print(f"report: {folder / 'index.html'}", soft_wrap=True)
