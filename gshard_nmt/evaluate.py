"""gshard-eval: BLEU of each language of a run, compared with bilingual baselines."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gshard_nmt import json_shape, outputs
from gshard_nmt.data.corpus import (
    ENGLISH,
    CorpusPair,
    count_lines,
    find_pairs,
    fingerprint,
    first_pairs,
    read_pairs,
)
from gshard_nmt.decoding.runs import Choices
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import bleu, decodes, faults, overlap, report
from gshard_nmt.evaluation.translations import TestSet, Translate, translate_all
from gshard_nmt.json_shape import mapping_of, number
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config

_SCORES = mapping_of(number(0, 100))
_SAMPLES = 3
"""Sentences of each language that the report shows."""


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
    leave_out_overlap: bool = False,
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
      choices: the weights of the run, and changed settings. Each baseline uses its best checkpoint.
      leave_out_overlap: whether to score without the test sentences that are in the training text.

    Raises:
      UserError: the corpus lacks the split of all languages, the baselines cannot be read, or the report
        cannot be written.
    """
    # Decoding takes long, so what may be wrong with the report is checked before.
    outputs.check_folder("--report", folder)
    for name in report.FILES if folder.is_dir() else ():
        outputs.check_file("--report", folder / name)
    console = Console(stderr=True, highlight=False)
    run = RunFolder(workdir)
    all_pairs = find_pairs(corpus, damaged=True)
    pairs = {p.language: p for p in all_pairs if ENGLISH in (p.source, p.target)}
    tests, notes = _test_sets(run, corpus, pairs, split, sentences)
    compared = _read_baselines(baselines, [test.language for test in tests])
    with Progress(console=console, disable=not console.is_terminal) as progress:
        baselines_count = sum(test.language in compared.runs for test in tests)
        task = progress.add_task("decoding and scoring", total=2 * len(tests) + baselines_count)
        advance = functools.partial(progress.advance, task)
        # The model of the run translates everything before the models of the baselines are loaded.
        choices = choices or Choices()
        stored = decodes.descriptions(run.path / "decodes")
        translations = translate_all(run, split, tests, translate, advance, choices)
        of_baselines = dataclasses.replace(choices, checkpoint="best")
        baseline_lines: dict[tuple[str, str], list[str]] = {}
        for language, baseline in compared.runs.items():
            same = [test for test in tests if test.language == language]
            theirs_of = translate_all(baseline, split, same, translate, advance, of_baselines)
            for test, theirs in zip(same, theirs_of, strict=True):
                baseline_lines[test.source, test.target] = theirs.lines
        run_lines = {
            (test.source, test.target): ours.lines
            for test, ours in zip(tests, translations, strict=True)
        }
        try:
            corpus_facts = list(_corpus_facts(run, corpus, pairs, split))
        except UserError as error:
            corpus_facts = [("training text", f"cannot be compared: {error}")]
        if any(fact.endswith(": another corpus") for _, fact in corpus_facts):
            notes.append(f"--corpus {corpus} is not the corpus that {workdir} was trained on.")
        systems = faults.Systems(run, run_lines, compared.runs, baseline_lines, compared.scores)
        sections, overlaps = faults.sections(tests, systems, pairs, notes, leave_out_overlap)
        if leave_out_overlap:
            tests = overlap.leave_out(overlaps, (run_lines, baseline_lines))
        results = []
        for test in tests:
            direction = test.source, test.target
            lines = baseline_lines.get(direction)
            results.append(_score(run, test, run_lines[direction], compared, lines))
            advance()
    current = decodes.descriptions(run.path / "decodes")
    facts = [
        ("run", str(run.path)),
        ("decoding", translations[-1].made_by),
        *corpus_facts,
        *_budget_facts(run, baselines),
        *(
            ("translated again", f"{name}: what was stored is of other weights, settings or text")
            for name, description in stored.items()
            if current.get(name) != description
        ),
    ]
    language_results = [result for result, _ in results]
    _, score = results[-1]
    signatures = {"bleu": score.bleu_signature, "chrf": score.chrf_signature}
    title = f"{workdir.name}: {split} BLEU"
    evaluation = report.Report(language_results, signatures, facts, title, sections)
    with outputs.named(folder):
        report.write(evaluation, folder)
    _show(evaluation, folder)


def _test_sets(
    run: RunFolder, corpus: Path, pairs: dict[str, CorpusPair], split: str, sentences: int
) -> tuple[list[TestSet], list[str]]:
    """Reads the test set of each direction of the run.

    Returns:
      The test sets, and a sentence for each direction that has none or cannot be read.
    """
    tests, notes = [], []
    for direction in run.data["pairs"]:
        language, source, target = (direction[key] for key in ("language", "source", "target"))
        if language not in pairs:
            notes.append(
                f"{source}-{target} is not scored: --corpus {corpus} has no text of {language}, which "
                f"{run.path} was trained on; give the corpus of the run."
            )
            continue
        try:
            rows = first_pairs(read_pairs(pairs[language], split, source, target), sentences)
        except UserError as error:
            notes.append(f"{source}-{target} is not scored: {error}")
            continue
        if not rows:
            notes.append(
                f"{source}-{target} is not scored: --corpus {corpus} has no {split} text of {language}."
            )
            continue
        sources, references = (list(side) for side in zip(*rows, strict=True))
        train_pairs = direction["train_pairs"]
        tests.append(TestSet(language, source, target, train_pairs, sources, references))
    if not tests:
        raise UserError(
            f"--corpus {corpus} has no {split} text of any language of {run.path} that can be read: "
            f"{notes[0]} Give another --split or the corpus of the run."
        )
    return tests, notes


def _score(
    run: RunFolder,
    test: TestSet,
    translations: list[str],
    baselines: Baselines,
    baseline_translations: list[str] | None,
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
        _samples(test, translations, baseline_translations),
    )
    return result, score


def _samples(
    test: TestSet, translations: list[str], baseline_translations: list[str] | None
) -> tuple[report.Sample, ...]:
    return tuple(
        report.Sample(
            test.sources[i],
            test.references[i],
            translations[i],
            baseline_translations[i] if baseline_translations else None,
        )
        for i in range(min(_SAMPLES, len(translations)))
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
    run: RunFolder, corpus: Path, pairs: dict[str, CorpusPair], split: str
) -> Iterator[tuple[str, str]]:
    """Yields what the report says about the text: its fingerprint, and whether it is the run's own."""
    trained = run.data["corpus_fingerprint"]
    fingerprints = []
    lacking = {pair["language"] for pair in run.data["pairs"]} - pairs.keys()
    if lacking:
        yield "test text", f"{split} of {corpus}, which lacks {', '.join(sorted(lacking))}"
        yield "training text", f"fingerprint {trained}: another corpus"
        return
    for languages in _orders(run, pairs):
        fingerprints.append(fingerprint([pairs[language] for language in languages]))
        if fingerprints[-1] == trained:
            yield (
                "test text",
                f"{split} of {corpus}; fingerprint {trained} (text of the run's languages)",
            )
            yield "training text", f"fingerprint {trained}: the same corpus"
            return
    yield (
        "test text",
        f"{split} of {corpus}; fingerprint {fingerprints[0]} (text of the run's languages)",
    )
    if read_run_config(run.config).data.languages:
        yield (
            "training text",
            f"fingerprint {trained} of the prepared data. This run may use only some languages of that "
            "data (Data.languages), so the fingerprint does not tell whether the corpus is the same",
        )
    else:
        yield "training text", f"fingerprint {trained}: another corpus"


def _orders(run: RunFolder, pairs: dict[str, CorpusPair]) -> Iterator[list[str]]:
    """Yields the languages of a run in each order in which `gshard-data prepare` may have read them.

    A fingerprint depends on the order. If the config names languages, `prepare` takes their order.
    Otherwise it sorts them by number of lines. The run folder lists them by number of examples, which
    is mostly the same order.
    """
    by_examples = list(dict.fromkeys(direction["language"] for direction in run.data["pairs"]))
    yield by_examples
    named = read_run_config(run.config).data.languages
    if named:
        order = [language for language in named if language in by_examples]
    else:
        lines = {language: count_lines(pairs[language], "train") for language in by_examples}
        order = sorted(lines, key=lambda language: (-lines[language], language))
    if order != by_examples:
        yield order


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
    for section in evaluation.sections:
        for alarm in section.alarms:
            console.print(alarm, style="bold", markup=False, soft_wrap=True)
    console.print(f"BLEU {evaluation.signatures['bleu']}", soft_wrap=True)
    console.print(f"report: {folder / 'index.html'}", soft_wrap=True)
