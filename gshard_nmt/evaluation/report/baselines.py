"""The bilingual baselines of a report: how large each was, why its training ended, and which are missing.

A gain over a baseline says little without this. `run/baselines.py` says what the records have.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.systems import System, Systems
from gshard_nmt.quantities import duration_text
from gshard_nmt.run.baselines import read_record

_ENDINGS = {
    "patience": "dev BLEU did not improve",
    "tokens": "limit of tokens",
    "steps": "limit of steps",
}
_COLUMNS = (
    *("language", "size", "weights", "dropout", "vocabulary", "tokens", "steps", "training"),
    *("dev BLEU", "ended by"),
)
_IN_JSON = (
    *("language", "kind", "size", "weights", "dropout", "vocabulary", "tokens", "steps"),
    *("seconds", "dev_bleu", "ended"),
)

Records = Mapping[str, Mapping[str, Any]]
"""The record of the training of each baseline, by language; some have none."""


def records_of(baselines: Sequence[System]) -> dict[str, dict[str, Any]]:
    runs = {each.name: each.run.path for each in baselines if each.run}
    return {language: record for language, path in runs.items() if (record := read_record(path))}


def kind_text(records: Records, languages: int) -> str:
    """Returns a sentence that says what kind of baselines these are; `languages` is their number."""
    if not records:
        return "It is not recorded how the baselines were trained."
    parts = []
    searched = [record for record in records.values() if record["kind"] == "converged"]
    if searched:
        ended = sum(record["ended"] == "patience" for record in searched)
        parts.append(
            f"{ended} of {languages} baselines were trained until dev BLEU did not improve"
        )
        if ended < len(searched):
            parts.append(f"{len(searched) - ended} ended at a limit before")
    if budgets := [record for record in records.values() if record["kind"] != "converged"]:
        same = sum(record["ended"] == "tokens" for record in budgets)
        parts.append(
            f"{same} of {languages} baselines saw as many tokens of their language as the multilingual "
            "model had when they were trained, and are not converged"
        )
        if same < len(budgets):
            parts.append(f"{len(budgets) - same} ended before they had seen as many")
    if missing := languages - len(records):
        parts.append(f"of {missing} it is not recorded how they were trained")
    return "; ".join(parts) + "."


def not_converged(records: Records) -> list[str]:
    """Returns the languages whose baseline ended for another reason than that it did not improve."""
    return [name for name, record in records.items() if record["ended"] != "patience"]


def caution(records: Records, languages: int) -> str:
    """Returns a sentence for the headline about baselines that are not converged; "" without any."""
    number = len(not_converged(records))
    if not number:
        return ""
    return (
        f"{number} of {languages} baselines are not converged, so the gains over them are larger than "
        "over well-trained ones."
    )


def budget_facts(systems: Systems, records: Records) -> Iterator[tuple[str, str]]:
    def total(budgets: Sequence[Mapping[str, Any]]) -> str:
        tokens = sum(sum(budget["tokens_by_language"].values()) for budget in budgets)
        return f"{tokens:,} tokens"

    if systems.main.run and (budget := systems.main.run.budget()):
        yield (
            "multilingual model",
            f"{budget['parameters']:,} parameters, {budget['steps']:,} steps, {total([budget])}, "
            f"{budget['seconds']:.0f} s",
        )
    runs = [each.run for each in systems.baselines if each.run]
    if budgets := [budget for run in runs if (budget := run.budget())]:
        sizes = sorted({budget["parameters"] for budget in budgets})
        size = " to ".join(f"{parameters:,}" for parameters in dict.fromkeys((sizes[0], sizes[-1])))
        yield (
            "baselines",
            f"{len(budgets)} bilingual models of {size} parameters each; {total(budgets)} in total; "
            f"{sum(b['seconds'] for b in budgets):.0f} s in total. {kind_text(records, len(runs))}",
        )


def baselines_section(records: Records, languages: int) -> Section | None:
    """Returns the table of the baselines; None if none has a record."""
    if not records:
        return None
    kind = kind_text(records, languages)
    rows = [_row(language, record) for language, record in records.items()]
    content = (
        f"<p>{html.escape(kind)} A model with the vocabulary “shared” uses the vocabularies that were "
        f"learned from several languages.</p>\n{web_page.table(_COLUMNS, rows)}"
    )
    data = [{name: record.get(name) for name in _IN_JSON} for record in records.values()]
    return Section("baselines", "Baselines", content, {"kind": kind, "languages": data})


def _row(language: str, record: Mapping[str, Any]) -> Sequence[str]:
    dropout, score = record.get("dropout"), record.get("dev_bleu")
    return [
        language,
        record["size"],
        f"{record['weights']:,}",
        "of the config" if dropout is None else f"{dropout:g}",
        record["vocabulary"],
        f"{record['tokens']:,}",
        f"{record['steps']:,}",
        duration_text(record["seconds"]),
        "" if score is None else f"{score:.1f}",
        _ENDINGS.get(record["ended"], record["ended"]),
    ]


def alarms(systems: Systems) -> Iterator[str]:
    known = {test.direction_name for each in systems.baselines for test in each.tests}
    names = (test.direction_name for test in systems.main.tests)
    if systems.baselines and (missing := [name for name in names if name not in known]):
        yield (
            f"There is no baseline of {', '.join(missing)}; the mean gain is over the other directions."
        )
