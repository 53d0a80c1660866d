"""Scores the translations of all systems, and compares them."""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence

from gshard_nmt.evaluation.metrics import metrics, significance
from gshard_nmt.evaluation.metrics.metrics import Measures
from gshard_nmt.evaluation.metrics.significance import Comparison
from gshard_nmt.evaluation.systems.systems import (
    Direction,
    Result,
    System,
    Systems,
    key_of,
    text_digest,
)
from gshard_nmt.evaluation.texts.translations import TestSet


def scored(
    systems: Systems, measures: Measures | None = None, advance: Callable[[], None] = lambda: None
) -> Systems:
    """Returns the systems with their scores and comparisons.

    The metrics are those of the main run; the others have BLEU and chrF. `advance` is called after each
    test set of the main run.
    """
    baselines = [_scored(each) for each in systems.baselines]
    known = {r.direction: r for each in baselines for r in each.results}
    main = _scored(systems.main, measures, known, advance=advance)
    of_main = main.by_direction()
    others = [_scored(each, baselines=known, main=of_main) for each in systems.others]
    return Systems(main, others, baselines)


def score_files(systems: Systems, measures: Measures) -> Systems:
    """Returns systems of one direction with their scores: all of them are one family of tests."""
    main = _scored(systems.main, measures)
    others = [_scored(each, measures, main=main.by_direction()) for each in systems.others]
    results = adjusted([result for system in others for result in system.results])
    others = [
        dataclasses.replace(system, results=[result])
        for system, result in zip(others, results, strict=True)
    ]
    return Systems(main, others)


def _scored(
    system: System,
    measures: Measures | None = None,
    baselines: Mapping[Direction, Result] = types.MappingProxyType({}),
    main: Mapping[Direction, Result] = types.MappingProxyType({}),
    advance: Callable[[], None] = lambda: None,
) -> System:
    results = []
    tokens = system.run.budget().get("tokens_by_language", {}) if system.run else {}
    for test in system.tests:
        direction = test.source, test.target
        baseline, of_main = baselines.get(direction), main.get(direction)
        if scores := system.published:
            result = Result(
                test,
                scores.bleu[key_of(scores.bleu, test)],
                sentences=scores.sentences.get(key_of(scores.sentences, test)),
                text_digest=scores.text_digests.get(key_of(scores.text_digests, test), ""),
                baseline=baseline,
                main=of_main,
            )
        else:
            result = score_lines(test, system.lines[direction], measures, baseline, of_main)
        results.append(dataclasses.replace(result, tokens=tokens.get(test.language)))
        advance()
    return dataclasses.replace(system, results=adjusted(results))


def score_lines(
    test: TestSet,
    lines: Sequence[str],
    measures: Measures | None = None,
    baseline: Result | None = None,
    main: Result | None = None,
) -> Result:
    """Scores the translations of a test set, and compares them with those of other systems."""
    references = test.all_references
    scores = metrics.scores(lines, references, test.target, measures, test.sources or None)
    statistics = {
        key: significance.statistics(lines, references, test.target, key)
        for key in significance.SCORES
    }

    def compared(other: Result | None, keys: Sequence[str]) -> dict[str, Comparison]:
        if other is None or not other.statistics:
            return {}
        return {
            key: significance.compare_statistics(statistics[key], other.statistics[key], key)
            for key in keys
        }

    return Result(
        test,
        scores["bleu"].value,
        scores["chrf"].value,
        len(lines),
        lines,
        scores,
        statistics,
        text_digest(test),
        baseline=baseline,
        gains=compared(baseline, ("bleu",) if main else ("bleu", "chrf")),
        main=main,
        comparison=compared(main, ("bleu",)).get("bleu"),
    )


def adjusted(results: Sequence[Result]) -> list[Result]:
    """Returns results with adjusted p-values of their comparisons, which are one family."""
    known = [result.comparison.p_value for result in results if result.comparison]
    values = iter(significance.adjusted_p_values(known))
    return [
        dataclasses.replace(result, adjusted_p=next(values)) if result.comparison else result
        for result in results
    ]
