"""gshard-eval: BLEU of each language of a run, compared with bilingual baselines."""

import dataclasses
import functools
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gshard_nmt import json_shape, outputs
from gshard_nmt.data.corpus import ENGLISH, CorpusPair, find_pairs, first_pairs, read_pairs
from gshard_nmt.decoding.runs import Choices
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import bleu, comparison, report, samples, tables
from gshard_nmt.evaluation.candidates import Candidate, Others, read_candidates
from gshard_nmt.evaluation.comparison import Lines
from gshard_nmt.evaluation.corpora import origin
from gshard_nmt.evaluation.translations import TestSet, Translate, translate_all
from gshard_nmt.json_shape import mapping_of, number
from gshard_nmt.run.folder import RunFolder

_SCORES = mapping_of(number(0, 100))


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The bilingual baselines to compare with: known scores, or runs to decode.

    Attributes:
      scores: BLEU of each language.
      runs: run folder of each language.
    """

    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    runs: dict[str, RunFolder] = dataclasses.field(default_factory=dict)


def evaluate(
    workdir: Path,
    corpus: Path,
    split: str,
    folder: Path,
    translate: Translate,
    baselines: Path | None = None,
    sentences: int = 0,
    choices: Choices | None = None,
    others: Others | None = None,
    command: str = "",
) -> None:
    """Scores a run on a split of a corpus and writes the report.

    Args:
      workdir: the run folder.
      corpus: the parallel text. The report says if it is not the text that the run was trained on.
      split: name of the split, such as "test" or "dev".
      folder: the folder of the report.
      translate: translates lines with the model of a run folder. Its translations are kept in the run
        folder and used again.
      baselines: a folder of run folders that are named by language, or a JSON file {"fr": 30.1, ...}.
      sentences: number of sentences of each language, from the start of the split; 0 means all.
      choices: the weights of the runs, and changed settings. Each baseline uses its best checkpoint.
      others: other runs and published scores to compare the run with.
      command: the command that makes the report. The page shows it.

    Raises:
      UserError: the corpus lacks the split or a language, the baselines or another system cannot be read
        or compared, or the report cannot be written.
    """
    # Decoding takes long, so what may be wrong with the report is checked before.
    outputs.check_folder("--report", folder)
    for name in report.FILES if folder.is_dir() else ():
        outputs.check_file("--report", folder / name)
    run, others, choices = RunFolder(workdir), others or Others(), choices or Choices()
    pairs = {p.language: p for p in find_pairs(corpus) if ENGLISH in (p.source, p.target)}
    tests = _test_sets(run, corpus, pairs, split, sentences)
    compared = _read_baselines(baselines, [test.language for test in tests])
    main_name, candidates = read_candidates(run, tests, others)
    lines, made_by = _translate(run, compared, candidates, tests, split, translate, choices)
    scored = [
        _score(run, test, lines.main[direction], compared, lines.baselines.get(direction))
        for test in tests
        for direction in [(test.source, test.target)]
    ]
    language_results = [result for result, _ in scored]
    _, score = scored[-1]
    signatures = {"bleu": score.bleu_signature, "chrf": score.chrf_signature}
    systems = comparison.systems(main_name, run, language_results, tests, candidates, lines)
    cautions = list(comparison.cautions(run, candidates, pairs, score.bleu_signature))
    facts = [
        ("run", str(run.path)),
        ("decoding", made_by),
        *_corpus_facts(run, corpus, pairs, split),
        *_budget_facts(run, baselines),
        *([("command", command)] if command else []),
        *((caution.name, caution.text) for caution in cautions),
    ]
    alarms = tuple(caution.text for caution in cautions if caution.is_alarm)
    all_baselines = comparison.baselines_together(list(compared.runs.values()), language_results)
    sections = [
        dataclasses.replace(tables.systems_section(systems, all_baselines), alarms=alarms),
        *comparison.convergence_sections(run, systems, candidates, others.cross_entropies),
    ]
    title = f"{workdir.name}: {split} BLEU"
    evaluation = report.Report(language_results, signatures, facts, title, sections, systems)
    with outputs.named(folder):
        report.write(evaluation, folder)
    _show(evaluation, folder)


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


def _test_sets(
    run: RunFolder, corpus: Path, pairs: dict[str, CorpusPair], split: str, sentences: int
) -> list[TestSet]:
    """Reads the test set of each direction of the run, except those without text in this split."""
    tests = []
    for direction in run.data["pairs"]:
        language, source, target = (direction[key] for key in ("language", "source", "target"))
        if language not in pairs:
            raise UserError(
                f"--corpus {corpus} has no text of {language}, which {run.path} was trained on; give the "
                "corpus of the run."
            )
        rows = first_pairs(read_pairs(pairs[language], split, source, target), sentences)
        if rows:
            sources, references = (list(side) for side in zip(*rows, strict=True))
            train_pairs = direction["train_pairs"]
            tests.append(TestSet(language, source, target, train_pairs, sources, references))
    if not tests:
        raise UserError(
            f"--corpus {corpus} has no {split} text of any language of {run.path}; give another --split "
            "or the corpus of the run."
        )
    return tests


def _score(
    run: RunFolder,
    test: TestSet,
    translations: Sequence[str],
    baselines: Baselines,
    baseline_translations: Sequence[str] | None,
) -> tuple[report.LanguageResult, bleu.Score]:
    """Scores the translations of a test set and compares them with the baseline."""
    score = bleu.score(translations, test.references, test.target)
    baseline_bleu = baselines.scores.get(test.language)
    interval = baseline_tokens = None
    if baseline_translations is not None:
        baseline_bleu = bleu.score(baseline_translations, test.references, test.target).bleu
        interval = bleu.delta_interval(
            translations, baseline_translations, test.references, test.target
        )
        baseline_tokens = _tokens_seen(baselines.runs[test.language], test.language)
    result = report.LanguageResult(
        test.language,
        test.train_pairs,
        score.sentences,
        score.bleu,
        score.chrf,
        baseline_bleu,
        interval,
        _tokens_seen(run, test.language),
        baseline_tokens,
        _samples(run, test, translations, baseline_translations),
        test.source,
        test.target,
    )
    return result, score


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


def _corpus_facts(
    run: RunFolder, corpus: Path, pairs: Mapping[str, CorpusPair], split: str
) -> Iterator[tuple[str, str]]:
    """Yields what the report says about the text: its fingerprint, and whether it is the run's own."""
    text = origin(run, pairs)
    yield (
        "test text",
        f"{split} of {corpus}; fingerprint {text.corpus} (text of the run's languages)",
    )
    yield "training text", text.verdict


def _budget_facts(run: RunFolder, baselines: Path | None) -> Iterator[tuple[str, str]]:
    """Yields what the report says about the training of the run and of its baselines."""
    if budget := run.budget():
        yield (
            "multilingual model",
            f"{budget['parameters']:,} parameters, {budget['steps']:,} steps, "
            f"{_total_tokens(budget):,} tokens, {budget['seconds']:.0f} s",
        )
    if baselines is None or not baselines.is_dir():
        return
    budgets = [RunFolder(folder).budget() for folder in sorted(baselines.iterdir())]
    budgets = [budget for budget in budgets if budget]
    if budgets:
        yield (
            "baselines",
            f"{len(budgets)} bilingual models of {budgets[0]['parameters']:,} parameters each; "
            f"{sum(map(_total_tokens, budgets)):,} tokens in total; each model saw the same number "
            "of tokens of its language as the multilingual model; "
            f"{sum(b['seconds'] for b in budgets):.0f} s in total",
        )


def _total_tokens(budget: dict[str, Any]) -> int:
    return sum(budget["tokens_by_language"].values())


def _show(evaluation: report.Report, folder: Path) -> None:
    """Prints the scores of all languages, the signature, and the path of the report."""
    table = Table(title=evaluation.title)
    for name in ("language", "training pairs", "BLEU", "chrF", "baseline", "gain", "95 % interval"):
        table.add_column(name, justify="left" if name == "language" else "right")
    for result in evaluation.sorted():
        delta = result.delta_bleu
        table.add_row(
            result.lang,
            f"{result.train_pairs:,}",
            f"{result.bleu:.1f}",
            f"{result.chrf:.1f}",
            "" if result.baseline_bleu is None else f"{result.baseline_bleu:.1f}",
            "" if delta is None else f"{delta:+.1f}",
            report.interval_text(result),
        )
    average = evaluation.average()
    delta = average["delta_bleu"]
    table.add_section()
    gain = "" if delta is None else f"{delta:+.1f}"
    table.add_row("average", "", f"{average['bleu']:.1f}", "", "", gain, "")
    console = Console(highlight=False)
    console.print(table)
    if len(evaluation.systems) > 1:
        console.print(tables.terminal_table(evaluation.systems))
    for section in evaluation.sections:
        for alarm in section.alarms:
            console.print(alarm, style="bold", markup=False, soft_wrap=True)
    console.print(f"BLEU {evaluation.signatures['bleu']}", soft_wrap=True)
    console.print(f"report: {folder / 'index.html'}", soft_wrap=True)
