"""The section of a report about its bilingual baselines: how large each was, and why its training ended.

A gain over a baseline says little without this. `run/baselines.py` says what the records have.
"""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import web_page
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.quantities import duration_text
from gshard_nmt.run.baselines import read_record

TITLE = "Baselines"
_ENDINGS = {
    "patience": "dev BLEU did not improve",
    "tokens": "limit of tokens",
    "steps": "limit of steps",
    "minutes": "limit of minutes",
}
_COLUMNS = (
    *("language", "size", "weights", "dropout", "vocabulary", "tokens", "steps", "training"),
    *("dev BLEU", "ended by"),
)


def read(runs: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Returns the record of each baseline, by language; a run folder without one is left out.

    Args:
      runs: the run folder of each language.
    """
    records = {language: read_record(folder) for language, folder in runs.items()}
    return {language: record for language, record in records.items() if record}


def kind_text(records: Mapping[str, Mapping[str, Any]], languages: int) -> str:
    """Returns a sentence that says what kind of baselines these are.

    Args:
      records: the record of each baseline that has one.
      languages: the number of baselines.
    """
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
    if budgets := len(records) - len(searched):
        parts.append(
            f"{budgets} of {languages} baselines saw the same number of tokens of their language as the "
            "multilingual model, and are not converged"
        )
    if missing := languages - len(records):
        parts.append(f"of {missing} it is not recorded how they were trained")
    return "; ".join(parts) + "."


def not_converged(runs: Mapping[str, Path]) -> list[str]:
    """Returns the languages whose baseline ended for another reason than that it did not improve."""
    return [language for language, record in read(runs).items() if record["ended"] != "patience"]


def caution(runs: Mapping[str, Path]) -> str:
    """Returns a sentence for the headline about baselines that are not converged; "" without any."""
    languages = not_converged(runs)
    if not languages:
        return ""
    return (
        f"{len(languages)} of {len(runs)} baselines are not converged, so the gains over them are larger "
        "than over well-trained ones."
    )


def section(runs: Mapping[str, Path]) -> Section | None:
    """Returns the section about baselines; None if no baseline has a record.

    Args:
      runs: the run folder of each language.
    """
    records = read(runs)
    if not records:
        return None
    kind = kind_text(records, len(runs))
    rows = [_row(language, record) for language, record in records.items()]
    content = (
        f"<p>{html.escape(kind)} A model with the vocabulary “shared” uses the vocabularies that were "
        f"learned from several languages.</p>\n{web_page.table(_COLUMNS, rows)}"
    )
    data = {
        "kind": kind,
        "languages": [
            {name: record.get(name) for name in _IN_JSON} for language, record in records.items()
        ],
    }
    return Section("baselines", TITLE, content, data)


_IN_JSON = (
    *("language", "kind", "size", "weights", "dropout", "vocabulary", "tokens", "steps", "seconds"),
    *("dev_bleu", "ended"),
)


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
