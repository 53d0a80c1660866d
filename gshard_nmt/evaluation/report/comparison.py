"""Compares several systems on the same test sets: other runs and published scores beside the main run.

What can mislead is marked: other training text, other vocabularies, another signature.
"""

import dataclasses
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.evaluation.metrics import metrics, significance
from gshard_nmt.evaluation.report import differences, tables
from gshard_nmt.evaluation.report.report import LanguageResult, Section
from gshard_nmt.evaluation.systems import convergence
from gshard_nmt.evaluation.systems.budgets import budget_of, total_budget
from gshard_nmt.evaluation.systems.candidates import Candidate, key_of, text_digest
from gshard_nmt.evaluation.systems.published import Published
from gshard_nmt.evaluation.systems.systems import (
    Counts,
    Direction,
    DirectionResult,
    System,
    common_directions,
    mean,
    rounded,
)
from gshard_nmt.evaluation.texts.corpora import Pairs, fingerprints_of, origin
from gshard_nmt.evaluation.texts.translations import TestSet
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config


@dataclasses.dataclass(frozen=True)
class Lines:
    """The translations of all systems, by direction.

    Attributes:
      main: those of the main run.
      baselines: those of the bilingual baselines; directions may be missing.
      candidates: those of each candidate; {} for published scores.
    """

    main: Mapping[Direction, Sequence[str]]
    baselines: Mapping[Direction, Sequence[str]]
    candidates: Sequence[Mapping[Direction, Sequence[str]]]


@dataclasses.dataclass(frozen=True)
class Caution:
    """Something that a reader of a comparison must know.

    Attributes:
      name: its headline in the facts of the report.
      text: what it is.
      is_alarm: whether the terminal and the top of the page show it too.
    """

    name: str
    text: str
    is_alarm: bool = False


def systems(
    name: str,
    run: RunFolder,
    rows: Sequence[LanguageResult],
    tests: Sequence[TestSet],
    candidates: Sequence[Candidate],
    lines: Lines,
) -> list[System]:
    """Returns the main run and all candidates with their scores.

    Args:
      name: the name of the main run.
      run: the main run.
      rows: its scores.
      tests: the test set of each of its scores.
      candidates: the other systems.
      lines: the translations of all of them.
    """
    results = [
        dataclasses.replace(
            row.direction_result(),
            difference_ci95=(0.0, 0.0),
            difference_p=1.0,
            difference_adjusted_p=1.0,
            text_digest=text_digest(test),
        )
        for row, test in zip(rows, tests, strict=True)
    ]
    main = System(name, results, str(run.path), budget_of(run))
    return [
        main,
        *(
            _system_of(candidate, main, own)
            for candidate, own in zip(candidates, lines.candidates, strict=True)
        ),
    ]


def baselines_together(runs: Sequence[RunFolder], rows: Sequence[LanguageResult]) -> System | None:
    """Returns all bilingual baselines as one system; None if there are none.

    Args:
      runs: their run folders; () if only their scores are known.
      rows: the scores of the main run, which have those of the baselines.
    """
    results = [
        dataclasses.replace(
            row.direction_result(),
            counts=row.counts and row.counts.of_baseline(),
            bleu=row.baseline_bleu,
            chrf=None,
            baseline_bleu=None,
            delta_ci95=None,
        )
        for row in rows
        if row.baseline_bleu is not None
    ]
    if not results:
        return None
    budget = total_budget([budget_of(run) for run in runs])
    return System("bilingual baselines", results, None, budget)


def convergence_sections(
    run: RunFolder,
    compared: Sequence[System],
    candidates: Sequence[Candidate],
    cross_entropies: Sequence[float],
) -> Iterator[Section]:
    """Yields the table of tokens that the runs needed to reach some cross-entropies.

    Args:
      run: the main run.
      compared: the main run and the candidates, as systems.
      candidates: the other systems.
      cross_entropies: the values; () chooses them.
    """
    others = zip(compared[1:], candidates, strict=True)
    pairs = [
        (compared[0], run),
        *((system, candidate.run) for system, candidate in others if candidate.run),
    ]
    name, curves = convergence.curves([folder for _, folder in pairs])
    if not any(curves):
        return
    yield tables.convergence_section(
        [system for system, _ in pairs],
        name,
        curves,
        cross_entropies or convergence.chosen_values(curves),
        [system.name for system, folder in pairs if other_vocabularies(run, folder)],
    )


def seeds_section(
    run: RunFolder, compared: Sequence[System], candidates: Sequence[Candidate]
) -> Iterator[Section]:
    """Yields what the seed changes, if later runs have all settings of the main run but the seeds.

    Args:
      run: the main run.
      compared: the main run and the candidates, as systems.
      candidates: the other systems.
    """
    settings = _settings_without_seeds(run)
    again = [
        system
        for system, candidate in zip(compared[1:], candidates, strict=True)
        if candidate.run
        and _settings_without_seeds(candidate.run) == settings
        and _seeds(candidate.run) != _seeds(run)
    ]
    if not again:
        return
    twins = [compared[0], *again]
    everywhere = common_directions(twins)
    averages = [system.average(everywhere) for system in twins]
    data: dict[str, Any] = {"runs": [system.name for system in twins]}
    words = []
    for key, title, form in (("bleu", "BLEU", ".1f"), ("delta_bleu", "gain", "+.1f")):
        values = [average[key] for average in averages]
        if None in values:
            continue
        interval = significance.interval_of_mean(values)
        data |= rounded({key: mean(values), f"{key}_ci95": interval})
        bounds = f" ({interval[0]:{form}} to {interval[1]:{form}})" if interval else ""
        each = ", ".join(f"{value:{form}}" for value in values)
        words.append(f"{title} {each}, on average {mean(values):{form}}{bounds}")
    note = (
        f"{len(twins)} runs differ only in their seeds: {'; '.join(words)}. An interval here covers the "
        "seeds alone, and three runs are the fewest that have one."
    )
    yield Section("seeds", "Seeds", f"<p>{html.escape(note)}</p>", data, notes=(note,))


def _settings_without_seeds(run: RunFolder) -> tuple[Any, ...]:
    config = read_run_config(run.config)
    data, train = (dataclasses.replace(part, seed=0) for part in (config.data, config.train))
    return config.model, config.optimizer, data, train, fingerprints_of(run)


def _seeds(run: RunFolder) -> tuple[int, int]:
    config = read_run_config(run.config)
    return config.data.seed, config.train.seed


def cautions(
    run: RunFolder,
    candidates: Sequence[Candidate],
    pairs: Pairs,
    bleu_signature: str,
) -> Iterator[Caution]:
    """Yields what a reader must know before comparing systems with the main run.

    Args:
      run: the main run.
      candidates: the other systems.
      pairs: the pairs of the corpus that is evaluated, by language.
      bleu_signature: the signature of the main run's BLEU.
    """
    for candidate in candidates:
        if isinstance(candidate.source, Published):
            yield from _cautions_of_scores(candidate.name, candidate.source, bleu_signature)
        else:
            yield from _cautions_of_run(run, candidate.name, candidate.source, pairs)


def other_vocabularies(run: RunFolder, other: RunFolder) -> list[str]:
    """Returns the names of the vocabularies that differ between two runs."""
    files, other_files = run.identity(), other.identity()
    return [name for name in VOCABULARIES if files[name] != other_files[name]]


def _cautions_of_run(
    run: RunFolder, name: str, other: RunFolder, pairs: Pairs
) -> Iterator[Caution]:
    if changed := other_vocabularies(run, other):
        yield Caution(
            f"vocabulary of {name}",
            f"{name} has other vocabularies than the main run ({', '.join(changed)}). BLEU can be "
            "compared; cross-entropies and numbers of tokens cannot.",
            is_alarm=True,
        )
    if fingerprints_of(run) == fingerprints_of(other):
        return
    # The fingerprint depends on the languages too. The same corpus may have been used all the same.
    origins = [origin(each, pairs) for each in (run, other)]
    verdicts, missing = ([o.is_same for o in origins], [o.missing for o in origins])
    if verdicts == [True, True] and not any(missing):
        return
    known = None not in verdicts and (False in verdicts or missing[0] != missing[1])
    yield Caution(
        f"training text of {name}",
        f"{name} was {'' if known else 'perhaps '}trained on other text than the main run: the "
        f"fingerprints of the corpora are {_fingerprints(other)} and "
        f"{_fingerprints(run)}. The scores compare the models together with their text.",
        is_alarm=True,
    )


def _fingerprints(run: RunFolder) -> str:
    """Returns the fingerprint of the main corpus of a run, and in brackets those of its subsets."""
    main, *subsets = (f"{name} {digits}".strip() for name, digits in fingerprints_of(run).items())
    return f"{main} ({', '.join(subsets)})" if subsets else main


def _cautions_of_scores(name: str, scores: Published, bleu_signature: str) -> Iterator[Caution]:
    if not scores.text_digests:
        yield Caution(
            f"test text of {name}",
            f"{scores.file} does not say on which text its scores were measured; nothing could be checked"
            + (" but the number of sentences." if scores.sentences else "."),
        )
    if scores.signature and scores.signature != bleu_signature:
        yield Caution(
            f"signature of {name}",
            f"the BLEU of {name} has the signature {scores.signature}, and that of the main "
            f"run has {bleu_signature}. The scores may differ for this reason alone.",
            is_alarm=True,
        )


def _published_result(test: TestSet, scores: Published, main: DirectionResult) -> DirectionResult:
    score = scores.bleu[key_of(scores.bleu, test)]
    return dataclasses.replace(
        main,
        counts=None,
        bleu=score,
        chrf=None,
        sentences=scores.sentences.get(key_of(scores.sentences, test)),
        delta_ci95=None,
        difference=score - main.bleu,
        difference_ci95=None,
        difference_p=None,
        difference_adjusted_p=None,
        text_digest=scores.text_digests.get(key_of(scores.text_digests, test), ""),
    )


def _system_of(
    candidate: Candidate, main: System, own_lines: Mapping[Direction, Sequence[str]]
) -> System:
    """Scores a candidate and compares it with the main run and the baselines."""
    of_main = main.by_direction()
    source = candidate.source
    if isinstance(source, Published):
        results = [
            _published_result(test, source, of_main[test.source, test.target])
            for test in candidate.tests
        ]
        return System(candidate.name, results, None, source.budget)
    results = []
    for test in candidate.tests:
        direction = test.source, test.target
        own, reference = own_lines[direction], test.all_references
        score = metrics.scores(own, reference, test.target)
        of_test = cast(Counts, of_main[direction].counts)
        others = {**of_test.others, "difference": of_test.own}
        counts = Counts(
            of_test.groups, significance.statistics(own, reference, test.target), others
        )
        compared = {
            name: significance.compare_statistics(counts.own, other)
            for name, other in others.items()
        }
        difference = compared["difference"]
        results.append(
            dataclasses.replace(
                of_main[direction],
                bleu=score["bleu"].value,
                chrf=score["chrf"].value,
                delta_ci95=compared["delta"].interval if "delta" in compared else None,
                counts=counts,
                difference=score["bleu"].value - of_main[direction].bleu,
                difference_ci95=difference.interval,
                difference_p=difference.p_value,
            )
        )
    results = differences.adjusted(results)
    return System(candidate.name, results, str(source.path), budget_of(source))
