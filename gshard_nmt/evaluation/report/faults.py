"""Everything that looks wrong with an evaluation, as sections of its report."""

import dataclasses
import html
import itertools
from collections.abc import Callable, Mapping, Sequence

from gshard_nmt.data.sets.corpus import ENGLISH, read_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import (
    alignment,
    baselines_section,
    comparison,
    outputs_section,
    overlap,
    run_checks,
)
from gshard_nmt.evaluation.report.output_checks import BASELINE
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.systems.candidates import Candidate
from gshard_nmt.evaluation.texts.corpora import Pairs
from gshard_nmt.evaluation.texts.translations import TestSet
from gshard_nmt.run.folder import RunFolder

_SAMPLE = 2000
"""Training pairs of each language that the languages and lengths of the test sets are compared with."""

Lines = Mapping[tuple[str, str], Sequence[str]]
"""The translations of each direction (source language, target language)."""


@dataclasses.dataclass(frozen=True)
class Systems:
    """The systems of an evaluation.

    Attributes:
      run: the run that is evaluated.
      outputs: the translations of the run.
      baselines: the run folder of the baseline of each language.
      baseline_outputs: the translations of the baselines.
      baseline_scores: known scores of baselines, by language.
      others: the translations of the systems that the run is compared with, by name.
    """

    run: RunFolder
    outputs: Lines
    baselines: Mapping[str, RunFolder]
    baseline_outputs: Lines
    baseline_scores: Mapping[str, float]
    others: Mapping[str, Lines] = dataclasses.field(default_factory=dict)


def sections(
    tests: Sequence[TestSet],
    systems: Systems,
    pairs: Pairs,
    notes: Sequence[str] = (),
    leave_out_overlap: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> tuple[list[Section], list[overlap.Overlap]]:
    """Checks outputs, test sets, systems, and the overlap of the test sets with the training text.

    Args:
      tests: the test sets.
      systems: the run and its baselines.
      pairs: the pairs of the corpus, in all its folders.
      notes: alarms that reading the test sets has raised.
      leave_out_overlap: whether the scores are without sentences that overlap.
      advance: is called when the training text of a language has been read.

    Returns:
      The sections of the report, and the overlap of each test set.
    """
    languages = list(dict.fromkeys(test.language for test in tests))
    paths = {language: run.path for language, run in systems.baselines.items()}
    starved = baselines_section.not_converged(paths)
    search = overlap.OverlapSearch(tests)
    training, count, problems = _read_training_text(languages, pairs, search, advance)
    alarms = [
        *notes,
        *problems,
        *alignment.alarms(
            tests, [systems.outputs[test.source, test.target] for test in tests], training
        ),
        *run_checks.alarms(
            systems.run, languages, systems.baselines, systems.baseline_scores, starved
        ),
    ]
    outputs = {"": systems.outputs, BASELINE: systems.baseline_outputs, **systems.others}
    return [
        _checks_section(alarms),
        outputs_section.check(tests, outputs, starved),
        overlap.section(search.overlaps, count, leave_out_overlap),
    ], search.overlaps


def without_overlap(
    overlaps: Sequence[overlap.Overlap],
    lines: comparison.Lines,
    candidates: Sequence[Candidate],
) -> tuple[list[TestSet], comparison.Lines, list[Candidate]]:
    """Returns test sets, translations and candidates without the sentences that overlap.

    Raises:
      UserError: no sentence is left.
    """
    systems = [dict(lines.main), dict(lines.baselines), *map(dict, lines.candidates)]
    tests = overlap.leave_out(overlaps, systems)
    remaining = {(test.source, test.target): test for test in tests}
    shorter = []
    for candidate in candidates:
        directions = [(test.source, test.target) for test in candidate.tests]
        own = [remaining[direction] for direction in directions if direction in remaining]
        shorter.append(dataclasses.replace(candidate, tests=own))
    return tests, comparison.Lines(systems[0], systems[1], systems[2:]), shorter


def _read_training_text(
    languages: Sequence[str],
    pairs: Pairs,
    search: overlap.OverlapSearch,
    advance: Callable[[], None],
) -> tuple[dict[tuple[str, str], list[tuple[str, str]]], int, list[str]]:
    """Reads the training text of some languages once, and compares it with the test sets.

    Returns:
      The first pairs of each direction, the number of all pairs, and what cannot be read.
    """
    training: dict[tuple[str, str], list[tuple[str, str]]] = {}
    count, problems = 0, []
    for language in languages:
        if language not in pairs:
            continue
        for pair in pairs[language]:
            direction = (pair.source, pair.target)
            if pair.source == ENGLISH:
                direction = (pair.target, pair.source)
            sample = training.setdefault(direction, [])
            known = len(sample)
            try:
                rows = read_pairs(pair, "train", *direction)
                sample += itertools.islice(rows, _SAMPLE - known)
                search.add(direction, sample[known:])
                counted = _Counted(rows)
                search.add(direction, counted)
                count += len(sample) - known + counted.count
            except UserError as error:
                problems.append(f"The training text of {language} cannot be compared: {error}")
            training[direction[1], direction[0]] = [(target, source) for source, target in sample]
        advance()
    return training, count, problems


class _Counted:
    """Counts what is read from an iterator."""

    def __init__(self, rows):
        self._rows, self.count = rows, 0

    def __iter__(self):
        for row in self._rows:
            self.count += 1
            yield row


def _checks_section(alarms: Sequence[str]) -> Section:
    """Returns the section that lists the alarms about test sets and systems."""
    items = "".join(f"<li>{html.escape(alarm)}</li>" for alarm in alarms)
    content = f"<ul>{items}</ul>" if alarms else "<p>Nothing looks wrong.</p>"
    title = "Checks of the test sets and the systems"
    return Section("checks", title, content, list(alarms), tuple(alarms))
