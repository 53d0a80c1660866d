"""Which differences between the systems of a report are significant: the section, and its p-values."""

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

from gshard_nmt import web_page
from gshard_nmt.evaluation.metrics import significance
from gshard_nmt.evaluation.report import studies
from gshard_nmt.evaluation.report.report import Section, interval_text
from gshard_nmt.evaluation.systems.systems import DirectionResult, System, ordered_directions

_HEADS = ("direction", "difference in BLEU", "95 % interval", "p", "adjusted p", "significant")


def adjusted(results: Sequence[DirectionResult]) -> list[DirectionResult]:
    """Returns the results of a system with adjusted p-values: one family is all its directions."""
    known = [result.difference_p for result in results if result.difference_p is not None]
    values = iter(significance.adjusted_p_values(known))
    return [
        result
        if result.difference_p is None
        else dataclasses.replace(result, difference_adjusted_p=next(values))
        for result in results
    ]


def sections(systems: Sequence[System]) -> list[Section]:
    """Returns the section that compares each later run with the main run; [] if there is none.

    Published scores have no translations, so their differences have no p-values.

    Args:
      systems: those of the report, the main run first.
    """
    main, *others = systems
    compared = [system for system in others if _has_p_values(system)]
    if not compared:
        return []
    notes = [_summary(system, main) for system in compared]
    parts = [
        "<p>Each run is compared with "
        f"{html.escape(main.name)} by {significance.METHOD} with {significance.RESAMPLES:,} draws; the "
        "intervals come from the paired bootstrap. The p-values of the directions of a run are adjusted "
        "together: "
        f"at most {studies.RATE:.0%} of the differences that are called significant are expected to be "
        "chance (Benjamini and Hochberg).</p>"
    ]
    for system, note in zip(compared, notes, strict=True):
        parts += [
            f"<h3>{html.escape(system.name)}</h3>",
            f"<p>{html.escape(note)}</p>",
            web_page.table(_HEADS, [_cells(result) for result in ordered_directions([system])]),
        ]
    title = "Which differences between systems are significant"
    data = {system.name: _counts(system) for system in compared}
    return [Section("differences", title, "\n".join(parts), data, notes=tuple(notes))]


def _has_p_values(system: System) -> bool:
    return any(result.difference_p is not None for result in system.results)


def _is_significant(result: DirectionResult) -> bool:
    return result.difference_adjusted_p is not None and (
        result.difference_adjusted_p <= studies.RATE
    )


def _counts(system: System) -> dict[str, Any]:
    significant = [result for result in system.results if _is_significant(result)]
    return {
        "directions": len(system.results),
        "better": sum(result.difference > 0 for result in significant),
        "worse": sum(result.difference < 0 for result in significant),
        "false_discovery_rate": studies.RATE,
    }


def _summary(system: System, main: System) -> str:
    counts, average = _counts(system), system.average()
    interval = interval_text(average["difference_ci95"])
    mean = f"{average['difference']:+.1f} BLEU" + (f" ({interval})" if interval else "")
    return (
        f"{system.name}: {mean} on average compared with {main.name}; significantly better in "
        f"{counts['better']} of {counts['directions']} directions, and significantly worse in "
        f"{counts['worse']} ({significance.METHOD}, false discovery rate {studies.RATE:.0%})."
    )


def _cells(result: DirectionResult) -> list[str]:
    name = "-".join(result.direction)
    if result.difference_ci95 is None or result.difference_p is None:
        return [name, f"{result.difference:+.1f}", "", "", "", ""]
    low, high = result.difference_ci95
    return [
        *(name, f"{result.difference:+.1f}", f"{low:+.1f} to {high:+.1f}"),
        *(f"{result.difference_p:.4f}", f"{result.difference_adjusted_p:.4f}"),
        "yes" if _is_significant(result) else "no",
    ]
