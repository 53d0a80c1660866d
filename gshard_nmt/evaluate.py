"""gshard-eval: BLEU of every language of a run, against bilingual baselines."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gshard_nmt.data.corpus import CorpusPair, find_pairs, fingerprint, first_pairs, read_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import bleu, report
from gshard_nmt.run.folder import RunFolder

_SAMPLES = 3

Translate = Callable[[Path, str, str, Sequence[str]], tuple[list[str], str]]
"""(run folder, source language, target language, lines) -> (translations, what made them)."""


@dataclasses.dataclass(frozen=True)
class TestSet:
    """The text that one direction is judged on."""

    language: str
    source: str
    target: str
    train_pairs: int
    sources: list[str]
    references: list[str]


def evaluate(
    workdir: Path,
    corpus: Path,
    split: str,
    folder: Path,
    translate: Translate,
    baselines: Path | None = None,
    sentences: int = 0,
) -> None:
    """Scores a run on a split of a corpus and writes the report.

    Args:
      workdir: the run folder.
      corpus: the parallel text; the run's own, for its training counts to mean what they say.
      split: "test" or "dev".
      folder: of the report.
      translate: how a run folder translates lines; what it has translated is kept in the run folder.
      baselines: a folder of run folders named by language, or a JSON file {"fr": 30.1, ...}.
      sentences: judged of each language, the first of the split; 0 = all.

    Raises:
      UserError: the corpus lacks the split or a language, or the baselines cannot be read.
    """
    console = Console(stderr=True, highlight=False)
    run = RunFolder(workdir)
    tests = _test_sets(run, corpus, split, sentences)
    given = _read_baselines(baselines, [one.language for one in tests])
    results, made_by = [], ""
    signatures: dict[str, str] = {}
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("decoding and scoring", total=len(tests))
        hypotheses = {}
        for one in tests:
            hypotheses[one.language, one.target], made_by = _decoded(workdir, split, one, translate)
            progress.advance(task, 0.5)
        for one in tests:
            ours = hypotheses[one.language, one.target]
            result, scored = _judge(one, ours, given, split, translate, run)
            results.append(result)
            signatures = {"bleu": scored.bleu_signature, "chrf": scored.chrf_signature}
            progress.advance(task, 0.5)
    facts = _facts(run, corpus, split, made_by, baselines)
    found = report.Report(results, signatures, facts, f"{workdir.name}: {split} BLEU")
    report.write(found, folder)
    _show(found, folder)


def _test_sets(run: RunFolder, corpus: Path, split: str, sentences: int) -> list[TestSet]:
    by_language = {pair.language: pair for pair in find_pairs(corpus)}
    tests = []
    for pair in run.data["pairs"]:
        language = pair["language"]
        if language not in by_language:
            raise UserError(
                f"--corpus {corpus} has no text of {language}, which {run.path} was trained on; give the "
                "corpus of the run."
            )
        where: CorpusPair = by_language[language]
        rows = first_pairs(read_pairs(where, split, pair["source"], pair["target"]), sentences)
        if rows:
            tests.append(
                TestSet(
                    language,
                    pair["source"],
                    pair["target"],
                    pair["train_pairs"],
                    [row[0] for row in rows],
                    [row[1] for row in rows],
                )
            )
    if not tests:
        raise UserError(f"--corpus {corpus} has no {split} text of any language of {run.path}.")
    return tests


def _judge(
    test: TestSet,
    ours: list[str],
    given: "Baselines",
    split: str,
    translate: Translate,
    run: RunFolder,
) -> tuple[report.LanguageResult, bleu.Score]:
    scored = bleu.score(ours, test.references, test.target)
    theirs: list[str] | None = None
    baseline_bleu = given.scores.get(test.language)
    interval = baseline_tokens = None
    if test.language in given.runs:
        baseline = RunFolder(given.runs[test.language])
        theirs, _ = _decoded(baseline.path, split, test, translate)
        baseline_bleu = bleu.score(theirs, test.references, test.target).bleu
        interval = bleu.delta_interval(ours, theirs, test.references, test.target)
        baseline_tokens = baseline.budget().get("tokens_by_language", {}).get(test.language)
    samples = tuple(
        report.Sample(test.sources[i], test.references[i], ours[i], theirs[i] if theirs else None)
        for i in range(min(_SAMPLES, len(ours)))
    )
    result = report.LanguageResult(
        test.language,
        test.train_pairs,
        scored.sentences,
        scored.bleu,
        scored.chrf,
        baseline_bleu,
        interval,
        run.budget().get("tokens_by_language", {}).get(test.language),
        baseline_tokens,
        samples,
    )
    return result, scored


def _decoded(
    workdir: Path, split: str, test: TestSet, translate: Translate
) -> tuple[list[str], str]:
    """Translations of a test set, from the run folder where the same ones were made before."""
    run = RunFolder(workdir)
    folder = workdir / "decodes"
    folder.mkdir(exist_ok=True)
    stem = folder / f"{split}.{test.source}-{test.target}"
    text, about = stem.with_name(f"{stem.name}.txt"), stem.with_name(f"{stem.name}.json")
    sources = hashlib.sha256("\n".join(test.sources).encode()).hexdigest()
    identity = {
        "sources": sources,
        "checkpoint": _checkpoint(run),
        "config": run.config.read_text(),
    }
    if about.exists() and text.exists():
        before = json.loads(about.read_text())
        if before.get("identity") == identity:
            return text.read_text().split("\n")[:-1], before["made_by"]
    lines, made_by = translate(workdir, test.source, test.target, test.sources)
    text.write_text("".join(f"{line}\n" for line in lines))
    about.write_text(json.dumps({"identity": identity, "made_by": made_by}, indent=1) + "\n")
    return lines, made_by


def _checkpoint(run: RunFolder) -> list[str]:
    """Which checkpoints the run has: a newer one makes what was decoded stale."""
    return sorted(f"{p.parent.name}/{p.name}" for p in run.checkpoints.glob("*/[0-9]*"))


@dataclasses.dataclass(frozen=True)
class Baselines:
    """What there is to compare with: scores that were given, and runs to decode."""

    scores: dict[str, float]
    runs: dict[str, Path]


def _read_baselines(path: Path | None, languages: Sequence[str]) -> Baselines:
    if path is None:
        return Baselines({}, {})
    if path.is_dir():
        runs = {tag: path / tag for tag in languages if (path / tag / "data.json").exists()}
        if not runs:
            raise UserError(
                f"--baselines {path} holds no run folder of {', '.join(languages)}; each is named by "
                "its language, as gshard-train --baselines_of makes them."
            )
        return Baselines({}, runs)
    if not path.exists():
        raise UserError(f"--baselines {path}: there is no such folder or file.")
    try:
        scores: Any = json.loads(path.read_text())
        if not isinstance(scores, dict):
            raise ValueError("not an object")
        return Baselines({str(tag): float(value) for tag, value in scores.items()}, {})
    except (ValueError, TypeError) as error:
        raise UserError(
            f'--baselines {path} is not JSON like {{"fr": 30.1, "de": 28.4}}: {error}.'
        ) from None


def _facts(
    run: RunFolder, corpus: Path, split: str, made_by: str, baselines: Path | None
) -> list[tuple[str, str]]:
    budget = run.budget()
    languages = {pair["language"] for pair in run.data["pairs"]}
    judged_on = fingerprint([pair for pair in find_pairs(corpus) if pair.language in languages])
    trained_on = run.data["corpus_fingerprint"]
    same = ", the same" if judged_on == trained_on else ", another one"
    facts = [
        ("run", str(run.path)),
        ("decoding", made_by),
        ("test text", f"{split} of {corpus}, fingerprint {judged_on} of its languages here"),
        ("training text", f"fingerprint {trained_on}" + same),
    ]
    if budget:
        tokens = sum(budget["tokens_by_language"].values())
        facts.append(
            (
                "multilingual model",
                f"{budget['parameters']:,} parameters, {budget['steps']:,} steps, {tokens:,} tokens, "
                f"{budget['seconds']:.0f} s",
            )
        )
    if baselines and baselines.is_dir():
        budgets = [b for f in sorted(baselines.iterdir()) if (b := RunFolder(f).budget())]
        if budgets:
            tokens = sum(sum(b["tokens_by_language"].values()) for b in budgets)
            facts.append(
                (
                    "baselines",
                    f"{len(budgets)} bilingual models of {budgets[0]['parameters']:,} parameters, "
                    f"{tokens:,} tokens in all, each as many of its language as the multilingual model "
                    f"saw of it, {sum(b['seconds'] for b in budgets):.0f} s",
                )
            )
    return facts


def _show(found: report.Report, folder: Path) -> None:
    table = Table(title=found.title)
    for name in ("language", "training pairs", "BLEU", "chrF", "baseline", "gain", "95 % interval"):
        table.add_column(name, justify="left" if name == "language" else "right")
    for one in found.sorted():
        delta, interval = one.delta_bleu, one.delta_ci95
        table.add_row(
            one.lang,
            f"{one.train_pairs:,}",
            f"{one.bleu:.1f}",
            f"{one.chrf:.1f}",
            "" if one.baseline_bleu is None else f"{one.baseline_bleu:.1f}",
            "" if delta is None else f"{delta:+.1f}",
            "" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f}",
        )
    average = found.average()
    delta = average["delta_bleu"]
    table.add_section()
    gain = "" if delta is None else f"{delta:+.1f}"
    table.add_row("average", "", f"{average['bleu']:.1f}", "", "", gain, "")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"BLEU {found.signatures['bleu']}", soft_wrap=True)
    console.print(f"report: {folder / 'index.html'}", soft_wrap=True)
