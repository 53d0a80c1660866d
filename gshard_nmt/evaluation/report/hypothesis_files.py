"""Scores of files: translations of any system, and references, without a run folder."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import web_page
from gshard_nmt.data.language_codes import understand
from gshard_nmt.data.sets.corpus import read_lines
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.metrics import metrics, significance
from gshard_nmt.evaluation.metrics.metrics import Measured
from gshard_nmt.evaluation.metrics.significance import Comparison
from gshard_nmt.evaluation.report import studies
from gshard_nmt.evaluation.report.report import LanguageResult, Report, Sample, Section
from gshard_nmt.evaluation.report.studies import Options
from gshard_nmt.evaluation.systems.candidates import unique_names
from gshard_nmt.evaluation.systems.systems import Counts, System
from gshard_nmt.evaluation.texts.translations import TestSet

_SAMPLES = 3


@dataclasses.dataclass(frozen=True)
class Files:
    """The files of one direction. Line N of all of them belongs to the same sentence.

    Attributes:
      hypotheses: the translations of each system, the system to report first.
      references: the complete references, at least one.
      sources: the sources; None if they are not at hand.
      target: BCP 47 tag of the target language.
      source: BCP 47 tag of the source language; "" if it was not told.
    """

    hypotheses: Sequence[Path]
    references: Sequence[Path]
    target: str
    sources: Path | None = None
    source: str = ""


def report_of(files: Files, options: Options | None = None) -> Report:
    """Scores the files and returns the report of the first system.

    The other systems are compared with the first one.

    Raises:
      UserError: a file is empty or not UTF-8, or the numbers of lines differ.
    """
    if understand(files.target) is None:
        raise UserError(
            f"--target is {files.target!r}, which is no code of a language. Give one such as fr, zh or "
            "pt-BR; it chooses the tokenizer of BLEU."
        )
    options = options or Options()
    test, systems = _read(files)
    direction = test.source, test.target
    first, *others = systems
    studied = studies.study(test, first, None, options)
    bleu, chrf = studied.bleu_and_chrf
    row = LanguageResult(
        files.target,
        0,
        len(first),
        bleu,
        chrf,
        samples=_samples(test, first),
        source=files.source,
        target=files.target,
        scores=studied.others,
        counts=studied.counts,
    )
    facts = [
        ("translations", str(files.hypotheses[0])),
        ("references", ", ".join(map(str, files.references))),
        ("sources", str(files.sources) if files.sources else "not given"),
    ]
    scores = [studied.scores, *(_scores(test, lines, options) for lines in others)]
    sections = studies.sections({direction: studied}, options)
    counts = _counts(test, systems)
    comparisons = _comparisons(counts)
    if others:
        sections = [_files_section(files, scores, comparisons), *sections]
    signatures = {key: score.signature for key, score in studied.scores.items()}
    title = f"{files.hypotheses[0].name}: BLEU"
    compared = _systems(files, row, scores, counts, comparisons)
    return Report([row], signatures, facts, title, sections, compared)


def _read(files: Files) -> tuple[TestSet, list[list[str]]]:
    """Reads all files. Every file must have as many lines as the first reference."""
    named = [
        *(("references", path) for path in files.references),
        *(("hypotheses", path) for path in files.hypotheses),
        *([("sources", files.sources)] if files.sources else []),
    ]
    texts = [read_lines(path) for _, path in named]
    first_flag, first_path = named[0]
    for (flag, path), lines in zip(named, texts, strict=True):
        if not lines:
            raise UserError(f"--{flag} {path} is empty; it must have a line for each sentence.")
        if len(lines) != len(texts[0]):
            raise UserError(
                f"--{flag} {path} has {_lines(lines)}, and --{first_flag} {first_path} has "
                f"{len(texts[0])}. Give files in which line N belongs to the same sentence."
            )
    references, count = texts[: len(files.references)], len(files.hypotheses)
    systems = texts[len(references) : len(references) + count]
    sources = texts[-1] if files.sources else []
    others = tuple(references[1:])
    test = TestSet(
        files.target, files.source, files.target, 0, sources, references[0], other_references=others
    )
    return test, systems


def _lines(lines: Sequence[str]) -> str:
    return "1 line" if len(lines) == 1 else f"{len(lines)} lines"


def _scores(test: TestSet, lines: Sequence[str], options: Options) -> dict[str, Measured]:
    references, measures = test.all_references, options.measures
    return metrics.scores(lines, references, test.target, measures, test.sources or None)


def _samples(test: TestSet, lines: Sequence[str]) -> tuple[Sample, ...]:
    sources = test.sources or [""] * len(lines)
    rows = zip(sources, test.references, lines, strict=True)
    return tuple(Sample(*row, None) for row in list(rows)[:_SAMPLES])


def _counts(test: TestSet, systems: Sequence[Sequence[str]]) -> list[Counts]:
    """Returns the statistics of each system, with those of the first one as its main system."""
    rows = [significance.statistics(lines, test.all_references, test.target) for lines in systems]
    return [Counts(test.groups, own, {"difference": rows[0]}) for own in rows]


def _comparisons(counts: Sequence[Counts]) -> list[tuple[Comparison, float]]:
    """Compares each system with the first one. Returns the comparisons and their adjusted p-values."""
    comparisons = [significance.compare_statistics(each.own, counts[0].own) for each in counts[1:]]
    adjusted = significance.adjusted_p_values([each.p_value for each in comparisons])
    return list(zip(comparisons, adjusted, strict=True))


def _systems(
    files: Files,
    row: LanguageResult,
    scores: Sequence[Mapping[str, Measured]],
    counts: Sequence[Counts],
    comparisons: Sequence[tuple[Comparison, float]],
) -> list[System]:
    """Returns each file as a system, with the name of the file."""
    first = dataclasses.replace(
        row.direction_result(),
        difference_ci95=(0.0, 0.0),
        difference_p=1.0,
        difference_adjusted_p=1.0,
    )
    results = [first]
    rows = zip(scores[1:], counts[1:], comparisons, strict=True)
    for values, own, (comparison, adjusted) in rows:
        results.append(
            dataclasses.replace(
                first,
                bleu=values["bleu"].value,
                chrf=values["chrf"].value,
                difference=comparison.delta,
                difference_ci95=comparison.interval,
                difference_p=comparison.p_value,
                difference_adjusted_p=adjusted,
                counts=own,
            )
        )
    names = unique_names([path.name for path in files.hypotheses])
    return [System(name, [result]) for name, result in zip(names, results, strict=True)]


def _files_section(
    files: Files,
    scores: Sequence[Mapping[str, Measured]],
    comparisons: Sequence[tuple[Comparison, float]],
) -> Section:
    """Returns the part of the report that compares each file with the first one."""
    rows: list[dict[str, Any]] = [
        {"file": str(path)} | {key: round(score.value, 4) for key, score in values.items()}
        for path, values in zip(files.hypotheses, scores, strict=True)
    ]
    for row, (comparison, value) in zip(rows[1:], comparisons, strict=True):
        row |= {
            "delta_bleu": round(comparison.delta, 2),
            "delta_ci95": [round(bound, 2) for bound in comparison.interval],
            "p": comparison.p_value,
            "adjusted_p": value,
            "significant": value <= studies.RATE,
        }
    keys = list(scores[0])
    names = [
        *(metrics.TITLES[key] for key in keys),
        *("difference in BLEU", "95 % interval", "p", "adjusted p", "significant"),
    ]
    cells = [(row["file"], *_cells(row, keys)) for row in rows]
    text = (
        f"<p>Every file is compared with the first one by {significance.METHOD}, with the false "
        f"discovery rate controlled at {studies.RATE:.0%} (Benjamini and Hochberg).</p>\n"
        + web_page.table(["file", *names], cells)
    )
    return Section("hypotheses", "All files", text, rows, notes=tuple(map(_note, rows[1:])))


def _note(row: Mapping[str, Any]) -> str:
    """Returns the sentence that compares a file with the first one."""
    low, high = row["delta_ci95"]
    return (
        f"{row['file']}: BLEU {row['bleu']:.1f}, {row['delta_bleu']:+.1f} ({low:+.1f} to {high:+.1f}) "
        f"against the first file, adjusted p {row['adjusted_p']:.4f}, "
        f"{'significant' if row['significant'] else 'not significant'}"
    )


def _cells(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    cells = [f"{row[key]:.4f}" if key in metrics.FINE else f"{row[key]:.1f}" for key in keys]
    if "p" not in row:
        return [*cells, *[""] * 5]
    low, high = row["delta_ci95"]
    cells += [f"{row['delta_bleu']:+.1f}", f"{low:+.1f} to {high:+.1f}"]
    return [
        *cells,
        f"{row['p']:.4f}",
        f"{row['adjusted_p']:.4f}",
        "yes" if row["significant"] else "no",
    ]
